//! Reads the sections about what is bought and where: gateway, models, purchase, store, jobs, sandbox.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use super::fault::Place;
use super::raw::Value;
use super::section::{Parsed, Section};
use super::{
    Gateway, Jobs, Key, Passthrough, Purchase, Sandbox, Source, Store, Target, Window, origin,
    value,
};
use crate::contract::catalog::{Catalog, ChatModel, Tier};
use crate::contract::money::Usd;

/// Fields of a chat request that always pass.
const CHAT_FIELDS: &[&str] = &["model", "messages"];
const FINISHED: &[&str] = &["completed", "succeeded", "success", "done", "finished", "ready"];
const FAILED: &[&str] = &["failed", "error", "cancelled", "canceled", "expired", "rejected"];
const RESULT: &[&str] =
    &["/video_url", "/url", "/output/url", "/output/0", "/result/url", "/data/0/url"];

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn gateway(section: &mut Section<'_>, keys: Option<(Place, Vec<Key>)>) -> Gateway {
    Gateway {
        target: target(section, keys),
        connect_timeout: section.text("connect_timeout", value::time, secs(5)),
        chat_timeout: section.text("chat_timeout", value::time, secs(120)),
        video_timeout: section.text("video_timeout", value::time, secs(60)),
        window: window(section),
        max_wait: section.text("max_wait", value::time_or_none, secs(20)),
        balance_floor: section.text("balance_floor", value::money, Usd::ZERO),
        chat_fields: section.list("chat_fields", chat_field, Vec::new()),
        passthrough: passthrough(section),
    }
}

fn target(section: &mut Section<'_>, keys: Option<(Place, Vec<Key>)>) -> Target {
    let written = section.has("base_url");
    let base_url = section.optional("base_url", origin::base_url);
    match (written, keys) {
        (true, None) => {
            let place = section.place_of("base_url");
            let text = "expected a key with it, in GATEWAY_API_KEY or GATEWAY_API_KEY_FILE; for the \
                        sandbox, leave this setting out";
            section.fault("base_url", &place, text);
        }
        (false, Some((place, _))) => {
            let text = "expected the gateway's address with the key (TOLLGATE_GATEWAY__BASE_URL, or \
                        in the file); for the sandbox, leave the key out";
            section.fault("base_url", &place, text);
        }
        (_, keys) => {
            if let (Some(base_url), Some((_, keys))) = (base_url, keys) {
                return Target::Live { base_url, keys };
            }
        }
    }
    Target::Sandbox
}

/// `"auto"`, or a table.
fn window(section: &mut Section<'_>) -> Window {
    let table = section.peek("window").is_some_and(|node| match &node.value {
        Value::Table(_) => true,
        Value::Text(text) => text.trim().starts_with('{'),
        Value::List(_) | Value::Number(_) | Value::Other(_) => false,
    });
    if !table {
        return section.text("window", auto, Window::Auto);
    }
    let fixed = section.table("window", |window| {
        let requests = window.required_number("requests", value::count);
        let period = window.required_number("seconds", value::seconds);
        Some(Window::Fixed { requests: requests?, period: period? })
    });
    fixed.flatten().unwrap_or(Window::Auto)
}

fn auto(text: &str) -> Parsed<Window> {
    match text {
        "auto" => Ok(Window::Auto),
        _ => Err("expected \"auto\" or { requests = 60, seconds = 60 }".into()),
    }
}

fn chat_field(text: &str) -> Parsed<String> {
    if CHAT_FIELDS.contains(&text) {
        return Err("expected a further field: model and messages always pass".into());
    }
    value::name(text)
}

fn passthrough(section: &mut Section<'_>) -> Vec<Passthrough> {
    let mut seen: Vec<(http::Method, String)> = Vec::new();
    section.rows("passthrough", |row| {
        let method = row.required("method", origin::method);
        let path = row.required("path", origin::endpoint);
        let toll = row.required("toll", value::money);
        let (method, path, toll) = (method?, path?, toll?);
        if method == http::Method::GET && toll != Usd::ZERO {
            row.own_fault(
                "expected toll = \"0\" for a GET: what is asked twice must not cost twice",
            );
            return None;
        }
        let endpoint = (method.clone(), path.clone());
        if seen.contains(&endpoint) {
            row.own_fault("expected each method and path once, these are there twice");
            return None;
        }
        seen.push(endpoint);
        Some(Passthrough { method, path, toll })
    })
}

