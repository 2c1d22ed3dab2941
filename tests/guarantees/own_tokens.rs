//! Users of a login service make tokens for their programs, and only they, in their browsers.

use std::thread;

use serde_json::{Value, json};

use crate::support::client::Answer;
use crate::support::login_service::{Browser, LoginService};
use crate::support::process::run;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, until};

const SECRET: &str = "a secret of 0123456789abcdef0123456789";

fn upstream() -> Upstream {
    Upstream::start(|_| Reply::chat("hello"))
}

/// The last day, counted from today.
fn day(days: u64) -> String {
    let today = tollgate::clock::Date::at(tollgate::clock::wall()).days();
    tollgate::clock::Date::from_days(today + days).to_string()
}

impl Browser {
    fn post(&mut self, gate: &Gate, target: &str, body: &Value) -> Answer {
        self.send(gate, "POST", target, &[("content-type", "application/json")], &body.to_string())
    }

    fn make(&mut self, gate: &Gate, name: &str) -> String {
        let made = self.post(gate, "/bff/tokens", &json!({"name": name, "until": day(30)}));
        assert_eq!(made.status, 201, "{}", made.text());
        made.json()["token"].as_str().unwrap().to_owned()
    }
}

fn me(gate: &Gate, token: &str) -> Answer {
    gate.ask("GET", "/bff/me", &[("authorization", &format!("Bearer {token}"))], "")
}

fn buy(gate: &Gate, token: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    gate.ask("POST", "/api/v1/chat", &[("authorization", &bearer)], CHAT)
}

#[test]
fn token_buys_for_its_user_until_it_is_revoked() {
    for store in STORES {
        let (upstream, service) = (upstream(), LoginService::start());
        let gate = Gate::start(&upstream, &format!("{store}\n{}", service.settings("")));
        let mut browser = Browser::default();
        assert_eq!(service.sign_in(&gate, &mut browser, "ada").status, 303);
        assert_eq!(browser.ask(&gate, "GET", "/bff/tokens").json(), json!({"rows": []}));
        let wanted = json!({"name": "my laptop", "until": day(365)});
        let made = browser.post(&gate, "/bff/tokens", &wanted);
        assert_eq!((made.status, made.value("cache-control")), (201, Some("no-store")));
        let made = made.json();
        let token = made["token"].as_str().unwrap().to_owned();
        assert_eq!(made["until"], day(365));
        assert_eq!(made["prefix"], token[..9]);
        assert_eq!((&made["last_used_at"], &made["budgets"]), (&Value::Null, &json!([])));

        let caller = me(&gate, &token).json()["caller"].clone();
        assert_eq!((&caller["kind"], &caller["name"]), (&json!("subject"), &json!("ada")));
        assert_eq!(buy(&gate, &token).status, 200);
        let listed = |browser: &mut Browser| browser.ask(&gate, "GET", "/bff/tokens");
        until("the last use is recorded", || {
            listed(&mut browser).json()["rows"][0]["last_used_at"].is_string()
        });
        let list = listed(&mut browser);
        assert!(!list.text().contains(&token[9..]), "{}", list.text());
        // It outlives the session.
        let mut other = browser.clone();
        assert_eq!(browser.ask(&gate, "POST", "/bff/logout").status, 200);
        assert_eq!(me(&gate, &token).status, 200);
        assert_eq!(other.ask(&gate, "DELETE", "/bff/tokens/my%20laptop").status, 401);

        assert_eq!(service.sign_in(&gate, &mut browser, "ada").status, 303);
        assert_eq!(browser.ask(&gate, "DELETE", "/bff/tokens/my%20laptop").status, 204);
        let refused = me(&gate, &token);
        assert_eq!((refused.status, &*refused.code()), (401, "invalid_credentials"));
        assert_eq!(browser.ask(&gate, "DELETE", "/bff/tokens/my%20laptop").status, 404);

        let mut admin = Browser::default();
        assert_eq!(service.sign_in_as(&gate, &mut admin, "root", "admin").status, 303);
        let log = admin.ask(&gate, "GET", "/bff/admin/audit");
        assert!(!log.text().contains(&token[9..]), "{}", log.text());
        let log = log.json()["rows"].as_array().unwrap().clone();
        let acts: Vec<_> = log.iter().map(|it| [&it["by"], &it["caller"], &it["act"]]).collect();
        let of_ada = |act: &str| [json!("subject:ada"), json!("subject:ada"), json!(act)];
        assert_eq!(acts, [&of_ada("token.revoke"), &of_ada("token.add")].map(|all| all.each_ref()));
        let shown = format!("my laptop ({})", &token[..9]);
        assert_eq!((&log[0]["old"], &log[0]["new"]), (&json!(shown), &Value::Null));
        let made = log[1]["new"].as_str().unwrap();
        assert!(made.starts_with(&format!("{shown}, through 20")), "{made}");
    }
}

