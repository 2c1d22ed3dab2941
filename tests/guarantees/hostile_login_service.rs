//! A login service that is slow, redirects for ever, or belongs to somebody else, signs nobody in and stops nothing.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::clock::wall;

use crate::support::client::{Answer, Client};
use crate::support::login_service::{Begun, Browser, LoginService};
use crate::support::process::Signal;
use crate::support::{Gate, Reply, Upstream, becomes_so_at_times, until};

const METADATA: &str = "/.well-known/openid-configuration";

fn upstream() -> Upstream {
    Upstream::start(|_| Reply::chat("hello"))
}

fn assert_is_unavailable(answer: &Answer) {
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.value("content-type").unwrap().starts_with("text/html"));
    let text = answer.text();
    assert!(text.contains("login_unavailable") && text.contains("Try again"), "{text}");
    assert!(answer.value("set-cookie").is_none());
}

#[test]
fn login_service_without_an_answer_or_in_a_redirect_loop_is_unavailable() {
    for loops in [false, true] {
        let (upstream, service) = (upstream(), LoginService::start());
        let spoil =
            |path| if loops { service.redirect_to_itself(path) } else { service.silence(path) };
        spoil(METADATA);
        let began = wall();
        let gate = Gate::start(&upstream, &service.settings(""));
        assert_is_unavailable(&gate.get("/bff/login"));
        assert_eq!(gate.get("/healthz").status, 200);
        // A redirect is not followed, and attempts are about five seconds apart.
        let asked = service.times_asked(METADATA) as u64;
        assert!(asked <= (wall() - began).as_secs() / 4 + 2, "{asked}");
    }
}

#[test]
fn metadata_of_another_service_or_without_protection_is_refused() {
    let changes: [(&str, Value, &str); 5] = [
        ("issuer", json!("https://evil.example"), "names another issuer"),
        ("issuer", json!("https://login.microsoftonline.com/{tenantid}/v2.0"), "any tenant"),
        ("token_endpoint", json!("http://evil.example/token"), "token_endpoint is not an https"),
        ("jwks_uri", json!("file:///etc/passwd"), "jwks_uri is not an https"),
        ("code_challenge_methods_supported", json!(["plain"]), "PKCE"),
    ];
    for (name, value, reason) in changes {
        let (upstream, service) = (upstream(), LoginService::start());
        service.describe(name, value);
        let gate = Gate::binary(
            &upstream,
            &format!("store.url = \"sqlite:ledger.db\"\n{}", service.settings("")),
            &[],
        );
        assert_is_unavailable(&gate.get("/bff/login"));
        until("the log says why", || gate.printed().contains(reason));
        assert_eq!((service.times_asked("/keys"), service.asked().len()), (0, 0));
    }
}

#[test]
fn session_cookie_that_was_planted_is_never_a_session() {
    let (upstream, service) = (upstream(), LoginService::start());
    let gate = Gate::start(&upstream, &service.settings(""));
    let mut attacker = Browser::default();
    assert_eq!(service.sign_in(&gate, &mut attacker, "eve").status, 303);
    let known = attacker.cookie("tollgate").unwrap().to_owned();
    for planted in [&*known, &"A".repeat(43)] {
        let mut victim = Browser::with("tollgate", planted);
        assert_eq!(service.sign_in(&gate, &mut victim, "ada").status, 303);
        assert_ne!(victim.cookie("tollgate"), Some(planted));
        assert_eq!(victim.ask(&gate, "GET", "/bff/me").json()["caller"]["name"], "ada");
        let held = gate.ask("GET", "/bff/me", &[("cookie", &format!("tollgate={planted}"))], "");
        assert_eq!(held.status, 401);
    }
}

#[test]
fn failed_callbacks_share_few_log_lines() {
    let (upstream, service) = (upstream(), LoginService::start());
    let settings = format!("store.url = \"sqlite:ledger.db\"\n{}", service.settings(""));
    let gate = Gate::binary(&upstream, &settings, &[]);
    let mut browser = Browser::default();
    let begun = service.begin(&gate, &mut browser, "/bff/login");
    let pending = format!("tollgate-login={}", browser.cookie("tollgate-login").unwrap());
    let issuer = service.issuer();
    service.reply(200, "{}");
    let mut failed = 0;
    for host in 1..=10 {
        for _ in 0..10 {
            for more in [("iss", "https://evil.example"), ("iss", &*issuer)] {
                let callback = begun.callback(&[("code", "c1"), more]);
                let mut client =
                    Client::from([127, 0, 0, host].into(), gate.address(), &Default::default());
                client.send("GET", &callback, &[("cookie", &pending)], "");
                assert!(client.answer().status >= 400);
                failed += 1;
            }
        }
    }
    gate.signal(Signal::SIGHUP);
    until("all before it is logged", || gate.printed().contains("settings reloaded"));
    let printed = gate.printed();
    let lines = printed.lines().filter(|line| line.contains("\"WARN\"")).count();
    assert!((2..=20).contains(&lines), "{lines} of {failed}: {printed}");
}

