//! With `access.mode = "jwt"`, a token of the app's own login is let in, however else somebody may try.

use serde_json::{Value, json};

use crate::support::login::Login;
use crate::support::{CHAT, Gate, Reply, Upstream};

#[test]
fn a_signed_token_lets_its_subject_in_and_every_other_credential_is_refused_alike() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let login = Login::start();
    let gate = Gate::start(&upstream, &login.settings());
    let ada = login.bearer(&gate, &login.claims("ada", 3_600));
    let me = gate.ask("GET", "/bff/me", &[("Authorization", &ada)], "");
    assert_eq!(me.status, 200, "{}", me.text());
    assert_eq!(me.json()["caller"], json!({"kind": "subject", "name": "ada", "role": "member"}));
    assert_eq!(me.json()["balance"], Value::Null);

    let chat = |headers: &[(&str, &str)]| gate.ask("POST", "/api/v1/chat", headers, CHAT);
    for absent in [&[][..], &[("Cookie", "a=b")], &[("Cookie", "tollgate=x")]] {
        let answer = chat(absent);
        assert_eq!(answer.code(), "missing_credentials", "no cookie means anything here");
        assert_eq!(answer.value("www-authenticate"), Some("Bearer realm=\"tollgate\""));
    }
    let bare = ada.replace("Bearer ", "");
    let (two, basic) = (format!("{ada}, {ada}"), format!("Basic {bare}"));
    let of_members = format!("Bearer tg_{}", "A".repeat(43));
    for wrong in ["", "Bearer", "Bearer x", &bare, &two, &basic, &of_members] {
        let answer = chat(&[("Authorization", wrong)]);
        assert_eq!((answer.status, answer.code().as_str()), (401, "invalid_credentials"));
        let challenge = "Bearer realm=\"tollgate\", error=\"invalid_token\"";
        assert_eq!(answer.value("www-authenticate"), Some(challenge));
    }
    let twice = chat(&[("Authorization", &ada), ("Authorization", &ada)]);
    assert_eq!(twice.code(), "invalid_credentials");
    assert_eq!(gate.post("/bff/login", "{\"token\":\"x\"}").code(), "not_found");
    assert_eq!((gate.get("/").status, gate.get("/bff/catalog").status), (200, 200));
    assert_eq!(upstream.requests(), 0);
    assert_eq!(chat(&[("Authorization", &ada)]).status, 200);
}
