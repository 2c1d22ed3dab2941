//! The bodies of requests about budgets: extras, requests for more, answers, and unknown outcomes.

use std::borrow::Cow;

use super::json::{self, Field, FromObject, Text};
use super::member::{checked, present};
use super::object::object;
use super::rule::{Faults, blank};
use crate::clock::Date;
use crate::gate::problem::Problem;
use crate::gateway::contract::member::parse_amount;
use crate::gateway::contract::money::Usd;

const MAX_REASON: usize = 500;
pub(super) const AMOUNT: &str = "dollars as text, such as \"5.00\"";
const OUTCOMES: &str = "\"charged\" or \"released\"";
const GRANT: &str = "dollars as text, such as \"5.00\"; or send {\"decline\": true}";

/// An amount that raises limits until the end of a UTC day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raise {
    pub amount: Usd,
    pub until: Date,
}

object! {
    struct ExtraBody<'a> {
        "amount" => amount: Text<'a>;
        "until" => until: Text<'a>;
        _ => reject;
    }
}

/// Reads the body of `POST /bff/admin/members/NAME/extra`. It ends today at the earliest.
pub fn extra(payload: &[u8], today: Date) -> Result<Raise, Problem> {
    let body: ExtraBody<'_> = json::read_body(payload)?;
    let mut faults = Faults::default();
    faults.unknown_fields(&body.unknown, ExtraBody::KEYS, &"");
    let amount = sum(&mut faults, ("/amount", AMOUNT), body.amount);
    let until = day(&mut faults, body.until, today);
    raise(faults, amount, until)
}

object! {
    struct RequestBody<'a> {
        "amount" => amount: Text<'a>;
        "reason" => reason: Text<'a>;
        _ => reject;
    }
}

/// Reads the body of `POST /bff/budget-requests`: an amount, and the reason if there is one.
pub fn budget_request(payload: &[u8]) -> Result<(Usd, String), Problem> {
    let body: RequestBody<'_> = json::read_body(payload)?;
    let mut faults = Faults::default();
    faults.unknown_fields(&body.unknown, RequestBody::KEYS, &"");
    let amount = sum(&mut faults, ("/amount", AMOUNT), body.amount);
    let reason = present(&mut faults, "/reason", body.reason).unwrap_or_default();
    checked(&mut faults, "/reason", check_line(&reason, MAX_REASON));
    Ok((faults.accept(amount)?, reason.into_owned()))
}

object! {
    struct AnswerBody<'a> {
        "grant" => grant: Text<'a>;
        "until" => until: Text<'a>;
        "decline" => decline: Field<bool>;
        _ => reject;
    }
}

/// Reads the body of `POST /bff/admin/budget-requests/ID`; `None` declines.
pub fn budget_answer(payload: &[u8], today: Date) -> Result<Option<Raise>, Problem> {
    let AnswerBody { grant, until, decline, unknown } = json::read_body(payload)?;
    let mut faults = Faults::default();
    faults.unknown_fields(&unknown, &["grant", "until"], &"");
    if decline.is_absent() {
        let amount = sum(&mut faults, ("/grant", GRANT), grant);
        let until = day(&mut faults, until, today);
        return raise(faults, amount, until).map(Some);
    }
    let declines = present(&mut faults, "/decline", decline) == Some(true);
    let is_alone = grant.is_absent() && until.is_absent();
    if !(declines && is_alone) && faults.is_empty() {
        let expected = "expected {\"decline\": true} alone, or grant and until";
        checked(&mut faults, "/decline", Err::<(), _>(expected));
    }
    if faults.is_empty() { Ok(None) } else { Err(faults.into_problem()) }
}

object! {
    struct OutcomeBody<'a> {
        "outcome" => outcome: Text<'a>;
        _ => reject;
    }
}

/// Reads the body of `POST /bff/admin/purchases/ID`. Returns whether the gateway charged for it.
pub fn purchase_outcome(payload: &[u8]) -> Result<bool, Problem> {
    let body: OutcomeBody<'_> = json::read_body(payload)?;
    let mut faults = Faults::default();
    faults.unknown_fields(&body.unknown, OutcomeBody::KEYS, &"");
    let outcome = required(&mut faults, ("/outcome", OUTCOMES), body.outcome);
    let was_charged = outcome.and_then(|outcome| {
        let known = match &*outcome {
            "charged" => Ok(true),
            "released" => Ok(false),
            _ => Err(format!("expected {OUTCOMES}")),
        };
        checked(&mut faults, "/outcome", known)
    });
    faults.accept(was_charged)
}

fn raise(faults: Faults, amount: Option<Usd>, until: Option<Date>) -> Result<Raise, Problem> {
    let raise = amount.zip(until).map(|(amount, until)| Raise { amount, until });
    faults.accept(raise)
}

pub(super) fn required<'a>(
    faults: &mut Faults,
    (pointer, purpose): (&str, &str),
    field: Text<'a>,
) -> Option<Cow<'a, str>> {
    faults.required(pointer, &field, purpose);
    field.into_value()
}

pub(super) fn sum(faults: &mut Faults, of: (&str, &str), field: Text<'_>) -> Option<Usd> {
    let text = required(faults, of, field)?;
    let amount = parse_amount(&text).and_then(|amount| {
        let expected = || "expected more than 0".to_owned();
        (amount > Usd::ZERO).then_some(amount).ok_or_else(expected)
    });
    checked(faults, of.0, amount)
}

pub(super) fn day(faults: &mut Faults, field: Text<'_>, today: Date) -> Option<Date> {
    let purpose = "the last day, a UTC date such as 2026-11-30";
    let text = required(faults, ("/until", purpose), field)?;
    let date = text.parse().ok().filter(|date: &Date| date.days() >= today.days());
    let expected = "expected a date that is not past, such as 2026-11-30";
    checked(faults, "/until", date.ok_or(expected))
}

/// Accepts a line of text, and none.
pub(super) fn check_line(text: &str, max: usize) -> Result<(), String> {
    if text.chars().count() > max {
        return Err(format!("expected at most {max} characters"));
    }
    let is_blank = !text.is_empty() && blank(text).is_some();
    if is_blank || text.chars().any(char::is_control) {
        return Err("expected one line of text".to_owned());
    }
    Ok(())
}
