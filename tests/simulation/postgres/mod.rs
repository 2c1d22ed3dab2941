//! Up to three processes on one PostgreSQL ledger, under seeds. See docs/dev/simulation.md.

mod checks;
mod gateway;
mod ledger;
mod process;
mod run;
mod wire;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ledger::Ledger;
use process::Process;
use run::{Mutation, NONE, Outcome, run};
use wire::{Edit, Wire};

use crate::cluster::Cluster;
use crate::tally::Tally;
use crate::{number, one_seed};

/// The number of seeds without `FLEET_SEEDS`. Each waits for a real database.
const SEEDS: u64 = 12;
/// By then, a mutation has broken a guarantee.
const MAX_MUTANTS: u64 = 1_000;

const MUTATIONS: &[Mutation] = &[
    edited("no lock", "counters: ", 179, ("FROM ledger FOR UPDATE", "FROM ledger")),
    edited("late marks", "late: ", 644, ("AND coalesce(deadline, $4) >= $4", "")),
    edited(
        "overdue purchases that stay open",
        "overdue: ",
        0,
        ("ended_at IS NULL AND deadline < $1", "ended_at IS NULL AND deadline < 0 * $1"),
    ),
    Mutation { name: "sends after a pause", breaks: "sent: ", is_rash: true, ..NONE },
    Mutation {
        name: "deadline by a clock that stands still",
        breaks: "sent: ",
        loses_time: true,
        ..NONE
    },
    edited(
        "lost COMMIT that is run again",
        "answer: ",
        3,
        ("SELECT 1 FROM batches WHERE id = '", "SELECT 1 FROM batches WHERE id = 'no "),
    ),
    edited(
        "lost COMMIT that is taken as done",
        "answer: ",
        1,
        ("SELECT 1 FROM batches WHERE id = '", "SELECT 1 FROM ledger WHERE '' <> '"),
    ),
    Mutation {
        name: "slots by the clocks of processes",
        breaks: "window: ",
        seed: 91,
        deviates: true,
        ..NONE
    },
    edited(
        "slots without those in use",
        "window: ",
        0,
        ("FROM slots WHERE replied IS NULL OR", "FROM slots WHERE"),
    ),
    edited(
        "testimony refused",
        "testimony: ",
        0,
        ("FROM purchases WHERE id = $1", "FROM purchases WHERE id = $1 AND ended_at IS NULL"),
    ),
];

/// A change of one statement.
const fn edited(name: &'static str, breaks: &'static str, seed: u64, edit: Edit) -> Mutation {
    Mutation { name, breaks, seed, edit, ..NONE }
}

/// So many seeds have seen everything.
const MANY: u64 = 1_000;
/// What has to happen in some of many runs.
const EVENTS: &str = "pauses, crashes, stops, loses its database, loses an answer, loses a transaction, \
    holds, holds and takes a slot, gives up a purchase, may not send, \
    finds a duplicate, is over the budget, cannot hold, gets a slot, gets no slot, \
    is first, cannot mark as sent, records a charge, records a release, \
    records an unknown outcome, records an end later, runs";

#[test]
fn processes_on_one_ledger_keep_every_guarantee() {
    if let Some(seed) = one_seed() {
        let outcome = run(seed, &ledger(), &NONE);
        println!("{}", outcome.trace.join("\n"));
        return assert_eq!(outcome.broken, None, "seed {seed}");
    }
    let seeds = number("FLEET_SEEDS").unwrap_or(SEEDS);
    let (tally, broken) = all(0..seeds, &NONE);
    if let Some(Broken { seed, guarantee, trace }) = broken {
        panic!(
            "{trace}\nseed {seed} breaks a guarantee: {guarantee}\nrun it again: \
             SIMULATION_SEED={seed} cargo test --test simulation postgres:: -- --nocapture"
        );
    }
    println!("{seeds} seeds, {} steps, up to three processes", tally.of("steps"));
    for event in EVENTS.split(", ") {
        println!("{:>9}  {event}", tally.of(event));
    }
    let missing: Vec<_> = EVENTS.split(", ").filter(|event| tally.of(event) == 0).collect();
    assert!(missing.is_empty() || seeds < MANY, "never happened: {missing:?}");
}

#[test]
fn seed_determines_each_step() {
    if one_seed().is_some() {
        return;
    }
    let ledger = ledger();
    for seed in 0..SEEDS / 3 {
        let [one, other] = [(); 2].map(|()| run(seed, &ledger, &NONE).trace);
        let parts = one.iter().zip(&other).find(|(one, other)| one != other);
        assert_eq!((parts, one.len()), (None, other.len()), "seed {seed}");
    }
}

fn ledger() -> Ledger {
    // The first process makes the tables.
    Ledger::new(|database| {
        let (wire, clock) =
            (Wire::to(Cluster::shared().address(), NONE.edit), Arc::new(Duration::default));
        Process::start(0, database, wire, (Duration::ZERO, clock)).stop();
    })
}

struct Broken {
    seed: u64,
    guarantee: String,
    trace: String,
}

/// Runs seeds on all cores until one breaks a guarantee.
fn all(seeds: Range<u64>, mutation: &Mutation) -> (Tally, Option<Broken>) {
    let (next, is_over) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let (tally, failed) = (Mutex::new(Tally::default()), Mutex::new(None));
    let work = || {
        let ledger = ledger();
        while !is_over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let Outcome { tally: own, trace, broken } = run(seed, &ledger, mutation);
            tally.lock().expect("the tally").merge(&own);
            // A mutation may break others first.
            let broken = broken.filter(|guarantee| guarantee.starts_with(mutation.breaks));
            if let Some(guarantee) = broken {
                is_over.store(true, Ordering::Relaxed);
                let broken = Broken { seed, guarantee, trace: trace.join("\n") };
                failed.lock().expect("the failure").get_or_insert(broken);
            }
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    (tally.into_inner().expect("the tally"), failed.into_inner().expect("the failure"))
}

mod long {
    use super::*;

    #[test]
    fn mutations_of_the_fleet_break_a_guarantee() {
        if one_seed().is_some() {
            return;
        }
        for mutation in MUTATIONS {
            let (tally, broken) = all(mutation.seed..mutation.seed + MAX_MUTANTS, mutation);
            let is_edited = mutation.edit == NONE.edit || tally.of("edits") > 0;
            assert!(is_edited, "{}: no such statement", mutation.name);
            let Some(Broken { seed, guarantee, .. }) = broken else {
                panic!("{}: no seed breaks a guarantee of «{}»", mutation.name, mutation.breaks);
            };
            println!("{}: seed {seed}: {guarantee}", mutation.name);
        }
    }
}
