//! The body of `POST /bff/tokens`: a user's new token.

use std::time::Duration;

use serde::de::MapAccess;

use super::Checked;
use super::json::{self, Entry, Field, FromObject, Text};
use super::object::object;
use super::rule::{Faults, UnknownFields, is_blank};
use crate::clock::Date;
use crate::gate::problem::Problem;
use crate::gateway::contract::member::parse_amount;
use crate::gateway::contract::money::{Period, SpendLimit, Usd};

/// A token that a user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedToken {
    pub name: String,
    /// The last UTC day on which it works.
    pub until: Date,
    pub budget: SpendLimit,
}

const MAX_NAME: usize = 64;
const MAX_DAYS: u64 = 365;

/// `now` is the time since the Unix epoch.
pub fn own_token(payload: &[u8], now: Duration) -> Result<Checked<WantedToken>, Problem> {
    let body: TokenBody<'_> = json::read_body(payload)?;
    let mut faults = body.check();
    let until = body.until.value().map(|text| read_until(text, Date::at(now).days()));
    let until = until.and_then(|until| faults.take("/until", until));
    let budget = body.budget.value().map(|limits| limits.read(&mut faults, "/budget"));
    let (name, until) = faults.accept(body.name.into_value().zip(until))?;
    let budget = budget.unwrap_or(SpendLimit::NONE);
    Ok(Checked(WantedToken { name: name.trim().to_owned(), until, budget }))
}

fn read_until(text: &str, today: u64) -> Result<Date, Fault> {
    let date = text.parse().ok();
    let date = date.filter(|date: &Date| (today..=today + MAX_DAYS).contains(&date.days()));
    let last = Date::from_days(today + MAX_DAYS);
    date.ok_or_else(|| ("bad_date", format!("expected a UTC day from today to {last}")))
}

fn read_amount(text: &str) -> Result<Usd, Fault> {
    parse_amount(text).map_err(|detail| ("bad_amount", detail))
}

/// The code and the detail of a fault.
type Fault = (&'static str, String);

impl Faults {
    fn take<T>(&mut self, at: &str, read: Result<T, Fault>) -> Option<T> {
        read.map_err(|(code, detail)| self.push(at, code, detail)).ok()
    }
}

object! {
    struct TokenBody<'a> checked() {
        "name" => name: Text<'a>, required("a name, such as laptop"), "bad_name" => |body| {
            let is_bad = !is_name(body.name.value()?);
            is_bad.then(|| format!("expected 1 to {MAX_NAME} visible characters"))
        };
        "until" => until: Text<'a>, required("its last day, such as 2027-01-31");
        "budget" => budget: Field<Limits<'a>>, optional();
        _ => reject;
    }
}

/// Line breaks and invisible characters would make two names look alike.
fn is_name(text: &str) -> bool {
    let text = text.trim();
    let is_hidden = |c: char| c.is_control() || (c != ' ' && is_blank(c.encode_utf8(&mut [0; 4])));
    !text.is_empty() && text.chars().count() <= MAX_NAME && !text.chars().any(is_hidden)
}

/// Limits by period, such as `{"day": "1.00"}`.
#[derive(Default)]
pub(super) struct Limits<'a> {
    amounts: [Text<'a>; Period::ALL.len()],
    unknown: UnknownFields<'a>,
}

impl<'de> FromObject<'de> for Limits<'de> {
    const EXPECTED: &'static str = "an object of amounts by period";

    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        match Period::ALL.iter().position(|period| period.name() == entry.name()) {
            Some(at) => entry.read_into(&mut self.amounts[at]),
            None => entry.reject(&mut self.unknown),
        }
    }
}

impl Limits<'_> {
    /// Returns the limits. Faults are reported below `at`.
    pub(super) fn read(&self, faults: &mut Faults, at: &str) -> SpendLimit {
        faults.unknown_fields(&self.unknown, &Period::ALL.map(Period::name), &at);
        let mut limits = SpendLimit::NONE;
        for (period, field) in Period::ALL.into_iter().zip(&self.amounts) {
            let pointer = format!("{at}/{}", period.name());
            if let Some(detail) = field.wrong_type() {
                faults.push(&pointer, "wrong_type", detail);
            }
            let amount = field.value().map(|text| read_amount(text));
            if let Some(amount) = amount.and_then(|amount| faults.take(&pointer, amount)) {
                limits = SpendLimit::of(period, amount).or(limits);
            }
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(20_000 * 86_400 + 7_200);

    #[test]
    fn valid_body_is_read() {
        let payload = br#"{"name": " my laptop ", "until": "2024-10-04", "budget": {"day": "1.50", "ever": "0"}}"#;
        let wanted = own_token(payload, NOW).unwrap().into_inner();
        let (day, ever) = (Some(Usd::mills(1_500)), Some(Usd::ZERO));
        let budget = SpendLimit { day, ever, ..SpendLimit::NONE };
        let until = Date { year: 2024, month: 10, day: 4 };
        assert_eq!(wanted, WantedToken { name: "my laptop".to_owned(), until, budget });
        let payload = r#"{"name": "é", "until": "2025-10-04"}"#;
        let wanted = own_token(payload.as_bytes(), NOW).unwrap().into_inner();
        assert_eq!((wanted.until.days(), wanted.budget), (20_365, SpendLimit::NONE));
    }

    #[test]
    fn each_fault_is_named() {
        for (payload, faults) in [
            ("{}", &[("/name", "required"), ("/until", "required")][..]),
            (
                r#"{"name": 1, "until": null, "budget": "5"}"#,
                &[("/name", "wrong_type"), ("/until", "wrong_type"), ("/budget", "wrong_type")],
            ),
            (r#"{"name": " ", "until": "2024-10-04"}"#, &[("/name", "bad_name")]),
            (r#"{"name": "a\nb", "until": "2024-10-04"}"#, &[("/name", "bad_name")]),
            (r#"{"name": "a\u200bb", "until": "2024-10-04"}"#, &[("/name", "bad_name")]),
            (r#"{"name": "a", "until": "2024-10-03"}"#, &[("/until", "bad_date")]),
            (r#"{"name": "a", "until": "2025-10-05"}"#, &[("/until", "bad_date")]),
            (r#"{"name": "a", "until": "2025-02-30"}"#, &[("/until", "bad_date")]),
            (r#"{"name": "a", "until": "tomorrow"}"#, &[("/until", "bad_date")]),
            (
                r#"{"name": "a", "until": "2024-10-04", "budget": {"day": "-1", "week": 5, "year": "5"}}"#,
                &[
                    ("/budget/year", "unknown_field"),
                    ("/budget/day", "bad_amount"),
                    ("/budget/week", "wrong_type"),
                ],
            ),
            (
                r#"{"name": "a", "until": "2024-10-04", "role": "admin"}"#,
                &[("/role", "unknown_field")],
            ),
        ] {
            let problem = own_token(payload.as_bytes(), NOW).unwrap_err();
            let found: Vec<_> =
                problem.errors().iter().map(|fault| (&*fault.pointer, fault.code)).collect();
            assert_eq!(found, faults, "{payload}");
        }
        let long = format!(r#"{{"name": "{}", "until": "2024-10-04"}}"#, "x".repeat(65));
        assert!(own_token(long.as_bytes(), NOW).is_err());
        let twice = br#"{"name": "a", "name": "b", "until": "2024-10-04"}"#;
        assert_eq!(own_token(twice, NOW).unwrap_err().kind().code, "malformed_json");
    }
}
