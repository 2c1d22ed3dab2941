//! Reads the settings by section, each with its default.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tracing::Level;
use zeroize::Zeroizing;

use super::conflicts::conflicts;
use super::error::{Location, SettingError};
use super::oidc::oidc;
use super::raw::RawSettings;
use super::read::{Section, SettingsReader};
use super::server::server;
use super::{
    AccessConfig, AccessMode, BudgetConfig, DEFAULT_OPS, GatewayConfig, JobsConfig, JwksSource,
    JwtConfig, Key, LimitsConfig, Listen, LogConfig, McpConfig, PageConfig, Parsed,
    PassthroughConfig, PresetConfig, PurchaseConfig, RequestLimit, SandboxConfig, Settings, Target,
    TokenRules, models, secrets, store, value, webhooks,
};
use crate::gateway::contract::catalog::{Catalog, Service};
use crate::gateway::contract::money::{Period, SpendLimit, Usd};

/// The text that settings are read from, so that reading them does no I/O.
pub struct SettingsSource<'a> {
    /// The name and text of the file.
    pub file: Option<(&'a str, &'a str)>,
    /// The folder where relative paths start; empty is the working directory.
    pub folder: &'a Path,
    pub environment: &'a Environment,
    /// If not set, keys are neither required nor validated.
    pub needs_gateway_key: bool,
    pub key_file: &'a dyn Fn(&Path) -> Result<Zeroizing<String>, String>,
    /// Returns settings whose files are unusable, and what was expected.
    pub check_files: &'a dyn Fn(&Settings) -> Vec<(&'static str, String)>,
}

/// Environment variables by name. Values are wiped on drop, because some are secret.
pub type Environment = BTreeMap<String, Zeroizing<String>>;

impl Settings {
    /// Reads and validates all settings. Errors are sorted by location, and none contains a value.
    pub fn read(source: &SettingsSource<'_>) -> Result<Self, Vec<SettingError>> {
        let mut reader = SettingsReader::default();
        let raw = RawSettings::parse(source, &mut reader.errors);
        if raw.broken {
            let strays = RawSettings { strays: raw.strays, ..RawSettings::default() };
            return Err(reader.finish(&strays).0);
        }
        let (settings, errors, _) = interpret(source, &raw, reader);
        if errors.is_empty() { Ok(settings) } else { Err(errors) }
    }

    /// Returns all names, as `section.name`, in the order of the documentation.
    pub fn names() -> Vec<String> {
        defaults().1
    }
}

impl Default for Settings {
    fn default() -> Self {
        defaults().0
    }
}

fn defaults() -> (Settings, Vec<String>) {
    let source = SettingsSource {
        file: None,
        folder: Path::new(""),
        environment: &Environment::new(),
        needs_gateway_key: true,
        key_file: &|_| Err("no file is read here".to_owned()),
        check_files: &|_| Vec::new(),
    };
    let (raw, reader) = (RawSettings::default(), SettingsReader::default());
    let (settings, _, names) = interpret(&source, &raw, reader);
    (settings, names)
}

