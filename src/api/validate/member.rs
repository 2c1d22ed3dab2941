//! The bodies of requests that manage members and groups.

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess};

use super::json::{self, Entry, Field, FromObject, FromValue, ValueSeed};
use super::may_buy::on_sale;
use super::rule::{Faults, UnknownFields, not_among, quote};
use crate::gate::problem::Problem;
use crate::gateway::contract::member::{self, LimitChange, MemberTerms, Role};
use crate::gateway::contract::money::Period;
use crate::gateway::contract::selection::Selection;

const NAME: &str = "name";
const TERMS: [&str; 4] = ["role", "group", "budget", "may_buy"];

/// Reads the body of `POST /bff/admin/members`. `sold` are the names that `may_buy` may have.
pub fn new_member(payload: &[u8], sold: &[&str]) -> Result<(Arc<str>, MemberTerms), Problem> {
    let mut body = MemberBody::default();
    json::read_object(payload, &mut body)?;
    let mut faults = Faults::default();
    let name = new_name(&mut faults, std::mem::take(&mut body.name));
    let known: Vec<_> = [NAME].into_iter().chain(TERMS).collect();
    let terms = terms(body, (&known, sold), &mut faults);
    match name.filter(|_| faults.is_empty()) {
        Some(name) => Ok((name, terms)),
        None => Err(faults.into_problem()),
    }
}

/// Reads the body of `PATCH /bff/admin/members/NAME`: at least one change.
pub fn member_terms(payload: &[u8], sold: &[&str]) -> Result<MemberTerms, Problem> {
    let mut body = MemberBody::default();
    json::read_object(payload, &mut body)?;
    let mut faults = Faults::default();
    if !std::mem::take(&mut body.name).is_absent() {
        let detail = "a member keeps its name; add a member under another one";
        faults.push("/name", "unknown_field", detail.to_owned());
    }
    let terms = terms(body, (&TERMS, sold), &mut faults);
    if faults.is_empty() && terms == MemberTerms::default() {
        let detail = format!("expected at least one of {}", TERMS.join(", "));
        faults.push("", "required", detail);
    }
    if faults.is_empty() { Ok(terms) } else { Err(faults.into_problem()) }
}

/// Reads the body of `POST /bff/admin/groups`.
pub fn new_group(payload: &[u8]) -> Result<(Arc<str>, LimitChange), Problem> {
    let mut body = GroupBody::default();
    json::read_object(payload, &mut body)?;
    let mut faults = Faults::default();
    let name = new_name(&mut faults, std::mem::take(&mut body.name));
    let budget = group_terms(body, &[NAME, "budget"], &mut faults);
    match name.filter(|_| faults.is_empty()) {
        Some(name) => Ok((name, budget)),
        None => Err(faults.into_problem()),
    }
}

/// Reads the body of `PATCH /bff/admin/groups/NAME`.
pub fn group_budget(payload: &[u8]) -> Result<LimitChange, Problem> {
    let mut body = GroupBody::default();
    json::read_object(payload, &mut body)?;
    let mut faults = Faults::default();
    if !std::mem::take(&mut body.name).is_absent() {
        let detail = "a group keeps its name; add a group with another one";
        faults.push("/name", "unknown_field", detail.to_owned());
    }
    let budget = group_terms(body, &["budget"], &mut faults);
    if faults.is_empty() && budget == LimitChange::default() {
        faults.push("/budget", "required", "required: the group's budget".to_owned());
    }
    if faults.is_empty() { Ok(budget) } else { Err(faults.into_problem()) }
}

fn group_terms(body: GroupBody<'_>, known: &[&str], faults: &mut Faults) -> LimitChange {
    faults.unknown_fields(&body.unknown, known, &"");
    budget(body.budget, faults)
}

fn budget(body: Field<BudgetBody<'_>>, faults: &mut Faults) -> LimitChange {
    match nullable(faults, "/budget", body) {
        None => LimitChange::default(),
        Some(None) => LimitChange::REMOVE_ALL,
        Some(Some(budget)) => limits(budget, faults),
    }
}

fn new_name(faults: &mut Faults, name: Field<Cow<'_, str>>) -> Option<Arc<str>> {
    let missing = name.missing("a name");
    missing.into_iter().for_each(|detail| faults.push("/name", "required", detail));
    let name = present(faults, "/name", name)?;
    checked(faults, "/name", member::parse_name(&name))
}

fn terms(
    body: MemberBody<'_>,
    (known, sold): (&[&str], &[&str]),
    faults: &mut Faults,
) -> MemberTerms {
    faults.unknown_fields(&body.unknown, known, &"");
    let role = present(faults, "/role", body.role).and_then(|name| role(&name, faults));
    let group = nullable(faults, "/group", body.group)
        .map(|group| group.and_then(|name| checked(faults, "/group", member::parse_name(&name))));
    let budget = budget(body.budget, faults);
    let may_buy = nullable(faults, "/may_buy", body.may_buy)
        .map(|names| names.and_then(|names| selection(names, sold, faults)));
    MemberTerms { role, budget, group, may_buy }
}

fn role(name: &str, faults: &mut Faults) -> Option<Role> {
    let unknown = not_among(name, &Role::ALL.map(Role::name));
    unknown.into_iter().for_each(|detail| faults.push("/role", "unknown_role", detail));
    Role::ALL.into_iter().find(|role| role.name() == name)
}

fn limits(body: BudgetBody<'_>, faults: &mut Faults) -> LimitChange {
    faults.unknown_fields(&body.unknown, &Period::ALL.map(Period::name), &"/budget");
    let mut periods = Period::ALL.into_iter();
    LimitChange(body.periods.map(|amount| {
        let pointer = format!("/budget/{}", periods.next().map(Period::name).unwrap_or_default());
        let amount = nullable(faults, &pointer, amount)?;
        Some(amount.and_then(|text| checked(faults, &pointer, member::parse_amount(&text))))
    }))
}

pub(super) fn selection(
    Names(names): Names<'_>,
    sold: &[&str],
    faults: &mut Faults,
) -> Option<Selection> {
    if names.is_empty() {
        let detail =
            "expected at least one name; null lets the member buy what access.may_buy says";
        faults.push("/may_buy", "empty", detail.to_owned());
    }
    let mut listed = Vec::with_capacity(names.len());
    for (at, name) in names.into_iter().enumerate() {
        let pointer = format!("/may_buy/{at}");
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

#[derive(Default)]
struct MemberBody<'a> {
    name: Field<Cow<'a, str>>,
    role: Field<Cow<'a, str>>,
    group: Field<Cow<'a, str>>,
    budget: Field<BudgetBody<'a>>,
    may_buy: Field<Names<'a>>,
    unknown: UnknownFields<'a>,
}

impl<'de> FromObject<'de> for MemberBody<'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        match entry.name() {
            NAME => entry.read_into(&mut self.name),
            "role" => entry.read_into(&mut self.role),
            "group" => entry.read_into(&mut self.group),
            "budget" => entry.read_into(&mut self.budget),
            "may_buy" => entry.read_into(&mut self.may_buy),
            _ => entry.reject(&mut self.unknown),
        }
    }
}

#[derive(Default)]
struct GroupBody<'a> {
    name: Field<Cow<'a, str>>,
    budget: Field<BudgetBody<'a>>,
    unknown: UnknownFields<'a>,
}

impl<'de> FromObject<'de> for GroupBody<'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        match entry.name() {
            NAME => entry.read_into(&mut self.name),
            "budget" => entry.read_into(&mut self.budget),
            _ => entry.reject(&mut self.unknown),
        }
    }
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
