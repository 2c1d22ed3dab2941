//! Counts what happened over all seeds, so that one sees what was covered.

use std::collections::BTreeMap;

/// What clients and the store do, and whatever else happens around the gate.
pub(crate) const FAULTS: &[&str] = &[
    "reply lost, charged",
    "reply lost, free",
    "reply cut in the middle",
    "reply late",
    "charged after we gave up",
    "reply garbled",
    "reply encoded",
    "reply too large",
    "500, charged",
    "500, free",
    "gateway refuses (4xx)",
    "gateway has no credit (402)",
    "429 with a time",
    "429 without",
    "401",
    "no connection",
    "connection took nothing",
    "duplicate with its key",
    "key with another payload",
    "duplicate without a key",
    "duplicate marked as a retry",
    "client hangs up",
    "client's own timeout",
    "client takes half of the reply",
    "crash",
    "crash with a price set aside",
    "crash with a purchase sent",
    "stop",
    "store refuses reserve",
    "store refuses sent",
    "store refuses settle",
    "store refuses the window's place",
    "clock a day ahead",
    "clock a day back",
    "clock a little off",
];

/// How purchases end, for the ledger and for clients.
pub(crate) const ENDINGS: &[&str] = &[
    "charged",
    "released",
    "unknown",
    "reconciled",
    "abandoned in the queue",
    "receipt",
    "refusal passed on",
    "joined or replayed",
    "budget_exhausted",
    "insufficient_credit",
    "idempotency_key_reused",
    "still_running",
    "outcome_unknown",
    "gateway_unreachable",
    "gateway_key_rejected",
    "gateway_busy",
    "draining",
    "ledger_unavailable",
];

/// How often each thing happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    counts: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(crate) fn add(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    pub(crate) fn faults(&self) -> u64 {
        FAULTS.iter().map(|fault| self.of(fault)).sum()
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    /// Everything that has to happen somewhere and did not.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        FAULTS.iter().chain(ENDINGS).copied().filter(|what| self.of(what) == 0).collect()
    }

    pub(crate) fn print(&self, seeds: u64) {
        println!(
            "{seeds} seeds, {} steps, {} faults, {} requests at the gateway, {} charges",
            self.of("steps"),
            self.faults(),
            self.of("arrivals"),
            self.of("charges"),
        );
        for (title, names) in [("faults", FAULTS), ("endings", ENDINGS)] {
            println!("{title}:");
            for name in names {
                println!("{:>9}  {name}", self.of(name));
            }
        }
    }
}
