//! Reads the tables of the settings, and remembers which names were asked for.

use super::Parsed;
use super::error::{Location, SettingError, former_name, unknown_name};
use super::raw::{RawNode, RawSettings, RawTable, RawValue};

#[derive(Default)]
pub(super) struct SettingsReader {
    pub(super) errors: Vec<SettingError>,
    known: Vec<String>,
    unknown: Vec<(Location, String)>,
}

/// A table of settings being read; a name that it was not asked for is unknown.
pub(super) struct Section<'a> {
    path: String,
    place: Location,
    table: &'a RawTable,
    report: &'a mut SettingsReader,
}

impl SettingsReader {
    pub(super) fn section<T>(
        &mut self,
        raw: &RawSettings,
        name: &str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> T {
        let nothing = RawTable::new();
        let (place, table) = match raw.sections.get(name) {
            Some((place, RawNode { value: RawValue::Table(table), .. })) => (place.clone(), table),
            Some((place, node)) => {
                let text = format!("{name}: expected a section, [{name}], not {}", node.kind());
                self.errors.push(SettingError::new(place.clone(), text));
                (place.clone(), &nothing)
            }
            None => (Location::Unknown, &nothing),
        };
        Section { path: name.to_owned(), place, table, report: self }.read_all(read)
    }

    /// Ends the reading: whatever was written and never asked for is a fault.
    pub(super) fn finish(mut self, raw: &RawSettings) -> (Vec<SettingError>, Vec<String>) {
        let is_known = |name: &str| {
            self.known.iter().any(|full| full.split_once('.').is_some_and(|(own, _)| own == name))
        };
        for (name, (place, node)) in raw.sections.iter().filter(|(name, _)| !is_known(name)) {
            if node.location != Location::Unknown {
                self.unknown.push((place.clone(), name.clone()));
            }
            // Each variable is at fault by itself, whether or not the file has such a section.
            if let RawValue::Table(table) = &node.value {
                let variables =
                    table.iter().filter(|(_, (at, _))| matches!(at, Location::Variable(_)));
                let named = variables.map(|(own, (at, _))| (at.clone(), format!("{name}.{own}")));
                self.unknown.extend(named);
            }
        }
        let faults =
            self.unknown.into_iter().map(|(at, name)| unknown_name(at, &name, &self.known));
        self.errors.extend(faults);
        self.errors.sort();
        self.errors.dedup();
        (self.errors, self.known)
    }
}

impl Section<'_> {
    pub(super) fn text<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>, default: T) -> T {
        self.optional(name, parse).unwrap_or(default)
    }

    pub(super) fn optional<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>) -> Option<T> {
        self.read(name, |node| as_text(node, parse))
    }

    pub(super) fn required<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>) -> Option<T> {
        self.require(name);
        self.optional(name, parse)
    }

    pub(super) fn keyword<T: Copy>(
        &mut self,
        name: &str,
        words: &[(&str, T)],
        expected: &'static str,
        default: T,
    ) -> T {
        let found = |text: &str| words.iter().find(|(word, _)| *word == text).map(|(_, it)| *it);
        let word = self.read(name, |node| as_text(node, |it| found(it).ok_or(expected.into())));
        word.unwrap_or(default)
    }

    pub(super) fn number<T>(&mut self, name: &str, parse: fn(i64) -> Parsed<T>, default: T) -> T {
        self.read(name, |node| as_number(node).and_then(parse)).unwrap_or(default)
    }

    pub(super) fn required_number<T>(
        &mut self,
        name: &str,
        parse: fn(i64) -> Parsed<T>,
    ) -> Option<T> {
        self.require(name);
        self.read(name, |node| as_number(node).and_then(parse))
    }

    fn read<T>(&mut self, name: &str, parse: impl FnOnce(&RawNode) -> Parsed<T>) -> Option<T> {
        let node = self.node(name)?;
        let parsed = parse(&node);
        self.accept(name, &node.location, parsed)
    }

    pub(super) fn list<T: PartialEq>(
        &mut self,
        name: &str,
        parse: fn(&str) -> Parsed<T>,
        default: Vec<T>,
    ) -> Vec<T> {
        let Some(node) = self.structured(name) else { return default };
        let RawValue::List(nodes) = &node.value else {
            let text = format!("expected a list, [\"…\", \"…\"], not {}", node.kind());
            self.error_at(name, &node.location, &text);
            return default;
        };
        let mut list = Vec::new();
        for node in nodes {
            match self.accept(name, &node.location, as_text(node, parse)) {
                Some(item) if list.contains(&item) => {
                    let expected = "expected each entry once, this one is there twice";
                    self.error_at(name, &node.location, expected);
                }
                Some(item) => list.push(item),
                None => {}
            }
        }
        list
    }

    pub(super) fn table<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> Option<T> {
        let node = self.structured(name)?;
        self.nested(name, &node, read)
    }

    /// A list of tables, in order; `read` ends early where one lacks a setting.
    pub(super) fn tables(
        &mut self,
        name: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<()>,
    ) {
        let Some(node) = self.structured(name) else { return };
        let RawValue::List(nodes) = &node.value else {
            let text = format!("expected a list of tables, [{{ … }}], not {}", node.kind());
            return self.error_at(name, &node.location, &text);
        };
        for row in nodes {
            self.nested(name, row, &mut read);
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    pub(super) fn peek(&self, name: &str) -> Option<&RawNode> {
        self.table.get(name).map(|(_, node)| node)
    }

    pub(super) fn error(&mut self, name: &str, expected: &str) {
        let place = self.peek(name).map_or(Location::Unknown, |node| node.location.clone());
        self.error_at(name, &place, expected);
    }

    pub(super) fn error_at(&mut self, name: &str, place: &Location, expected: &str) {
        let text = format!("{}.{name}: {expected}", self.path);
        self.report.errors.push(SettingError::new(place.clone(), text));
    }

    pub(super) fn section_error(&mut self, expected: &str) {
        let text = format!("{}: {expected}", self.path);
        self.report.errors.push(SettingError::new(self.place.clone(), text));
    }

    pub(super) fn error_count(&self) -> usize {
        self.report.errors.len()
    }

    fn require(&mut self, name: &str) {
        // If it is here under its former name, that name is the fault.
        let is_renamed = former_name(&format!("{}.{name}", self.path))
            .and_then(|former| former.rsplit('.').next())
            .is_some_and(|former| self.has(former));
        if !self.has(name) && !is_renamed {
            self.section_error(&format!("expected a setting `{name}` in it"));
        }
    }

    fn read_all<T>(mut self, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let result = read(&mut self);
        let Section { path, table, report, .. } = self;
        for (name, (place, _)) in table {
            let full = format!("{path}.{name}");
            if !report.known.contains(&full) {
                report.unknown.push((place.clone(), full));
            }
        }
        result
    }

    fn nested<T>(
        &mut self,
        name: &str,
        node: &RawNode,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> Option<T> {
        let RawValue::Table(table) = &node.value else {
            let text = format!("expected a table, {{ … }}, not {}", node.kind());
            self.error_at(name, &node.location, &text);
            return None;
        };
        let path = format!("{}.{name}", self.path);
        let place = node.location.clone();
        Some(Section { path, place, table, report: self.report }.read_all(read))
    }

    fn node(&mut self, name: &str) -> Option<RawNode> {
        let full = format!("{}.{name}", self.path);
        if !self.report.known.contains(&full) {
            self.report.known.push(full);
        }
        self.peek(name).cloned()
    }

    fn structured(&mut self, name: &str) -> Option<RawNode> {
        let node = self.node(name)?;
        let parsed = node.parse_inline().map_err(|error| {
            let hint = "in .env, single quotes around the value keep its own quotes";
            format!("expected a list or table as TOML writes it, such as [\"…\"] ({hint}): {error}")
                .into()
        });
        self.accept(name, &node.location, parsed)
    }

    fn accept<T>(&mut self, name: &str, place: &Location, parsed: Parsed<T>) -> Option<T> {
        parsed.map_err(|expected| self.error_at(name, place, &expected)).ok()
    }
}

fn as_text<T>(node: &RawNode, parse: impl Fn(&str) -> Parsed<T>) -> Parsed<T> {
    match &node.value {
        RawValue::Text(text) => parse(text),
        // The parser's words say which text was expected.
        RawValue::Number(_) | RawValue::List(_) | RawValue::Table(_) | RawValue::Other(_) => {
            let expected = parse("").err().unwrap_or("expected text".into());
            Err(format!("{expected}, not {}", node.kind()).into())
        }
    }
}

fn as_number(node: &RawNode) -> Parsed<i64> {
    match (&node.value, &node.location) {
        (RawValue::Number(number), _) => Ok(*number),
        (RawValue::Text(text), Location::Variable(_)) => {
            let is_quoted = text.contains(['"', '\'']);
            let hint = if is_quoted { ", without quotes" } else { "" };
            text.trim().parse().map_err(|_| format!("expected a whole number{hint}").into())
        }
        _ => {
            let kind = node.kind().trim_end_matches(" (quote it)");
            Err(format!("expected a whole number, not {kind}").into())
        }
    }
}
