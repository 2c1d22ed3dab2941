//! The bodies of requests that manage members and groups.

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess};

use super::fields::Fields;
use super::json::{Entry, Field, FromObject, FromValue, ValueSeed};
use super::may_buy::on_sale;
use super::rule::{Faults, UnknownFields, not_among, quote};
use crate::gate::problem::Problem;
use crate::gateway::contract::member::{self, Role};
use crate::gateway::contract::money::Period;
use crate::gateway::contract::selection::Selection;
use crate::gateway::contract::terms::{LimitChange, TERMS, TermInput, TermsChange};

const NAME: &str = "name";
const BUDGET: &str = "budget";

/// Reads the body of `POST /bff/admin/members`. `sold` are the names that `may_buy` may have.
pub fn new_member(payload: &[u8], sold: &[&str]) -> Result<(Arc<str>, TermsChange), Problem> {
    let known: Vec<_> = [NAME].into_iter().chain(term_names()).collect();
    let (body, mut faults) = Fields::read(payload, &known)?;
    let name = new_name(&body, &mut faults)?;
    let terms = terms(&body, sold, &mut faults)?;
    finish(name.map(|name| (name, terms)), faults)
}

/// Reads the body of `PATCH /bff/admin/members/NAME`: at least one change.
pub fn terms_change(payload: &[u8], sold: &[&str]) -> Result<TermsChange, Problem> {
    let known: Vec<_> = term_names().collect();
    let (body, mut faults) = Fields::read(payload, &known)?;
    let terms = terms(&body, sold, &mut faults)?;
    if faults.is_empty() && terms == TermsChange::default() {
        let detail = format!("expected at least one of {}", known.join(", "));
        faults.push("", "required", detail);
    }
    finish(Some(terms), faults)
}

/// Reads the body of `POST /bff/admin/groups`.
pub fn new_group(payload: &[u8]) -> Result<(Arc<str>, LimitChange), Problem> {
    let (body, mut faults) = Fields::read(payload, &[NAME, BUDGET])?;
    let name = new_name(&body, &mut faults)?;
    let budget = budget(body.get(BUDGET)?, BUDGET, &mut faults);
    finish(name.map(|name| (name, budget)), faults)
}

/// Reads the body of `PATCH /bff/admin/groups/NAME`.
pub fn group_budget(payload: &[u8]) -> Result<LimitChange, Problem> {
    let (body, mut faults) = Fields::read(payload, &[BUDGET])?;
    let budget = budget(body.get(BUDGET)?, BUDGET, &mut faults);
    if faults.is_empty() && budget == LimitChange::default() {
        faults.push("/budget", "required", "required: the group's budget".to_owned());
    }
    finish(Some(budget), faults)
}

fn finish<T>(read: Option<T>, faults: Faults) -> Result<T, Problem> {
    read.filter(|_| faults.is_empty()).ok_or_else(|| faults.into_problem())
}

fn term_names() -> impl Iterator<Item = &'static str> {
    TERMS.iter().map(|term| term.name)
}

fn new_name(body: &Fields<'_, '_>, faults: &mut Faults) -> Result<Option<Arc<str>>, Problem> {
    let name: Field<Cow<'_, str>> = body.get(NAME)?;
    let missing = name.missing("a name");
    missing.into_iter().for_each(|detail| faults.push("/name", "required", detail));
    let name = present(faults, "/name", name);
    Ok(name.and_then(|name| checked(faults, "/name", member::parse_name(&name))))
}

fn terms(
    body: &Fields<'_, '_>,
    sold: &[&str],
    faults: &mut Faults,
) -> Result<TermsChange, Problem> {
    let mut change = TermsChange::default();
    for term in TERMS {
        let (name, pointer) = (term.name, format!("/{}", term.name));
        match (term.input)(&mut change) {
            TermInput::Role(to) => {
                let read: Option<Cow<'_, str>> = present(faults, &pointer, body.get(name)?);
                *to = read.and_then(|read| role(&read, &pointer, faults));
            }
            TermInput::Name(to) => {
                let read: Option<Option<Cow<'_, str>>> =
                    nullable(faults, &pointer, body.get(name)?);
                *to = read.map(|read| {
                    read.and_then(|read| checked(faults, &pointer, member::parse_name(&read)))
                });
            }
            TermInput::Limits(to) => *to = budget(body.get(name)?, name, faults),
            TermInput::Selection(to) => {
                let read = nullable(faults, &pointer, body.get(name)?);
                *to = read
                    .map(|read| read.and_then(|read| selection(read, (&pointer, sold), faults)));
            }
        }
    }
    Ok(change)
}

