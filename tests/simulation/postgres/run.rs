//! One run of a seed: up to three processes buy, crash, stop and lose their database, on one ledger.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    Budgets, DedupeKey, Held, Period, PurchaseId, Reservation, ReserveError, Service, Settlement,
    SlotRate, SpendLimit,
};
use uuid::Uuid;

use super::checks;
use super::gateway::Gateway;
use super::ledger::Ledger;
use super::process::{Act, DEADLINES, Done, Phase, Process};
use super::wire::{Course, Edit, Wire};
use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::tally::Tally;

/// 2025-11-20, noon.
const START: Duration = Duration::from_secs(1_763_640_000);
/// How often a process that has nothing to do asks its ledger.
const BEAT: Duration = Duration::from_secs(2);
/// By then, nothing of the dead is open.
const CLEARED: Duration = Duration::from_secs(45);
const MAX_ROUNDS: u32 = 400;

/// What a run does differently, so that a check has to fail.
pub(super) struct Mutation {
    pub(super) name: &'static str,
    /// How the message of that check begins.
    pub(super) breaks: &'static str,
    /// The first seed that shows it.
    pub(super) seed: u64,
    pub(super) edit: Edit,
    /// Each process reads a clock of its own instead of the database's.
    pub(super) deviates: bool,
    /// The clock of a process stands still while the process does.
    pub(super) loses_time: bool,
    /// A process does not ask whether it may still send.
    pub(super) is_rash: bool,
}

pub(super) const NONE: Mutation = Mutation {
    name: "none",
    breaks: "",
    seed: 0,
    edit: ("", ""),
    deviates: false,
    loses_time: false,
    is_rash: false,
};

/// What a purchase is meant to be.
pub(super) struct Wish {
    pub(super) key: u64,
    pub(super) price: Usd,
    /// From then on, any process may end it.
    pub(super) until: Duration,
}

pub(super) struct Outcome {
    pub(super) tally: Tally,
    pub(super) trace: Vec<String>,
    pub(super) broken: Option<String>,
}

pub(super) struct Setup {
    pub(super) limit: usize,
    pub(super) period: Duration,
    pub(super) budget: Option<Usd>,
    processes: usize,
    keys: u64,
}

pub(super) struct Run<'a> {
    dice: Dice,
    pub(super) ledger: &'a Ledger,
    mutation: &'a Mutation,
    pub(super) setup: Setup,
    pub(super) now: Duration,
    pub(super) processes: Vec<Process>,
    started: usize,
    seed: u64,
    pub(super) gateway: Gateway,
    pub(super) wishes: BTreeMap<PurchaseId, Wish>,
    /// Ends that the ledger has acknowledged.
    pub(super) recorded: BTreeMap<PurchaseId, Settlement>,
    /// Ends that a process which has not crashed will record, as soon as it can.
    heard: Vec<(usize, PurchaseId, Settlement)>,
    tally: Tally,
    trace: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Buy,
    Line,
    Rush,
    Pass(u64, u64),
    Pause,
    End(bool),
    Start,
    Cut,
    Lose(&'static str, Course),
}

const STEPS: &[(u64, Step)] = &[
    (24, Step::Buy),
    (50, Step::Line),
    (12, Step::Rush),
    (14, Step::Pass(20, 1_500)),
    (8, Step::Pass(2_000, 9_000)),
    (8, Step::Pause),
    (2, Step::End(false)),
    (1, Step::End(true)),
    (6, Step::Start),
    (2, Step::Cut),
    (2, Step::Lose("loses an answer", Course::CutAfterCommit)),
    (1, Step::Lose("loses a transaction", Course::CutBeforeCommit)),
];

pub(super) fn run(seed: u64, ledger: &Ledger, mutation: &Mutation) -> Outcome {
    let mut dice = Dice::new(seed);
    let setup = Setup {
        limit: dice.index(3) + 2,
        period: dice.millis(3_000, 8_000),
        budget: dice.chance(40).then(|| Usd::mills(6 * dice.between(2, 8))),
        processes: dice.pick(&[1, 2, 3, 3]),
        keys: dice.pick(&[3, 20, 100]),
    };
    ledger.clear();
    ledger.set_time(START);
    let mut run = Run {
        dice,
        ledger,
        mutation,
        setup,
        now: START,
        processes: Vec::new(),
        started: 0,
        seed,
        gateway: Gateway::default(),
        wishes: BTreeMap::new(),
        recorded: BTreeMap::new(),
        heard: Vec::new(),
        tally: Tally::default(),
        trace: Vec::new(),
    };
    let broken = run.live().and_then(|()| run.heal()).err();
    while !run.processes.is_empty() {
        run.end(0, false);
    }
    let Run { tally, trace, .. } = run;
    Outcome { tally, trace, broken }
}

