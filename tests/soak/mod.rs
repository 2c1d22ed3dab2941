//! A while of good, bad and broken traffic against the real binary before a sandbox: it takes no more
//! memory, descriptors or threads than at first, does not become slow, and its money adds up.
//!
//! Traffic comes in three laps with a rest after each. What is left at a rest is what the process
//! keeps, so that the rests after the first and the last lap are compared: `SOAK_SECONDS` says how long
//! all laps take together.

mod gate;
mod talk;
mod traffic;

use std::time::Duration;

use gate::{Gate, Kept};
use traffic::LapReport;

const LAPS: u32 = 3;
const SECONDS: u64 = 3;
/// Caches that fill late, fragments of the heap.
const SPARE_KILOBYTES: u64 = 8 * 1_024;
/// What one more request may leave behind: nothing, but counters and pages of the ledger's caches grow.
const BYTES_PER_REQUEST: u64 = 512;
/// A poll that is under way, a descriptor of the ledger's for a report.
const SPARE_DESCRIPTORS: usize = 6;
/// Threads for blocking work come and go.
const SPARE_THREADS: usize = 4;
/// How much slower the typical chat of the last lap may be. Machines that run this do other things, too.
const SLOWER: u32 = 10;
const SPARE_TIME: Duration = Duration::from_millis(250);

#[expect(clippy::disallowed_methods, reason = "a person asks for a longer run")]
fn seconds() -> u64 {
    std::env::var("SOAK_SECONDS").map_or(SECONDS, |seconds| seconds.parse().expect("seconds"))
}

/// It compares how long chats take.
mod clock {
    use super::*;

    #[test]
    fn long_traffic_leaks_nothing_and_adds_up() {
        let mut gate = Gate::start();
        let lap = Duration::from_secs(seconds()) / LAPS;
        let laps: Vec<(LapReport, Kept)> = (0..LAPS)
            .map(|number| {
                let report = traffic::run(&gate, number, lap);
                let kept = gate.rest();
                println!("lap {number}: {}; {kept:?}", report.told());
                (report, kept)
            })
            .collect();
        let (first, last) = (&laps[0], &laps[laps.len() - 1]);
        let later: u64 = laps[1..].iter().map(|(report, _)| report.requests()).sum();

        let spare = SPARE_KILOBYTES + later * BYTES_PER_REQUEST / 1_024;
        let (before, after) = (first.1, last.1);
        assert!(after.kilobytes <= before.kilobytes + spare, "memory: {before:?}, {after:?}");
        assert!(
            after.descriptors <= before.descriptors + SPARE_DESCRIPTORS,
            "descriptors: {before:?}, {after:?}"
        );
        assert!(after.threads <= before.threads + SPARE_THREADS, "threads: {before:?}, {after:?}");

        let (early, late) = (first.0.typical(), last.0.typical());
        assert!(late <= early * SLOWER + SPARE_TIME, "a chat took {early:?}, and then {late:?}");
        for (report, _) in &laps {
            report.has_everything();
        }
        gate.adds_up();
        gate.ends_well();
        gate.adds_up();
        gate.kept_its_key(laps.iter().flat_map(|(report, _)| report.answers()));
    }
}