/// Returns the settings, with defaults for those in error, all errors, and all names.
fn interpret(
    source: &SettingsSource<'_>,
    raw: &RawSettings,
    mut reader: SettingsReader,
) -> (Settings, Vec<SettingError>, Vec<String>) {
    let (mut key_errors, folder) = (Vec::new(), source.folder);
    let mut keys = secrets::keys(source, &mut key_errors);
    let base_url = raw.location_of("gateway.base_url");
    match &base_url {
        // Still live, so that such a command finds the same ledger.
        Some(location) if !source.needs_gateway_key => keys = Some((location.clone(), Vec::new())),
        Some(_) | None => reader.errors.extend(key_errors),
    }
    let is_sandbox = base_url.is_none() && keys.is_none();
    let is_live = base_url.is_some() && keys.is_some();
    let (models, catalog) = reader.section(raw, "models", models::models);
    let gateway = reader.section(raw, "gateway", |section| gateway(section, keys));
    let (store, store_wait) = reader.section(raw, "store", |section| {
        let wait = section.text("wait", value::time_or_zero, Duration::ZERO);
        (store::store(section, source, is_sandbox), wait)
    });
    let settings = Settings {
        server: reader.section(raw, "server", |section| server(section, folder, &store)),
        admin_listen: reader.section(raw, "admin", |section| {
            section.text("listen", Listen::parse_tcp, DEFAULT_OPS.into())
        }),
        access: reader.section(raw, "access", |section| {
            access(section, source, (&catalog, &gateway.passthrough))
        }),
        gateway,
        secret: secrets::secret(source, &mut reader.errors),
        limits: reader.section(raw, "limits", limits),
        budget: reader.section(raw, "budget", |section| BudgetConfig {
            total: section.table("total", spend).unwrap_or_default(),
            caller: section.table("caller", spend).unwrap_or_default(),
        }),
        alerts: reader.section(raw, "alerts", webhooks::alerts),
        webhooks: webhooks::webhooks(&mut reader, raw, source),
        purchase: reader.section(raw, "purchase", |section| PurchaseConfig {
            dedupe_window: section.text("dedupe_window", value::time_or_zero, secs(30)),
            keep_replies: section.text("keep_replies", value::time, secs(24 * 3_600)),
        }),
        store,
        store_wait,
        mark_folders: Vec::new(),
        jobs: reader.section(raw, "jobs", |section| jobs(section, is_sandbox)),
        page: reader.section(raw, "page", |section| page(section, folder, is_sandbox)),
        mcp: reader.section(raw, "mcp", mcp),
        models,
        catalog,
        sandbox: reader.section(raw, "sandbox", sandbox),
        log: reader.section(raw, "log", log),
    };
    let conflicts = conflicts(&settings, raw, (is_sandbox, source.needs_gateway_key), is_live);
    for (name, expected) in conflicts.chain((source.check_files)(&settings)) {
        let location = raw.location_of(name).unwrap_or(Location::Unknown);
        reader.errors.push(SettingError::new(location, format!("{name}: expected {expected}")));
    }
    let (errors, names) = reader.finish(raw);
    (settings, errors, names)
}

const CHAT_FIELDS: &[&str] = &["model", "messages"];
const FINISHED: &[&str] = &["completed", "succeeded", "success", "done", "finished", "ready"];
const FAILED: &[&str] = &["failed", "error", "cancelled", "canceled", "expired", "rejected"];
const RESULT: &[&str] =
    &["/video_url", "/url", "/output/url", "/output/0", "/result/url", "/data/0/url"];
const MAX_LEEWAY: Duration = secs(300);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn gateway(section: &mut Section<'_>, keys: Option<(Location, Vec<Key>)>) -> GatewayConfig {
    GatewayConfig {
        target: target(section, keys),
        connect_timeout: section.text("connect_timeout", value::time, secs(5)),
        chat_timeout: section.text("chat_timeout", value::time, secs(120)),
        video_timeout: section.text("video_timeout", value::time, secs(60)),
        rate_limit: rate_limit(section),
        max_wait: section.text("max_wait", value::time_or_zero, secs(20)),
        keep_alive: section.flag("keep_alive"),
        balance_floor: section.text("balance_floor", value::money, Usd::ZERO),
        chat_fields: section.list("chat_fields", chat_field, Vec::new()),
        passthrough: passthrough(section),
    }
}

fn target(section: &mut Section<'_>, keys: Option<(Location, Vec<Key>)>) -> Target {
    let base_url = section.optional("base_url", value::base_url);
    match (section.has("base_url"), keys) {
        (true, Some((_, keys))) => {
            return base_url.map_or(Target::Sandbox, |base_url| Target::Live { base_url, keys });
        }
        (true, None) => {
            let text = "expected a key with it, in GATEWAY_API_KEY or GATEWAY_API_KEY_FILE; to use the \
                        sandbox, remove this setting";
            section.error("base_url", text);
        }
        (false, Some((location, _))) => {
            let text =
                "expected the gateway's address with the key; to use the sandbox, remove the key";
            section.error_at("base_url", &location, text);
        }
        (false, None) => {}
    }
    Target::Sandbox
}

fn rate_limit(section: &mut Section<'_>) -> Option<RequestLimit> {
    if !section.is_structured("rate_limit", |text| text.starts_with('{')) {
        let auto = |text: &str| match text {
            "auto" => Ok(None),
            _ => Err("expected \"auto\" or { requests = 60, seconds = 60 }".into()),
        };
        return section.text("rate_limit", auto, None);
    }
    let fixed = section.table("rate_limit", |table| {
        let requests = table.required_number("requests", value::count);
        let period = table.required_number("seconds", value::seconds);
        let requests = usize::try_from(requests?.get()).unwrap_or(usize::MAX);
        Some(RequestLimit { requests, period: period? })
    });
    fixed.flatten()
}

fn chat_field(text: &str) -> Parsed<String> {
    if CHAT_FIELDS.contains(&text) {
        return Err("expected a field other than model and messages, which are always sent".into());
    }
    value::name(text)
}

