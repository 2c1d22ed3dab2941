//! Turns the settings as written into the settings as meant.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use zeroize::Zeroizing;

use super::fault::{Fault, Place, unknown};
use super::raw::{Node, Raw, Table, Value};
use super::{Budget, Config, Mode, Spend, secrets, sections};

/// What settings are read from: all of it text, so that reading is pure.
pub struct Source<'a> {
    /// The settings file: its name as faults cite it, and its text. `None` if there is none.
    pub file: Option<(&'a str, &'a str)>,
    /// The folder that relative paths count from; empty is the working directory.
    pub folder: &'a Path,
    /// The environment, a `.env` included. Only `TOLLGATE_…`, `GATEWAY_API_KEY` and
    /// `GATEWAY_API_KEY_FILE` are looked at.
    pub environment: &'a Environment,
    /// Whether the gateway is asked for anything: what never asks needs no key, and judges none.
    pub asks_gateway: bool,
    /// Gives the text of the key file at this path, or why it cannot.
    pub key_file: &'a dyn Fn(&Path) -> Result<Zeroizing<String>, String>,
}

/// Environment variables by name; values are wiped when dropped, as some are secret.
pub type Environment = BTreeMap<String, Zeroizing<String>>;

impl Config {
    /// Reads and checks every setting: the environment wins over the file, the file over the defaults.
    ///
    /// # Errors
    /// Every fault at once, sorted by place. None of them repeats a value.
    pub fn read(source: &Source<'_>) -> Result<Self, Vec<Fault>> {
        let mut report = Report::default();
        let raw = Raw::parse(source, &mut report.faults);
        if raw.broken {
            return Err(report.finish(&Raw::default()).0);
        }
        let (config, faults, _) = meant(source, &raw, report);
        if faults.is_empty() { Ok(config) } else { Err(faults) }
    }

    /// The name of every setting, as `section.name`, in the order of the documentation.
    pub fn names() -> Vec<String> {
        nothing_set().1
    }
}

impl Default for Config {
    fn default() -> Self {
        nothing_set().0
    }
}

fn nothing_set() -> (Config, Vec<String>) {
    let source = Source {
        file: None,
        folder: Path::new(""),
        environment: &Environment::new(),
        asks_gateway: true,
        key_file: &|_| Err("no file is read here".to_owned()),
    };
    let (config, _, names) = meant(&source, &Raw::default(), Report::default());
    (config, names)
}

/// The settings, their faults, and the names of all of them. A setting at fault has its default.
fn meant(source: &Source<'_>, raw: &Raw, mut report: Report) -> (Config, Vec<Fault>, Vec<String>) {
    let mut of_keys = Vec::new();
    let mut keys = secrets::keys(source, &mut of_keys);
    let base_url = raw.place_of("gateway", "base_url");
    match &base_url {
        // The same gateway, and with it the same ledger, as a command has that asks it.
        Some(place) if !source.asks_gateway => keys = Some((place.clone(), Vec::new())),
        Some(_) | None => report.faults.extend(of_keys),
    }
    let is_sandbox = base_url.is_none() && keys.is_none();
    let is_live = base_url.is_some() && keys.is_some();
    let folder = source.folder;
    let config = Config {
        server: report.section(raw, "server", sections::server),
        admin: report.section(raw, "admin", sections::admin),
        gateway: report.section(raw, "gateway", |section| sections::gateway(section, keys)),
        access: report.section(raw, "access", |section| sections::access(section, folder)),
        secret: secrets::secret(source, &mut report.faults),
        limits: report.section(raw, "limits", sections::limits),
        budget: report.section(raw, "budget", |section| Budget {
            total: section.table("total", sections::spend).unwrap_or_default(),
            caller: section.table("caller", sections::spend).unwrap_or_default(),
        }),
        purchase: report.section(raw, "purchase", sections::purchase),
        store: report.section(raw, "store", |section| sections::store(section, folder, is_live)),
        jobs: report.section(raw, "jobs", sections::jobs),
        page: report.section(raw, "page", |section| sections::page(section, folder)),
        catalog: report.section(raw, "models", sections::catalog),
        sandbox: report.section(raw, "sandbox", sections::sandbox),
        log: report.section(raw, "log", sections::log),
    };
    let listen = raw.place_of("server", "listen").unwrap_or(Place::Nowhere);
    if let Some(text) = exposed(&config, is_sandbox, is_live) {
        report.faults.push(Fault::new(listen.clone(), text));
    }
    let admin = config.admin.listen;
    if admin.port() != 0 && config.server.listen.contains(&admin) {
        let place = raw.place_of("admin", "listen").unwrap_or(listen);
        let text = "admin.listen: expected another address than those of server.listen";
        report.faults.push(Fault::new(place, text));
    }
    let (faults, names) = report.finish(raw);
    (config, faults, names)
}

