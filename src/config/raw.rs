//! The settings as written: the file's tree with the environment laid over it, each value with its place.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Source;
use super::fault::{Fault, Place};
use crate::contract::wire::KEY_PREFIX;

const PREFIX: &str = "TOLLGATE_";
/// Variables that begin so and are no settings.
const SECRETS: &[&str] = &["TOLLGATE_SECRET", "TOLLGATE_SECRET_FILE"];

#[derive(Default)]
pub(super) struct Raw {
    pub(super) sections: Table,
    /// The file could not be read to its end: what it does not say means nothing.
    pub(super) broken: bool,
}

pub(super) type Table = BTreeMap<String, (Place, Node)>;

#[derive(Clone)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

#[derive(Clone)]
pub(super) enum Value {
    Text(String),
    Number(i64),
    List(Vec<Node>),
    Table(Table),
    Other(&'static str),
}

impl Raw {
    /// Reads the file, then lays `TOLLGATE_SECTION__NAME` over it. Faults are about form only.
    pub(super) fn parse(source: &Source<'_>, faults: &mut Vec<Fault>) -> Self {
        let mut raw = Self::default();
        if let Some((name, text)) = source.file {
            let table = file(name, text, faults);
            raw.broken = table.is_none();
            raw.sections = table.unwrap_or_default();
        }
        for (variable, value) in source.environment {
            if let Some(rest) = variable.strip_prefix(PREFIX)
                && !SECRETS.contains(&variable.as_str())
                && !is_service_link(rest, value)
            {
                raw.overlay(variable, rest, value, faults);
            }
        }
        raw
    }

    pub(super) fn place_of(&self, section: &str, name: &str) -> Option<Place> {
        match &self.sections.get(section)?.1.value {
            Value::Table(table) => table.get(name).map(|(_, node)| node.place.clone()),
            Value::Text(_) | Value::Number(_) | Value::List(_) | Value::Other(_) => None,
        }
    }

    fn overlay(&mut self, variable: &str, rest: &str, value: &str, faults: &mut Vec<Fault>) {
        let place = Place::Variable(variable.to_owned());
        let is_upper = !rest.chars().any(char::is_lowercase);
        let Some((section, name)) = rest.split_once("__").filter(|_| is_upper) else {
            let text = "unknown variable, expected TOLLGATE_SECTION__NAME in upper case, such as \
                        TOLLGATE_SERVER__LISTEN";
            return faults.push(Fault::new(place, text));
        };
        if value.contains(KEY_PREFIX) {
            return faults.push(Fault::new(place, KEY_HERE));
        }
        let empty = || Node { place: Place::Nowhere, value: Value::Table(Table::new()) };
        let (_, section) = self
            .sections
            .entry(section.to_ascii_lowercase())
            .or_insert_with(|| (place.clone(), empty()));
        // A file whose section is not a table is at fault already.
        if let Value::Table(table) = &mut section.value {
            let node = Node { place: place.clone(), value: Value::Text(value.to_owned()) };
            table.insert(name.to_ascii_lowercase(), (place, node));
        }
    }
}

const KEY_HERE: &str = "a gateway key stands here, expected it in GATEWAY_API_KEY or in the file \
                        that GATEWAY_API_KEY_FILE names, nowhere else";

impl Node {
    pub(super) fn structured(&self) -> Result<Self, String> {
        let (Value::Text(text), Place::Variable(_)) = (&self.value, &self.place) else {
            return Ok(self.clone());
        };
        let value = DeValue::parse(text.trim()).map_err(|error| error.message().to_owned())?;
        Ok(node(value, &|_| self.place.clone()))
    }

    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Text(_) => "text",
            Value::Number(_) => "a number",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
            Value::Other(kind) => kind,
        }
    }

    fn key(&self) -> Option<&Place> {
        match &self.value {
            Value::Text(text) => text.contains(KEY_PREFIX).then_some(&self.place),
            Value::List(nodes) => nodes.iter().find_map(Self::key),
            Value::Table(table) => key(table),
            Value::Number(_) | Value::Other(_) => None,
        }
    }
}

fn key(table: &Table) -> Option<&Place> {
    let is_key = |name: &str| name.contains(KEY_PREFIX);
    table.iter().find_map(|(name, (at, node))| if is_key(name) { Some(at) } else { node.key() })
}

/// Every syntax fault of the file, or its tree. What the parser could not place is not guessed at.
fn file(name: &str, text: &str, faults: &mut Vec<Fault>) -> Option<Table> {
    let place = |offset: usize| Place::at(name, text, offset);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let offset = error.span().map_or(text.len(), |span| span.start);
        faults.push(Fault::new(place(offset), format!("not TOML: {}", error.message())));
    }
    let in_the_open: Vec<_> = text.match_indices(KEY_PREFIX).collect();
    faults.extend(in_the_open.iter().map(|(offset, _)| Fault::new(place(*offset), KEY_HERE)));
    if !errors.is_empty() {
        return None;
    }
    let tree = entries(table.into_inner(), &place);
    // Written with escapes, a key hides from a search of the text.
    if in_the_open.is_empty() {
        faults.extend(key(&tree).map(|place| Fault::new(place.clone(), KEY_HERE)));
    }
    Some(tree)
}

fn entries(table: DeTable<'_>, place: &dyn Fn(usize) -> Place) -> Table {
    let row = |(name, value): (Spanned<_>, _)| {
        let here = place(name.span().start);
        (String::from(name.into_inner()), (here, node(value, place)))
    };
    table.into_iter().map(row).collect()
}

fn node(value: Spanned<DeValue<'_>>, place: &dyn Fn(usize) -> Place) -> Node {
    let here = place(value.span().start);
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Other("a number of that size"), Value::Number),
        DeValue::Array(all) => Value::List(all.into_iter().map(|it| node(it, place)).collect()),
        DeValue::Table(table) => Value::Table(entries(table, place)),
        DeValue::Float(_) => Value::Other("a number with a point (quote it)"),
        DeValue::Boolean(_) => Value::Other("a truth value"),
        DeValue::Datetime(_) => Value::Other("a date"),
    };
    Node { place: here, value }
}

/// Container platforms set such variables for a service that is called `tollgate`; no user wrote them.
fn is_service_link(rest: &str, value: &str) -> bool {
    const MARKS: &[&str] = &["SERVICE_HOST", "SERVICE_PORT", "PORT_"];
    let address = value.starts_with("tcp://") || value.starts_with("udp://");
    !rest.contains("__") && (MARKS.iter().any(|mark| rest.contains(mark)) || address)
}
