//! Every error has a location and says what was expected.

use super::*;

/// A file with one error, and the start of its message after the file name.
const ONE_ERROR: &[(&str, &str)] = &[
    ("[server]\nlisten = \"localhost:80\"", "2:10: server.listen: expected an address and a port"),
    ("[server]\nlisten = 8080", "2:10: server.listen: expected an address and a port"),
    (
        "[server]\nlisten = '127.0.0.1:65536'",
        "2:10: server.listen: the port is out of range, expected 0 to 65535",
    ),
    (
        "[server]\nlisten = ['[::1]:99999']",
        "2:11: server.listen: the port is out of range, expected 0 to 65535",
    ),
    ("[server]\nlisten = '127.0.0.1:'", "2:10: server.listen: expected an address and a port"),
    ("[server]\nlisten = '127.0.0.1:-1'", "2:10: server.listen: expected an address and a port"),
    (
        "[admin]\nlisten = '127.0.0.1:99999999999999999999'",
        "2:10: admin.listen: the port is out of range, expected 0 to 65535",
    ),
    (
        "[server]\nhosts = ['a.example']\n\
         tls = { acme = { agree = true, dir = 'd', directory = 'https://ca.example:65536' } }",
        "3:55: server.tls.acme.directory: the port is out of range, expected 0 to 65535",
    ),
    ("[server]\nlisten = []", "2:10: server.listen: expected at least one address"),
    ("[server]\nlisten = ['[::1]:1', '[::1]:1']", "2:22: server.listen: expected each entry once"),
    ("[server]\nlisten = ['[::1]:1', 'x']", "2:22: server.listen: expected an address"),
    ("[server]\nlisten = 'unix:'", "2:10: server.listen: expected an address and a port"),
    ("[server]\nlisten = 'systemd:'", "2:10: server.listen: expected an address and a port"),
    ("[server]\nlisten = 'systemd'", "2:10: server.listen: expected loopback addresses only"),
    ("[admin]\nlisten = 'systemd'", "2:10: admin.listen: expected an address and a port"),
    ("[admin]\nlisten = 'unix:/x'", "2:10: admin.listen: expected an address and a port"),
    ("[server]\nhosts = 'a.example'", "2:9: server.hosts: expected a list"),
    ("[server]\nhosts = [\n  'a.example',\n  '*',\n]", "4:3: server.hosts: expected a host name"),
    ("[server]\ndrain = '5'", "2:9: server.drain: expected a whole number and a unit"),
    ("[server]\ndrain = 5", "2:9: server.drain: expected a whole number and a unit"),
    ("[server]\nidle_timeout = '0s'", "2:16: server.idle_timeout: expected a time longer"),
    ("[server]\nchat_body = '2MB'", "2:13: server.chat_body: expected a whole number and a unit"),
    (
        "[server]\nmax_connections = '5'",
        "2:19: server.max_connections: expected a whole number, not text",
    ),
    (
        "[server]\nmax_body_memory = '1MiB'",
        "2:19: server.max_body_memory: expected at least server.chat_body and server.video_body",
    ),
    (
        "[gateway]\nrate_limit = { requests = 5 }",
        "2:14: gateway.rate_limit: expected a setting `seconds`",
    ),
    (
        "[budget]\ntotal = { day = '1', mnth = '2' }",
        "2:22: unknown setting `budget.total.mnth`, did you mean `budget.total.month`?",
    ),
    ("[server]\nstreams = 0", "2:11: server.streams: expected a whole number from 1 to 256"),
    ("[server]\ntls = 'x'", "2:7: server.tls: expected a table, { … }, not text"),
    ("[server]\ntls = { cert = 'c' }", "2:7: server.tls: expected a setting `key`"),
    (
        "[server]\ntls = { cert = 'c', key = 'k', kye = 'k' }",
        "2:32: unknown setting `server.tls.kye`, did you mean `server.tls.key`?",
    ),
    (
        "[server]\nhosts = ['a.example']\ntls = { acme = { dir = 'd' } }",
        "3:16: server.tls.acme: expected `agree = true`, if you agree to the authority's terms",
    ),
    (
        "[server]\nhosts = ['a.example']\ntls = { acme = { agree = false, dir = 'd' } }",
        "3:26: server.tls.acme.agree: expected true, if you agree to the authority's terms",
    ),
    (
        "[server]\nhosts = ['a.example']\ntls = { acme = { agree = true } }",
        "3:16: server.tls.acme: expected a setting `dir`, because the ledger is not a file",
    ),
    (
        "[server]\nhosts = ['a.example']\ntls = { cert = 'c', acme = { agree = true, dir = 'd' } }",
        "3:16: server.tls.cert: expected either acme, or cert and key",
    ),
    (
        "[server]\ntls = { acme = { agree = true, dir = 'd' } }",
        "2:7: server.tls: expected the names of the certificate in server.hosts, because",
    ),
    (
        "[server]\nhosts = ['192.0.2.1']\ntls = { acme = { agree = true, dir = 'd' } }",
        "2:9: server.hosts: expected names, not addresses, because server.tls.acme is set",
    ),
    (
        "[server]\nhosts = []\ntls = { acme = { agree = true, dir = 'd' } }",
        "2:9: server.hosts: expected the names of the certificate in server.hosts, because",
    ),
    (
        "[server]\nhosts = ['a.example', '*']\ntls = { acme = { agree = true, dir = 'd' } }",
        "2:23: server.hosts: expected a host name",
    ),
    (
        "[server]\nhosts = ['a.example']\ntls = { acme = { agree = true, dir = 'd', contact = 'ops' } }",
        "3:53: server.tls.acme.contact: expected an address for mail",
    ),
    (
        "[server]\nhosts = ['a.example']\n\
         tls = { acme = { agree = true, dir = 'd', directory = 'http://ca.example' } }",
        "3:55: server.tls.acme.directory: expected https, got http",
    ),
    ("[server]\nredirect = ['127.0.0.1:80']", "2:12: server.redirect: expected server.tls with it"),
    ("[server]\nhsts = '1d'", "2:8: server.hsts: expected server.tls with it"),
    ("[server]\nlsten = 'x'", "2:1: unknown setting `server.lsten`, did you mean `server.listen`?"),
    (
        "[server]\nmax_conns = 5",
        "2:1: unknown setting `server.max_conns`, did you mean `server.max_connections`?",
    ),
    ("lisen = 'x'", "1:1: unknown section `lisen`, did you mean `server.listen`?"),
    ("[servr]\nlisten = 'x'", "1:2: unknown section `servr`, did you mean `server`?"),
    ("listen = 'x'", "1:1: unknown section `listen`, did you mean `server.listen`?"),
    ("[zzzzzz]", "1:2: unknown section `zzzzzz`"),
    ("[page]\nhosts = []", "2:1: unknown setting `page.hosts`, did you mean `server.hosts`?"),
    (
        "[gateway]\napi_key = 'x'",
        "2:1: unknown setting `gateway.api_key`, expected keys in GATEWAY_API_KEY",
    ),
    ("server = 1", "1:1: server: expected a section, [server], not a number"),
    ("[[server]]", "1:3: server: expected a section, [server], not a list"),
    ("[admin]\nlisten = '127.0.0.1:8080'", "2:10: admin.listen: expected an address other than"),
    ("[server]\nlisten = '127.0.0.1:9464'", "2:10: server.listen: expected an address other than"),
    (
        "[gateway]\nurl = 'https://gateway.example.com'",
        "2:1: unknown setting `gateway.url`, did you mean `gateway.base_url`?",
    ),
    ("[gateway]\nbase_url = 'https://g.example'", "2:12: gateway.base_url: expected a key with it"),
    ("[gateway]\nrate_limit = 'always'", "2:14: gateway.rate_limit: expected \"auto\" or {"),
    (
        "[gateway]\nrate_limit = { requests = 0, seconds = 1 }",
        "2:27: gateway.rate_limit.requests: expected a whole number from 1",
    ),
    (
        "[gateway]\nbalance_floor = 5.00",
        "2:17: gateway.balance_floor: expected dollars as text, such as \"5.00\", not a number with a point",
    ),
    (
        "[gateway]\nbalance_floor = '0.0000001'",
        "2:17: gateway.balance_floor: expected at most six places",
    ),
    (
        "[gateway]\nchat_fields = ['model']",
        "2:16: gateway.chat_fields: expected a field other than",
    ),
    (
        "[gateway]\npassthrough = [{ method = 'PUT', path = '/api/v1/x', price = '1' }]",
        "2:27: gateway.passthrough.method: expected \"GET\"",
    ),
    (
        "[gateway]\npassthrough = [{ method = 'GET', path = '/api/v1/chat', price = '1' }]",
        "2:41: gateway.passthrough.path: expected an endpoint other than",
    ),
    (
        "[gateway]\npassthrough = [{ path = '/api/v1/x', price = '1' }]",
        "2:16: gateway.passthrough: expected a setting `method`",
    ),
    (
        "[gateway]\npassthrough = [{ method = 'GET', path = '/api/v1/x', price = '0.01' }]",
        "2:16: gateway.passthrough: expected price = \"0\" for a GET",
    ),
    ("[gateway]\npassthrough = [5]", "2:16: gateway.passthrough: expected a table"),
    (
        "[[gateway.passthrough]]\nmethod = 'POST'\npath = '/api/v1/x'\nprice = '0'\n[[gateway.passthrough]]\nmethod = 'POST'\npath = '/api/v1/x'\nprice = '1'",
        "5:1: gateway.passthrough: expected each method and path once",
    ),
    (
        "[access]\nmode = 'closed'",
        "2:8: access.mode: expected \"open\", \"members\", \"jwt\", \"oidc\" or \"host\"",
    ),
    ("[access]\nmode = 'jwt'", "2:8: access.mode: expected a table [access.jwt]"),
    (
        "[access]\njwt = { issuer = 'i', audience = 'a', jwks = 'j' }",
        "2:7: access.jwt: expected access.mode = \"jwt\"",
    ),
    (
        "[access]\nmode = 'jwt'\njwt = { issuer = 'i', audience = 'a', jwks = 'http://j.example' }",
        "3:46: access.jwt.jwks: expected https",
    ),
    (
        "[access]\nmode = 'jwt'\njwt = { issuer = 'i', audience = 'a', jwks = 'https://u:p@j.example' }",
        "3:46: access.jwt.jwks: expected no user",
    ),
    (
        "[access]\nmode = 'jwt'\njwt = { issuer = 'i', audience = 'a', jwks = 'j', leeway = '6m' }",
        "3:60: access.jwt.leeway: expected a time of at most \"5m\"",
    ),
    (
        "[access]\nmode = 'jwt'\njwt = { issuer = 'i', audience = 'a', jwks = 'j', role_claim = '/a~b' }",
        "3:64: access.jwt.role_claim: expected a JSON pointer",
    ),
    (
        "[access]\nmode = 'jwt'\njwt = { issuer = 'i', audience = 'a', jwks = 'j', scope = 'x' }",
        "3:51: unknown setting `access.jwt.scope`",
    ),
    (
        "[access]\nallowed_origins = ['null']",
        "2:20: access.allowed_origins: expected an exact origin",
    ),
    ("[limits]\nrequests = 0", "2:12: limits.requests: expected a whole number from 1"),
    (
        "[limits]\nseconds = true",
        "2:11: limits.seconds: expected a whole number, not a truth value",
    ),
    ("[budget]\ntotal = '5.00'", "2:9: budget.total: expected a table, { … }, not text"),
    ("[alerts]\nbudget = 80", "2:10: alerts.budget: expected a list, [1, 2], not a number"),
    ("[alerts]\nbudget = [80, 101]", "2:15: alerts.budget: expected a list of at most 4 whole"),
    ("[alerts]\nbudget = [0]", "2:11: alerts.budget: expected a list of at most 4 whole"),
    ("[alerts]\nbudget = [80, 80]", "2:15: alerts.budget: expected each entry once"),
    ("[alerts]\nbudget = [1, 2, 3, 4, 5]", "2:10: alerts.budget: expected a list of at most 4"),
    (
        "[budget]\ntotal = {}",
        "2:9: budget.total: expected `day`, `week`, `month`, `ever` or several of them",
    ),
    ("[store]\nca = 'ca.pem'", "2:6: store.ca: expected store.url = \"postgres\" with it"),
    ("[store]\nmigrate = 'always'", "2:11: store.migrate: expected \"auto\" or \"never\""),
    ("[store]\nurl = 'sqlite:///x'", "2:7: store.url: expected \"memory\""),
    ("[store]\nurl = 'sqlite:'", "2:7: store.url: expected \"memory\""),
    ("[store]\nurl = 'mysql'", "2:7: store.url: expected \"memory\""),
    ("[store]\nurl = 'mysql://:hunter2@x'", "2:7: store.url: expected \"memory\""),
    ("[jobs]\nresult = ['url']", "2:11: jobs.result: expected a JSON pointer"),
    ("[jobs]\nfailed = ['done']", "2:10: jobs.failed: expected no word in both"),
    ("[page]\nfallback = 'index.html'", "2:12: page.fallback: expected page.dir with it"),
    (
        "[page]\ndir = 'd'\nfallback = '../x'",
        "3:12: page.fallback: expected a file inside page.dir",
    ),
    (
        "[page]\nmedia_origins = ['capacitor://localhost']",
        "2:18: page.media_origins: expected an exact origin",
    ),
    ("[page]\npictures = 'true'", "2:12: page.pictures: expected true or false, not text"),
    (
        "store.url = 'sqlite:t.db'\npage.pictures = true",
        "2:17: page.pictures: expected server.public_url with it, where the gateway fetches them",
    ),
    (
        "server.public_url = 'https://a.example'\npage.pictures = true",
        "2:17: page.pictures: expected store.url with it",
    ),
    (
        "store.url = 'sqlite:t.db'\nserver.public_url = 'http://a.example'\npage.pictures = true",
        "2:21: server.public_url: expected an https origin",
    ),
    (
        "store.url = 'sqlite:t.db'\nserver.max_body_memory = '4MiB'\n\
         server.public_url = 'https://a.example'\npage.pictures = true",
        "2:26: server.max_body_memory: expected at least 8 MiB with page.pictures",
    ),
    ("server.public_url = 'http://a.example'", "1:21: server.public_url: expected an https origin"),
    ("server.public_url = 'http://127.0.0.1:8080'", "1:21: server.public_url: expected an https"),
    ("server.public_url = 'https://localhost'", "1:21: server.public_url: expected a public host"),
    ("server.public_url = 'https://10.0.0.1'", "1:21: server.public_url: expected a public host"),
    ("server.public_url = 'https://a.example/x'", "1:21: server.public_url: expected an exact"),
    ("server.public_url = 'https://a.example/'", "1:21: server.public_url: expected an exact"),
    ("server.prefix = ''", "1:17: server.prefix: expected a path"),
    ("server.prefix = 'ai'", "1:17: server.prefix: expected a path"),
    ("server.prefix = '/'", "1:17: server.prefix: expected a path"),
    ("server.prefix = '/ai/'", "1:17: server.prefix: expected a path without a final slash"),
    ("server.prefix = '//ai'", "1:17: server.prefix: expected a path"),
    ("server.prefix = '/a/../b'", "1:17: server.prefix: expected a path"),
    ("server.prefix = '/a b'", "1:17: server.prefix: expected a path"),
    ("[page]\ncontact = ' '", "2:11: page.contact: expected one line of text that is not blank"),
    ("[page]\ndefault_model = 'video-b'", "2:17: page.default_model: expected a chat model"),
    (
        "[page]\ndefault_model = 'eta-5-mimi'",
        "2:17: page.default_model: expected a chat model that is sold; did you mean \"eta-5-mini\"?",
    ),
    (
        "[page]\npresets = [{ name = 'x', system = ' ' }]",
        "2:35: page.presets.system: expected text",
    ),
    ("[models]\nchat = [{ id = 'eta-5', price = '1' }]", "2:9: models.chat: expected a new model"),
    (
        "[models]\nchat = [{ id = 'video-b', price = '1' }]",
        "2:9: models.chat: expected a new model",
    ),
    ("[models]\nchat = [{ id = 'chat', price = '1' }]", "2:9: models.chat: expected an id other"),
    (
        "[models]\nhide = ['chat', 'video-bb']",
        "2:17: models.hide: expected \"chat\", \"video\", or the id of a model that is sold; did you mean \"video-b\"?",
    ),
    (
        "[models]\nsell = ['gpt']",
        "2:9: models.sell: expected \"chat\", \"video\", or the id of a model",
    ),
    ("[models]\nhide = ['eta-5', 'eta-5']", "2:18: models.hide: expected each entry once"),
    ("[models]\nhide = ['eta-5']\nsell = ['chat']", "3:8: models.sell: expected no models.hide"),
    ("[models]\nhide = ['chat', 'video']", "2:8: models.hide: expected at least one model"),
    (
        "models.hide = ['eta-5']\npage.default_model = 'eta-5'",
        "2:22: page.default_model: expected a chat model that is sold",
    ),
    (
        "[access]\nmay_buy = ['video-c2']",
        "2:12: access.may_buy: expected \"chat\", \"video\", \"other\", or the id of a model that is sold; \
         did you mean \"video-c-2\"?",
    ),
    (
        "models.hide = ['video-b']\naccess.may_buy = ['video-b']",
        "2:19: access.may_buy: expected \"chat\", \"video\", \"other\", or the id of a model that is sold",
    ),
    ("access.may_buy = ['/api/v1/search']", "1:19: access.may_buy: expected \"chat\""),
    ("[models]\nvideo = []", "2:1: unknown setting `models.video`"),
    ("[sandbox]\nseed = -1", "2:8: sandbox.seed: expected a whole number from 0"),
    ("[log]\nlevel = 'loud'", "2:9: log.level: expected \"error\""),
    ("[log]\nformat = 'xml'", "2:10: log.format: expected \"auto\", \"text\" or \"json\""),
    ("[server]\nlisten = '0.0.0.0:80'", "2:10: server.listen: expected loopback addresses only"),
    ("[server\n", "1:8: not TOML: unclosed table, expected `]`"),
    ("[log]\nlevel = 'info'\nlevel = 'warn'", "3:1: not TOML: duplicate key"),
    ("[log]\nlevel = debug", "2:9: not TOML: string values must be quoted"),
];

