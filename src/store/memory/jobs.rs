//! The jobs in this process alone: as plain as can be, since every backend has to do the same.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::store::{Job, JobState, PurchaseId, Word};

/// Jobs that have ended and are still remembered; the first to end go first.
const MOST_ENDED: usize = 10_000;

/// Jobs by number, in the order in which they were accepted.
#[derive(Default)]
pub(super) struct Jobs {
    kept: BTreeMap<u64, Job>,
    numbers: HashMap<Arc<str>, u64>,
    next: u64,
    ended: VecDeque<u64>,
}

impl Jobs {
    pub(super) fn accept(&mut self, job: &Job) {
        if self.numbers.contains_key(&job.request_id) {
            return;
        }
        let number = self.next;
        self.next += 1;
        self.numbers.insert(Arc::clone(&job.request_id), number);
        self.kept.insert(number, Job { latest: None, ..job.clone() });
    }

    pub(super) fn heard(&mut self, request_id: &str, word: Word) {
        let Some(&number) = self.numbers.get(request_id) else { return };
        let Some(job) = self.kept.get_mut(&number).filter(|job| job.is_open()) else { return };
        job.latest = Some(word);
        if !job.is_open() {
            self.ended.push_back(number);
        }
        while self.ended.len() > MOST_ENDED {
            let oldest = self.ended.pop_front().and_then(|oldest| self.kept.remove(&oldest));
            if let Some(job) = oldest {
                self.numbers.remove(&job.request_id);
            }
        }
    }

    pub(super) fn job(&self, request_id: &str) -> Option<Job> {
        self.numbers.get(request_id).and_then(|number| self.kept.get(number)).cloned()
    }

    pub(super) fn ordered_with(&self, id: PurchaseId) -> Option<&Job> {
        self.kept.values().find(|job| job.purchase == Some(id))
    }

    pub(super) fn open(&self) -> Vec<Job> {
        self.kept.values().filter(|job| job.is_open()).cloned().collect()
    }

    pub(super) fn of(&self, owner: &str, most: usize) -> Vec<Job> {
        self.kept.values().rev().filter(|job| &*job.owner == owner).take(most).cloned().collect()
    }

    pub(super) fn latest(&self, most: usize) -> Vec<Job> {
        self.kept.values().rev().take(most).cloned().collect()
    }

    pub(super) fn times(&self, model: &str, most: usize) -> Vec<Duration> {
        let ended = self.ended.iter().rev().filter_map(|number| self.kept.get(number));
        let took = |job: &Job| {
            let word = job.latest.as_ref().filter(|word| word.state == JobState::Finished)?;
            Some(word.at.saturating_sub(job.at))
        };
        ended.filter(|job| &*job.model == model).filter_map(took).take(most).collect()
    }
}
