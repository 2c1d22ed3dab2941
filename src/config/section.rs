//! Reads one section of the settings, and remembers which names it was asked for: what is left over is unknown.

use std::borrow::Cow;

use super::fault::{Fault, Place};
use super::raw::{Node, Raw, Table, Value};

/// A value, or what was expected instead.
pub(super) type Parsed<T> = Result<T, Cow<'static, str>>;

/// What reading found besides the settings themselves.
#[derive(Default)]
pub(super) struct Report {
    /// Every fault.
    pub(super) faults: Vec<Fault>,
    /// Every setting that was asked for, as `section.name`.
    pub(super) known: Vec<String>,
    /// Names that were written and not yet known to be settings.
    unknown: Vec<(Place, String)>,
}

/// A table of settings being read.
pub(super) struct Section<'a> {
    path: String,
    place: Place,
    table: &'a Table,
    report: &'a mut Report,
}

impl Report {
    /// Reads the section of this name, absent or not.
    pub(super) fn section<T>(
        &mut self,
        raw: &Raw,
        name: &str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> T {
        let nothing = Table::new();
        let (place, table) = match raw.sections.get(name) {
            Some((place, Node { value: Value::Table(table), .. })) => (place.clone(), table),
            Some((place, node)) => {
                let text = format!("{name}: expected a section, [{name}], not {}", node.kind());
                self.faults.push(Fault::new(place.clone(), text));
                (place.clone(), &nothing)
            }
            None => (Place::Nowhere, &nothing),
        };
        Section { path: name.to_owned(), place, table, report: self }.through(read)
    }

    /// Ends the reading: whatever was written and never asked for is a fault.
    pub(super) fn finish(mut self, raw: &Raw) -> (Vec<Fault>, Vec<String>) {
        let known = |name: &str| {
            self.known.iter().any(|full| full.split_once('.').is_some_and(|(own, _)| own == name))
        };
        for (name, (place, node)) in raw.sections.iter().filter(|(name, _)| !known(name)) {
            if node.place != Place::Nowhere {
                self.unknown.push((place.clone(), name.clone()));
            }
            // Each variable is at fault by itself, whether or not the file has such a section.
            if let Value::Table(table) = &node.value {
                let variables =
                    table.iter().filter(|(_, (at, _))| matches!(at, Place::Variable(_)));
                let named = variables.map(|(own, (at, _))| (at.clone(), format!("{name}.{own}")));
                self.unknown.extend(named);
            }
        }
        for (place, name) in std::mem::take(&mut self.unknown) {
            self.faults.push(super::nearest::unknown(place, &name, &self.known));
        }
        self.faults.sort();
        self.faults.dedup();
        (self.faults, self.known)
    }
}

impl Section<'_> {
    /// A setting that is written as text.
    pub(super) fn text<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>, default: T) -> T {
        self.optional(name, parse).unwrap_or(default)
    }

    /// A setting that is written as text and has no default.
    pub(super) fn optional<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>) -> Option<T> {
        let node = self.node(name)?;
        let parsed = as_text(&node, parse);
        self.accept(name, &node.place, parsed)
    }

    /// A setting that is written as text and must be there.
    pub(super) fn required<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>) -> Option<T> {
        self.demand(name);
        self.optional(name, parse)
    }

    /// A whole number that must be there.
    pub(super) fn required_number<T>(
        &mut self,
        name: &str,
        parse: fn(i64) -> Parsed<T>,
    ) -> Option<T> {
        self.demand(name);
        self.optional_number(name, parse)
    }

    /// A whole number.
    pub(super) fn number<T>(&mut self, name: &str, parse: fn(i64) -> Parsed<T>, default: T) -> T {
        self.optional_number(name, parse).unwrap_or(default)
    }

    fn optional_number<T>(&mut self, name: &str, parse: fn(i64) -> Parsed<T>) -> Option<T> {
        let node = self.node(name)?;
        let parsed = match (&node.value, &node.place) {
            (Value::Number(number), _) => parse(*number),
            (Value::Text(text), Place::Variable(_)) => match text.trim().parse() {
                Ok(number) => parse(number),
                Err(_) => Err("expected a whole number".into()),
            },
            _ => Err(format!("expected a whole number, not {}", node.kind()).into()),
        };
        self.accept(name, &node.place, parsed)
    }

    /// A list of texts, each named once.
    pub(super) fn list<T: PartialEq>(
        &mut self,
        name: &str,
        parse: fn(&str) -> Parsed<T>,
        default: Vec<T>,
    ) -> Vec<T> {
        let Some(node) = self.node(name) else { return default };
        let Some(Node { value, place }) = self.structured(name, &node) else { return default };
        let Value::List(nodes) = value else {
            let kind = Node { value, place: place.clone() }.kind();
            self.fault(name, &place, &format!("expected a list, [\"…\", \"…\"], not {kind}"));
            return default;
        };
        let mut list = Vec::new();
        for node in nodes {
            match self.accept(name, &node.place, as_text(&node, parse)) {
                Some(item) if list.contains(&item) => {
                    self.fault(
                        name,
                        &node.place,
                        "expected each entry once, this one is there twice",
                    );
                }
                Some(item) => list.push(item),
                None => {}
            }
        }
        list
    }

    /// A table within this one; `None` when it is not written.
    pub(super) fn table<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> Option<T> {
        let node = self.node(name)?;
        let node = self.structured(name, &node)?;
        let Value::Table(table) = &node.value else {
            let text = format!("expected a table, {{ … }}, not {}", node.kind());
            self.fault(name, &node.place, &text);
            return None;
        };
        let path = format!("{}.{name}", self.path);
        Some(Section { path, place: node.place, table, report: self.report }.through(read))
    }

    /// A list of tables, in order; rows that `read` refuses are left out.
    pub(super) fn rows<T>(
        &mut self,
        name: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<T>,
    ) -> Vec<T> {
        let Some(node) = self.node(name) else { return Vec::new() };
        let Some(node) = self.structured(name, &node) else { return Vec::new() };
        let Value::List(nodes) = &node.value else {
            let text = format!("expected a list of tables, [{{ … }}], not {}", node.kind());
            self.fault(name, &node.place, &text);
            return Vec::new();
        };
        let mut rows = Vec::new();
        for row in nodes {
            let Value::Table(table) = &row.value else {
                let text = format!("expected a table, {{ … }}, not {}", row.kind());
                self.fault(name, &row.place, &text);
                continue;
            };
            let path = format!("{}.{name}", self.path);
            let place = row.place.clone();
            rows.extend(Section { path, place, table, report: self.report }.through(&mut read));
        }
        rows
    }

    /// Whether the setting is written, well or badly.
    pub(super) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// The value as written, for settings that take more than one shape.
    pub(super) fn peek(&self, name: &str) -> Option<&Node> {
        self.table.get(name).map(|(_, node)| node)
    }

    /// Where the setting's value is written; `Nowhere` for a default.
    pub(super) fn place_of(&self, name: &str) -> Place {
        self.peek(name).map_or(Place::Nowhere, |node| node.place.clone())
    }

    /// Reports what was expected of a setting.
    pub(super) fn fault(&mut self, name: &str, place: &Place, expected: &str) {
        let text = format!("{}.{name}: {expected}", self.path);
        self.report.faults.push(Fault::new(place.clone(), text));
    }

    /// Reports a fault of the whole table.
    pub(super) fn own_fault(&mut self, expected: &str) {
        let text = format!("{}: {expected}", self.path);
        self.report.faults.push(Fault::new(self.place.clone(), text));
    }

    /// How many faults there are so far.
    pub(super) fn faults(&self) -> usize {
        self.report.faults.len()
    }

    fn demand(&mut self, name: &str) {
        if !self.has(name) {
            self.own_fault(&format!("expected a setting `{name}` in it"));
        }
    }

    fn through<T>(mut self, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
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

    fn node(&mut self, name: &str) -> Option<Node> {
        let full = format!("{}.{name}", self.path);
        if !self.report.known.contains(&full) {
            self.report.known.push(full);
        }
        self.peek(name).cloned()
    }

    fn structured(&mut self, name: &str, node: &Node) -> Option<Node> {
        let parsed = node.structured().map_err(|error| {
            format!("expected a list or table as TOML writes it, such as [\"…\"]: {error}").into()
        });
        self.accept(name, &node.place, parsed)
    }

    fn accept<T>(&mut self, name: &str, place: &Place, parsed: Parsed<T>) -> Option<T> {
        parsed.map_err(|expected| self.fault(name, place, &expected)).ok()
    }
}

fn as_text<T>(node: &Node, parse: fn(&str) -> Parsed<T>) -> Parsed<T> {
    match &node.value {
        Value::Text(text) => parse(text),
        // The parser's words say which text was expected.
        Value::Number(_) | Value::List(_) | Value::Table(_) | Value::Other(_) => {
            Err(match parse("") {
                Err(expected) => format!("{expected}, not {}", node.kind()).into(),
                Ok(_) => format!("expected text, not {}", node.kind()).into(),
            })
        }
    }
}
