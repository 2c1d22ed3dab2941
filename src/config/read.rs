//! Turns the settings as written into the settings as meant.

use std::collections::BTreeMap;
use std::path::Path;

use zeroize::Zeroizing;

use super::fault::{Fault, Place};
use super::raw::Raw;
use super::section::Report;
use super::{Config, Spend, buying, keys, secret, serving};

/// What settings are read from: all of it text, so that reading is pure.
pub struct Source<'a> {
    /// The settings file: its name as faults cite it, and its text. `None` when there is none.
    pub file: Option<(&'a str, &'a str)>,
    /// The folder that relative paths count from; empty is the working directory.
    pub folder: &'a Path,
    /// The environment, a `.env` included. Only `TOLLGATE_…`, `GATEWAY_API_KEY`,
    /// `GATEWAY_API_KEY_FILE` and `REDIS_URL` are looked at.
    pub environment: &'a Environment,
    /// Whether the gateway is asked for anything: what never does needs no key, and judges none.
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
        with_nothing(|source| meant(source, &Raw::default(), Report::default()).2)
    }
}

/// What holds when nothing is set: the sandbox on loopback.
impl Default for Config {
    fn default() -> Self {
        with_nothing(|source| meant(source, &Raw::default(), Report::default()).0)
    }
}

fn with_nothing<T>(read: impl FnOnce(&Source<'_>) -> T) -> T {
    let environment = Environment::new();
    let key_file: &dyn Fn(&Path) -> _ = &|_| Err("no file is read here".to_owned());
    read(&Source {
        file: None,
        folder: Path::new(""),
        environment: &environment,
        asks_gateway: true,
        key_file,
    })
}

/// The settings, their faults, and the names of all of them. Where there is a fault, the default holds.
fn meant(source: &Source<'_>, raw: &Raw, mut report: Report) -> (Config, Vec<Fault>, Vec<String>) {
    let mut of_keys = Vec::new();
    let mut keys = keys::read(source, &mut of_keys);
    let base_url = raw.place_of("gateway", "base_url");
    match &base_url {
        // The same gateway, and with it the same ledger, as whoever asks it has.
        Some(place) if !source.asks_gateway => keys = Some((place.clone(), Vec::new())),
        Some(_) | None => report.faults.extend(of_keys),
    }
    let (sandbox, live) =
        (base_url.is_none() && keys.is_none(), base_url.is_some() && keys.is_some());
    let config = Config {
        server: report.section(raw, "server", |section| serving::server(section, source)),
        admin: report.section(raw, "admin", serving::admin),
        gateway: report.section(raw, "gateway", |section| buying::gateway(section, keys)),
        access: report.section(raw, "access", |section| serving::access(section, source)),
        secret: secret::read(source, &mut report.faults),
        limits: report.section(raw, "limits", serving::limits),
        budget: report.section(raw, "budget", serving::budget),
        purchase: report.section(raw, "purchase", buying::purchase),
        store: report.section(raw, "store", |section| buying::store(section, source, live)),
        jobs: report.section(raw, "jobs", buying::jobs),
        page: report.section(raw, "page", |section| serving::page(section, source)),
        catalog: report.section(raw, "models", buying::catalog),
        sandbox: report.section(raw, "sandbox", buying::sandbox),
        log: report.section(raw, "log", serving::log),
    };
    let listen = raw.place_of("server", "listen").unwrap_or(Place::Nowhere);
    report.faults.extend(reach(&config, sandbox, live, &listen));
    let same_port = |listen: &&std::net::SocketAddr| **listen == config.admin.listen;
    if config.server.listen.iter().find(same_port).is_some_and(|listen| listen.port() != 0) {
        let place = raw.place_of("admin", "listen").unwrap_or(listen);
        let text = "admin.listen: expected another address than those of server.listen";
        report.faults.push(Fault::new(place, text));
    }
    let (faults, names) = report.finish(raw);
    (config, faults, names)
}

/// What must hold before anyone beyond this machine can reach us.
fn reach(config: &Config, sandbox: bool, live: bool, listen: &Place) -> Option<Fault> {
    let beyond =
        config.server.listen.iter().any(|listen| !listen.ip().to_canonical().is_loopback());
    let unbounded =
        config.access.mode == super::Mode::Open && config.budget.total == Spend::default();
    let text = match () {
        () if beyond && sandbox => {
            "server.listen: expected loopback addresses only, as this is the sandbox; set \
             gateway.base_url and GATEWAY_API_KEY to serve others"
        }
        () if beyond && live && unbounded => {
            "server.listen: expected a budget.total, as anyone who reaches an address beyond \
             loopback can spend (access.mode is open)"
        }
        () => return None,
    };
    Some(Fault::new(listen.clone(), text))
}
