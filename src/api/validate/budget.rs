//! The bodies of requests about budgets: extras, requests for more, answers, and unknown outcomes.

use std::borrow::Cow;

use serde::de::MapAccess;

use super::json::{self, Entry, Field, FromObject};
use super::member::{checked, present};
use super::rule::{Faults, UnknownFields, blank};
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

/// Reads the body of `POST /bff/admin/members/NAME/extra`. It ends today at the earliest.
pub fn extra(payload: &[u8], today: Date) -> Result<Raise, Problem> {
    let mut body = Texts::new(["amount", "until"]);
    json::read_object(payload, &mut body)?;
    let mut faults = Faults::default();
    let [amount, until] = body.finish(&mut faults);
    let amount = sum(&mut faults, ("/amount", AMOUNT), amount);
    let until = day(&mut faults, until, today);
    raise(faults, amount, until)
}

/// Reads the body of `POST /bff/budget-requests`: an amount, and the reason if there is one.
pub fn budget_request(payload: &[u8]) -> Result<(Usd, String), Problem> {
    let mut body = Texts::new(["amount", "reason"]);
    json::read_object(payload, &mut body)?;
    let mut faults = Faults::default();
    let [amount, reason] = body.finish(&mut faults);
    let amount = sum(&mut faults, ("/amount", AMOUNT), amount);
    let reason = present(&mut faults, "/reason", reason).unwrap_or_default();
    checked(&mut faults, "/reason", check_line(&reason, MAX_REASON));
    match amount.filter(|_| faults.is_empty()) {
        Some(amount) => Ok((amount, reason.into_owned())),
        None => Err(faults.into_problem()),
    }
}

/// Reads the body of `POST /bff/admin/budget-requests/ID`; `None` declines.
pub fn budget_answer(payload: &[u8], today: Date) -> Result<Option<Raise>, Problem> {
    let mut body = AnswerBody { texts: Texts::new(["grant", "until"]), decline: Field::Absent };
    json::read_object(payload, &mut body)?;
    let AnswerBody { texts, decline } = body;
    let mut faults = Faults::default();
    if decline.is_absent() {
        let [amount, until] = texts.finish(&mut faults);
        let amount = sum(&mut faults, ("/grant", GRANT), amount);
        let until = day(&mut faults, until, today);
        return raise(faults, amount, until).map(Some);
    }
    let is_alone = texts.values.iter().all(Field::is_absent);
    texts.finish(&mut faults);
    let declines = present(&mut faults, "/decline", decline) == Some(true);
    if !(declines && is_alone) && faults.is_empty() {
        let expected = "expected {\"decline\": true} alone, or grant and until";
        checked(&mut faults, "/decline", Err::<(), _>(expected));
    }
    if faults.is_empty() { Ok(None) } else { Err(faults.into_problem()) }
}

/// Reads the body of `POST /bff/admin/purchases/ID`. Returns whether the gateway charged for it.
pub fn purchase_outcome(payload: &[u8]) -> Result<bool, Problem> {
    let mut body = OutcomeBody::default();
    json::read_object(payload, &mut body)?;
    let mut faults = Faults::default();
    faults.unknown_fields(&body.unknown, &["outcome"], &"");
    let outcome = required(&mut faults, ("/outcome", OUTCOMES), body.outcome);
    let was_charged = outcome.and_then(|outcome| {
        let known = match &*outcome {
            "charged" => Ok(true),
            "released" => Ok(false),
            _ => Err(format!("expected {OUTCOMES}")),
        };
        checked(&mut faults, "/outcome", known)
    });
    was_charged.filter(|_| faults.is_empty()).ok_or_else(|| faults.into_problem())
}

fn raise(faults: Faults, amount: Option<Usd>, until: Option<Date>) -> Result<Raise, Problem> {
    match amount.zip(until).filter(|_| faults.is_empty()) {
        Some((amount, until)) => Ok(Raise { amount, until }),
        None => Err(faults.into_problem()),
    }
}

pub(super) type Text<'a> = Field<Cow<'a, str>>;

pub(super) fn required<'a>(
    faults: &mut Faults,
    (pointer, purpose): (&str, &str),
    field: Text<'a>,
) -> Option<Cow<'a, str>> {
    let missing = field.missing(purpose);
    missing.into_iter().for_each(|detail| faults.push(pointer, "required", detail));
    present(faults, pointer, field)
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

/// An object of two texts with these names.
struct Texts<'a> {
    names: [&'static str; 2],
    values: [Text<'a>; 2],
    unknown: UnknownFields<'a>,
}

impl<'a> Texts<'a> {
    fn new(names: [&'static str; 2]) -> Self {
        Self { names, values: Default::default(), unknown: UnknownFields::default() }
    }

    fn finish(self, faults: &mut Faults) -> [Text<'a>; 2] {
        faults.unknown_fields(&self.unknown, &self.names, &"");
        self.values
    }
}

impl<'de> FromObject<'de> for Texts<'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        let mut texts = self.names.iter().zip(&mut self.values);
        match texts.find(|(name, _)| **name == entry.name()) {
            Some((_, text)) => entry.read_into(text),
            None => entry.reject(&mut self.unknown),
        }
    }
}

#[derive(Default)]
struct OutcomeBody<'a> {
    outcome: Text<'a>,
    unknown: UnknownFields<'a>,
}

impl<'de> FromObject<'de> for OutcomeBody<'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        match entry.name() {
            "outcome" => entry.read_into(&mut self.outcome),
            _ => entry.reject(&mut self.unknown),
        }
    }
}

struct AnswerBody<'a> {
    texts: Texts<'a>,
    decline: Field<bool>,
}

impl<'de> FromObject<'de> for AnswerBody<'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        match entry.name() {
            "decline" => entry.read_into(&mut self.decline),
            _ => self.texts.member(entry),
        }
    }
}