#[test]
fn each_error_is_printed_once_with_line_and_column() {
    for (file, printed) in ONE_ERROR {
        let errors = read(file, &[]).expect_err(file);
        assert_eq!(errors.len(), 1, "{file}\n{errors:#?}");
        let printed = format!("proxy.toml:{printed}");
        assert!(errors[0].starts_with(&printed), "{file}\n{}\n{printed}", errors[0]);
    }
}

#[test]
fn errors_of_the_environment_name_the_variable() {
    for (name, value, expected) in [
        ("TOLLGATE_SERVER__LISTEN", "80", "expected an address and a port"),
        (
            "TOLLGATE_SERVER__LISTEN",
            "[::1]:65536",
            "server.listen: the port is out of range, expected 0 to 65535",
        ),
        ("TOLLGATE_SERVER__HOSTS", "a.example", "server.hosts: expected a list or table in TOML"),
        ("TOLLGATE_SERVER__HOSTS", "['*']", "server.hosts: expected a host name"),
        ("TOLLGATE_LIMITS__BURST", "many", "limits.burst: expected a whole number"),
        ("TOLLGATE_BUDGET__TOTAL", "{day=5}", "budget.total.day: expected dollars as text"),
        (
            "TOLLGATE_SERVR__LISTEN",
            "x",
            "unknown setting `servr.listen`, did you mean `TOLLGATE_SERVER__LISTEN`?",
        ),
        (
            "TOLLGATE_SERVER__LISEN",
            "x",
            "unknown setting `server.lisen`, did you mean `TOLLGATE_SERVER__LISTEN`?",
        ),
        ("TOLLGATE_LISTEN", "x", "unknown variable, did you mean `TOLLGATE_SERVER__LISTEN`?"),
        (
            "TOLLGATE_server__listen",
            "x",
            "unknown variable, did you mean `TOLLGATE_SERVER__LISTEN`?",
        ),
        (
            "TOLLGATE_SERVER_LISTEN",
            "x",
            "unknown variable, did you mean `TOLLGATE_SERVER__LISTEN`?",
        ),
        (
            "TOLLGATE_WEBHOOK_SECRT",
            "x",
            "unknown variable, did you mean `TOLLGATE_WEBHOOK_SECRET`?",
        ),
        ("TOLLGATE_SECRETS", "x", "unknown variable, did you mean `TOLLGATE_SECRET`?"),
        ("TOLLGATE_WEBHOOK", "x", "unknown variable, did you mean `TOLLGATE_WEBHOOKS`?"),
        ("TOLLGATE_SERVR", "x", "unknown variable, expected TOLLGATE_SECTION__NAME"),
        ("TOLLGATE_PORT", "80", "unknown variable, expected TOLLGATE_SECTION__NAME"),
        (
            "GATEWAY_API_KEY",
            "svc_sk_x",
            "gateway.base_url: expected the gateway's address with the key",
        ),
    ] {
        let errors = read("", &[(name, value)]).expect_err(name);
        assert_eq!(errors.len(), 1, "{errors:#?}");
        assert!(errors[0].starts_with(&format!("{name}: ")), "{errors:#?}");
        assert!(errors[0].contains(expected), "{errors:#?}");
    }
}

