//! Follows the frames of an HTTP/2 connection, which h2 does not report: whether a head is arriving,
//! and which responses were written to the end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::clock;
use crate::sync::lock;

/// Sent by the client before its first frame.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// What the frames of a connection say.
#[derive(Default)]
pub(super) struct Wire(Mutex<State>);

#[derive(Default)]
struct State {
    /// Since when a request's head has been arriving.
    head_since: Option<clock::Instant>,
    /// When the last frame arrived, or a part of it.
    read_at: Option<clock::Instant>,
    /// Streams whose end is waited for.
    awaited: Vec<(u32, oneshot::Sender<()>)>,
    /// Those of them whose end is written, but not flushed.
    written: Vec<oneshot::Sender<()>>,
}

impl Wire {
    pub(super) fn head_since(&self) -> Option<clock::Instant> {
        lock(&self.0).head_since
    }

    /// Returns when the client last sent anything.
    pub(super) fn read_at(&self) -> Option<clock::Instant> {
        lock(&self.0).read_at
    }

    /// Returns a future that ends when the kernel has the last byte of this stream's response. It
    /// fails if the connection ends before.
    pub(super) fn end_of(&self, stream: u32) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let awaited = &mut lock(&self.0).awaited;
        // A stream that was reset has no end.
        awaited.retain(|(_, sender)| !sender.is_closed());
        awaited.push((stream, sender));
        receiver
    }

    /// Forgets everything that was waited for.
    pub(super) fn close(&self) {
        *lock(&self.0) = State::default();
    }

    fn has_read(&self, frame: Frame, is_complete: bool) {
        let (mut state, now) = (lock(&self.0), clock::now());
        state.read_at = Some(now);
        match (frame.kind, is_complete) {
            (HEADERS, false) => state.head_since = Some(now),
            (HEADERS | CONTINUATION, true) if frame.flags & END_HEADERS != 0 => {
                state.head_since = None;
            }
            _ => {}
        }
    }

    fn has_written(&self, frame: Frame) {
        if matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0 {
            let mut state = lock(&self.0);
            let place = state.awaited.iter().position(|(stream, _)| *stream == frame.stream);
            if let Some(place) = place {
                let (_, sender) = state.awaited.swap_remove(place);
                state.written.push(sender);
            }
        }
    }

    fn has_flushed(&self) {
        for sender in lock(&self.0).written.drain(..) {
            // The receiver may be gone.
            sender.send(()).ok();
        }
    }
}

#[derive(Clone, Copy)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
}

/// Finds the frames in a sequence of bytes.
struct Frames {
    /// Bytes to skip: the preface, or the rest of a frame.
    skip: usize,
    head: [u8; FRAME_HEAD],
    filled: usize,
}

impl Frames {
    fn after(skip: usize) -> Self {
        Self { skip, head: [0; FRAME_HEAD], filled: 0 }
    }

    /// Calls `see` when a frame's head is known, and again, with `true`, at the frame's end.
    fn feed(&mut self, mut bytes: &[u8], mut see: impl FnMut(Frame, bool)) {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                (self.skip, bytes) = (self.skip - skipped, &bytes[skipped..]);
            } else {
                let part = (FRAME_HEAD - self.filled).min(bytes.len());
                self.head[self.filled..self.filled + part].copy_from_slice(&bytes[..part]);
                (self.filled, bytes) = (self.filled + part, &bytes[part..]);
                if self.filled == FRAME_HEAD {
                    let [a, b, c, ..] = self.head;
                    self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                    see(self.frame(), false);
                }
            }
            if self.filled == FRAME_HEAD && self.skip == 0 {
                see(self.frame(), true);
                self.filled = 0;
            }
        }
    }

    fn frame(&self) -> Frame {
        let [_, _, _, kind, flags, a, b, c, d] = self.head;
        Frame { kind, flags, stream: u32::from_be_bytes([a & 0x7f, b, c, d]) }
    }
}

/// A connection whose frames are followed.
pub(super) struct FollowedIo<T> {
    io: T,
    wire: Arc<Wire>,
    read: Frames,
    written: Frames,
}

impl<T> FollowedIo<T> {
    pub(super) fn new(io: T, wire: Arc<Wire>) -> Self {
        Self { io, wire, read: Frames::after(PREFACE), written: Frames::after(0) }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for FollowedIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { io, wire, read, .. } = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(io).poll_read(cx, buffer))?;
        read.feed(&buffer.filled()[before..], |frame, is_end| wire.has_read(frame, is_end));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for FollowedIo<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { io, wire, written, .. } = self.get_mut();
        let count = ready!(Pin::new(io).poll_write_vectored(cx, parts))?;
        let mut left = count;
        for part in parts {
            let taken = left.min(part.len());
            written.feed(&part[..taken], |frame, is_end| {
                if is_end {
                    wire.has_written(frame);
                }
            });
            left -= taken;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, wire, .. } = self.get_mut();
        ready!(Pin::new(io).poll_flush(cx))?;
        wire.has_flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