fn passthrough(section: &mut Section<'_>) -> Vec<PassthroughConfig> {
    let mut all: Vec<PassthroughConfig> = Vec::new();
    section.tables("passthrough", |row| {
        let method = row.required("method", value::method);
        let path = row.required("path", value::endpoint);
        let price = row.required("price", value::money);
        let (method, path, price) = (method?, path?, price?);
        if method == http::Method::GET && price != Usd::ZERO {
            let text = "expected price = \"0\" for a GET, because clients may repeat it";
            row.section_error(text);
        } else if all.iter().any(|it| it.method == method && it.path == path) {
            row.section_error("expected each method and path once, this is a duplicate");
        } else {
            all.push(PassthroughConfig { method, path, price });
        }
        Some(())
    });
    all
}

fn access(
    section: &mut Section<'_>,
    source: &SettingsSource<'_>,
    (catalog, passthrough): (&Catalog, &[PassthroughConfig]),
) -> AccessConfig {
    let known_mode = |text: &str| match text {
        "open" | "members" | "jwt" | "oidc" | "host" => Ok(text.to_owned()),
        _ => Err("expected \"open\", \"members\", \"jwt\", \"oidc\" or \"host\"".into()),
    };
    let mode = section.text("mode", known_mode, "open".to_owned());
    let allowed_origins = section.list("allowed_origins", value::origin, Vec::new());
    for (name, needed, unexpected) in [
        (
            "jwt",
            "expected a table [access.jwt] with this mode",
            "expected access.mode = \"jwt\" with this table",
        ),
        (
            "oidc",
            "expected a table [access.oidc] with this mode",
            "expected access.mode = \"oidc\" with this table",
        ),
    ] {
        match (mode == name, section.has(name)) {
            (true, false) => section.error("mode", needed),
            (false, true) => section.error(name, unexpected),
            (true, true) | (false, false) => {}
        }
    }
    let jwt = section.table("jwt", |section| jwt(section, source.folder)).flatten();
    let client_secret = if mode == "oidc" {
        secrets::client_secret(source).and_then(|(location, secret)| {
            secret.map_err(|expected| section.report(location, expected)).ok()
        })
    } else {
        None
    };
    let oidc = section.table("oidc", |section| oidc(section, client_secret)).flatten();
    let mode = match (&*mode, jwt, oidc) {
        ("jwt", Some(jwt), _) => AccessMode::Jwt(Box::new(jwt)),
        ("oidc", _, Some(oidc)) => AccessMode::Oidc(Box::new(oidc)),
        ("members", ..) => AccessMode::Members,
        ("host", ..) => AccessMode::Host,
        _ => AccessMode::Open,
    };
    let may_buy = models::may_buy(section, catalog, passthrough);
    let proof = section.text("proof", proof, false);
    AccessConfig { mode, allowed_origins, may_buy, proof }
}

fn proof(text: &str) -> Parsed<bool> {
    match text {
        "off" => Ok(false),
        "auto" => Ok(true),
        _ => Err("expected \"off\" or \"auto\"".into()),
    }
}

fn jwt(section: &mut Section<'_>, folder: &Path) -> Option<JwtConfig> {
    let issuer = section.required("issuer", value::line);
    let audience = section.required("audience", value::line);
    let jwks = section.required("jwks", jwks);
    let leeway = section.text("leeway", leeway, secs(60));
    let role_claim = section.nullable("role_claim", value::claim);
    let budget_claim = section.nullable("budget_claim", value::claim);
    let group_claim = section.nullable("group_claim", value::claim);
    let may_buy_claim = section.nullable("may_buy_claim", value::claim);
    let jwks = match jwks? {
        JwksSource::File(file) => JwksSource::File(folder.join(file)),
        address @ JwksSource::Url(_) => address,
    };
    let token = TokenRules {
        issuer: issuer?,
        audience: audience?,
        leeway,
        role_claim,
        budget_claim,
        group_claim,
        may_buy_claim,
    };
    Some(JwtConfig { token, jwks })
}

fn jwks(text: &str) -> Parsed<JwksSource> {
    if text.contains("://") {
        return value::jwks_url(text).map(JwksSource::Url);
    }
    value::line(text).map(|file| JwksSource::File(file.into()))
}

fn leeway(text: &str) -> Parsed<Duration> {
    match value::time_or_zero(text)? {
        leeway if leeway <= MAX_LEEWAY => Ok(leeway),
        _ => Err("expected a time of at most \"5m\"".into()),
    }
}

