//! The settings as written: the file's tree with the environment laid over it, each value with its place.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::SettingsSource;
use super::error::{Location, SettingError};
use crate::contract::wire::KEY_PREFIX;

const PREFIX: &str = "TOLLGATE_";
/// Variables that begin so and are no settings.
const SECRETS: &[&str] = &["TOLLGATE_SECRET", "TOLLGATE_SECRET_FILE"];

#[derive(Default)]
pub(super) struct RawSettings {
    pub(super) sections: RawTable,
    /// The file could not be read to its end: what it does not say means nothing.
    pub(super) broken: bool,
}

pub(super) type RawTable = BTreeMap<String, (Location, RawNode)>;

#[derive(Clone)]
pub(super) struct RawNode {
    pub(super) location: Location,
    pub(super) value: RawValue,
}

#[derive(Clone)]
pub(super) enum RawValue {
    Text(String),
    Number(i64),
    List(Vec<RawNode>),
    Table(RawTable),
    Other(&'static str),
}

impl RawSettings {
    /// Reads the file, then lays `TOLLGATE_SECTION__NAME` over it. Faults are about form only.
    pub(super) fn parse(source: &SettingsSource<'_>, faults: &mut Vec<SettingError>) -> Self {
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

    pub(super) fn location_of(&self, section: &str, name: &str) -> Option<Location> {
        match &self.sections.get(section)?.1.value {
            RawValue::Table(table) => table.get(name).map(|(_, node)| node.location.clone()),
            RawValue::Text(_) | RawValue::Number(_) | RawValue::List(_) | RawValue::Other(_) => {
                None
            }
        }
    }

    fn overlay(&mut self, variable: &str, rest: &str, value: &str, faults: &mut Vec<SettingError>) {
        let place = Location::Variable(variable.to_owned());
        let is_upper = !rest.chars().any(char::is_lowercase);
        let Some((section, name)) = rest.split_once("__").filter(|_| is_upper) else {
            let text = "unknown variable, expected TOLLGATE_SECTION__NAME in upper case, such as \
                        TOLLGATE_SERVER__LISTEN";
            return faults.push(SettingError::new(place, text));
        };
        if value.contains(KEY_PREFIX) {
            return faults.push(SettingError::new(place, KEY_IN_SETTINGS));
        }
        let empty =
            || RawNode { location: Location::Unknown, value: RawValue::Table(RawTable::new()) };
        let (_, section) = self
            .sections
            .entry(section.to_ascii_lowercase())
            .or_insert_with(|| (place.clone(), empty()));
        // A file whose section is not a table is at fault already.
        if let RawValue::Table(table) = &mut section.value {
            let node = RawNode { location: place.clone(), value: RawValue::Text(value.to_owned()) };
            table.insert(name.to_ascii_lowercase(), (place, node));
        }
    }
}

const KEY_IN_SETTINGS: &str = "a gateway key stands here, expected it in GATEWAY_API_KEY or in the file \
                        that GATEWAY_API_KEY_FILE names, nowhere else";

impl RawNode {
    pub(super) fn parse_inline(&self) -> Result<Self, String> {
        let (RawValue::Text(text), Location::Variable(_)) = (&self.value, &self.location) else {
            return Ok(self.clone());
        };
        let value = DeValue::parse(text.trim()).map_err(|error| error.message().to_owned())?;
        Ok(node(value, &|_| self.location.clone()))
    }

    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            RawValue::Text(_) => "text",
            RawValue::Number(_) => "a number",
            RawValue::List(_) => "a list",
            RawValue::Table(_) => "a table",
            RawValue::Other(kind) => kind,
        }
    }

    fn key(&self) -> Option<&Location> {
        match &self.value {
            RawValue::Text(text) => text.contains(KEY_PREFIX).then_some(&self.location),
            RawValue::List(nodes) => nodes.iter().find_map(Self::key),
            RawValue::Table(table) => key(table),
            RawValue::Number(_) | RawValue::Other(_) => None,
        }
    }
}

fn key(table: &RawTable) -> Option<&Location> {
    let is_key = |name: &str| name.contains(KEY_PREFIX);
    table.iter().find_map(|(name, (at, node))| if is_key(name) { Some(at) } else { node.key() })
}

/// Every syntax fault of the file, or its tree. What the parser could not place is not guessed at.
fn file(name: &str, text: &str, faults: &mut Vec<SettingError>) -> Option<RawTable> {
    let place = |offset: usize| Location::at(name, text, offset);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let offset = error.span().map_or(text.len(), |span| span.start);
        faults.push(SettingError::new(place(offset), format!("not TOML: {}", error.message())));
    }
    let in_the_open: Vec<_> = text.match_indices(KEY_PREFIX).collect();
    faults.extend(
        in_the_open.iter().map(|(offset, _)| SettingError::new(place(*offset), KEY_IN_SETTINGS)),
    );
    if !errors.is_empty() {
        return None;
    }
    let tree = entries(table.into_inner(), &place);
    // Written with escapes, a key hides from a search of the text.
    if in_the_open.is_empty() {
        faults.extend(key(&tree).map(|place| SettingError::new(place.clone(), KEY_IN_SETTINGS)));
    }
    Some(tree)
}

fn entries(table: DeTable<'_>, place: &dyn Fn(usize) -> Location) -> RawTable {
    let row = |(name, value): (Spanned<_>, _)| {
        let here = place(name.span().start);
        (String::from(name.into_inner()), (here, node(value, place)))
    };
    table.into_iter().map(row).collect()
}

fn node(value: Spanned<DeValue<'_>>, place: &dyn Fn(usize) -> Location) -> RawNode {
    let here = place(value.span().start);
    let value = match value.into_inner() {
        DeValue::String(text) => RawValue::Text(text.into_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(RawValue::Other("a number of that size"), RawValue::Number),
        DeValue::Array(all) => RawValue::List(all.into_iter().map(|it| node(it, place)).collect()),
        DeValue::Table(table) => RawValue::Table(entries(table, place)),
        DeValue::Float(_) => RawValue::Other("a number with a point (quote it)"),
        DeValue::Boolean(_) => RawValue::Other("a truth value"),
        DeValue::Datetime(_) => RawValue::Other("a date"),
    };
    RawNode { location: here, value }
}

/// Container platforms set such variables for a service that is called `tollgate`; no user wrote them.
fn is_service_link(rest: &str, value: &str) -> bool {
    const MARKS: &[&str] = &["SERVICE_HOST", "SERVICE_PORT", "PORT_"];
    let address = value.starts_with("tcp://") || value.starts_with("udp://");
    !rest.contains("__") && (MARKS.iter().any(|mark| rest.contains(mark)) || address)
}
