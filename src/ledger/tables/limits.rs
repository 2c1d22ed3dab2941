//! The limits that the ledger itself keeps: those of groups, and what raises a caller's.

use std::collections::HashMap;
use std::time::Duration;

use super::column::read;
use crate::gateway::contract::money::Usd;
use crate::ledger::engine::{Engine, Result, Sql};
use crate::ledger::{Extra, SpendLimit};

/// In memory, so that a purchase reads no table for them.
pub(super) struct KeptLimits {
    groups: HashMap<Box<str>, SpendLimit>,
    /// By caller.
    extras: HashMap<Box<str>, Vec<Extra>>,
}

impl KeptLimits {
    /// Returns the limits of a group. One that was never added has none.
    pub(super) fn group(&self, name: &str) -> SpendLimit {
        self.groups.get(name).copied().unwrap_or_default()
    }

    /// Returns the sum of a caller's extras that are in force, until the first of them ends.
    pub(super) fn extra(&self, caller: &str, now: Duration) -> Option<Extra> {
        let in_force = self.extras.get(caller)?.iter().filter(|extra| extra.until > now);
        in_force.copied().reduce(|sum, extra| Extra {
            amount: Usd::micros(sum.amount.as_micros().saturating_add(extra.amount.as_micros())),
            until: sum.until.min(extra.until),
        })
    }

    pub(super) fn read(db: &dyn Engine) -> Result<Self> {
        let groups = db.all("SELECT name, budget FROM groups", (), read)?.into_iter().collect();
        let mut extras = HashMap::<_, Vec<_>>::new();
        for (caller, amount, until) in
            db.all("SELECT caller, micros, until FROM extras", (), read)?
        {
            extras.entry(caller).or_default().push(Extra { amount, until });
        }
        Ok(Self { groups, extras })
    }
}
