//! One process of the gate: the real stacks on a runtime whose time only the run advances.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tollgate::gate::problem::Problem;
use tollgate::gateway::rate_limit::RateLimit;
use tollgate::gateway::{Error, Gateway, GatewayCall, GatewayReply, GatewayRequest, KeyRing};
use tollgate::ledger::{self, AccountBinding, KeyId, PurchaseId, Settlement, Store};
use tollgate::metrics::Metrics;
use tollgate::purchase::idempotency::RunningPurchases;
use tollgate::purchase::{DedupeBy, PurchaseContext, PurchaseRequest, Purchases, Receipt};
use tollgate::video::JobRegistry;
use tollgate::{clock, gate::pipeline};
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use crate::clients::{Answer, Asked, Presence, Received, Wish, name};
use crate::disk::{Disk, Platter, finish};
use crate::setup::{ORDERS, callers};
use crate::transport::Line;
use crate::world::World;

static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(Arc::default);

pub(crate) struct Process {
    runtime: Runtime,
    world: World,
    disk: Disk,
    purchases: Purchases,
    gateway: BoxCloneSyncService<GatewayRequest, GatewayReply, Error>,
    pub(crate) window: Arc<RateLimit>,
    ledger: Store,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    clients: BTreeMap<usize, AbortHandle>,
}

/// How a client receives its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The longest wait.
    pub(crate) patience: Option<Duration>,
    /// Whether it reads the whole reply.
    pub(crate) takes_all: bool,
}