/// What must hold before anyone beyond this machine can reach us.
fn exposed(config: &Config, is_sandbox: bool, is_live: bool) -> Option<&'static str> {
    let mut listen = config.server.listen.iter();
    let is_beyond = listen.any(|at| !at.ip().to_canonical().is_loopback());
    let is_open = config.access.mode == Mode::Open && config.budget.total == Spend::default();
    if is_beyond && is_sandbox {
        return Some(
            "server.listen: expected loopback addresses only, as this is the sandbox; set \
             gateway.base_url and GATEWAY_API_KEY to serve others",
        );
    }
    (is_beyond && is_live && is_open).then_some(
        "server.listen: expected a budget.total, as anyone who reaches an address beyond loopback can \
         spend (access.mode is open)",
    )
}

pub(super) type Parsed<T> = Result<T, Cow<'static, str>>;

#[derive(Default)]
struct Report {
    faults: Vec<Fault>,
    /// Every setting that was asked for, as `section.name`.
    known: Vec<String>,
    /// Names that were written and not yet known to be settings.
    unknown: Vec<(Place, String)>,
}

/// A table of settings being read. It remembers which names it was asked for: what is left over is
/// unknown.
pub(super) struct Section<'a> {
    path: String,
    place: Place,
    table: &'a Table,
    report: &'a mut Report,
}

impl Report {
    fn section<T>(&mut self, raw: &Raw, name: &str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
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
    fn finish(mut self, raw: &Raw) -> (Vec<Fault>, Vec<String>) {
        let is_known = |name: &str| {
            self.known.iter().any(|full| full.split_once('.').is_some_and(|(own, _)| own == name))
        };
        for (name, (place, node)) in raw.sections.iter().filter(|(name, _)| !is_known(name)) {
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
        let faults = self.unknown.into_iter().map(|(at, name)| unknown(at, &name, &self.known));
        self.faults.extend(faults);
        self.faults.sort();
        self.faults.dedup();
        (self.faults, self.known)
    }
}

impl Section<'_> {
    pub(super) fn text<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>, default: T) -> T {
        self.optional(name, parse).unwrap_or(default)
    }

