//! One run of a seed. Every guarantee is checked after each step.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{PurchaseState, Settlement};

use crate::clients::{Answer, Asked, Wish};
use crate::dice::Dice;
use crate::disk::{Platter, finish};
use crate::guarantees;
use crate::process::{Manner, Process};
use crate::setup::{DAY, FIRST_VIDEO, ORDERS, START, Setup};
use crate::step::{FAULTS, STEPS, Step};
use crate::tally::Tally;
use crate::world::World;

/// The minimum number of steps of a run.
pub(crate) const FEWEST_STEPS: u64 = 24;
const MOST_STEPS: u64 = 56;

/// The result of a seed.
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    pub(crate) trace: Vec<String>,
    pub(crate) broken: Option<String>,
}

struct Run {
    dice: Dice,
    world: World,
    platter: Arc<Platter>,
    process: Option<Process>,
    /// When the wall clock was set, and by how many seconds.
    jumps: Vec<(Duration, i64)>,
    /// Clients whose answers were checked.
    seen: Vec<bool>,
}

/// Runs a seed on a store in memory, or on disk in this folder.
pub(crate) fn run(seed: u64, folder: Option<&Path>, is_traced: bool) -> Outcome {
    let mut dice = Dice::new(seed);
    let setup = Setup::draw(seed, &mut dice);
    let gateway = Dice::new(dice.roll());
    let world = World::new(setup.clone(), gateway, is_traced);
    world.lock().note(|| format!("{setup:?}"));
    let platter = match folder {
        Some(folder) => Platter::on_disk(folder),
        None => Platter::in_memory(),
    };
    let platter = Arc::new(platter);
    let mut run = Run { dice, world, platter, process: None, jumps: Vec::new(), seen: Vec::new() };
    run.start(START);
    run.live();
    run.end();
    run.outcome()
}

