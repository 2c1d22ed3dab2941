//! `--may-buy` sets what a member may buy, and nothing that is not sold can be named.

use tollgate::ledger::Selection;

use crate::commands::fixture::Fixture;

impl Fixture {
    /// What the first member may buy, as the ledger has it.
    fn rule(&self) -> Option<String> {
        self.members()[0].terms.may_buy.as_ref().map(Selection::to_string)
    }
}

#[test]
fn command_sets_and_removes_what_a_member_may_buy() {
    let fixture = Fixture::open();
    let added = fixture.run(&["member", "add", "ann", "--may-buy", "chat,video-c-2"], &[]);
    let text =
        "added ann, no budget of its own, may buy chat, video-c-2; the token is shown only once:";
    assert!(added.code == Some(0) && added.err.contains(text), "{}", added.err);
    assert_eq!(fixture.rule().as_deref(), Some("chat video-c-2"));
    // Another change keeps it.
    let said = fixture.output(&["update", "ann", "--role", "admin"]);
    assert!(said.contains("role admin, no budget of its own, may buy chat, video-c-2"), "{said}");
    assert_eq!(fixture.rule().as_deref(), Some("chat video-c-2"));

    let csv = fixture.done(&["member", "list", "--format", "csv"]);
    assert!(csv.lines().nth(1).is_some_and(|row| row.contains(",chat video-c-2,")), "{csv}");
    let json = fixture.done(&["member", "list", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rows"][0]["may_buy"], serde_json::json!(["chat", "video-c-2"]));

    for (option, rule) in [
        (&["--may-buy-all"][..], Some("chat video other")),
        (&["--may-buy", "eta-5"], Some("eta-5")),
        (&["--may-buy-default"], None),
    ] {
        fixture.output(&[&["update", "ann"], option].concat());
        assert_eq!(fixture.rule().as_deref(), rule, "{option:?}");
    }
    fixture.token(&["add", "bob", "--may-buy-all"]);
    assert_eq!(fixture.members()[1].terms.may_buy, Some(Selection::everything()));
}

#[test]
fn rule_with_an_unknown_name_is_a_usage_error() {
    let fixture = Fixture::open();
    for (arguments, expected) in [
        (&["--may-buy", "video-c2"][..], "did you mean \"video-c-2\"?"),
        (
            &["--may-buy", "chat,gpt"],
            "expected \"chat\", \"video\", \"other\", or the id of a model",
        ),
        (&["--may-buy", ""], "expected chat, video, other or ids of models"),
        (&["--may-buy", " , "], "expected chat, video, other or ids of models"),
        (&["--may-buy", "chat", "--may-buy-all"], "cannot be used with"),
    ] {
        let said = fixture.refused(&[&["add", "ann"], arguments].concat(), 2);
        assert!(said.contains(expected), "{said}");
    }
    assert!(!fixture.path().exists(), "a mistake makes no ledger");
    fixture.token(&["add", "ann"]);
    let both = ["update", "ann", "--may-buy-all", "--may-buy-default"];
    assert!(fixture.refused(&both, 2).contains("cannot be used with"));
    assert_eq!(fixture.rule(), None);
}
