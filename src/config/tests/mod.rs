//! Tests of the settings, in tables of good and bad ones.

use std::path::Path;

use super::*;
use crate::gateway::contract::money::{Period, Usd};

mod faults;
mod oidc;
mod secrets;
mod store;

/// The settings that a file and an environment make, or their errors as printed.
fn read(file: &str, environment: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
    read_with(file, environment, &|_| Err("there is none".to_owned()))
}

fn read_with(
    file: &str,
    environment: &[(&str, &str)],
    key_file: &dyn Fn(&Path) -> Result<Zeroizing<String>, String>,
) -> Result<Settings, Vec<String>> {
    let rows = environment.iter();
    let environment: Environment =
        rows.map(|(name, value)| ((*name).to_owned(), (*value).to_owned().into())).collect();
    let source = SettingsSource {
        file: Some(("proxy.toml", file)),
        folder: Path::new("/etc/tollgate"),
        environment: &environment,
        needs_gateway_key: true,
        key_file,
        check_files: &|_| Vec::new(),
    };
    Settings::read(&source).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

const URL: (&str, &str) = ("TOLLGATE_GATEWAY__BASE_URL", "https://gateway.example.com");
const KEY: (&str, &str) = ("GATEWAY_API_KEY", "svc_sk_one");

#[test]
fn default_is_the_sandbox_on_loopback() {
    let config = Settings::default();
    assert!(matches!(config.gateway.target, Target::Sandbox));
    assert_eq!(config.server.addresses(), ["127.0.0.1:8080".parse().expect("an address")]);
    assert_eq!(config.ops_address(), "127.0.0.1:9464".parse().expect("an address"));
    assert_eq!(config.store, StoreConfig::Memory);
    assert_eq!(config.access.mode, AccessMode::Open);
    assert_eq!(config.limits.requests.get(), 30);
    assert_eq!(config.limits.burst.get(), 10);
    assert_eq!(config.limits.concurrent.get(), 8);
    assert_eq!(config.sandbox.balance, Usd::dollars(50));
    assert!(config.warnings().is_empty());
    let read = read("", &[]).expect("nothing is right");
    assert_eq!(format!("{read:?}"), format!("{config:?}"));
}

#[test]
fn key_and_base_url_select_the_live_gateway_and_a_ledger_beside_the_file() {
    let config =
        read("", &[URL, ("GATEWAY_API_KEY", " svc_sk_one, svc_sk_two ")]).expect("valid settings");
    let Target::Live { base_url, keys } = config.gateway.target else { panic!("not live") };
    assert_eq!(base_url.host_str(), Some("gateway.example.com"));
    assert_eq!(keys.iter().map(Key::expose).collect::<Vec<_>>(), ["svc_sk_one", "svc_sk_two"]);
    assert_eq!(config.store.path(), Some(Path::new("/etc/tollgate/tollgate.db")));
}

#[test]
fn environment_overrides_the_file() {
    let file = r#"
        server = { listen = "127.0.0.1:1", hosts = ["a.example"], drain = "1s", max_connections = 5 }
        budget.total.day = "1.00"
        gateway.rate_limit = "auto"
    "#;
    let environment = [
        ("TOLLGATE_SERVER__LISTEN", "[::1]:8080"),
        ("TOLLGATE_SERVER__HOSTS", r#"["b.example", "c.example"]"#),
        ("TOLLGATE_SERVER__MAX_CONNECTIONS", "7"),
        ("TOLLGATE_BUDGET__TOTAL", r#"{day="5.00"}"#),
        ("TOLLGATE_GATEWAY__RATE_LIMIT", "{ requests = 30, seconds = 60 }"),
        ("TOLLGATE_GATEWAY__BALANCE_FLOOR", "2.5"),
        ("TOLLGATE_LOG__LEVEL", "debug"),
        ("TOLLGATE_SECRET", ""),
        ("TOLLGATE_SERVICE_HOST", "10.0.0.1"),
        ("TOLLGATE_PORT", "tcp://10.0.0.1:80"),
        ("TOLLGATE_PORT_80_TCP_ADDR", "10.0.0.1"),
    ];
    let config = read(file, &environment).expect("valid settings");
    assert_eq!(config.server.addresses(), ["[::1]:8080".parse().expect("an address")]);
    assert_eq!(config.server.hosts, ["b.example", "c.example"]);
    assert_eq!(config.server.drain, Duration::from_secs(1));
    assert_eq!(config.server.max_connections, 7);
    assert_eq!(config.server.max_connections_per_address, 1, "a tenth, at least one");
    assert_eq!(config.budget.total, SpendLimit::of(Period::Day, Usd::dollars(5)));
    assert_eq!(config.gateway.balance_floor, Usd::micros(2_500_000));
    assert_eq!(config.log.level, tracing::Level::DEBUG);
    let sixty = Duration::from_secs(60);
    assert_eq!(config.gateway.rate_limit, Some(RequestLimit { requests: 30, period: sixty }));
}

#[test]
fn host_of_the_public_url_is_one_of_ours() {
    let base = "store.url = 'sqlite:t.db'\nserver.hosts = ['b.example']\n";
    for (url, hosts) in [
        ("https://a.example", &["b.example", "a.example"][..]),
        ("https://b.example:8443", &["b.example"]),
        ("https://[2606:4700::1]", &["b.example", "[2606:4700::1]"]),
    ] {
        let file = format!("{base}server.public_url = '{url}'\npage.pictures = true");
        let config = read(&file, &[]).expect("right");
        assert_eq!(config.server.public_url.as_deref(), Some(url));
        assert_eq!(config.server.hosts, hosts);
        assert!(config.page.pictures && !config.is_local_only());
    }
    let variables =
        [("TOLLGATE_SERVER__PUBLIC_URL", "https://a.example"), ("TOLLGATE_PAGE__PICTURES", "true")];
    assert!(read(base, &variables).expect("right").page.pictures);
}

#[test]
fn listen_takes_a_list_in_file_and_variable() {
    let written = r#"["127.0.0.1:1", "[::1]:1"]"#;
    for config in [
        read(&format!("server.listen = {written}"), &[]),
        read("", &[("TOLLGATE_SERVER__LISTEN", written)]),
    ] {
        assert_eq!(config.expect("valid settings").server.listen.len(), 2);
    }
}

#[test]
fn listen_takes_unix_sockets_and_those_of_systemd() {
    for (written, shown) in [
        ("unix:public.sock", "unix:/etc/tollgate/public.sock"),
        ("unix:/run/public.sock", "unix:/run/public.sock"),
        ("systemd", "systemd"),
        ("systemd:public", "systemd:public"),
    ] {
        let file = format!("server.listen = '{written}'\nsandbox.public = true");
        let config = read(&file, &[]).expect("valid settings");
        assert_eq!(config.server.listen[0].to_string(), shown);
        assert!(!config.is_local_only(), "{written}");
    }
}

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let file = r#"
        store.url = "sqlite:data/t.db"
        page = { dir = "site", fallback = "index.html" }
        access = { mode = "jwt", jwt = { issuer = "i", audience = "a", jwks = "jwks.json" } }
    "#;
    let config = read(file, &[]).expect("valid settings");
    let absolute = read("store.url = 'sqlite:/abs/t.db'", &[]).expect("valid settings");
    assert_eq!(absolute.store.path(), Some(Path::new("/abs/t.db")));
    assert_eq!(config.store.path(), Some(Path::new("/etc/tollgate/data/t.db")));
    assert_eq!(config.page.dir, Some("/etc/tollgate/site".into()));
    assert_eq!(config.page.fallback.as_deref(), Some("index.html"));
    let AccessMode::Jwt(jwt) = config.access.mode else { panic!("not jwt") };
    assert_eq!(jwt.jwks, JwksSource::File("/etc/tollgate/jwks.json".into()));
    assert_eq!(jwt.token.leeway, Duration::from_secs(60));
    assert_eq!((jwt.token.role_claim, jwt.token.budget_claim), (None, None));
}

#[test]
fn jwt_takes_a_jwks_url_and_claims_by_name_or_pointer() {
    let file = r#"
        [access]
        mode = "jwt"
        jwt.issuer = "https://login.example.com/"
        jwt.audience = "tollgate"
        jwt.jwks = "https://login.example.com/keys?p=sign-in"
        jwt.leeway = "0s"
        jwt.role_claim = "/realm_access/a~1b~0c"
        jwt.budget_claim = "https://app.example.com/budget"
    "#;
    let config = read(file, &[]).expect("valid settings");
    let AccessMode::Jwt(jwt) = config.access.mode else { panic!("not jwt") };
    let JwksSource::Url(jwks) = jwt.jwks else { panic!("not an address") };
    assert_eq!(jwks.as_str(), "https://login.example.com/keys?p=sign-in");
    assert_eq!(jwt.token.leeway, Duration::ZERO);
    let path = ["realm_access", "a/b~c"].map(str::to_owned).to_vec();
    assert_eq!(jwt.token.role_claim, Some(ClaimPath(path)));
    let name = vec!["https://app.example.com/budget".to_owned()];
    assert_eq!(jwt.token.budget_claim, Some(ClaimPath(name)));
}

#[test]
fn added_models_and_endpoints_have_prices() {
    let file = r#"
        [[gateway.passthrough]]
        method = "POST"
        path = "/api/v1/search"
        price = "0.006"
        [models]
        chat = [{ id = "new-model", price = "0.01" }]
    "#;
    let config = read(file, &[]).expect("valid settings");
    assert_eq!(config.gateway.passthrough[0].price, Usd::mills(6));
    assert_eq!(config.catalog.chat.len(), Catalog::published().chat.len() + 1);
    assert_eq!(config.catalog.chat_model("new-model").map(|m| m.price()), Some(Usd::mills(10)));
}

#[test]
fn unsupported_settings_are_rejected() {
    let rows = [
        ("server.http3 = true", "1:8: unknown setting `server.http3`"),
        ("store.url = 'mysql://localhost'", "1:13: store.url: expected \"memory\", \"sqlite:"),
    ];
    for (file, expected) in rows {
        let errors = read(file, &[]).expect_err(file);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{errors:?}");
    }
}

#[test]
fn only_loopback_without_a_front_end_is_local_only() {
    for (file, is_private) in [
        ("", true),
        ("server.listen = ['127.0.0.1:1', '[::1]:1', '[::ffff:127.0.0.1]:1']", true),
        ("server.listen = ['127.0.0.1:1', '192.0.2.1:1']\nbudget.total.day = '1'", false),
        ("server.hosts = ['a.example']", false),
        ("server.trusted_proxies = ['10.0.0.0/8']", false),
    ] {
        assert_eq!(read(file, &[URL, KEY]).expect(file).is_local_only(), is_private, "{file}");
    }
}

#[test]
fn risky_settings_cause_warnings() {
    const MEDIA: (&str, &str) = ("TOLLGATE_PAGE__MEDIA_ORIGINS", "[\"https://cdn.example\"]");
    let rows = [
        ("store.url = 'memory'", "store.url"),
        ("server.hosts = ['a.example']", "budget.total"),
        ("server.trusted_proxies = ['10.0.0.0/8']", "budget.total"),
        ("admin.listen = '0.0.0.0:9464'", "admin.listen"),
    ];
    for (file, name) in rows {
        let warnings = read(file, &[URL, KEY, MEDIA]).expect(file).warnings();
        assert_eq!(warnings.len(), 1, "{file}: {warnings:?}");
        assert!(warnings[0].starts_with(name), "{warnings:?}");
    }
    assert!(read("", &[URL, KEY, MEDIA]).expect("valid settings").warnings().is_empty());
    let unplayed = read("", &[URL, KEY]).expect("valid settings").warnings();
    assert!(unplayed.len() == 1 && unplayed[0].starts_with("page.media_origins"), "{unplayed:?}");
    // Who is let in is known, and has a budget: no total is demanded.
    for reach in ["server.hosts = ['a.example']", "server.listen = '192.0.2.1:80'"] {
        let members = format!("{reach}\naccess.mode = 'members'");
        assert!(
            read(&members, &[URL, KEY, MEDIA]).expect("valid settings").warnings().is_empty(),
            "{reach}"
        );
    }
}