#[test]
fn admin_ends_the_sessions_and_tokens_of_a_user_over_http() {
    for store in STORES {
        let (upstream, service) = (upstream(), LoginService::start());
        let gate = Gate::start(&upstream, &format!("{store}\n{}", service.settings("")));
        let [mut ada, mut bob, mut root] = [(); 3].map(|()| Browser::default());
        let name = "corp/ada smith";
        service.sign_in(&gate, &mut ada, name);
        service.sign_in(&gate, &mut bob, "bob");
        service.sign_in_as(&gate, &mut root, "root", "admin");
        let token = ada.make(&gate, "laptop");
        let of = |name: &str| format!("/bff/admin/users/{name}/logins");
        let path = of("corp%2Fada%20smith");
        let refused = bob.ask(&gate, "DELETE", &path);
        assert_eq!((refused.status, &*refused.code()), (403, "forbidden"));
        let forged = root.cookie("tollgate").map(|cookie| format!("tollgate={cookie}")).unwrap();
        assert_eq!(gate.ask("DELETE", &path, &[("cookie", &forged)], "").status, 403, "no header");
        for unknown in ["eve", "ada", "%ff"] {
            assert_eq!(root.ask(&gate, "DELETE", &of(unknown)).code(), "not_found", "{unknown}");
        }
        assert_eq!((me(&gate, &token).status, ada.ask(&gate, "GET", "/bff/me").status), (200, 200));

        assert_eq!(root.ask(&gate, "DELETE", &path).status, 204, "{store}");
        assert_eq!((me(&gate, &token).status, ada.ask(&gate, "GET", "/bff/me").status), (401, 401));
        assert_eq!(bob.ask(&gate, "GET", "/bff/me").status, 200);
        let log = root.ask(&gate, "GET", "/bff/admin/audit").json();
        let latest = &log["rows"][0];
        assert_eq!(
            [&latest["by"], &latest["act"], &latest["caller"]],
            ["subject:root", "subject.revoke", "subject:corp/ada smith"]
        );
        assert_eq!(service.sign_in(&gate, &mut ada, name).status, 303, "{store}");
    }
}

#[test]
fn only_the_session_of_a_browser_manages_tokens() {
    let (upstream, service) = (upstream(), LoginService::start());
    let gate = Gate::start(&upstream, &service.settings(""));
    let mut browser = Browser::default();
    service.sign_in(&gate, &mut browser, "ada");
    let token = browser.make(&gate, "laptop");
    let bearer = format!("Bearer {token}");
    let session = format!("tollgate={}", browser.cookie("tollgate").unwrap());
    let stolen = format!("tollgate={token}");
    let wanted = json!({"name": "phone", "until": day(1)}).to_string();
    let json = ("content-type", "application/json");
    let csrf = ("x-tollgate", "1");
    for (headers, status) in [
        (&[json, csrf][..], 401),
        (&[json, csrf, ("cookie", &*stolen)], 401),
        (&[json, csrf, ("authorization", &*bearer)], 403),
        (&[json, csrf, ("authorization", &bearer), ("cookie", &session)], 403),
        (&[json, ("cookie", &session)], 403),
        (&[("content-type", "text/plain"), csrf, ("cookie", &session)], 415),
    ] {
        let answer = gate.ask("POST", "/bff/tokens", headers, &wanted);
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.text());
        // Only a body needs a media type.
        if status != 415 {
            let answer = gate.ask("DELETE", "/bff/tokens/laptop", headers, "");
            assert_eq!(answer.status, status, "{headers:?}: {}", answer.text());
        }
    }
    let answer = gate.ask("GET", "/bff/tokens", &[("authorization", &bearer)], "");
    assert_eq!(answer.status, 403);
    assert_eq!(me(&gate, &token).status, 200);
}

#[test]
fn faulty_requests_for_tokens_are_refused_with_words() {
    let (upstream, service) = (upstream(), LoginService::start());
    let settings = format!("limits.burst = 100\n{}", service.settings(""));
    let gate = Gate::start(&upstream, &settings);
    let mut browser = Browser::default();
    service.sign_in(&gate, &mut browser, "ada");
    browser.make(&gate, "0");
    for (wanted, fault) in [
        (json!({"name": "0", "until": day(1)}), "duplicate"),
        (json!({"name": " ", "until": day(1)}), "bad_name"),
        (json!({"name": "a", "until": day(366)}), "bad_date"),
        (json!({"name": "a", "until": "2020-01-01"}), "bad_date"),
        (json!({"name": "a", "until": day(1), "budget": {"day": "lots"}}), "bad_amount"),
        (json!({"name": "a", "until": day(1), "role": "admin"}), "unknown_field"),
        (json!({"until": day(1)}), "required"),
    ] {
        let answer = browser.post(&gate, "/bff/tokens", &wanted);
        assert_eq!(answer.status, 422, "{wanted}: {}", answer.text());
        assert_eq!(answer.json()["errors"][0]["code"], fault, "{wanted}");
    }
    for number in 1..20 {
        browser.make(&gate, &number.to_string());
    }
    let answer = browser.post(&gate, "/bff/tokens", &json!({"name": "20", "until": day(1)}));
    assert_eq!((answer.status, &answer.json()["errors"][0]["code"]), (422, &json!("too_many")));
    let none = Gate::start(&upstream, &service.settings(", tokens = false"));
    let mut browser = Browser::default();
    service.sign_in(&none, &mut browser, "ada");
    assert_eq!(browser.ask(&none, "GET", "/bff/tokens").status, 404);
    assert_eq!(me(&none, &"tg_".repeat(15)).status, 401);
}

