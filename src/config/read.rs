//! Reads tables of settings, and finds names that are unknown because nothing read them.

use super::error::{Location, SettingError, former_name, unknown_name, unknown_variable};
use super::raw::{OTHER_VARIABLES, RawNode, RawSettings, RawTable, RawValue};
use super::value::Parsed;

#[derive(Default)]
pub(super) struct SettingsReader {
    pub(super) errors: Vec<SettingError>,
    known: Vec<String>,
    unknown: Vec<(Location, String)>,
}

/// Makes the struct of a section and the function that reads it. Each setting is a line with its form and its
/// default, as in `pub drain: Duration = text("drain", value::time_or_zero, secs(30))`.
macro_rules! section {
    ($(#[$attribute:meta])* $public:vis struct $name:ident {
        $($(#[$doc:meta])* pub $field:ident: $type:ty = $form:ident($($argument:tt)*),)*
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Debug)]
        $public struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $name {
            pub(super) fn read(section: &mut Section<'_>) -> Self {
                Self { $($field: section.$form($($argument)*),)* }
            }
        }
    };
}
pub(super) use section;

/// A table of settings. When it has been read, names that were never requested are unknown.
pub(super) struct Section<'a> {
    path: String,
    location: Location,
    table: &'a RawTable,
    reader: &'a mut SettingsReader,
}