fn budget(body: Field<BudgetBody<'_>>, name: &str, faults: &mut Faults) -> LimitChange {
    match nullable(faults, &format!("/{name}"), body) {
        None => LimitChange::default(),
        Some(None) => LimitChange::REMOVE_ALL,
        Some(Some(budget)) => limits(budget, name, faults),
    }
}

fn role(name: &str, pointer: &str, faults: &mut Faults) -> Option<Role> {
    let unknown = not_among(name, &Role::ALL.map(Role::name));
    unknown.into_iter().for_each(|detail| faults.push(pointer, "unknown_role", detail));
    Role::ALL.into_iter().find(|role| role.name() == name)
}

fn limits(body: BudgetBody<'_>, name: &str, faults: &mut Faults) -> LimitChange {
    faults.unknown_fields(&body.unknown, &Period::ALL.map(Period::name), &format!("/{name}"));
    let mut periods = Period::ALL.into_iter();
    LimitChange(body.periods.map(|amount| {
        let pointer = format!("/{name}/{}", periods.next().map(Period::name).unwrap_or_default());
        let amount = nullable(faults, &pointer, amount)?;
        Some(amount.and_then(|text| checked(faults, &pointer, member::parse_amount(&text))))
    }))
}

pub(super) fn selection(
    Names(names): Names<'_>,
    (list, sold): (&str, &[&str]),
    faults: &mut Faults,
) -> Option<Selection> {
    if names.is_empty() {
        let detail =
            "expected at least one name; null lets the member buy what access.may_buy says";
        faults.push(list, "empty", detail.to_owned());
    }
    let mut listed = Vec::with_capacity(names.len());
    for (at, name) in names.into_iter().enumerate() {
        let pointer = format!("{list}/{at}");
        let Some(name) = present(faults, &pointer, name) else { continue };
        if let Err(detail) = on_sale(&name, sold) {
            faults.push(&pointer, "unknown_model", format!("{detail}, not `{}`", quote(&name)));
        }
        listed.push(name.into_owned());
    }
    Some(Selection::new(listed))
}

/// Returns a value, and notes one of another type, `null` included.
pub(super) fn present<'de, T: FromValue<'de>>(
    faults: &mut Faults,
    pointer: &str,
    field: Field<T>,
) -> Option<T> {
    let wrong = field.wrong_type();
    wrong.into_iter().for_each(|detail| faults.push(pointer, "wrong_type", detail));
    field.into_value()
}

/// Does the same, but `null` is a value.
pub(super) fn nullable<'de, T: FromValue<'de>>(
    faults: &mut Faults,
    pointer: &str,
    field: Field<T>,
) -> Option<Option<T>> {
    if field.is_null() { Some(None) } else { present(faults, pointer, field).map(Some) }
}

pub(super) fn checked<T>(
    faults: &mut Faults,
    pointer: &str,
    read: Result<T, impl Into<String>>,
) -> Option<T> {
    let mut fault = |(code, detail)| faults.push(pointer, code, detail);
    read.map_err(|detail| fault(("bad_value", detail.into()))).ok()
}

/// Amounts in the order of [`Period::ALL`].
#[derive(Default)]
struct BudgetBody<'a> {
    periods: [Field<Cow<'a, str>>; 4],
    unknown: UnknownFields<'a>,
}

impl<'de> FromObject<'de> for BudgetBody<'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        let mut amounts = Period::ALL.into_iter().zip(&mut self.periods);
        match amounts.find(|(period, _)| period.name() == entry.name()) {
            Some((_, amount)) => entry.read_into(amount),
            None => entry.reject(&mut self.unknown),
        }
    }
}

pub(super) struct Names<'a>(Vec<Field<Cow<'a, str>>>);

impl<'de> FromValue<'de> for Names<'de> {
    const EXPECTED: &'static str = "a list of names";

    fn elements<A: SeqAccess<'de>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = seq.next_element_seed(ValueSeed::within(depth))? {
            names.push(name);
        }
        Ok(Some(Self(names)))
    }
}
