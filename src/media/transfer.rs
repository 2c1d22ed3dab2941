//! A video on its way to a caller: it ends when its source falls silent, when a slow one makes room, and
//! when the server stops.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::answer::BoxError;
use crate::clock;
use crate::jobs::seats::Seat;

/// How long the source may be silent while somebody waits for its next piece.
const SILENCE: Duration = Duration::from_secs(30);

/// See the file's documentation.
pub(super) struct Transfer<B> {
    inner: Pin<Box<B>>,
    silence: Pin<Box<Sleep>>,
    is_waiting: bool,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    seat: Seat,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Why the rest of it does not come; the caller may ask for that by its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cut {
    #[error("the source fell silent")]
    Silent,
    #[error("the server stops")]
    Stopped,
    #[error("it was slow, and somebody else got its seat")]
    MadeRoom,
}

impl<B> Transfer<B> {
    /// `seat` is given back when it ends.
    pub(super) fn new(inner: B, seat: Seat, stop: CancellationToken) -> Self {
        Self {
            inner: Box::pin(inner),
            silence: Box::pin(sleep(SILENCE)),
            is_waiting: false,
            stop: Box::pin(stop.cancelled_owned()),
            cut: Box::pin(seat.cut()),
            seat,
        }
    }
}

impl<B> Body for Transfer<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(Cut::Stopped.into())));
        }
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(Cut::MadeRoom.into())));
        }
        if let Poll::Ready(frame) = self.inner.as_mut().poll_frame(cx) {
            self.is_waiting = false;
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            self.seat.moved(data.map_or(0, Bytes::len));
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        // A caller who reads slowly is not the source's silence.
        if !self.is_waiting {
            self.is_waiting = true;
            self.silence.as_mut().reset(clock::now() + SILENCE);
        }
        self.silence.as_mut().poll(cx).map(|()| Some(Err(Cut::Silent.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> fmt::Debug for Transfer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("is_waiting", &self.is_waiting).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::jobs::seats::{Seats, VIDEOS};
    use crate::store::Caller;

    /// Pieces as they are sent.
    struct Pieces(mpsc::Receiver<&'static str>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            let piece = |piece: &'static str| Ok(Frame::data(Bytes::from_static(piece.as_bytes())));
            self.0.poll_recv(cx).map(|next| next.map(piece))
        }
    }

    struct Fake {
        source: mpsc::Sender<&'static str>,
        transfer: Transfer<Pieces>,
        /// All are taken.
        seats: Seats,
        others: Vec<Seat>,
        stop: CancellationToken,
    }

    fn caller(last: u8) -> Caller {
        Caller::Address([192, 0, 2, last].into())
    }

    fn fake() -> Fake {
        let (source, pieces) = mpsc::channel(8);
        let (seats, stop) = (Seats::new(VIDEOS), CancellationToken::new());
        let seat = seats.take(&caller(0)).unwrap();
        // One has its seat alone, so it does not make room for others that have as many.
        let others = (1..64).map(|last| seats.take(&caller(last)).unwrap()).collect();
        let transfer = Transfer::new(Pieces(pieces), seat, stop.clone());
        Fake { source, transfer, seats, others, stop }
    }

    async fn cut(transfer: &mut Transfer<Pieces>) -> Cut {
        let error = transfer.frame().await.expect("not its end").expect_err("no piece");
        *error.downcast::<Cut>().expect("ours")
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_falls_silent_ends_it_and_a_caller_who_reads_slowly_does_not() {
        let Fake { source, mut transfer, seats, others, .. } = fake();
        source.send("a").await.unwrap();
        sleep(SILENCE * 2).await;
        for pause in [SILENCE / 2, SILENCE * 3] {
            assert!(transfer.frame().await.unwrap().is_ok());
            sleep(pause).await;
            source.send("b").await.unwrap();
        }
        assert!(transfer.frame().await.unwrap().is_ok());
        let since = clock::now();
        assert_eq!(cut(&mut transfer).await, Cut::Silent);
        assert_eq!(since.elapsed(), SILENCE);
        assert!(seats.take(&caller(1)).is_err(), "its seat is still taken");
        drop(transfer);
        assert!(seats.take(&caller(1)).is_ok());
        drop(others);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_transfer_is_cut_when_somebody_else_gets_its_seat() {
        let Fake { source, mut transfer, seats, others, .. } = fake();
        for _ in 0..6 {
            // The others are fast.
            others.iter().for_each(|seat| seat.moved(1 << 20));
            source.send("a").await.unwrap();
            assert!(transfer.frame().await.unwrap().is_ok());
            sleep(Duration::from_secs(1)).await;
        }
        let newcomer = seats.take(&caller(99)).expect("the slow one makes room");
        source.send("b").await.unwrap();
        assert_eq!(cut(&mut transfer).await, Cut::MadeRoom);
        drop(newcomer);
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_the_server_stops_and_at_its_own_end() {
        let Fake { source: _source, mut transfer, stop, .. } = fake();
        timeout(SILENCE / 2, transfer.frame()).await.expect_err("there is nothing yet");
        stop.cancel();
        assert_eq!(cut(&mut transfer).await, Cut::Stopped);
        let Fake { source, mut transfer, .. } = fake();
        drop(source);
        assert!(transfer.frame().await.is_none());
    }
}
