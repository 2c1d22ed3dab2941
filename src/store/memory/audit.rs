//! Checkpoints, evidence and the account's keys in this process alone.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::books::Books;
use crate::store::{
    Checkpoint, Evidence, Job, JobState, PurchaseId, Recognise, Row, SETTLES_WITHIN, Service,
    Snapshot, State,
};

/// Checkpoints that are remembered.
const MAX_CHECKS: usize = 1_000;

/// What is noted of the gateway's account.
#[derive(Default)]
pub(super) struct Notes {
    checks: VecDeque<Checkpoint>,
    /// Earlier checkpoints are not used: another account was found since.
    is_first_of_account: bool,
    keys: BTreeSet<String>,
}

impl Books {
    pub(super) fn check(&mut self, snapshot: Snapshot) {
        let settles = snapshot.at.saturating_sub(SETTLES_WITHIN);
        let unsettled = |row: &Row| row.ended.is_none_or(|ended| ended > settles);
        // What was settled once stays so, whatever the clock says.
        let before = self.last_check().map_or(0, |before| before.settled);
        let first = self.entries.range(before..).find(|(_, entry)| unsettled(&entry.row));
        // Purchases count from 1 on: the number of one is that of the next, less one.
        let settled = first.map_or(self.next, |(number, _)| *number);
        self.audit.checks.push_back(Checkpoint { snapshot, settled, number: self.next });
        let surplus = self.audit.checks.len().saturating_sub(MAX_CHECKS);
        self.audit.checks.drain(..surplus);
        self.audit.is_first_of_account = false;
    }

    pub(super) fn last_check(&self) -> Option<Checkpoint> {
        self.audit.checks.back().copied().filter(|_| !self.audit.is_first_of_account)
    }

    pub(super) fn checks(&self, most: usize) -> Vec<Snapshot> {
        self.audit.checks.iter().rev().take(most).map(|check| check.snapshot).collect()
    }

    pub(super) fn unknown_after(&self, number: u64) -> u64 {
        let after = self.entries.range(number..).map(|(_, entry)| entry.row.state);
        after.filter(|state| *state == State::Unknown).count() as u64
    }

    pub(super) fn row(&self, id: PurchaseId) -> Option<Row> {
        let entry = self.numbers.get(&id).and_then(|number| self.entries.get(number));
        entry.map(|entry| entry.row.clone())
    }

    pub(super) fn evidence<'a>(
        &self,
        settled: u64,
        refundable: Duration,
        job: impl Fn(PurchaseId) -> Option<&'a Job>,
    ) -> Vec<Evidence> {
        let found = self.entries.iter().filter_map(|(number, entry)| {
            let (row, number) = (&entry.row, number + 1);
            let job = job(row.id);
            let word = job.and_then(|job| job.latest.as_ref());
            let state = job.map(|_| word.map_or(JobState::Open, |word| word.state));
            let since = match word {
                Some(word) if word.state == JobState::Failed => Some(word.at),
                _ => row.ended,
            };
            let is_refundable = row.state == State::Posted
                && row.service == Service::Video
                && state != Some(JobState::Finished)
                && since.is_some_and(|since| since > refundable);
            let counts = number > settled || row.state == State::Unknown || is_refundable;
            let (is_assumed, is_recognised) = (entry.is_assumed, entry.is_recognised);
            let row = row.clone();
            counts.then_some(Evidence { row, number, is_assumed, is_recognised, job: state })
        });
        found.collect()
    }

    pub(super) fn recognise(&mut self, keys: Vec<String>, how: Recognise) -> bool {
        let noted = &mut self.audit.keys;
        let is_same = noted.is_empty() || keys.iter().any(|key| noted.contains(key));
        match how {
            Recognise::Look => return is_same,
            Recognise::Note if !is_same => {
                self.audit.is_first_of_account = true;
                return false;
            }
            Recognise::Note | Recognise::Adopt => {}
        }
        if !is_same {
            noted.clear();
            self.audit.is_first_of_account = true;
        }
        noted.extend(keys);
        true
    }
}