impl Process {
    /// Starts a process at this wall-clock time, with what the disk holds.
    pub(crate) fn start(world: &World, platter: &Arc<Platter>, wall: Duration) -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let setup = world.lock().setup.clone();
        let disk = Disk::new(Arc::clone(platter), world.clone(), setup.seed, setup.is_store_slow);
        let entered = runtime.enter();
        clock::set_wall(Some(wall));
        world.lock().time.begin();
        world.lock().balance_read_at = None;
        world.lock().life += 1;
        let shutdown = CancellationToken::new();
        let store = disk.tapped();
        let window = RateLimit::new(store.clone(), setup.window(), shutdown.clone());
        let ring = Arc::new(Mutex::new(KeyRing::new(setup.keys)));
        let gateway = pipeline::gateway(Gateway {
            key_ring: ring,
            rate_limit: Arc::clone(&window),
            max_wait: setup.max_wait,
            metrics: Arc::clone(&METRICS),
            client: Line { world: world.clone() },
        });
        let context = PurchaseContext {
            // Jobs are not polled.
            jobs: JobRegistry::new(store.clone(), runtime.handle().clone(), shutdown.clone()),
            ledger: store.clone(),
            rate_limit: Arc::clone(&window),
            binding: AccountBinding::trusted(),
            running: RunningPurchases::default(),
            keys: Arc::from([KeyId([1; 8]); 3]),
            terms: setup.terms(),
            metrics: Arc::clone(&METRICS),
            drain_expired: CancellationToken::new(),
        };
        let tasks = TaskTracker::new();
        let purchases = Purchases::new(context.clone(), gateway.clone(), tasks.clone());
        drop(entered);
        runtime.block_on(window.restore());
        Self {
            runtime,
            world: world.clone(),
            disk,
            purchases,
            gateway: BoxCloneSyncService::new(gateway),
            window,
            ledger: store,
            tasks,
            shutdown,
            clients: BTreeMap::new(),
        }
    }

    pub(crate) fn send(&mut self, client: usize, wish: Wish, manner: Manner) {
        let _entered = self.runtime.enter();
        let (claim, attempt) = match wish.claim {
            Asked::Key(key) => (DedupeBy::IdempotencyKey(format!("key-{key}").into()), None),
            Asked::Fingerprint { is_retry } => (DedupeBy::Fingerprint, is_retry.then_some(1)),
        };
        let caller = callers()[wish.caller].clone();
        let mut purchase = PurchaseRequest::new(caller, ORDERS[wish.order].clone(), claim);
        (purchase.id, purchase.attempt) = (name(client), attempt);
        let purchases = self.purchases.clone();
        let bought = async move { purchases.buy(purchase).await };
        let presence = Presence { world: self.world.clone(), client };
        let task = self.runtime.spawn(async move {
            let outcome = match manner.patience {
                Some(patience) => timeout(patience, bought).await,
                None => Ok(bought.await),
            };
            let mut state = presence.world.lock();
            let at = state.now();
            let Ok(outcome) = outcome else {
                state.tally.add("client's own timeout");
                return drop(state);
            };
            let (answer, delivery) = client_answer(outcome);
            state.clients.record_answer(client, Received { at, answer });
            if !manner.takes_all && delivery.is_some() {
                state.tally.add("client takes half of the reply");
            }
            drop(state);
            if let Some(delivery) = delivery.filter(|_| manner.takes_all) {
                delivery.record();
            }
        });
        self.clients.insert(client, task.abort_handle());
    }

    pub(crate) fn hang_up(&mut self, client: usize) {
        let _entered = self.runtime.enter();
        if let Some(client) = self.clients.remove(&client) {
            client.abort();
        }
    }

    /// Fetches the status of a job.
    pub(crate) fn poll_job(&self) {
        let ask = GatewayRequest::free(GatewayCall::VideoStatus {
            request_id: "job".into(),
            is_watched: true,
        });
        let asked = self.gateway.clone().oneshot(ask);
        self.runtime.spawn(asked);
    }

    /// The gateway reports the balance.
    pub(crate) fn learn_credit(&self) {
        let _entered = self.runtime.enter();
        let mark = finish(self.ledger.credit_watermark()).expect("the store is there");
        let credit = self.world.lock().gateway.credit;
        self.ledger.record_balance(mark, credit);
        let mut state = self.world.lock();
        state.balance_read_at = Some(state.now());
    }

    /// Resolves an unknown purchase.
    pub(crate) fn reconcile(&self, id: PurchaseId, ending: &Settlement) {
        let _entered = self.runtime.enter();
        self.disk.settle_now(id, ending, true).expect("the store is there");
    }

    /// Long after the last request, nothing is in flight and all slots are free.
    pub(crate) fn at_rest(&self) {
        let _entered = self.runtime.enter();
        let mut state = self.world.lock();
        let requests = state.setup.requests as usize;
        let (free, waiting) = (self.window.free_slots(), self.window.waiting_count());
        if (free, waiting) != (requests, 0) {
            state.broken(format!("{free} of {requests} places are free, {waiting} wait"));
        }
        let open = [ledger::PurchaseState::Held, ledger::PurchaseState::Sent];
        let left = state.books.entries.iter().find(|(_, entry)| open.contains(&entry.state));
        if let Some((id, entry)) = left.map(|(id, entry)| (*id, entry.clone())) {
            state.broken(format!("{id} is left under way: {entry:?}"));
        }
        if !self.tasks.is_empty() {
            state.broken("a purchase never ends");
        }
    }

    /// Advances the time and runs everything that is due.
    pub(crate) fn pass(&self, time: Duration) {
        self.runtime.block_on(async { sleep(time).await });
    }

    /// Runs this many rounds of tasks while no time passes.
    pub(crate) fn turn(&self, rounds: u64) {
        self.runtime.block_on(async {
            for _ in 0..rounds {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Runs a future in the process.
    pub(crate) fn within<T>(&self, work: impl FnOnce(&World) -> T) -> T {
        let _entered = self.runtime.enter();
        work(&self.world)
    }

    /// Kills the process. The next one starts after a pause. Returns the wall clock
    /// at that time.
    pub(crate) fn crash(self, pause: Duration) -> Duration {
        let entered = self.runtime.enter();
        self.disk.die();
        let wall = clock::wall();
        self.world.lock().time.end(pause);
        clock::set_wall(None);
        drop(entered);
        let Self { runtime, world, disk, purchases, gateway, window, .. } = self;
        drop((purchases, gateway, window));
        drop(runtime);
        drop((world, disk));
        wall + pause
    }

    /// Stops in an orderly way: sent purchases finish, waiting ones are rejected.
    pub(crate) fn stop(self, pause: Duration) -> Duration {
        self.shutdown.cancel();
        // As in the server, connected clients are served.
        self.turn(2);
        self.tasks.close();
        let drain = Duration::from_secs(600);
        let drained = self.runtime.block_on(async { timeout(drain, self.tasks.wait()).await });
        if drained.is_err() {
            self.within(|world| world.lock().broken("a stop does not come to an end"));
        }
        self.pass(Duration::from_secs(2));
        self.crash(pause)
    }
}

fn client_answer(
    outcome: Result<Receipt, Problem>,
) -> (Answer, Option<tollgate::purchase::Delivery>) {
    match outcome {
        Ok(receipt) => {
            let Receipt { status, body, cost, is_replay, delivery, .. } = receipt;
            let (status, micros) = (status.as_u16(), cost.as_micros());
            (Answer::Receipt { status, body, micros, is_replay }, delivery)
        }
        Err(problem) => {
            (Answer::Problem { code: problem.kind().code, charged: problem.charge() }, None)
        }
    }
}
