//! Requests for more budget.

use std::sync::Arc;

use super::column::{self, nanos, signed};
use super::handle::PostgresStore;
use super::step::{Need, Step, statement};
use crate::contract::money::Usd;
use crate::store::audit_log::{RAISE_MEMBER, extra_text};
use crate::store::budget_requests::{DECLINE, GRANT};
use crate::store::{Actor, BudgetRequest, Extra, Unavailable};

const FORGET: &str = "DELETE FROM budget_requests WHERE caller = $1";
const ASK: &str = "INSERT INTO budget_requests (caller, micros, reason, at)
    VALUES ($1, $2, $3, {now}) RETURNING number, at";
const OPEN: &str = "SELECT number, caller, micros, reason, at FROM budget_requests ORDER BY number";
/// Only the answer that deletes the request does anything.
const ANSWER: &str = "
WITH answered AS (
  DELETE FROM budget_requests WHERE number = $1 RETURNING caller, micros
), raised AS (
  INSERT INTO extras (caller, micros, until, at)
  SELECT caller, $2::bigint, $3::bigint, {now} FROM answered WHERE $2::bigint IS NOT NULL
), written AS (
  INSERT INTO audit (at, by, act, of, old, new)
  SELECT {now}, $4::text, $5::text, caller,
    to_char(micros / 1000000.0, 'FM9999999999990.009999'), $6::text
  FROM answered
)
SELECT count(*) FROM answered";

const RAISE: &str = "
WITH raised AS (
  INSERT INTO extras (caller, micros, until, at) VALUES ($1::text, $2::bigint, $3::bigint, {now})
)
INSERT INTO audit (at, by, act, of, old, new)
VALUES ({now}, $4::text, $5::text, $1::text, NULL, $6::text)";
const END: &str = "
WITH ended AS (
  UPDATE extras SET until = {now} WHERE caller = $1::text AND until > {now} RETURNING 1
)
INSERT INTO audit (at, by, act, of, old, new)
SELECT {now}, $2::text, $3::text, $1::text, NULL, NULL WHERE EXISTS (SELECT 1 FROM ended)";

impl PostgresStore {
    pub(in crate::store) async fn ask_for_budget(
        &self,
        caller: Arc<str>,
        amount: Usd,
        reason: Arc<str>,
    ) -> Result<BudgetRequest, Unavailable> {
        let micros = signed(amount.as_micros());
        let ask = statement!(ASK, caller.to_string(), micros, reason.to_string());
        let statements = vec![statement!(FORGET, caller.to_string()), ask];
        let rows = self.run(&self.lanes().marks, Step::new(Need::Plain, statements)).await?;
        let row = rows.get(1).and_then(|rows| rows.first());
        let row = row.ok_or_else(|| Unavailable("the database sent no number".into()))?;
        let (id, at) = (column::count(row, 0)?, column::moment(row, 1)?);
        Ok(BudgetRequest { id, caller, amount, reason, at })
    }

    pub(in crate::store) async fn budget_requests(
        &self,
    ) -> Result<Vec<BudgetRequest>, Unavailable> {
        self.query(&self.lanes().pulse, statement!(OPEN), |row| {
            Ok(BudgetRequest {
                id: column::count(row, 0)?,
                caller: column::text(row, 1)?,
                amount: column::money(row, 2)?,
                reason: column::text(row, 3)?,
                at: column::moment(row, 4)?,
            })
        })
        .await
    }

    pub(in crate::store) async fn answer_budget_request(
        &self,
        by: Actor,
        id: u64,
        granted: Option<Extra>,
    ) -> Result<bool, Unavailable> {
        let act = if granted.is_some() { GRANT } else { DECLINE };
        let answer = statement!(
            ANSWER,
            signed(id),
            granted.map(|extra| signed(extra.amount.as_micros())),
            granted.map(|extra| nanos(extra.until)),
            by.name().to_owned(),
            act,
            granted.map(extra_text),
        );
        let rows = self.run(&self.lanes().marks, Step::plain(answer)).await?;
        let row = rows.iter().flatten().next();
        let row = row.ok_or_else(|| Unavailable("the database sent no verdict".into()))?;
        Ok(column::count(row, 0)? > 0)
    }

    pub(in crate::store) async fn change_extras(
        &self,
        by: Actor,
        caller: Arc<str>,
        extra: Option<Extra>,
    ) -> Result<(), Unavailable> {
        let (caller, by) = (caller.to_string(), by.name().to_owned());
        let change = match extra {
            Some(extra) => {
                let (micros, until) = (signed(extra.amount.as_micros()), nanos(extra.until));
                statement!(RAISE, caller, micros, until, by, RAISE_MEMBER, extra_text(extra))
            }
            None => statement!(END, caller, by, RAISE_MEMBER),
        };
        self.run(&self.lanes().marks, Step::plain(change)).await.map(drop)
    }
}
