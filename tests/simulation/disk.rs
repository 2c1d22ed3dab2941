//! The store as a process sees it: a real one with delays and failures that the seed chooses.
//! A dead process cannot reach it.

mod verbs;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tollgate::clock;
use tollgate::ledger::{Clock, PurchaseId, PurchaseRecord, Store, StoreCapacity, Unavailable};

use crate::clients::number;
use crate::dice::fixed;
use crate::world::World;

thread_local! {
    /// A store in memory, used for one seed after the other, and its wall clock.
    static MEMORY: RefCell<Option<(Store, Arc<AtomicU64>)>> = const { RefCell::new(None) };
}

/// What remains of a dead process.
pub(crate) struct Platter {
    store: Option<Store>,
    file: Option<PathBuf>,
    /// The wall clock of the store, which may run on its own thread.
    wall: Arc<AtomicU64>,
}

impl Platter {
    pub(crate) fn in_memory() -> Self {
        let new = || {
            let wall = Arc::default();
            (Store::in_memory_with_capacity(clock_at(&wall), StoreCapacity::default()), wall)
        };
        let (store, wall) = MEMORY.with_borrow_mut(|kept| kept.get_or_insert_with(new).clone());
        finish(store.clear()).expect("it is empty");
        Self { store: Some(store), file: None, wall }
    }

    pub(crate) fn on_disk(folder: &Path) -> Self {
        let file = Some(folder.join("ledger.db"));
        Self { store: None, file, wall: Arc::default() }
    }

    /// Opens the store for a new process, and ends what a crash interrupted.
    pub(crate) fn open(&mut self, wall: Duration) {
        self.wind(wall);
        match &self.file {
            Some(file) => {
                self.store = None;
                let opened =
                    Store::serve_inline(file, clock_at(&self.wall), StoreCapacity::default());
                self.store = Some(opened.expect("the ledger opens again"));
            }
            None => finish(self.store().recover()).expect("recovered"),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        self.store.as_ref().expect("it is open")
    }

    pub(crate) fn rows(&self) -> Vec<PurchaseRecord> {
        finish(self.store().purchases_since(Duration::ZERO)).expect("rows")
    }

    pub(crate) fn wind(&self, wall: Duration) {
        let nanos = u64::try_from(wall.as_nanos()).expect("a time of ours");
        self.wall.store(nanos, Ordering::SeqCst);
    }
}

impl Drop for Platter {
    /// Leaves nothing for the end of the thread to write: by then, tokio's clock is gone.
    fn drop(&mut self) {
        if self.file.is_none() && !thread::panicking() {
            finish(self.store().clear()).expect("it is empty");
        }
    }
}

fn clock_at(wall: &Arc<AtomicU64>) -> Clock {
    let wall = Arc::clone(wall);
    Arc::new(move || Duration::from_nanos(wall.load(Ordering::SeqCst)))
}

/// The operations of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Reserve,
    Sent,
    Settle,
    Took,
}

/// A process's handle of the store.
#[derive(Clone)]
pub(crate) struct Disk(Arc<Handle>);

struct Handle {
    platter: Arc<Platter>,
    world: World,
    is_alive: AtomicBool,
    seed: u64,
    is_slow: bool,
    times: Mutex<BTreeMap<(PurchaseId, Step), u64>>,
}

impl Disk {
    pub(crate) fn new(platter: Arc<Platter>, world: World, seed: u64, is_slow: bool) -> Self {
        let (is_alive, times) = (AtomicBool::new(true), Mutex::default());
        Self(Arc::new(Handle { platter, world, is_alive, seed, is_slow, times }))
    }

    /// Cuts this process off from the store.
    pub(crate) fn die(&self) {
        self.0.is_alive.store(false, Ordering::SeqCst);
    }

    /// Returns the store for this process's gate.
    pub(crate) fn tapped(&self) -> Store {
        self.0.platter.store().with_hook(Arc::new(self.clone()))
    }

    pub(super) fn is_alive(&self) -> bool {
        self.0.is_alive.load(Ordering::SeqCst)
    }

    pub(super) fn world(&self) -> &World {
        &self.0.world
    }

    /// Returns the real store, which answers at once.
    pub(super) fn store(&self) -> &Store {
        self.wind();
        self.0.platter.store()
    }

    /// Fails the operations that the seed chooses.
    pub(super) fn count(&self, step: Step, id: Option<PurchaseId>) -> Result<(), Unavailable> {
        let mut state = self.world().lock();
        state.operations += 1;
        let (from, to) = state.refused;
        if !(from..to).contains(&state.operations) {
            return Ok(());
        }
        let operation = state.operations;
        state.note(|| format!("store refuses {step:?} {operation}"));
        if step == Step::Settle
            && let Some(entry) = id.and_then(|id| state.books.entries.get_mut(&id))
        {
            entry.was_refused = true;
        }
        state.tally.add(match step {
            Step::Reserve => "store refuses reserve",
            Step::Sent => "store refuses sent",
            Step::Settle => "store refuses settle",
            Step::Took => "store refuses the window's place",
        });
        Err(Unavailable("the disk is full".into()))
    }

    /// Returns the delay of an operation. It depends on the seed and the purchase alone.
    ///
    /// The runtime chooses which waiter of a purchase wakes first, so repeats of a reservation have
    /// delays of their own: that choice must not matter.
    pub(super) fn pace(&self, step: Step, id: Option<PurchaseId>) -> Duration {
        let Some(id) = id else { return Duration::ZERO };
        let mut times = self.0.times.lock().expect("the times");
        let time = *times.entry((id, step)).and_modify(|time| *time += 1).or_default();
        match step == Step::Reserve && time > 0 {
            true => Duration::from_millis(1 + number(id) as u64 % 97),
            false => Duration::from_millis(self.draw(step, id, time) % 5),
        }
    }

    /// Returns the delay of the answer to this step.
    pub(super) fn pace_after(&self, step: Step, id: Option<PurchaseId>) -> Duration {
        let Some(id) = id else { return Duration::ZERO };
        let time = self.0.times.lock().expect("the times").get(&(id, step)).copied();
        Duration::from_millis(self.draw(step, id, time.unwrap_or_default()) / 5 % 5)
    }

    fn draw(&self, step: Step, id: PurchaseId, time: u64) -> u64 {
        match self.0.is_slow {
            true => fixed(&[self.0.seed, number(id) as u64, step as u64, time]),
            false => 0,
        }
    }

    pub(super) fn wind(&self) {
        self.0.platter.wind(clock::wall());
    }
}

pub(super) async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

/// Blocks this thread, which takes no time on the paused runtime.
pub(crate) fn finish<T>(answer: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut answer = pin!(answer);
    loop {
        match answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answered) => return answered,
            Poll::Pending => thread::park(),
        }
    }
}