#[test]
fn renamed_settings_are_rejected_with_the_new_name() {
    for (file, expected) in [
        ("[gateway]\nwindow = 'auto'", "2:1: gateway.window was renamed to gateway.rate_limit"),
        (
            "[gateway]\npassthrough = [{ method = 'POST', path = '/api/v1/x', toll = '1' }]",
            "2:55: gateway.passthrough.toll was renamed to gateway.passthrough.price",
        ),
        (
            "[models]\nchat = [{ id = 'new', toll = '1' }]",
            "2:23: models.chat.toll was renamed to models.chat.price",
        ),
    ] {
        let errors = read(file, &[]).expect_err(file);
        assert_eq!(errors, [format!("proxy.toml:{expected}")], "{file}");
    }
    let variable = "TOLLGATE_GATEWAY__WINDOW";
    let expected = "gateway.window was renamed to TOLLGATE_GATEWAY__RATE_LIMIT";
    let errors = read("", &[(variable, "auto")]).expect_err(variable);
    assert_eq!(errors, [format!("{variable}: {expected}")]);
}

#[test]
fn all_errors_are_reported_in_the_order_of_the_file() {
    let file = "[log]\nlevel = 'loud'\n[server]\nlisten = 'x'\nhosts = ['*', 'a..b']\n[pgae]\n";
    let environment = [("TOLLGATE_LIMITS__BURST", "0"), ("GATEWAY_API_KEY", "nothing")];
    let errors = read(file, &environment).expect_err("seven");
    let places: Vec<_> = errors.iter().map(|error| error.split(": ").next()).collect();
    let expected = [
        "proxy.toml:2:9",
        "proxy.toml:4:10",
        "proxy.toml:5:10",
        "proxy.toml:5:15",
        "proxy.toml:6:2",
        "GATEWAY_API_KEY",
        "GATEWAY_API_KEY",
        "TOLLGATE_LIMITS__BURST",
    ];
    assert_eq!(places, expected.map(Some), "{errors:#?}");
}

