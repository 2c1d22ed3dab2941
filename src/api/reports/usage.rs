//! Spending: `GET /bff/usage`, `GET /bff/admin/usage`, and the totals of `tollgate usage`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION};
use http::{HeaderValue, StatusCode};
use jiff::{Span, Timestamp};
use serde_json::{Value, json};

use super::text::csv;
use super::{Reports, list_of, unavailable};
use crate::api::validate::{UsageDays, UsageFormat, too_many_rows};
use crate::clock::{self, Date};
use crate::gate::problem::{FORBIDDEN, LEDGER_UNAVAILABLE, Problem};
use crate::gate::response::{self, Response};
use crate::gateway::contract::money::Usd;
use crate::ledger::{Caller, SpendRow, ZoneOffsets};

/// Bounds the memory that one request can use. A page cannot show more.
pub(super) const MAX_ROWS: usize = 20_000;

/// Totals of purchases. Released ones are left out, all others count as spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpendTotals {
    pub count: u64,
    pub charged: Usd,
    pub unknown: Usd,
    pub held: Usd,
    /// The price of retries and duplicates that were answered without buying again. It is not spent.
    pub saved: Usd,
}

impl SpendTotals {
    pub const COLUMNS: &str = "count,charged,unknown,held,saved";

    pub fn of<'a>(rows: impl IntoIterator<Item = &'a SpendRow>) -> Self {
        rows.into_iter().fold(Self::default(), Self::with)
    }

    fn with(self, row: &SpendRow) -> Self {
        Self {
            count: self.count + row.count,
            charged: saturating_sum(self.charged, row.charged),
            unknown: saturating_sum(self.unknown, row.unknown),
            held: saturating_sum(self.held, row.held),
            saved: saturating_sum(self.saved, row.saved),
        }
    }

    pub fn group_by<K: Ord>(rows: &[SpendRow], key: impl Fn(&SpendRow) -> K) -> BTreeMap<K, Self> {
        let mut groups: BTreeMap<_, Self> = BTreeMap::new();
        for row in rows {
            let group = groups.entry(key(row)).or_default();
            *group = group.with(row);
        }
        groups
    }

    /// Returns what counts against budgets.
    pub fn spent(&self) -> Usd {
        saturating_sum(saturating_sum(self.charged, self.unknown), self.held)
    }

    pub fn json(&self) -> Value {
        let Self { count, charged, unknown, held, saved } = self;
        json!({
            "count": count,
            "charged": charged, "charged_micros": charged.as_micros(),
            "unknown": unknown, "unknown_micros": unknown.as_micros(),
            "held": held, "held_micros": held.as_micros(),
            "saved": saved, "saved_micros": saved.as_micros(),
        })
    }

    pub fn columns(&self) -> [String; 5] {
        let Self { count, charged, unknown, held, saved } = self;
        let [charged, unknown, held, saved] = [charged, unknown, held, saved].map(Usd::to_string);
        [count.to_string(), charged, unknown, held, saved]
    }
}

/// The ledger itself holds no larger sum.
fn saturating_sum(sum: Usd, more: Usd) -> Usd {
    sum.checked_add(more).unwrap_or(Usd::micros(u64::MAX))
}

/// Returns a day as `2026-11-22`.
pub fn iso_day(days: u64) -> String {
    Date::from_days(days).to_string()
}

impl Reports {
    pub async fn usage(&self, caller: &Caller, days: UsageDays) -> Result<Response, Problem> {
        if !self.identifies_callers {
            return Err(Problem::new(&FORBIDDEN).detail(
                "in open mode usage is not shown, because an IP address does not identify a user",
            ));
        }
        let (since, zone) = start_of(&days);
        let caller = Some(caller.to_string());
        let rows = self.store.spend(caller, since, zone, usize::MAX).await;
        let rows = rows.map_err(|_| Problem::new(&LEDGER_UNAVAILABLE))?;
        let row = |row: &SpendRow| {
            let spent = SpendTotals::of([row]).spent();
            json!({
                "day": iso_day(row.day),
                "service": row.service.name(),
                "model": row.model,
                "count": row.count,
                "spent": spent, "spent_micros": spent.as_micros(),
            })
        };
        let totals = SpendTotals::of(&rows);
        let total = totals.spent();
        let saved = totals.saved;
        let document = list_of(rows.iter().map(row)).with(json!({
            "since": clock::iso8601(since),
            "total": total, "total_micros": total.as_micros(),
            "saved": saved, "saved_micros": saved.as_micros(),
        }));
        Ok(response::json(StatusCode::OK, &document))
    }