fn limits(section: &mut Section<'_>) -> LimitsConfig {
    let of = |number: u32| NonZeroU32::MIN.saturating_add(number - 1);
    LimitsConfig {
        requests: section.number("requests", value::count, of(30)),
        period: section.number("seconds", value::seconds, secs(60)),
        burst: section.number("burst", value::count, of(10)),
        concurrent: section.number("concurrent", value::count, of(8)),
    }
}

fn spend(section: &mut Section<'_>) -> SpendLimit {
    if !Period::ALL.iter().any(|period| section.has(period.name())) {
        section.section_error("expected `day`, `week`, `month`, `ever` or several of them");
    }
    let mut amount = |period: Period| section.optional(period.name(), value::money);
    SpendLimit {
        day: amount(Period::Day),
        week: amount(Period::Week),
        month: amount(Period::Month),
        ever: amount(Period::Ever),
    }
}

fn jobs(section: &mut Section<'_>, is_sandbox: bool) -> JobsConfig {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let jobs = JobsConfig {
        finished: section.list("finished", value::line, words(FINISHED)),
        failed: section.list("failed", value::line, words(FAILED)),
        result: section.list("result", value::pointer, words(RESULT)),
        keep_prompts: section.switch("keep_prompts", is_sandbox),
    };
    if jobs.failed.iter().any(|word| jobs.finished.contains(word)) {
        let written = if section.has("failed") { "failed" } else { "finished" };
        section.error(written, "expected no word in both jobs.finished and jobs.failed");
    }
    jobs
}

fn page(section: &mut Section<'_>, folder: &Path, is_sandbox: bool) -> PageConfig {
    let dir = section.nullable("dir", |text| Ok(PathBuf::from(text)));
    let fallback = section.nullable("fallback", file_name);
    if dir.is_none() && fallback.is_some() {
        let expected = "expected page.dir with it, the folder of this file";
        section.error("fallback", expected);
    }
    let contact = section.nullable("contact", value::line);
    let default_model = section.nullable("default_model", value::name);
    let mut presets = Vec::new();
    section.tables("presets", |row| {
        let (name, system) =
            (row.required("name", value::line), row.required("system", value::prose));
        presets.push(PresetConfig { name: name?, system: system? });
        Some(())
    });
    PageConfig {
        enabled: section.switch("enabled", true),
        dir: dir.map(|dir| folder.join(dir)),
        fallback,
        title: section.text("title", value::line, "tollgate".to_owned()),
        media_origins: section.list("media_origins", value::web_origin, Vec::new()),
        contact,
        default_model,
        presets,
        // A setting in error counts as off, so that it is reported once.
        pictures: section.switch("pictures", is_sandbox && !section.has("pictures")),
    }
}

fn mcp(section: &mut Section<'_>) -> McpConfig {
    let service = |text: &str| match text {
        "chat" => Ok(Service::Chat),
        "video" => Ok(Service::Video),
        _ => Err("expected \"chat\" or \"video\"".into()),
    };
    McpConfig {
        enabled: section.flag("enabled"),
        tools: section.list("tools", service, vec![Service::Chat, Service::Video]),
        ask: section.text("ask", value::money, Usd::mills(100)),
    }
}

fn file_name(text: &str) -> Parsed<String> {
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
    if PathBuf::from(text).components().all(inside) && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    Err("expected a file inside page.dir, such as \"index.html\"".into())
}

fn sandbox(section: &mut Section<'_>) -> SandboxConfig {
    let reply_delay = Duration::from_millis(400);
    SandboxConfig {
        job_time: section.text("job_time", value::time_or_zero, secs(30)),
        reply_delay: section.text("reply_delay", value::time_or_zero, reply_delay),
        rate_limit: rate_limit(section),
        balance: section.text("balance", value::money, Usd::dollars(50)),
        seed: section.number("seed", value::seed, 1),
        is_public: section.flag("public"),
    }
}

fn log(section: &mut Section<'_>) -> LogConfig {
    let format = |text: &str| match text {
        "auto" => Ok(None),
        "json" => Ok(Some(true)),
        "text" => Ok(Some(false)),
        _ => Err("expected \"auto\", \"text\" or \"json\"".into()),
    };
    let level = |text: &str| match text {
        "error" => Ok(Level::ERROR),
        "warn" => Ok(Level::WARN),
        "info" => Ok(Level::INFO),
        "debug" => Ok(Level::DEBUG),
        "trace" => Ok(Level::TRACE),
        _ => Err("expected \"error\", \"warn\", \"info\", \"debug\" or \"trace\"".into()),
    };
    LogConfig {
        is_json: section.text("format", format, None),
        level: section.text("level", level, Level::INFO),
    }
}