#[test]
fn budget_of_a_token_holds_besides_that_of_its_user() {
    let (upstream, service) = (upstream(), LoginService::start());
    let gate = Gate::start(&upstream, &service.settings(""));
    let mut browser = Browser::default();
    service.sign_in(&gate, &mut browser, "ada");
    // Two chats cost a cent and two mills.
    let budget = json!({"name": "a", "until": day(1), "budget": {"ever": "0.013"}});
    let one = browser.post(&gate, "/bff/tokens", &budget).json();
    assert_eq!(one["budgets"][0]["scope"], "token");
    assert_eq!(
        (&one["budgets"][0]["period"], &one["budgets"][0]["renews_at"]),
        (&json!("ever"), &Value::Null)
    );
    let one = one["token"].as_str().unwrap().to_owned();
    let other = browser.make(&gate, "b");
    let bought: Vec<u16> = thread::scope(|scope| {
        let attempts: Vec<_> = (0..4)
            .map(|number| {
                let body = CHAT.replace("hello", &format!("hello {number}"));
                let (gate, bearer) = (&gate, format!("Bearer {one}"));
                scope.spawn(move || {
                    gate.ask("POST", "/api/v1/chat", &[("authorization", &bearer)], &body).status
                })
            })
            .collect();
        attempts.into_iter().map(|attempt| attempt.join().unwrap()).collect()
    });
    let paid = bought.iter().filter(|status| **status == 200).count();
    assert_eq!((paid, bought.iter().filter(|status| **status == 402).count()), (2, 2));
    let refused = buy(&gate, &one);
    assert_eq!((refused.status, &*refused.code()), (402, "budget_exhausted"));
    assert_eq!(buy(&gate, &other).status, 200);
    let budgets = me(&gate, &one).json()["budgets"].clone();
    let own = budgets.as_array().unwrap().iter().find(|row| row["scope"] == "token").unwrap();
    assert_eq!(own["spent_micros"], 12_000);
    // A new token of the same name begins with nothing spent.
    assert_eq!(browser.ask(&gate, "DELETE", "/bff/tokens/a").status, 204);
    let again = browser.post(&gate, "/bff/tokens", &budget).json();
    assert_eq!(again["budgets"][0]["spent_micros"], 0);
}

#[test]
fn revoked_user_is_signed_out_and_its_tokens_end() {
    let (upstream, service) = (upstream(), LoginService::start());
    let settings = format!("store.url = \"sqlite:ledger.db\"\n{}", service.settings(""));
    let secret = [("TOLLGATE_SECRET", SECRET)];
    let gate = Gate::binary(&upstream, &settings, &secret);
    let (mut ada, mut bob) = (Browser::default(), Browser::default());
    service.sign_in(&gate, &mut ada, "ada");
    service.sign_in(&gate, &mut bob, "bob");
    let token = ada.make(&gate, "laptop");
    let issuer = service.issuer();
    let revoke =
        |more: &[&str]| run(gate.folder(), &[&["member", "revoke"][..], more].concat(), &secret);
    let unknown = revoke(&["--subject", &issuer, "eve"]);
    assert_eq!(unknown.code, Some(1), "{}", unknown.stderr);
    assert!(unknown.stderr.contains(&format!("no user eve of {issuer} has signed in")));
    for wrong in [&["--subject", &*issuer][..], &["ann", "--subject", &issuer, "ada"], &[]] {
        assert_eq!(revoke(wrong).code, Some(2), "{wrong:?}");
    }
    assert_eq!(me(&gate, &token).status, 200);
    let revoked = revoke(&["--subject", &issuer, "ada"]);
    assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
    assert_eq!(me(&gate, &token).status, 401);
    assert_eq!(ada.ask(&gate, "GET", "/bff/me").status, 401);
    assert_eq!(bob.ask(&gate, "GET", "/bff/me").status, 200);
    assert_eq!(service.sign_in(&gate, &mut ada, "ada").status, 303);
}