impl Run<'_> {
    fn live(&mut self) -> Result<(), String> {
        for _ in 0..self.setup.processes {
            self.start();
        }
        for _ in 0..self.dice.between(50, 90) {
            let step = self.dice.weighed(STEPS);
            self.tally.add("steps");
            self.step(step)?;
            checks::look(self)?;
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        let awake: Vec<_> =
            (0..self.processes.len()).filter(|at| self.processes[*at].is_awake()).collect();
        if awake.is_empty() {
            self.pass(Duration::from_secs(3));
            return self.go_on();
        }
        let at = self.dice.pick(&awake);
        match step {
            Step::Buy => {
                let act = self.buy();
                self.act(at, act)?;
            }
            Step::Line => self.line(at, false)?,
            Step::Rush => self.rush(&awake)?,
            Step::Pass(from, to) => {
                let time = self.dice.millis(from, to);
                self.pass(time);
                self.go_on()?;
            }
            Step::Pause => {
                let pause = Duration::from_secs(self.dice.pick(&[5, 12, 18, 25, 40]));
                self.note(at, "pauses", || format!("{pause:?}"));
                self.processes[at].paused_until = Some(self.now + pause);
            }
            Step::End(is_stop) => self.end(at, is_stop),
            Step::Start if self.processes.len() < self.setup.processes => self.start(),
            Step::Start => {}
            Step::Cut => {
                let cut = self.dice.millis(1_000, 25_000);
                self.note(at, "loses its database", || format!("{cut:?}"));
                self.processes[at].cut_until = Some(self.now + cut);
                self.processes[at].wire.set(Course::Down);
            }
            Step::Lose(what, course) if self.processes[at].cut_until.is_none() => {
                self.note(at, what, String::new);
                self.processes[at].wire.set(course);
            }
            Step::Lose(..) => {}
        }
        Ok(())
    }

    fn start(&mut self) {
        self.started += 1;
        let ahead = if self.mutation.deviates { 9 * self.started as u64 } else { 0 };
        let clock = self.ledger.clock(Duration::from_secs(ahead));
        let wire = Wire::to(Cluster::shared().address(), self.mutation.edit);
        let database = self.ledger.database();
        self.processes.push(Process::start(self.started, database, wire, (self.now, clock)));
        self.note(self.processes.len() - 1, "starts", String::new);
    }

    /// Ends a process. What it had heard is lost with it, unless it stops while it is connected.
    fn end(&mut self, at: usize, is_stop: bool) {
        self.note(at, if is_stop { "stops" } else { "crashes" }, String::new);
        let process = self.processes.remove(at);
        if process.wire.has_edited() {
            self.tally.add("edits");
        }
        let number = process.number;
        if !is_stop || process.cut_until.is_some() {
            self.heard.retain(|(other, ..)| *other != number);
        }
        if !is_stop {
            process.wire.set(Course::Down);
        }
        process.stop();
    }

    fn rate(&self) -> SlotRate {
        SlotRate { requests: self.setup.limit as u64, period: self.setup.period }
    }

    fn buy(&mut self) -> Act {
        let number = self.wishes.len() as u64;
        let id = PurchaseId(Uuid::from_u64_pair(self.seed, number + 1));
        let (key, until) = (self.dice.below(self.setup.keys), self.now + DEADLINES.held);
        let wish = Wish { key, price: Usd::mills(6), until };
        let limit = |budget| SpendLimit::of(Period::Day, budget);
        let total = self.setup.budget.map(limit).unwrap_or_default();
        let mut key = [0; 32];
        key[0] = u8::try_from(wish.key).expect("few keys");
        let reservation = Reservation {
            id,
            caller: self.dice.pick(&["ann", "bob"]).into(),
            service: Service::Chat,
            model: "alpha".into(),
            price: wish.price,
            dedupe_key: DedupeKey::IdempotencyKey { key, payload: [7; 32] },
            group: None,
            token: None,
            budgets: Budgets { total, ..Budgets::default() },
            attempt: 0,
            replay_only: false,
            requires: Default::default(),
        };
        self.wishes.insert(id, wish);
        let rate = self.dice.chance(60).then(|| self.rate());
        Act::Reserve(Box::new(reservation), rate)
    }

    /// Takes a purchase of this process one line further.
    fn line(&mut self, at: usize, is_patient: bool) -> Result<(), String> {
        let Some(act) = self.next_act(at, is_patient)? else { return Ok(()) };
        self.act(at, act)
    }

    /// Returns what a purchase of this process does next, if the store is needed for it.
    fn next_act(&mut self, at: usize, is_patient: bool) -> Result<Option<Act>, String> {
        let is_over = |id| self.gateway.flight(id).is_none_or(|flight| flight.replied <= self.now);
        let in_hand = self.processes[at].purchases.iter();
        let movable: Vec<_> = in_hand.filter(|purchase| is_over(purchase.id)).collect();
        if movable.is_empty() {
            return Ok(None);
        }
        let purchase = movable[self.dice.index(movable.len())].clone();
        let is_gone = !is_patient && self.dice.chance(6);
        match purchase.phase {
            Phase::Held | Phase::Ready if is_gone => {
                self.note(at, "gives up a purchase", || purchase.id.to_string());
                let done = self.processes[at].release(purchase.id);
                self.done(at, done).map(|()| None)
            }
            Phase::Held => Ok(Some(Act::TakeSlot(purchase.id, self.rate()))),
            Phase::Ready => Ok(Some(Act::Mark(purchase.id))),
            Phase::Marked => self.write(at, purchase.id).map(|()| None),
            Phase::Written => {
                let flight = self.gateway.flight(purchase.id).expect("it was written");
                Ok(Some(Act::Settle(purchase.id, flight.settlement())))
            }
        }
    }

    /// Writes the first byte, if the store still lets the process do so.
    fn write(&mut self, at: usize, id: PurchaseId) -> Result<(), String> {
        if !self.processes[at].may_send(id) && !self.mutation.is_rash {
            self.note(at, "may not send", || id.to_string());
            let done = self.processes[at].release(id);
            return self.done(at, done);
        }
        self.note(at, "sends", || id.to_string());
        checks::may_be_sent(self, id)?;
        self.gateway.take(&mut self.dice, id, &self.wishes[&id], self.now);
        self.processes[at].purchase(id).expect("in hand").phase = Phase::Written;
        Ok(())
    }

    fn act(&mut self, at: usize, act: Act) -> Result<(), String> {
        let done = self.processes[at].act(act);
        self.done(at, done)
    }

    /// Has two processes ask at once: the first one's COMMIT is held until the second one waits for it.
    fn rush(&mut self, awake: &[usize]) -> Result<(), String> {
        let first = self.dice.index(awake.len());
        let second = (first + 1) % awake.len();
        let pair = [awake[first], awake[second]];
        let mut acts = Vec::new();
        for at in pair {
            let act =
                if self.dice.chance(65) { Some(self.buy()) } else { self.next_act(at, true)? };
            acts.extend(act);
        }
        let (Ok([act, other_act]), Ok([one, other])) =
            (<[Act; 2]>::try_from(acts), self.processes.get_disjoint_mut(pair))
        else {
            return Ok(());
        };
        let ledger = self.ledger;
        let (done, other_done) = if one.cut_until.or(other.cut_until).is_some() {
            (one.act(act), other.act(other_act))
        } else {
            let wire = one.wire.clone();
            wire.set(Course::HoldCommit);
            thread::scope(|scope| {
                let one = scope.spawn(|| one.act(act));
                while !one.is_finished() && !wire.is_held() {
                    thread::yield_now();
                }
                let other = scope.spawn(|| other.act(other_act));
                while !other.is_finished() && !ledger.is_waited_for() {
                    thread::yield_now();
                }
                wire.set(Course::Pass);
                (one.join().expect("no panic"), other.join().expect("no panic"))
            })
        };
        self.note(pair[0], "is first", String::new);
        self.done(pair[0], done)?;
        self.done(pair[1], other_done)
    }

    fn done(&mut self, at: usize, done: Done) -> Result<(), String> {
        let what = match &done {
            Done::Reserved(_, Ok(held)) if held.is_sent => "holds and takes a slot",
            Done::Reserved(_, Ok(_)) => "holds",
            Done::Reserved(_, Err(ReserveError::Duplicate(_))) => "finds a duplicate",
            Done::Reserved(_, Err(ReserveError::OverBudget(_))) => "is over the budget",
            Done::Reserved(_, Err(_)) => "cannot hold",
            Done::Granted(false) => "gets no slot",
            Done::Granted(true) => "gets a slot",
            Done::Marked(_, true) => "marks as sent",
            Done::Marked(_, false) => "cannot mark as sent",
            Done::Settled(_, Settlement::Charged { .. }, true) => "records a charge",
            Done::Settled(_, Settlement::Released, true) => "records a release",
            Done::Settled(_, Settlement::Unknown, true) => "records an unknown outcome",
            Done::Settled(.., false) => "records an end later",
        };
        let more = if let Done::Reserved(id, Err(ReserveError::Unavailable(_))) = &done {
            // The reason has the number of a port.
            id.to_string()
        } else {
            format!("{done:?}")
        };
        self.note(at, what, || more);
        checks::answer_is_true(self, &done)?;
        match done {
            Done::Settled(id, settlement, true) => drop(self.recorded.insert(id, settlement)),
            Done::Settled(id, settlement, false) => {
                self.heard.push((self.processes[at].number, id, settlement));
            }
            Done::Marked(id, true) | Done::Reserved(id, Ok(Held { is_sent: true, .. })) => {
                let wish = self.wishes.get_mut(&id).expect("it was wished for");
                wish.until = self.now + DEADLINES.sent;
            }
            Done::Reserved(..) | Done::Granted(_) | Done::Marked(..) => {}
        }
        Ok(())
    }

    /// Has processes go on where they stopped, before they learn anything.
    fn go_on(&mut self) -> Result<(), String> {
        for at in 0..self.processes.len() {
            if !std::mem::take(&mut self.processes[at].is_woken) {
                continue;
            }
            for _ in 0..self.dice.between(1, 2) {
                if self.dice.chance(60) {
                    let act = self.buy();
                    self.act(at, act)?;
                } else {
                    self.line(at, false)?;
                }
            }
        }
        Ok(())
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = end.min(self.now + BEAT);
            self.ledger.set_time(self.now);
            for process in &mut self.processes {
                if process.cut_until.is_some_and(|until| until <= self.now) {
                    process.cut_until = None;
                    process.wire.set(Course::Pass);
                }
                match process.paused_until {
                    None => process.pass(self.now),
                    Some(until) if until > self.now => {}
                    Some(_) => {
                        process.paused_until = None;
                        if self.mutation.loses_time {
                            process.now = self.now;
                        }
                        process.is_woken = true;
                        process.wake(self.now);
                    }
                }
            }
        }
    }

    fn note(&mut self, at: usize, what: &'static str, more: impl FnOnce() -> String) {
        self.tally.add(what);
        let number = self.processes[at].number;
        let millis = (self.now - START).as_millis();
        self.trace.push(format!("{millis:>8} process {number} {what} {}", more()));
    }

    /// All faults end, and purchases finish. After a while nothing is open.
    fn heal(&mut self) -> Result<(), String> {
        for process in &mut self.processes {
            process.paused_until = process.paused_until.map(|_| self.now);
            process.cut_until = Some(self.now);
        }
        if self.processes.is_empty() {
            self.start();
        }
        let mut rounds = 0;
        while self.processes.iter().any(|process| !process.purchases.is_empty()) {
            rounds += 1;
            if rounds > MAX_ROUNDS {
                return Err("open: a purchase does not end".to_owned());
            }
            self.pass(Duration::from_secs(1));
            for at in 0..self.processes.len() {
                for _ in 0..self.processes[at].purchases.len() {
                    self.line(at, true)?;
                }
            }
            checks::look(self)?;
        }
        self.pass(CLEARED);
        self.recorded.extend(self.heard.drain(..).map(|(_, id, settlement)| (id, settlement)));
        checks::look(self)?;
        let open = self.ledger.open();
        if open > 0 {
            return Err(format!("open: {open} purchases and slots"));
        }
        self.tally.add("runs");
        Ok(())
    }
}