/// The published models and those of `models.chat`.
pub(super) fn catalog(section: &mut Section<'_>) -> Catalog {
    let mut catalog = Catalog::published();
    let mut taken: Vec<_> =
        catalog.chat.iter().map(|model| model.id.clone().into_owned()).collect();
    taken.extend(catalog.video.iter().map(|model| model.id.clone().into_owned()));
    let added = section.rows("chat", |row| {
        let id = row.required("id", value::name);
        let toll = row.required("toll", value::money);
        let id = id?;
        if taken.contains(&id) {
            row.own_fault("expected a new model, one with this id is in the catalog already");
            return None;
        }
        taken.push(id.clone());
        Some(ChatModel { id: Cow::Owned(id), tier: Tier::Added(toll?), best_for: "" })
    });
    catalog.chat.extend(added);
    catalog
}

pub(super) fn purchase(section: &mut Section<'_>) -> Purchase {
    Purchase {
        dedupe_window: section.text("dedupe_window", value::time_or_none, secs(30)),
        keep_replies: section.text("keep_replies", value::time, secs(24 * 3_600)),
    }
}

pub(super) fn store(section: &mut Section<'_>, source: &Source<'_>, live: bool) -> Store {
    let address = source.environment.get("REDIS_URL").filter(|url| !url.trim().is_empty());
    let default = match (address, live) {
        (Some(_), _) => StoreUrl::Redis { bare: true },
        (None, true) => StoreUrl::Sqlite(PathBuf::from("tollgate.db")),
        (None, false) => StoreUrl::Memory,
    };
    match section.text("url", store_url, default) {
        StoreUrl::Memory => Store::Memory,
        StoreUrl::Sqlite(path) => Store::Sqlite(source.folder.join(path)),
        StoreUrl::Redis { bare } => {
            if bare && address.is_none() {
                let place = section.place_of("url");
                section.fault("url", &place, "expected the server's address with it, in REDIS_URL");
            }
            Store::Redis
        }
    }
}

enum StoreUrl {
    Memory,
    Sqlite(PathBuf),
    Redis { bare: bool },
}

fn store_url(text: &str) -> Parsed<StoreUrl> {
    let expected = "expected \"memory\", \"sqlite:tollgate.db\" or \"redis://host:6379\"";
    match text.split_once(':') {
        None if text == "memory" => Ok(StoreUrl::Memory),
        None if text == "redis" => Ok(StoreUrl::Redis { bare: true }),
        Some(("sqlite", path)) if !path.starts_with("//") => value::line(path)
            .map(|path| StoreUrl::Sqlite(PathBuf::from(path)))
            .or(Err(expected.into())),
        Some(("redis" | "rediss", _)) => {
            let url = url::Url::parse(text).map_err(|_| expected)?;
            url.host().filter(|host| !host.to_string().is_empty()).ok_or(expected)?;
            if url.password().is_some() || !url.username().is_empty() {
                return Err("expected no user or password here: an address with them belongs in \
                            REDIS_URL, with store.url = \"redis\""
                    .into());
            }
            Ok(StoreUrl::Redis { bare: false })
        }
        _ => Err(expected.into()),
    }
}

pub(super) fn jobs(section: &mut Section<'_>) -> Jobs {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let jobs = Jobs {
        finished: section.list("finished", value::line, words(FINISHED)),
        failed: section.list("failed", value::line, words(FAILED)),
        result: section.list("result", value::pointer, words(RESULT)),
    };
    if jobs.failed.iter().any(|word| jobs.finished.contains(word)) {
        let written = if section.has("failed") { "failed" } else { "finished" };
        let place = section.place_of(written);
        section.fault(written, &place, "expected no word in both jobs.finished and jobs.failed");
    }
    jobs
}

pub(super) fn sandbox(section: &mut Section<'_>) -> Sandbox {
    Sandbox {
        job_time: section.text("job_time", value::time_or_none, secs(30)),
        balance: section.text("balance", value::money, Usd::dollars(50)),
        seed: section.number("seed", value::seed, 1),
    }
}