    pub async fn admin_usage(
        &self,
        (days, format): (UsageDays, UsageFormat),
    ) -> Result<Response, Problem> {
        let (since, zone) = start_of(&days);
        let rows = self.store.spend(None, since, zone, MAX_ROWS + 1).await;
        let rows = rows.map_err(unavailable)?;
        if rows.len() > MAX_ROWS {
            // A truncated report would not add up.
            return Err(too_many_rows(MAX_ROWS));
        }
        if format == UsageFormat::Csv {
            return Ok(csv_download(&rows));
        }
        let row = |row: &SpendRow| {
            let mut figures = SpendTotals::of([row]).json();
            figures["caller"] = json!(row.caller);
            figures["group"] = json!(row.group);
            figures["day"] = json!(iso_day(row.day));
            figures["service"] = json!(row.service.name());
            figures["model"] = json!(row.model);
            figures
        };
        let document = list_of(rows.iter().map(row)).with(json!({
            "since": clock::iso8601(since),
            "total": SpendTotals::of(&rows).json(),
        }));
        Ok(response::json(StatusCode::OK, &document))
    }
}

/// Returns the start of the first of these local days, of which today is the last, and the offsets since then.
fn start_of(UsageDays { count, zone }: &UsageDays) -> (Duration, ZoneOffsets) {
    let wall = clock::wall();
    let now = Timestamp::try_from(SystemTime::UNIX_EPOCH + wall).unwrap_or_default();
    let earlier = i64::try_from(count.saturating_sub(1)).unwrap_or_default();
    let first = zone.to_datetime(now).date().saturating_sub(Span::new().days(earlier));
    let start = zone.to_timestamp(first.at(0, 0, 0, 0)).unwrap_or(now);
    let since_epoch = |at: Timestamp| Duration::try_from(at.as_duration()).unwrap_or_default();
    let changes = zone
        .following(start)
        .map(|change| (since_epoch(change.timestamp()), i64::from(change.offset().seconds())));
    let changes = changes.take_while(|(at, _)| *at <= wall).collect();
    let seconds = i64::from(zone.to_offset(start).seconds());
    (since_epoch(start), ZoneOffsets { first: seconds, changes })
}