#[test]
fn public_address_needs_a_live_gateway_and_a_budget() {
    for listen in ["0.0.0.0:80", "[::]:80", "192.0.2.7:80", "[::ffff:192.0.2.7]:80"] {
        let file = format!("[server]\nlisten = ['127.0.0.1:80', '{listen}']");
        let errors = read(&file, &[]).expect_err(listen);
        assert!(errors[0].contains("loopback addresses only"), "{errors:#?}");
        let settings = read(&file, &[("TOLLGATE_SANDBOX__PUBLIC", "true")]).expect(listen);
        assert!(settings.warnings().iter().any(|one| one.starts_with("sandbox.public: ")));
        let errors = read(&file, &[URL, KEY]).expect_err(listen);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].contains("expected a budget.total"), "{errors:#?}");
        let budget = ("TOLLGATE_BUDGET__TOTAL", "{ month = '9' }");
        assert!(read(&file, &[URL, KEY, budget]).is_ok(), "{listen}");
        assert!(read(&file, &[URL, KEY, ("TOLLGATE_ACCESS__MODE", "members")]).is_ok(), "{listen}");
    }
    for listen in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        assert!(read(&format!("[server]\nlisten = '{listen}'"), &[]).is_ok(), "{listen}");
    }
}

#[test]
fn certificate_of_an_authority_has_twenty_names_at_most() {
    let file = |count: usize| {
        let hosts: Vec<_> = (0..count).map(|number| format!("h{number}.example")).collect();
        format!("[server]\nhosts = {hosts:?}\ntls = {{ acme = {{ agree = true, dir = 'd' }} }}")
    };
    assert!(read(&file(20), &[]).is_ok());
    let errors = read(&file(21), &[]).expect_err("21 names");
    let expected = "server.hosts: expected at most 20 names, because server.tls.acme is set";
    assert_eq!(errors, [format!("proxy.toml:2:9: {expected}")]);
}

#[test]
fn syntax_error_causes_no_other_errors() {
    let errors = read("[gateway]\nbase_url = \"https://g.example", &[KEY]).expect_err("unclosed");
    assert!(errors.iter().all(|error| error.contains("not TOML")), "{errors:#?}");
}
