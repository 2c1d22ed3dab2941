//! A video on its way to a caller: it ends when its source falls silent, and when the server stops.

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
pub(super) struct Transfer<B, P = Seat> {
    inner: Pin<Box<B>>,
    silence: Pin<Box<Sleep>>,
    is_waiting: bool,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: P,
}

/// Why the rest of it does not come; the caller may ask for that by its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cut {
    #[error("the source fell silent")]
    Silent,
    #[error("the server stops")]
    Stopped,
}

impl<B, P> Transfer<B, P> {
    /// `place` is given back when it ends.
    pub(super) fn new(inner: B, place: P, stop: CancellationToken) -> Self {
        Self {
            inner: Box::pin(inner),
            silence: Box::pin(sleep(SILENCE)),
            is_waiting: false,
            stop: Box::pin(stop.cancelled_owned()),
            _place: place,
        }
    }
}

impl<B, P> Body for Transfer<B, P>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
    P: Unpin,
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
        if let Poll::Ready(frame) = self.inner.as_mut().poll_frame(cx) {
            self.is_waiting = false;
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

impl<B, P> fmt::Debug for Transfer<B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("is_waiting", &self.is_waiting).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;
    use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
    use tokio::time::timeout;

    use super::*;

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
        transfer: Transfer<Pieces, OwnedSemaphorePermit>,
        places: Arc<Semaphore>,
        stop: CancellationToken,
    }

    fn fake() -> Fake {
        let (source, pieces) = mpsc::channel(8);
        let (places, stop) = (Arc::new(Semaphore::new(1)), CancellationToken::new());
        let place = Arc::clone(&places).try_acquire_owned().unwrap();
        let transfer = Transfer::new(Pieces(pieces), place, stop.clone());
        Fake { source, transfer, places, stop }
    }

    async fn cut<P: Unpin>(transfer: &mut Transfer<Pieces, P>) -> Cut {
        let error = transfer.frame().await.expect("not its end").expect_err("no piece");
        *error.downcast::<Cut>().expect("ours")
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_falls_silent_ends_it_and_a_caller_who_reads_slowly_does_not() {
        let Fake { source, mut transfer, places, .. } = fake();
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
        assert_eq!(places.available_permits(), 0);
        drop(transfer);
        assert_eq!(places.available_permits(), 1);
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