    pub(super) fn optional<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>) -> Option<T> {
        let node = self.node(name)?;
        let parsed = as_text(&node, parse);
        self.accept(name, &node.place, parsed)
    }

    pub(super) fn required<T>(&mut self, name: &str, parse: fn(&str) -> Parsed<T>) -> Option<T> {
        self.demand(name);
        self.optional(name, parse)
    }

    pub(super) fn word<T: Copy>(
        &mut self,
        name: &str,
        words: &[(&str, T)],
        expected: &'static str,
        default: T,
    ) -> T {
        let Some(node) = self.node(name) else { return default };
        let found = |text: &str| words.iter().find(|(word, _)| *word == text).map(|(_, it)| *it);
        let parsed = as_text(&node, |text| found(text).ok_or(expected.into()));
        self.accept(name, &node.place, parsed).unwrap_or(default)
    }

    pub(super) fn number<T>(&mut self, name: &str, parse: fn(i64) -> Parsed<T>, default: T) -> T {
        self.optional_number(name, parse).unwrap_or(default)
    }

    pub(super) fn required_number<T>(
        &mut self,
        name: &str,
        parse: fn(i64) -> Parsed<T>,
    ) -> Option<T> {
        self.demand(name);
        self.optional_number(name, parse)
    }

    fn optional_number<T>(&mut self, name: &str, parse: fn(i64) -> Parsed<T>) -> Option<T> {
        let node = self.node(name)?;
        let parsed = match (&node.value, &node.place) {
            (Value::Number(number), _) => parse(*number),
            (Value::Text(text), Place::Variable(_)) => match text.trim().parse() {
                Ok(number) => parse(number),
                Err(_) if text.contains(['"', '\'']) => {
                    Err("expected a whole number, without quotes".into())
                }
                Err(_) => Err("expected a whole number".into()),
            },
            _ => {
                let kind = node.kind().trim_end_matches(" (quote it)");
                Err(format!("expected a whole number, not {kind}").into())
            }
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
        let Some(node) = self.structured(name) else { return default };
        let Value::List(nodes) = &node.value else {
            let text = format!("expected a list, [\"…\", \"…\"], not {}", node.kind());
            self.fault_at(name, &node.place, &text);
            return default;
        };
        let mut list = Vec::new();
        for node in nodes {
            match self.accept(name, &node.place, as_text(node, parse)) {
                Some(item) if list.contains(&item) => {
                    let expected = "expected each entry once, this one is there twice";
                    self.fault_at(name, &node.place, expected);
                }
                Some(item) => list.push(item),
                None => {}
            }
        }
        list
    }

    /// A table within this one; `None` if it is not written.
    pub(super) fn table<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> Option<T> {
        let node = self.structured(name)?;
        self.within(name, &node, read)
    }

    /// A list of tables, in order; rows that `read` refuses are left out.
    pub(super) fn rows<T>(
        &mut self,
        name: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<T>,
    ) -> Vec<T> {
        let Some(node) = self.structured(name) else { return Vec::new() };
        let Value::List(nodes) = &node.value else {
            let text = format!("expected a list of tables, [{{ … }}], not {}", node.kind());
            self.fault_at(name, &node.place, &text);
            return Vec::new();
        };
        nodes.iter().filter_map(|row| self.within(name, row, &mut read).flatten()).collect()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// The value as written, for settings that take more than one shape.
    pub(super) fn peek(&self, name: &str) -> Option<&Node> {
        self.table.get(name).map(|(_, node)| node)
    }

    /// Reports what was expected of a setting, where it is written.
    pub(super) fn fault(&mut self, name: &str, expected: &str) {
        let place = self.peek(name).map_or(Place::Nowhere, |node| node.place.clone());
        self.fault_at(name, &place, expected);
    }

    pub(super) fn fault_at(&mut self, name: &str, place: &Place, expected: &str) {
        let text = format!("{}.{name}: {expected}", self.path);
        self.report.faults.push(Fault::new(place.clone(), text));
    }

    /// Reports a fault of the whole table.
    pub(super) fn own_fault(&mut self, expected: &str) {
        let text = format!("{}: {expected}", self.path);
        self.report.faults.push(Fault::new(self.place.clone(), text));
    }

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

    fn within<T>(
        &mut self,
        name: &str,
        node: &Node,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> Option<T> {
        let Value::Table(table) = &node.value else {
            let text = format!("expected a table, {{ … }}, not {}", node.kind());
            self.fault_at(name, &node.place, &text);
            return None;
        };
        let path = format!("{}.{name}", self.path);
        let place = node.place.clone();
        Some(Section { path, place, table, report: self.report }.through(read))
    }

    fn node(&mut self, name: &str) -> Option<Node> {
        let full = format!("{}.{name}", self.path);
        if !self.report.known.contains(&full) {
            self.report.known.push(full);
        }
        self.peek(name).cloned()
    }

    /// A list or table, which a variable writes as TOML writes a value.
    fn structured(&mut self, name: &str) -> Option<Node> {
        let node = self.node(name)?;
        let parsed = node.structured().map_err(|error| {
            let hint = "in .env, single quotes around the value keep its own quotes";
            format!("expected a list or table as TOML writes it, such as [\"…\"] ({hint}): {error}")
                .into()
        });
        self.accept(name, &node.place, parsed)
    }

    fn accept<T>(&mut self, name: &str, place: &Place, parsed: Parsed<T>) -> Option<T> {
        parsed.map_err(|expected| self.fault_at(name, place, &expected)).ok()
    }
}

fn as_text<T>(node: &Node, parse: impl Fn(&str) -> Parsed<T>) -> Parsed<T> {
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
