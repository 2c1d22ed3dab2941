//! The account's balance, and the prices held and spent, in a ledger that servers share.

use std::time::Duration;

use super::column::{self, nanos};
use crate::contract::money::Usd;
use crate::ledger::CreditWatermark;
use crate::ledger::engine::{Engine, Result, Sql, params};
use crate::ledger::rules::{Credit, KnownBalance};

pub(super) fn read(db: &dyn Engine) -> Result<Credit> {
    db.one("SELECT held, spent, balance, since, as_of FROM credit", (), |row| {
        let (balance, since): (Option<u64>, Option<u64>) = (row.get(2)?, row.get(3)?);
        let known = balance.zip(since).zip(column::moment_or_none(row, 4)?);
        let known = known.map(|((balance, since), as_of): (_, Duration)| KnownBalance {
            balance: Usd::micros(balance),
            since: CreditWatermark(since),
            as_of,
        });
        Ok(Credit { held: row.get(0)?, spent: row.get(1)?, known })
    })
}

pub(super) fn write(db: &dyn Engine, Credit { held, spent, known }: Credit) -> Result<()> {
    let write = "UPDATE credit SET held = ?, spent = ?, balance = ?, since = ?, as_of = ?";
    let balance = known.map(|known| known.balance.as_micros());
    let since = known.map(|known| known.since.0);
    let as_of = known.map(|known| nanos(known.as_of));
    db.run(write, params![held, spent, balance, since, as_of])?;
    Ok(())
}
