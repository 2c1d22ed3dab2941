//! Runs the purchase path under thousands of seeds: the real stacks between clients, a gateway, a
//! store and a clock that the seed controls. `postgres` runs several processes on one ledger. See
//! docs/dev/simulation.md.
#![cfg(test)]

mod clients;
#[path = "../support/postgres.rs"]
#[expect(dead_code, reason = "tests of fleets use the rest")]
mod cluster;
mod dice;
mod disk;
mod gateway;
mod guarantees;
mod model_ledger;
mod postgres;
mod process;
mod run;
mod setup;
mod step;
mod tally;
mod transport;
mod world;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use run::{FEWEST_STEPS, Outcome};
use tally::Tally;

/// The number of seeds without `SIMULATION_SEEDS`.
const SEEDS: u64 = 500;
/// Of so many seeds, one also runs on a disk.
const PER_SEED_ON_DISK: u64 = 10;
/// Of so many seeds, one runs on both stores, with equal results.
const PER_SEED_COMPARED: u64 = 25;
/// Of so many seeds, one runs twice, with equal results.
const PER_SEED_TWICE: u64 = 10;

#[test]
fn simulated_runs_keep_every_guarantee() {
    if let Some(seed) = one_seed() {
        return replay(seed);
    }
    let seeds = seeds();
    let tally = all(seeds, false);
    tally.print(seeds);
    let missing = tally.missing();
    assert!(missing.is_empty(), "never happened: {}", missing.join(", "));
}

#[test]
fn simulated_runs_on_disk_keep_every_guarantee() {
    if one_seed().is_some() {
        return;
    }
    let on_disk = seeds() / PER_SEED_ON_DISK;
    all(on_disk, true).print(on_disk);
    for seed in 0..seeds() / PER_SEED_COMPARED {
        are_equal(seed, &one(seed, false, true), &one(seed, true, true));
    }
}

#[test]
fn seed_determines_the_run() {
    for seed in 0..seeds() / PER_SEED_TWICE {
        are_equal(seed, &one(seed, false, true), &one(seed, false, true));
    }
}

/// Asserts that the same events happened at the same times.
fn are_equal(seed: u64, first: &Outcome, second: &Outcome) {
    assert!(first.trace.len() > 20, "seed {seed} has no trace");
    let parts = first.trace.iter().zip(&second.trace).find(|(one, other)| one != other);
    assert_eq!(parts, None, "seed {seed}");
    assert_eq!(first.trace.len(), second.trace.len(), "seed {seed}");
    assert_eq!(first.tally, second.tally, "seed {seed}");
}

/// Runs seeds on all cores until one breaks a guarantee.
fn all(seeds: u64, is_on_disk: bool) -> Tally {
    let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (tally, failed) = (Mutex::new(Tally::default()), Mutex::new(None));
    let work = || {
        let mut own = Tally::default();
        while !is_over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                break;
            }
            let outcome = one(seed, is_on_disk, false);
            let (steps, faults) = (outcome.tally.of("steps"), outcome.tally.faults());
            if let Some(broken) = outcome.broken {
                is_over.store(true, Ordering::Relaxed);
                let mut failed = failed.lock().expect("the failure");
                if failed.as_ref().is_none_or(|(first, _)| seed < *first) {
                    *failed = Some((seed, broken));
                }
                break;
            }
            assert!(
                steps >= FEWEST_STEPS && faults > 0,
                "seed {seed}: {steps} steps, {faults} faults"
            );
            own.merge(&outcome.tally);
        }
        tally.lock().expect("the tally").merge(&own);
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    if let Some((seed, broken)) = failed.into_inner().expect("the failure") {
        let trace = one(seed, is_on_disk, true).trace.join("\n");
        panic!(
            "{trace}\nseed {seed} breaks a guarantee: {broken}\nreplay it: \
             SIMULATION_SEED={seed} cargo test --test simulation -- --nocapture"
        );
    }
    tally.into_inner().expect("the tally")
}

fn one(seed: u64, is_on_disk: bool, is_traced: bool) -> Outcome {
    let folder = is_on_disk.then(|| tempfile::tempdir_in(folder()).expect("a folder"));
    run::run(seed, folder.as_ref().map(tempfile::TempDir::path), is_traced)
}

/// Returns a folder in memory, where commits do not wait for a disk, if there is one.
fn folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// Prints what happens with one seed on both stores.
fn replay(seed: u64) {
    for is_on_disk in [false, true] {
        let outcome = one(seed, is_on_disk, true);
        println!("{}", outcome.trace.join("\n"));
        assert_eq!(outcome.broken, None, "seed {seed}, on disk: {is_on_disk}");
    }
}

fn seeds() -> u64 {
    number("SIMULATION_SEEDS").unwrap_or(SEEDS)
}

/// Returns the only seed to run, if `SIMULATION_SEED` is set.
fn one_seed() -> Option<u64> {
    number("SIMULATION_SEED")
}

#[expect(clippy::disallowed_methods, reason = "the caller of the test chooses how much")]
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: expected a number, got {text}")))
}
