//! Signals: they are heard from the first listener on, whatever the ledger does.

use std::time::Duration;
use std::{io, thread};

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Interval, interval, timeout};
use tracing::{error, warn};

use crate::app::TIDY_EVERY;

/// How long the ledger may take to close when nothing is under way any more.
const CLOSES_WITHIN: Duration = Duration::from_secs(5);

/// Tidies, reloads on SIGHUP, and returns at the first SIGTERM or SIGINT.
pub(super) async fn wait_for_the_end<A, T: Future<Output = ()> + Send + 'static>(
    mut app: A,
    tidy: impl Fn(&A) -> T,
    reload: impl Fn(A) -> A,
    signals: &mut Signals,
) {
    let mut tidying = Tidying::new();
    let Signals { hup, term, int } = signals;
    loop {
        tokio::select! {
            () = tidying.due() => tidying.begin(tidy(&app)),
            _ = hup.recv() => app = reload(app),
            _ = term.recv() => break,
            _ = int.recv() => break,
        }
    }
}

/// Tidies now and then, at most one at a time: a ledger that hangs keeps nothing else waiting.
struct Tidying {
    ticks: Interval,
    running: Option<JoinHandle<()>>,
}

impl Tidying {
    fn new() -> Self {
        Self { ticks: interval(TIDY_EVERY), running: None }
    }

    async fn due(&mut self) {
        self.ticks.tick().await;
    }

    fn begin(&mut self, tidy: impl Future<Output = ()> + Send + 'static) {
        if self.running.as_ref().is_none_or(JoinHandle::is_finished) {
            self.running = Some(tokio::spawn(tidy));
        }
    }
}

/// What a process can be told.
pub(super) struct Signals {
    hup: Signal,
    term: Signal,
    int: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            hup: signal(SignalKind::hangup())?,
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    /// Resolves at a SIGTERM or SIGINT.
    async fn end(&mut self) {
        tokio::select! { _ = self.term.recv() => {}, _ = self.int.recv() => {} }
    }

    /// Does this, or returns `None` at a SIGTERM or SIGINT.
    pub(super) async fn unless_ended<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! { biased; () = self.end() => None, done = work => Some(done) }
    }
}

/// A second signal means now; what is in flight then is an unknown outcome. On a thread of its own: a disk that
/// hangs may hold up everything else, and then the process ends without it when `drain` is over.
pub(super) fn watch_the_end(drain: Duration) {
    let watch = move || {
        let watching = async {
            let mut signals = Signals::new()?;
            Ok::<_, io::Error>(timeout(drain + CLOSES_WITHIN, signals.end()).await.is_ok())
        };
        let runtime = Builder::new_current_thread().enable_all().build();
        match runtime.and_then(|runtime| runtime.block_on(watching)) {
            Ok(true) => std::process::exit(1),
            Ok(false) => {
                error!("ledger not closed in time");
                std::process::exit(0)
            }
            Err(error) => warn!(%error, "second signal not heard"),
        }
    };
    if let Err(error) = thread::Builder::new().name("end".to_owned()).spawn(watch) {
        warn!(%error, "second signal not heard");
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tidy_that_never_ends_is_not_begun_twice_and_keeps_no_signal_waiting() {
        let mut signals = Signals::new().unwrap();
        let (begun, reloaded) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
        let tidy = |_: &()| {
            let begun = Arc::clone(&begun);
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                pending().await
            }
        };
        let reload = |()| {
            reloaded.fetch_add(1, Ordering::Relaxed);
            raise(Signal::SIGTERM).unwrap();
        };
        let told = async {
            tokio::time::sleep(TIDY_EVERY * 5).await;
            raise(Signal::SIGHUP).unwrap();
            pending::<()>().await
        };
        let ended = wait_for_the_end((), tidy, reload, &mut signals);
        tokio::select! {
            () = ended => {}
            () = told => {}
            () = tokio::time::sleep(TIDY_EVERY * 1_000) => panic!("it is deaf"),
        }
        let counts = (begun.load(Ordering::Relaxed), reloaded.load(Ordering::Relaxed));
        assert_eq!(counts, (1, 1));
    }
}