fn csv_download(rows: &[SpendRow]) -> Response {
    let rows = rows.iter().map(|row| {
        let [count, charged, unknown, held, saved] = SpendTotals::of([row]).columns();
        let service = row.service.name().to_owned();
        let caller = row.caller.clone();
        let model = row.model.clone();
        let group = row.group.clone().unwrap_or_default();
        [caller, group, iso_day(row.day), service, model, count, charged, unknown, held, saved]
    });
    let text =
        csv(&format!("caller,group,day,service,model,{}", SpendTotals::COLUMNS), rows).into();
    let mut answer = response::from_bytes(StatusCode::OK, "text/csv; charset=utf-8", text);
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let as_file = HeaderValue::from_static("attachment; filename=\"tollgate-usage.csv\"");
    headers.insert(CONTENT_DISPOSITION, as_file);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Service;

    fn row(caller: &str, model: &str, day: u64, sum: SpendTotals) -> SpendRow {
        SpendRow {
            caller: caller.to_owned(),
            group: None,
            day,
            service: Service::Chat,
            model: model.to_owned(),
            count: sum.count,
            charged: sum.charged,
            unknown: sum.unknown,
            held: sum.held,
            saved: sum.saved,
        }
    }

    fn sum(count: u64, charged: u64, unknown: u64, held: u64) -> SpendTotals {
        SpendTotals {
            count,
            charged: Usd::mills(charged),
            unknown: Usd::mills(unknown),
            held: Usd::mills(held),
            saved: Usd::mills(charged),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn days_begin_as_the_clocks_of_the_zone_say() {
        let at = |text: &str| {
            let at: Timestamp = text.parse().expect("a time");
            Duration::from_secs(at.as_second().try_into().expect("after 1970"))
        };
        clock::set_wall(Some(at("2026-11-22T12:00:00Z")));
        for (name, count, start, first, changes) in [
            ("UTC", 7, "2026-11-16T00:00:00Z", 0, vec![]),
            ("Europe/Berlin", 7, "2026-11-15T23:00:00Z", 3_600, vec![]),
            // Summer time ended on 25 October, in North America a week later.
            (
                "Europe/Berlin",
                31,
                "2026-10-22T22:00:00Z",
                7_200,
                vec![("2026-10-25T01:00:00Z", 3_600)],
            ),
            (
                "America/New_York",
                31,
                "2026-10-23T04:00:00Z",
                -14_400,
                vec![("2026-11-01T06:00:00Z", -18_000)],
            ),
            ("Pacific/Kiritimati", 1, "2026-11-22T10:00:00Z", 50_400, vec![]),
            ("Asia/Kathmandu", 1, "2026-11-21T18:15:00Z", 20_700, vec![]),
            (
                "Australia/Lord_Howe",
                366,
                "2025-11-21T13:00:00Z",
                39_600,
                vec![("2026-04-04T15:00:00Z", 37_800), ("2026-10-03T15:30:00Z", 39_600)],
            ),
        ] {
            let zone = jiff::tz::TimeZone::get(name).expect("a zone");
            let changes = changes.into_iter().map(|(time, seconds)| (at(time), seconds)).collect();
            let expected = (at(start), ZoneOffsets { first, changes });
            assert_eq!(start_of(&UsageDays { count, zone }), expected, "{name} {count}");
        }
        clock::set_wall(None);
    }

    #[test]
    fn rows_are_added_up_by_any_key() {
        let rows = [
            row("a", "m", 0, sum(1, 3, 0, 0)),
            row("a", "n", 1, sum(1, 6, 0, 0)),
            row("b", "m", 1, sum(1, 0, 3_000, 0)),
            row("b", "n", 1, sum(2, 0, 0, 30)),
        ];
        let by: [fn(&SpendRow) -> String; 3] =
            [|row| row.caller.clone(), |row| row.model.clone(), |row| iso_day(row.day)];
        for (by, groups) in by.into_iter().zip([
            [("a", sum(2, 9, 0, 0)), ("b", sum(3, 0, 3_000, 30))],
            [("m", sum(2, 3, 3_000, 0)), ("n", sum(3, 6, 0, 30))],
            [("1970-01-01", sum(1, 3, 0, 0)), ("1970-01-02", sum(4, 6, 3_000, 30))],
        ]) {
            let expected = groups.map(|(key, sum)| (key.to_owned(), sum));
            assert_eq!(SpendTotals::group_by(&rows, by), BTreeMap::from(expected));
        }
        assert_eq!(SpendTotals::of(&rows), sum(5, 9, 3_000, 30));
        assert_eq!(SpendTotals::group_by(&[], |row| row.caller.clone()), BTreeMap::new());
        assert_eq!(SpendTotals::of(&[]), SpendTotals::default());
        let held = SpendTotals { held: Usd::micros(u64::MAX), ..sum(1, 0, 0, 0) };
        let most = SpendTotals::of(&[row("a", "m", 0, sum(1, 0, 0, 1)), row("a", "m", 0, held)]);
        assert_eq!((most.count, most.held), (2, Usd::micros(u64::MAX)));
    }
}