#[test]
fn bogus_callbacks_of_others_delay_a_sign_in_and_do_not_stop_it() {
    let (upstream, service) = (upstream(), LoginService::start());
    let gate = Gate::start(&upstream, &service.settings(""));
    let begin = |browser: &mut Browser| service.begin(&gate, browser, "/bff/login");
    let (mut bogus, mut honest) = (Browser::default(), Browser::default());
    let (forged, begun) = (begin(&mut bogus), begin(&mut honest));
    let cookie =
        |browser: &Browser| format!("tollgate-login={}", browser.cookie("tollgate-login").unwrap());
    let ask = |last: u8, begun: &Begun, cookie: &str| {
        let mut client = gate.client_from([127, 0, 0, last].into(), gate.address());
        let callback = begun.callback(&[("code", "c"), ("iss", &service.issuer())]);
        client.send("GET", &callback, &[("cookie", cookie)], "");
        client
    };
    service.silence("/token");
    let cookies = [&bogus, &honest].map(cookie);
    // One address has four of the 32 requests to the login service.
    let held: Vec<_> =
        (2..10).flat_map(|last| [last; 5]).map(|n| ask(n, &forged, &cookies[0])).collect();
    until("the service is asked", || service.times_asked("/token") == 32);
    service.end_silence();
    service.vouch(&service.claims(&begun, "ada"));
    let mut client = ask(1, &begun, &cookies[1]);
    assert_eq!(gate.get("/healthz").status, 200);
    assert_eq!(service.times_asked("/token"), 32);
    drop(held);
    let answer = client.answer();
    assert_eq!((answer.status, answer.value("location")), (303, Some("/")), "{}", answer.text());
}

mod long {
    use super::*;

    #[test]
    fn rotated_keys_are_fetched_again_but_not_for_each_forged_key_id() {
        let (upstream, service) = (upstream(), LoginService::start());
        let gate = Gate::start(&upstream, &service.settings(""));
        let sign_in = || {
            let mut browser = Browser::default();
            service.sign_in(&gate, &mut browser, "ada").status
        };
        assert_eq!(sign_in(), 303);
        service.rotate("two");
        let began = wall();
        // Keys are fetched at most every 30 seconds, and an address has 30 failures a minute.
        let (max_wait, pause) = (Duration::from_secs(600), Duration::from_secs(3));
        let is_fetched = becomes_so_at_times(max_wait, pause, || sign_in() == 303);
        assert!(is_fetched, "the new key is never fetched");
        let fetched = service.times_asked("/keys");
        for number in 0..10 {
            let mut browser = Browser::default();
            let begun = service.begin(&gate, &mut browser, "/bff/login");
            let header = json!({"alg": "ES256", "kid": format!("forged-{number}")});
            service.return_token(&service.sign(&header, &service.claims(&begun, "ada")));
            let callback = begun.callback(&[("code", "c1"), ("iss", &service.issuer())]);
            assert_is_unavailable(&browser.ask(&gate, "GET", &callback));
        }
        let periods = (wall() - began).as_secs() / 30 + 1;
        assert!((service.times_asked("/keys") - fetched) as u64 <= periods);
    }

    #[test]
    fn silent_login_service_delays_sign_ins_only() {
        let (upstream, service) = (upstream(), LoginService::start());
        let gate = Gate::start(&upstream, &service.settings(""));
        let mut signed_in = Browser::default();
        assert_eq!(service.sign_in(&gate, &mut signed_in, "ada").status, 303);
        service.silence("/token");
        let mut browser = Browser::default();
        let begun = service.begin(&gate, &mut browser, "/bff/login");
        let callback = begun.callback(&[("code", "c1"), ("iss", &service.issuer())]);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| browser.ask(&gate, "GET", &callback));
            until("the code is sent", || service.times_asked("/token") == 2);
            assert_eq!(signed_in.ask(&gate, "GET", "/bff/me").status, 200);
            assert_is_unavailable(&waiting.join().unwrap());
        });
    }
}