impl SettingsReader {
    pub(super) fn section<T>(
        &mut self,
        raw: &RawSettings,
        name: &str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> T {
        let empty = RawTable::new();
        let (location, table) = match raw.sections.get(name) {
            Some((location, RawNode { value: RawValue::Table(table), .. })) => {
                (location.clone(), table)
            }
            Some((location, node)) => {
                let text = format!("{name}: expected a section, [{name}], not {}", node.kind());
                self.errors.push(SettingError::new(location.clone(), text));
                (location.clone(), &empty)
            }
            None => (Location::Unknown, &empty),
        };
        Section { path: name.to_owned(), location, table, reader: self }.read_all(read)
    }

    /// Reads a list of tables at the top level, `[[name]]`, in order.
    pub(super) fn tables(
        &mut self,
        raw: &RawSettings,
        name: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<()>,
    ) {
        // The names are known, also if there is no table.
        let (errors, empty) = (self.errors.len(), RawTable::new());
        let path = name.to_owned();
        Section { path, location: Location::Unknown, table: &empty, reader: self }
            .read_all(&mut read);
        self.errors.truncate(errors);
        let Some((_, node)) = raw.sections.get(name) else { return };
        let rows = node.parse_inline();
        let rows = match rows.map(|rows| rows.value) {
            Ok(RawValue::List(rows)) => rows,
            // Reported as what it is.
            Ok(_) | Err(_) => vec![RawNode { value: RawValue::Other("no list"), ..node.clone() }],
        };
        for row in rows {
            let location = row.location;
            let RawValue::Table(table) = &row.value else {
                let expected = format!("{name}: expected a list of tables, [[{name}]]");
                self.errors.push(SettingError::new(location, expected));
                continue;
            };
            let path = name.to_owned();
            Section { path, location, table, reader: self }.read_all(&mut read);
        }
    }

    /// Adds an error for every name that nothing read; returns all errors and all known names.
    pub(super) fn finish(mut self, raw: &RawSettings) -> (Vec<SettingError>, Vec<String>) {
        let is_known = |name: &str| {
            self.known.iter().any(|full| full.split_once('.').is_some_and(|(own, _)| own == name))
        };
        for (name, (location, node)) in raw.sections.iter().filter(|(name, _)| !is_known(name)) {
            if node.location != Location::Unknown {
                self.unknown.push((location.clone(), name.clone()));
            }
            // Each variable is an error of its own, whether or not the file has this section.
            if let RawValue::Table(table) = &node.value {
                let variables =
                    table.iter().filter(|(_, (at, _))| matches!(at, Location::Variable(_)));
                let named = variables.map(|(own, (at, _))| (at.clone(), format!("{name}.{own}")));
                self.unknown.extend(named);
            }
        }
        let unknown = self.unknown.into_iter();
        self.errors.extend(unknown.map(|(at, name)| unknown_name(at, &name, &self.known)));
        let names = || self.known.iter().map(String::as_str).chain(OTHER_VARIABLES.iter().copied());
        let strays = raw.strays.iter();
        self.errors.extend(strays.map(|(at, rest)| unknown_variable(at, rest, names())));
        self.errors.sort();
        self.errors.dedup();
        (self.errors, self.known)
    }
}

impl Section<'_> {
    /// Reads a setting that has a reader of its own.
    pub(super) fn with<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        read(self)
    }

    pub(super) fn text<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>, default: T) -> T {
        self.optional(name, parse).unwrap_or(default)
    }

    pub(super) fn optional<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>) -> Option<T> {
        self.read(name, |node| as_text(node, parse))
    }

    /// Reads text. Empty text means that there is no value.
    pub(super) fn nullable<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>) -> Option<T> {
        let is_empty = |node: &RawNode| matches!(&node.value, RawValue::Text(it) if it.is_empty());
        let read = |node: &RawNode| (!is_empty(node)).then(|| as_text(node, parse)).transpose();
        self.read(name, read).flatten()
    }

    pub(super) fn required<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>) -> Option<T> {
        self.require(name);
        self.optional(name, parse)
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

    /// Reads a setting that is off by default.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        self.switch(name, false)
    }

    pub(super) fn switch(&mut self, name: &str, default: bool) -> bool {
        let read = |node: &RawNode| match (&node.value, &node.location) {
            (RawValue::Flag(flag), _) => Ok(*flag),
            (RawValue::Text(text), Location::Variable(_)) => {
                text.trim().parse().map_err(|_| "expected true or false".into())
            }
            _ => Err(format!("expected true or false, not {}", node.kind()).into()),
        };
        self.read(name, read).unwrap_or(default)
    }

    fn read<T>(&mut self, name: &str, parse: impl FnOnce(&RawNode) -> Parsed<T>) -> Option<T> {
        let node = self.node(name)?;
        self.accept(name, &node.location, parse(&node))
    }

    pub(super) fn list<T: PartialEq>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Parsed<T>,
        default: Vec<T>,
    ) -> Vec<T> {
        self.entries(name, "[\"…\", \"…\"]", |node| as_text(node, &parse), default)
    }

    pub(super) fn numbers<T: PartialEq>(
        &mut self,
        name: &str,
        parse: impl Fn(i64) -> Parsed<T>,
        default: Vec<T>,
    ) -> Vec<T> {
        self.entries(name, "[1, 2]", |node| parse(as_number(node)?), default)
    }

    fn entries<T: PartialEq>(
        &mut self,
        name: &str,
        example: &str,
        parse: impl Fn(&RawNode) -> Parsed<T>,
        default: Vec<T>,
    ) -> Vec<T> {
        let Some(node) = self.inline(name) else { return default };
        let RawValue::List(nodes) = &node.value else {
            let text = format!("expected a list, {example}, not {}", node.kind());
            self.error_at(name, &node.location, &text);
            return default;
        };
        let (mut list, errors) = (Vec::new(), self.reader.errors.len());
        for node in nodes {
            match self.accept(name, &node.location, parse(node)) {
                Some(item) if list.contains(&item) => {
                    let expected = "expected each entry once, this one is a duplicate";
                    self.error_at(name, &node.location, expected);
                }
                Some(item) => list.push(item),
                None => {}
            }
        }
        if self.reader.errors.len() > errors { default } else { list }
    }

    pub(super) fn table<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> Option<T> {
        let node = self.inline(name)?;
        self.nested(name, &node, read)
    }

    /// Reads a list of tables in order. `read` returns `None` if a table lacks a setting.
    pub(super) fn tables(
        &mut self,
        name: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<()>,
    ) {
        let Some(node) = self.inline(name) else { return };
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

    /// Returns whether an error of this setting was reported.
    pub(super) fn has_error(&self, name: &str) -> bool {
        let start = format!("{}.{name}: ", self.path);
        self.reader.errors.iter().any(|error| error.text.starts_with(&start))
    }

    fn peek(&self, name: &str) -> Option<&RawNode> {
        self.table.get(name).map(|(_, node)| node)
    }

    /// Returns whether the value is a list or a table; `is_inline` decides for text in a variable.
    pub(super) fn is_structured(&self, name: &str, is_inline: fn(&str) -> bool) -> bool {
        self.peek(name).is_some_and(|node| match &node.value {
            RawValue::Text(text) => is_inline(text.trim()),
            RawValue::List(_) | RawValue::Table(_) => true,
            RawValue::Number(_) | RawValue::Flag(_) | RawValue::Other(_) => false,
        })
    }

    pub(super) fn error(&mut self, name: &str, expected: &str) {
        let location = self.peek(name).map_or(Location::Unknown, |node| node.location.clone());
        self.error_at(name, &location, expected);
    }

    pub(super) fn error_at(&mut self, name: &str, location: &Location, expected: &str) {
        let text = format!("{}.{name}: {expected}", self.path);
        self.reader.errors.push(SettingError::new(location.clone(), text));
    }

    /// Adds an error about something other than a setting of this table.
    pub(super) fn report(&mut self, location: Location, expected: impl Into<String>) {
        self.reader.errors.push(SettingError::new(location, expected));
    }

    pub(super) fn section_error(&mut self, expected: &str) {
        let text = format!("{}: {expected}", self.path);
        self.reader.errors.push(SettingError::new(self.location.clone(), text));
    }

    fn require(&mut self, name: &str) {
        // A former name is reported as renamed instead.
        let is_renamed = former_name(&format!("{}.{name}", self.path))
            .and_then(|former| former.rsplit('.').next())
            .is_some_and(|former| self.has(former));
        if !self.has(name) && !is_renamed {
            self.section_error(&format!("expected a setting `{name}`"));
        }
    }

    fn read_all<T>(mut self, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let result = read(&mut self);
        let Section { path, table, reader, .. } = self;
        for (name, (location, _)) in table {
            let full = format!("{path}.{name}");
            if !reader.known.contains(&full) {
                reader.unknown.push((location.clone(), full));
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
        let location = node.location.clone();
        Some(Section { path, location, table, reader: self.reader }.read_all(read))
    }

    fn node(&mut self, name: &str) -> Option<RawNode> {
        let full = format!("{}.{name}", self.path);
        if !self.reader.known.contains(&full) {
            self.reader.known.push(full);
        }
        self.peek(name).cloned()
    }

    fn inline(&mut self, name: &str) -> Option<RawNode> {
        let node = self.node(name)?;
        let parsed = node.parse_inline().map_err(|error| {
            let hint = "in .env, single quotes around the value keep its quotes";
            format!("expected a list or table in TOML, such as [\"…\"] ({hint}): {error}").into()
        });
        self.accept(name, &node.location, parsed)
    }

    fn accept<T>(&mut self, name: &str, location: &Location, parsed: Parsed<T>) -> Option<T> {
        parsed.map_err(|expected| self.error_at(name, location, &expected)).ok()
    }
}

fn as_text<T>(node: &RawNode, parse: impl Fn(&str) -> Parsed<T>) -> Parsed<T> {
    match &node.value {
        RawValue::Text(text) => parse(text),
        // The parser's error says what is expected.
        RawValue::Number(_)
        | RawValue::Flag(_)
        | RawValue::List(_)
        | RawValue::Table(_)
        | RawValue::Other(_) => {
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
