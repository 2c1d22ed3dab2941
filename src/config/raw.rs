//! The settings as written in the file and the environment, each value with its location.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::SettingsSource;
use super::error::{Location, SettingError};
use crate::gateway::contract::wire::KEY_PREFIX;

const PREFIX: &str = "TOLLGATE_";
/// A list of tables at the top level.
const WEBHOOKS: &str = "webhooks";
/// Variables that are no setting of a section, in lower case and without the prefix.
pub(super) const OTHER_VARIABLES: &[&str] =
    &["secret", "secret_file", "webhook_secret", "webhook_secret_file", WEBHOOKS];

#[derive(Default)]
pub(super) struct RawSettings {
    pub(super) sections: RawTable,
    /// The file has syntax errors, so nothing can be concluded from missing settings.
    pub(super) broken: bool,
    /// Variables with our prefix that name no setting, without the prefix.
    pub(super) strays: Vec<(Location, String)>,
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
    Flag(bool),
    List(Vec<RawNode>),
    Table(RawTable),
    Other(&'static str),
}

impl RawSettings {
    /// Parses the file, and overrides it with `TOLLGATE_SECTION__NAME` variables.
    pub(super) fn parse(source: &SettingsSource<'_>, errors: &mut Vec<SettingError>) -> Self {
        let mut raw = Self::default();
        if let Some((name, text)) = source.file {
            let table = file(name, text, errors);
            raw.broken = table.is_none();
            raw.sections = table.unwrap_or_default();
        }
        for (variable, value) in source.environment {
            if let Some(rest) = variable.strip_prefix(PREFIX)
                && !is_secret(rest)
                && !is_service_link(rest, value)
            {
                raw.overlay(variable, rest, value, errors);
            }
        }
        raw
    }

    /// Returns where a setting such as `access.jwt.jwks` is set.
    pub(super) fn location_of(&self, path: &str) -> Option<Location> {
        let mut names = path.split('.');
        let mut node = &self.sections.get(names.next()?)?.1;
        for name in names {
            let RawValue::Table(table) = &node.value else {
                // In a variable, the rest of the path is inside its text.
                let is_variable = matches!(node.location, Location::Variable(_));
                return is_variable.then(|| node.location.clone());
            };
            node = &table.get(name)?.1;
        }
        Some(node.location.clone())
    }

    fn overlay(&mut self, variable: &str, rest: &str, value: &str, errors: &mut Vec<SettingError>) {
        let location = Location::Variable(variable.to_owned());
        let text =
            || RawNode { location: location.clone(), value: RawValue::Text(value.to_owned()) };
        let has_key = value.contains(KEY_PREFIX);
        let is_upper = !rest.chars().any(char::is_lowercase);
        if is_upper && rest.eq_ignore_ascii_case(WEBHOOKS) && !has_key {
            self.sections.insert(WEBHOOKS.to_owned(), (location.clone(), text()));
            return;
        }
        let Some((section, name)) = rest.split_once("__").filter(|_| is_upper) else {
            return self.strays.push((location, rest.to_owned()));
        };
        if has_key {
            return errors.push(SettingError::new(location, KEY_IN_SETTINGS));
        }
        let empty =
            || RawNode { location: Location::Unknown, value: RawValue::Table(RawTable::new()) };
        let (_, section) = self
            .sections
            .entry(section.to_ascii_lowercase())
            .or_insert_with(|| (location.clone(), empty()));
        // If the section is not a table, `SettingsReader` reports it.
        if let RawValue::Table(table) = &mut section.value {
            let node = text();
            table.insert(name.to_ascii_lowercase(), (location, node));
        }
    }
}

const KEY_IN_SETTINGS: &str =
    "expected no gateway key here; set GATEWAY_API_KEY or GATEWAY_API_KEY_FILE";

impl RawNode {
    /// Parses the TOML value of a variable; returns a value of the file as it is.
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
            RawValue::Flag(_) => "a truth value",
            RawValue::List(_) => "a list",
            RawValue::Table(_) => "a table",
            RawValue::Other(kind) => kind,
        }
    }

    fn find_key(&self) -> Option<&Location> {
        match &self.value {
            RawValue::Text(text) => text.contains(KEY_PREFIX).then_some(&self.location),
            RawValue::List(nodes) => nodes.iter().find_map(Self::find_key),
            RawValue::Table(table) => find_key(table),
            RawValue::Number(_) | RawValue::Flag(_) | RawValue::Other(_) => None,
        }
    }
}

fn find_key(table: &RawTable) -> Option<&Location> {
    let is_key = |name: &str| name.contains(KEY_PREFIX);
    table
        .iter()
        .find_map(|(name, (at, node))| if is_key(name) { Some(at) } else { node.find_key() })
}

/// Parses the file; `None` if it has syntax errors.
fn file(name: &str, text: &str, errors: &mut Vec<SettingError>) -> Option<RawTable> {
    let locate = |offset: usize| Location::at(name, text, offset);
    let (table, syntax_errors) = DeTable::parse_recoverable(text);
    for error in &syntax_errors {
        let offset = error.span().map_or(text.len(), |span| span.start);
        errors.push(SettingError::new(locate(offset), format!("not TOML: {}", error.message())));
    }
    let in_text: Vec<_> = text.match_indices(KEY_PREFIX).collect();
    errors.extend(
        in_text.iter().map(|(offset, _)| SettingError::new(locate(*offset), KEY_IN_SETTINGS)),
    );
    if !syntax_errors.is_empty() {
        return None;
    }
    let tree = entries(table.into_inner(), &locate);
    // A key that is written with escapes is not found in the text.
    if in_text.is_empty() {
        errors.extend(
            find_key(&tree).map(|location| SettingError::new(location.clone(), KEY_IN_SETTINGS)),
        );
    }
    Some(tree)
}

fn entries(table: DeTable<'_>, locate: &dyn Fn(usize) -> Location) -> RawTable {
    let row = |(name, value): (Spanned<_>, _)| {
        let location = locate(name.span().start);
        (String::from(name.into_inner()), (location, node(value, locate)))
    };
    table.into_iter().map(row).collect()
}

fn node(value: Spanned<DeValue<'_>>, locate: &dyn Fn(usize) -> Location) -> RawNode {
    let location = locate(value.span().start);
    let value = match value.into_inner() {
        DeValue::String(text) => RawValue::Text(text.into_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(RawValue::Other("a number of that size"), RawValue::Number),
        DeValue::Array(all) => RawValue::List(all.into_iter().map(|it| node(it, locate)).collect()),
        DeValue::Table(table) => RawValue::Table(entries(table, locate)),
        DeValue::Float(_) => RawValue::Other("a number with a point (quote it)"),
        DeValue::Boolean(flag) => RawValue::Flag(flag),
        DeValue::Datetime(_) => RawValue::Other("a date"),
    };
    RawNode { location, value }
}

/// Returns whether this is the rest of a variable that holds, or names, a secret.
fn is_secret(rest: &str) -> bool {
    let secrets = OTHER_VARIABLES.iter().filter(|name| **name != WEBHOOKS);
    secrets.map(|name| name.to_ascii_uppercase()).any(|name| name == rest)
}

/// Returns whether a container platform set this variable for a service named `tollgate`.
fn is_service_link(rest: &str, value: &str) -> bool {
    const MARKS: &[&str] = &["SERVICE_HOST", "SERVICE_PORT", "PORT_"];
    let address = value.starts_with("tcp://") || value.starts_with("udp://");
    !rest.contains("__") && (MARKS.iter().any(|mark| rest.contains(mark)) || address)
}