impl Run {
    fn live(&mut self) {
        let steps = self.dice.between(FEWEST_STEPS, MOST_STEPS);
        let fault = self.dice.below(steps);
        for number in 0..steps {
            let is_due = number == fault && self.world.lock().tally.faults() == 0;
            let step = match is_due {
                true => self.dice.pick(FAULTS),
                false => self.dice.weighed(STEPS),
            };
            self.process().within(|world| world.lock().note(|| format!("step {number}: {step:?}")));
            self.world.lock().tally.add("steps");
            self.step(step);
            if self.look() {
                return;
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Buy => self.buy(),
            Step::Repeat => self.repeat(),
            Step::HangUp => self.hang_up(),
            Step::Turn => {
                let rounds = self.dice.between(1, 6);
                self.process().turn(rounds);
            }
            Step::Moment => self.pass(1, 60),
            Step::Seconds => self.pass(500, 9_000),
            Step::Minutes => self.pass(20_000, 200_000),
            Step::Crash => self.crash(),
            Step::Stop => self.stop(),
            Step::Jump => self.jump(),
            Step::RefuseStore => {
                let (after, count) = (self.dice.between(1, 6), self.dice.pick(&[1, 1, 2, 6]));
                let mut state = self.world.lock();
                let from = state.operations + after;
                state.refused = (from, from + count);
            }
            Step::RevokeKey => {
                let mut state = self.world.lock();
                let key = self.dice.index(state.setup.keys);
                state.gateway.revoked.insert(key);
            }
            Step::RenewKeys => self.world.lock().gateway.revoked.clear(),
            Step::PollJob => self.process().poll_job(),
            Step::LearnCredit => self.process().learn_credit(),
            Step::Reconcile => self.reconcile(),
            Step::Forget => self.process().within(|_| self.forget()),
        }
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("one is alive between two steps")
    }

    fn start(&mut self, wall: Duration) {
        let platter = Arc::get_mut(&mut self.platter).expect("the dead process let go of it");
        platter.open(wall);
        self.world.lock().books.recover(wall);
        self.process = Some(Process::start(&self.world, &self.platter, wall));
    }

    fn buy(&mut self) {
        let (from, to) = self.world.lock().setup.orders;
        let order = from + self.dice.index(to - from);
        let claim = match self.dice.chance(50) {
            true => Asked::Key(self.dice.below(6)),
            false => Asked::Fingerprint { is_retry: false },
        };
        let caller = self.dice.index(3);
        self.send(Wish { caller, order, claim });
    }

    /// Repeats an earlier request of this client or another.
    fn repeat(&mut self) {
        let count = self.world.lock().clients.all().len();
        if count == 0 {
            return self.buy();
        }
        let latest = count - 1 - self.dice.index(count.min(4));
        let mut wish = self.world.lock().clients.all()[latest].wish;
        if self.dice.chance(40) {
            self.process.as_mut().expect("one is alive").hang_up(latest);
        }
        let what = match &mut wish.claim {
            Asked::Key(_) if self.dice.chance(10) => {
                let (first, kinds) = match wish.order < FIRST_VIDEO {
                    true => (0, FIRST_VIDEO),
                    false => (FIRST_VIDEO, ORDERS.len() - FIRST_VIDEO),
                };
                wish.order = first + (wish.order + 1 - first) % kinds;
                "key with another payload"
            }
            Asked::Key(_) => {
                if self.dice.chance(20) {
                    wish.caller = self.dice.index(3);
                }
                "duplicate with its key"
            }
            Asked::Fingerprint { is_retry } => {
                *is_retry = self.dice.chance(50);
                match is_retry {
                    true => "duplicate marked as a retry",
                    false => "duplicate without a key",
                }
            }
        };
        self.world.lock().tally.add(what);
        self.send(wish);
    }

    fn send(&mut self, wish: Wish) {
        let patience = match self.dice.below(4) {
            0 => Some(self.dice.millis(1, 50)),
            1 => Some(self.dice.millis(500, 30_000)),
            _ => None,
        };
        let manner = Manner { patience, takes_all: self.dice.chance(60) };
        let client = self.world.lock().clients.enter(wish);
        self.process().within(|world| {
            world.lock().note(|| format!("client {client}: {wish:?} {manner:?}"));
        });
        self.process.as_mut().expect("one is alive").send(client, wish, manner);
    }

    fn hang_up(&mut self) {
        let waiting = self.world.lock().clients.waiting();
        if !waiting.is_empty() {
            let client = self.dice.pick(&waiting);
            self.world.lock().tally.add("client hangs up");
            self.process.as_mut().expect("one is alive").hang_up(client);
        }
    }

    fn pass(&mut self, from: u64, to: u64) {
        let time = self.dice.millis(from, to);
        self.process().pass(time);
    }

    fn crash(&mut self) {
        let pause = self.dice.millis(100, 5_000);
        let mut state = self.world.lock();
        state.tally.add("crash");
        let is_any = |state: &crate::world::State, wanted| {
            state.books.entries.values().any(|entry| entry.state == wanted)
        };
        if is_any(&state, PurchaseState::Held) {
            state.tally.add("crash with a price set aside");
        }
        if is_any(&state, PurchaseState::Sent) {
            state.tally.add("crash with a purchase sent");
        }
        drop(state);
        let wall = self.process.take().expect("one is alive").crash(pause);
        self.restart(wall);
    }

    fn stop(&mut self) {
        self.world.lock().tally.add("stop");
        let pause = self.dice.millis(100, 5_000);
        let wall = self.process.take().expect("one is alive").stop(pause);
        let mut state = self.world.lock();
        let refused = state.refused;
        let left = state.books.entries.values().find(|entry| {
            matches!(entry.state, PurchaseState::Held | PurchaseState::Sent) && !entry.was_refused
        });
        if let Some(left) = left.cloned() {
            state.broken(format!("a stop left {left:?} under way, store {refused:?}"));
        }
        drop(state);
        self.restart(wall);
    }

    /// If the wall clock was set, the log does not show which requests arrived before.
    fn restart(&mut self, wall: Duration) {
        let mut state = self.world.lock();
        let (now, period) = (state.now(), state.setup.period);
        let recent = self.jumps.iter().filter(|(at, _)| *at + period >= now);
        let (ahead, back) =
            recent.fold(
                (0, 0),
                |(ahead, back), (_, by)| {
                    if *by > 0 { (ahead + by, back) } else { (ahead, back - by) }
                },
            );
        if ahead > 0 || back > 86_400 {
            // Requests that have arrived by now are counted first.
            let (_, held) = state.gateway.pass(now);
            state.hold(held.map(|_| ()));
            state.gateway.forgive_window();
        }
        drop(state);
        self.start(wall);
    }

    fn jump(&mut self) {
        let (name, by) = self.dice.pick(&[
            ("clock a day ahead", 86_400),
            ("clock a day back", -86_400),
            ("clock a little off", 20),
            ("clock a little off", -20),
        ]);
        let jump = Duration::from_secs(u64::try_from(i64::abs(by)).expect("positive"));
        let now = self.process().within(|world| {
            let wall = clock::wall();
            let wall = if by > 0 { wall + jump } else { wall - jump };
            clock::set_wall(Some(wall));
            let mut state = world.lock();
            state.tally.add(name);
            state.note(|| format!("the wall clock is set by {by} s"));
            state.balance_read_at = None;
            state.now()
        });
        self.jumps.push((now, by));
    }

    /// An operator resolves an unknown purchase.
    fn reconcile(&mut self) {
        let state = self.world.lock();
        let unknown =
            state.books.entries.iter().filter(|(_, entry)| entry.state == PurchaseState::Unknown);
        let unknown: Vec<_> = unknown.map(|(id, _)| *id).collect();
        if unknown.is_empty() {
            return;
        }
        let id = self.dice.pick(&unknown);
        let now = self.process().within(|_| state.now());
        let of_it = state.gateway.flights.iter().filter(|flight| flight.id == Some(id));
        let charges: Vec<_> = of_it.filter_map(|flight| flight.charges).collect();
        drop(state);
        let ending = match charges[..] {
            [] => Settlement::Released,
            [(at, cost), ..] if at <= now => {
                Settlement::Charged { cost, reply: None, keep: 7 * DAY, job: None }
            }
            [..] => return,
        };
        self.process().reconcile(id, &ending);
    }

    /// Deletes what has expired.
    fn forget(&self) {
        let wall = clock::wall();
        self.platter.wind(wall);
        finish(self.platter.store().purge_expired()).expect("forgotten");
        self.world.lock().books.forget(wall);
    }

    /// Checks every guarantee, and returns whether one is broken.
    fn look(&mut self) -> bool {
        let (world, platter, seen) = (&self.world, &self.platter, &mut self.seen);
        let process = self.process.as_ref().expect("one is alive between two steps");
        process.within(|_| {
            let mut state = world.lock();
            guarantees::look(&mut state, platter, seen);
            state.is_broken().is_some()
        })
    }

    /// All faults end and all purchases finish. Then every key is used once more.
    fn end(&mut self) {
        if self.world.lock().is_broken().is_some() {
            return;
        }
        let mut state = self.world.lock();
        state.gateway.is_healed = true;
        state.gateway.revoked.clear();
        state.refused = (0, 0);
        drop(state);
        self.process().pass(Duration::from_secs(1_000));
        self.process().at_rest();
        if self.look() {
            return;
        }
        let wall = self.process.take().expect("one is alive").crash(Duration::from_secs(1));
        self.restart(wall);
        let (flights, wishes) = {
            let state = self.world.lock();
            (state.gateway.flights.len(), guarantees::replayable(&state, wall))
        };
        for (wish, expected) in wishes {
            let client = self.world.lock().clients.enter(wish);
            let manner = Manner { patience: None, takes_all: true };
            self.process.as_mut().expect("one is alive").send(client, wish, manner);
            self.process().pass(Duration::from_millis(500));
            let mut state = self.world.lock();
            let answer =
                state.clients.all()[client].received.clone().map(|received| received.answer);
            if answer.as_ref() != Some(&expected) {
                state.broken(format!("{wish:?} is answered {answer:?}, not {expected:?}"));
            }
        }
        let mut state = self.world.lock();
        if state.gateway.flights.len() != flights {
            state.broken("a repeat reached the gateway");
        }
        drop(state);
        self.look();
    }

    fn outcome(mut self) -> Outcome {
        if let Some(process) = self.process.take() {
            process.crash(Duration::ZERO);
        }
        let mut state = self.world.lock();
        let trace = state.take_trace();
        let broken = state.is_broken().map(str::to_owned);
        Outcome { tally: state.tally.clone(), trace, broken }
    }
}

/// Returns the replay of a receipt with this body and amount.
pub(crate) fn replay(body: &bytes::Bytes, cost: Usd) -> Answer {
    Answer::Receipt { status: 200, body: body.clone(), micros: cost.as_micros(), is_replay: true }
}
