//! A ledger is about one account of the gateway: another account's key sells nothing and is compared with
//! nothing, until `serve --new-account`.

use rusqlite::{Connection, params};
use tollgate::ledger::PurchaseState;

use crate::commands::fixture::{CHAT, CHAT_BODY, Fixture, MINUTE, Server, gateway, line, post};
use crate::commands::recorder::unlisted;
use crate::support::server::{ReservedPort, exchange};
use crate::support::until;

/// Sells a chat, or says why not.
fn buy(server: &Server) -> String {
    say(server, "hello")
}

fn say(server: &Server, word: &str) -> String {
    let body = CHAT_BODY.replace("hello", &format!("{word} {:?}", tollgate::clock::now()));
    post(server.address, "/api/v1/chat", "X-Of: test", &body)
}

fn sells(server: &Server) -> bool {
    let answer = buy(server);
    let sold = answer.starts_with("HTTP/1.1 200");
    let refused = answer.starts_with("HTTP/1.1 503") && answer.contains("different account");
    assert!(sold || refused && answer.contains("ledger_unavailable"), "{answer}");
    assert!(sold || answer.contains("retry-after"), "{answer}");
    sold
}

/// Starts a server, and waits for its checkpoint.
fn noted(fixture: &Fixture, arguments: &[&str], environment: &[(&str, &str)]) -> Server {
    let before = fixture.path().exists().then(|| fixture.checked()).flatten();
    let server = fixture.serve_with(arguments, environment);
    until("it notes a checkpoint", || fixture.checked().is_some_and(|check| Some(check) != before));
    server
}

#[test]
fn key_of_another_account_sells_nothing_until_the_ledger_is_assigned_to_it() {
    let fixture = Fixture::open();
    let (other, address) = gateway(&fixture.runtime, 99);
    let url = format!("http://{address}");
    let elsewhere = [("TOLLGATE_GATEWAY__BASE_URL", &*url)];
    drop(noted(&fixture, &["serve"], &[]));
    let mut server = fixture.serve_with(&["serve"], &elsewhere);
    // From the first request on.
    assert!(!sells(&server) && !sells(&server));
    let ready = exchange(server.admin, "GET", "/readyz", &[], "");
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("different account"), "{ready}");
    let first = fixture.checked();
    assert!(first.is_some(), "another account's key changes nothing");
    let ended = fixture.run(&["reconcile"], &elsewhere);
    assert_eq!(ended.code, Some(1), "{}", ended.said());
    assert!(ended.err.contains("different account") && ended.err.contains("--new-account"));
    server.process.kill();
    let log = server.process.printed();
    let errors = log.lines().filter(|line| line.contains("is not the ledger's"));
    assert_eq!(errors.count(), 1, "{log}");
    assert_eq!(fixture.checked(), first, "no checkpoint of different account");
    let ended = fixture.run(&["reconcile"], &elsewhere);
    assert!(ended.code == Some(1) && ended.err.contains("different account"), "{}", ended.said());
    assert_eq!(other.charges().chat, 0);

    let server = noted(&fixture, &["serve", "--new-account"], &elsewhere);
    assert!(sells(&server));
    drop(server);
    let server = fixture.serve_with(&["serve"], &elsewhere);
    assert!(sells(&server), "once is enough");
    drop(server);
    let second = fixture.checked();
    let server = fixture.serve();
    assert!(!sells(&server), "now the first account is another one");
    assert_eq!(fixture.checked(), second);
    let file = Connection::open(fixture.path()).unwrap();
    let count = |query: &str| file.query_row(query, [], |row| row.get::<_, u64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM account_keys WHERE retired IS NOT NULL"), 2);
    let retired = "SELECT count(*) FROM checkpoints WHERE purchases IS NULL";
    assert!(count(retired) >= 1, "those of the first account are history");
}

#[test]
fn purchase_on_an_unlisted_account_is_not_released_by_another() {
    let fixture = Fixture::open();
    drop(noted(&fixture, &["serve"], &[]));
    fixture.checkpoint(60 * MINUTE);
    let other = unlisted();
    let url = format!("http://{}", other.address());
    let server = fixture.serve_with(&["serve"], &[("TOLLGATE_GATEWAY__BASE_URL", &url)]);
    let (sold, lost) = (say(&server, "hello"), say(&server, "lost"));
    assert!(sold.starts_with("HTTP/1.1 200"), "{sold}");
    assert!(lost.contains(r#""charged":"unknown""#), "{lost}");
    drop(server);
    let ago = i64::try_from((30 * MINUTE).as_nanos()).unwrap();
    let file = Connection::open(fixture.path()).unwrap();
    let age = "UPDATE purchases SET at = at - ?1, ended_at = ended_at - ?1";
    assert_eq!(file.execute(age, params![ago]), Ok(2));
    drop(file);
    let [sold, lost] = fixture.rows().try_into().expect("two purchases");
    assert_eq!((sold.state, lost.state), (PurchaseState::Charged, PurchaseState::Unknown));

    // Back at the first account. It counts one chat more, which is lost here.
    let server = fixture.serve();
    let counted = fixture.lose(CHAT, 20 * MINUTE);
    fixture.charge_chat();
    let out = fixture.left(&["reconcile"]);
    assert!(line(&out, lost.id).contains("tollgate purchase resolve"), "{out}");
    assert!(line(&out, counted).contains("1 of 3 purchases were charged"), "{out}");
    assert_eq!([lost.id, counted].map(|id| fixture.state(id)), [PurchaseState::Unknown; 2]);
    fixture.done(&["purchase", "resolve", &lost.id.to_string(), "charged"]);
    assert_eq!(fixture.state(lost.id), PurchaseState::Charged);
    drop(server);
}

#[test]
fn gateway_down_at_start_does_not_change_the_account() {
    let fixture = Fixture::open();
    drop(noted(&fixture, &["serve"], &[]));
    let closed = ReservedPort::new();
    let nowhere = format!("http://{}", closed.address());
    for arguments in [&["serve"][..], &["serve", "--new-account"]] {
        let server = fixture.serve_with(arguments, &[("TOLLGATE_GATEWAY__BASE_URL", &nowhere)]);
        let answer = buy(&server);
        assert!(answer.starts_with("HTTP/1.1 502"), "it is not the ledger that refuses: {answer}");
    }
    let server = fixture.serve();
    assert!(sells(&server));
    assert!(fixture.rows().iter().any(|row| row.service == CHAT.0));
    let file = Connection::open(fixture.path()).unwrap();
    let retired = "SELECT count(*) FROM account_keys WHERE retired IS NOT NULL";
    assert_eq!(file.query_row(retired, [], |row| row.get::<_, u64>(0)), Ok(0));
}
