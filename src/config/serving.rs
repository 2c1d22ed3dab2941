//! Reads the sections about ourselves and our callers: server, admin, access, limits, budget, page, log.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tracing::Level;

use super::raw::Value;
use super::section::{Parsed, Section};
use super::{
    Access, Admin, Budget, Limits, Log, LogFormat, Mode, Page, Server, Source, Spend, Tls, jwt,
    origin, value,
};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn server(section: &mut Section<'_>, source: &Source<'_>) -> Server {
    let listen = listen(section);
    let max_connections = section.number("max_connections", value::connections, 10_000);
    let server = Server {
        listen,
        hosts: section.list("hosts", origin::host, Vec::new()),
        trusted_proxies: section.list("trusted_proxies", value::network, Vec::new()),
        max_connections,
        max_connections_per_address: section.number(
            "max_connections_per_address",
            value::connections,
            max_connections.div_ceil(10),
        ),
        max_body_memory: section.text("max_body_memory", value::size, 256 << 20),
        header_timeout: section.text("header_timeout", value::time, secs(10)),
        idle_timeout: section.text("idle_timeout", value::time, secs(75)),
        body_timeout: section.text("body_timeout", value::time, secs(30)),
        chat_body: section.text("chat_body", value::size, 2 << 20),
        video_body: section.text("video_body", value::size, 64 << 10),
        drain: section.text("drain", value::time_or_none, secs(30)),
        tls: section.table("tls", |tls| tls_files(tls, source)).flatten(),
    };
    if server.max_body_memory < server.chat_body.max(server.video_body) {
        let place = section.place_of("max_body_memory");
        let expected = "expected at least server.chat_body and server.video_body, \
                        else a body of that size is never accepted";
        section.fault("max_body_memory", &place, expected);
    }
    server
}

/// One address as text, or several as a list.
fn listen(section: &mut Section<'_>) -> Vec<SocketAddr> {
    let default = vec![SocketAddr::from(([127, 0, 0, 1], 8080))];
    let several = section.peek("listen").is_some_and(|node| match &node.value {
        Value::List(_) => true,
        // In a variable, `[::1]:8080` is an address and `["…"]` a list.
        Value::Text(text) => text.parse::<SocketAddr>().is_err() && text.trim().starts_with('['),
        Value::Number(_) | Value::Table(_) | Value::Other(_) => false,
    });
    if !several {
        return section.optional("listen", value::listen).map_or(default, |listen| vec![listen]);
    }
    let faults = section.faults();
    let several = section.list("listen", value::listen, default.clone());
    if several.is_empty() && section.faults() == faults {
        let place = section.place_of("listen");
        section.fault("listen", &place, "expected at least one address");
    }
    if several.is_empty() { default } else { several }
}

fn tls_files(section: &mut Section<'_>, source: &Source<'_>) -> Option<Tls> {
    let mut file = |name| Some(source.folder.join(section.required(name, value::line)?));
    let (cert, key) = (file("cert"), file("key"));
    Some(Tls { cert: cert?, key: key? })
}

pub(super) fn admin(section: &mut Section<'_>) -> Admin {
    let default = SocketAddr::from(([127, 0, 0, 1], 9464));
    Admin { listen: section.text("listen", value::listen, default) }
}

pub(super) fn access(section: &mut Section<'_>, source: &Source<'_>) -> Access {
    let mode = section.text("mode", mode_name, ModeName::Open);
    let allowed_origins = section.list("allowed_origins", origin::origin, Vec::new());
    let written = section.has("jwt");
    let jwt = section.table("jwt", |section| jwt::jwt(section, source).map(Mode::Jwt));
    let mode = match (mode, written) {
        (ModeName::Jwt, true) => jwt.flatten().unwrap_or(Mode::Open),
        (ModeName::Jwt, false) => {
            let place = section.place_of("mode");
            section.fault("mode", &place, "expected a table [access.jwt] with this mode");
            Mode::Open
        }
        (ModeName::Open | ModeName::Members, true) => {
            let place = section.place_of("jwt");
            section.fault("jwt", &place, "expected access.mode = \"jwt\" with this table");
            Mode::Open
        }
        (ModeName::Open, false) => Mode::Open,
        (ModeName::Members, false) => Mode::Members,
    };
    Access { mode, allowed_origins }
}

#[derive(Clone, Copy)]
enum ModeName {
    Open,
    Members,
    Jwt,
}

fn mode_name(text: &str) -> Parsed<ModeName> {
    match text {
        "open" => Ok(ModeName::Open),
        "members" => Ok(ModeName::Members),
        "jwt" => Ok(ModeName::Jwt),
        _ => Err("expected \"open\", \"members\" or \"jwt\"".into()),
    }
}

pub(super) fn limits(section: &mut Section<'_>) -> Limits {
    use std::num::NonZeroU32;
    let of = |number: u32| NonZeroU32::MIN.saturating_add(number - 1);
    Limits {
        requests: section.number("requests", value::count, of(30)),
        period: section.number("seconds", value::seconds, secs(60)),
        burst: section.number("burst", value::count, of(10)),
        concurrent: section.number("concurrent", value::count, of(8)),
    }
}

pub(super) fn budget(section: &mut Section<'_>) -> Budget {
    Budget {
        total: section.table("total", spend).unwrap_or_default(),
        caller: section.table("caller", spend).unwrap_or_default(),
    }
}

fn spend(section: &mut Section<'_>) -> Spend {
    if !section.has("day") && !section.has("month") {
        section.own_fault("expected `day`, `month` or both");
    }
    Spend {
        day: section.optional("day", value::money),
        month: section.optional("month", value::money),
    }
}

pub(super) fn page(section: &mut Section<'_>, source: &Source<'_>) -> Page {
    let dir = section.text("dir", value::any, String::new());
    let fallback = section.text("fallback", file_name, String::new());
    if dir.is_empty() && !fallback.is_empty() {
        let place = section.place_of("fallback");
        section.fault(
            "fallback",
            &place,
            "expected page.dir with it, the folder that holds this file",
        );
    }
    Page {
        dir: Some(dir).filter(|dir| !dir.is_empty()).map(|dir| source.folder.join(dir)),
        fallback: Some(fallback).filter(|file| !file.is_empty()),
        title: section.text("title", value::line, "tollgate".to_owned()),
        media_origins: section.list("media_origins", origin::web_origin, Vec::new()),
    }
}

/// The name of a file inside a folder, or nothing.
fn file_name(text: &str) -> Parsed<String> {
    let inside = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
    if PathBuf::from(text).components().all(inside) && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    Err("expected a file inside page.dir, such as \"index.html\"".into())
}

pub(super) fn log(section: &mut Section<'_>) -> Log {
    Log {
        format: section.text("format", format, LogFormat::Auto),
        level: section.text("level", level, Level::INFO),
    }
}

fn format(text: &str) -> Parsed<LogFormat> {
    match text {
        "auto" => Ok(LogFormat::Auto),
        "json" => Ok(LogFormat::Json),
        _ => Err("expected \"auto\" or \"json\"".into()),
    }
}

fn level(text: &str) -> Parsed<Level> {
    match text {
        "error" => Ok(Level::ERROR),
        "warn" => Ok(Level::WARN),
        "info" => Ok(Level::INFO),
        "debug" => Ok(Level::DEBUG),
        "trace" => Ok(Level::TRACE),
        _ => Err("expected \"error\", \"warn\", \"info\", \"debug\" or \"trace\"".into()),
    }
}
