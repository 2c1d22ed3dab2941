//! What `usage`, `reconcile` and `check --online` print and change, by the real binary before a sandbox.
#![cfg(test)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate::clock;
use tollgate::contract::money::Usd;
use tollgate::sandbox::{Sandbox, Settings};
use tollgate::store::sqlite::Sqlite;
use tollgate::store::{
    Checkpoint, Claim, Ending, Ledger, Limits, PurchaseId, Reservation, Row, Service, State,
};

const KEY: &str = "svc_sk_CANARY_0123456789abcdef0123456789";
const OTHER_KEY: &str = "svc_sk_ZANARY_fedcba9876543210fedcba9876";
/// What the sandbox lists of it.
const PREFIX: &str = "svc_sk_CANARY_01234";
const CHAT: (Service, &str, Usd) = (Service::Chat, "eta-5-mini", Usd::mills(3));
const VIDEO: (Service, &str, Usd) = (Service::Video, "video-a-2", Usd::dollars(3));
const DEAR: (Service, &str, Usd) = (Service::Video, "video-d-3.1", Usd::dollars(5));
const CHAT_BODY: &str = r#"{"model":"eta-5-mini","messages":[{"role":"user","content":"hello"}]}"#;
const MINUTE: Duration = Duration::from_secs(60);

/// A folder with settings, a sandbox as its live gateway, a ledger.
struct Desk {
    folder: TempDir,
    sandbox: Sandbox,
    address: SocketAddr,
    runtime: Runtime,
}

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Desk {
    fn open() -> Self {
        let runtime = Runtime::new().unwrap();
        let keys = vec![KEY.to_owned(), OTHER_KEY.to_owned()];
        let sandbox =
            Sandbox::new(Settings { keys, reply_delay: Duration::ZERO, ..Settings::default() });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let served = sandbox.clone();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            served.serve(listener, std::future::pending()).await;
        });
        let folder = TempDir::with_prefix("tollgate-commands-").unwrap();
        fs::write(
            folder.path().join("proxy.toml"),
            format!("[gateway]\nbase_url = \"http://{address}\"\n"),
        )
        .unwrap();
        Self { folder, sandbox, address, runtime }
    }

    fn with_ledger() -> Self {
        let desk = Self::open();
        drop(desk.ledger(Duration::ZERO));
        desk
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("tollgate.db")
    }

    /// The ledger as a server has it. Once for each desk: a command that another test starts just now
    /// holds a copy of the lock for a moment.
    fn server(&self) -> Sqlite {
        Sqlite::serve(&self.path(), Arc::new(clock::wall)).unwrap()
    }

    /// The ledger for a while, so long ago.
    fn ledger(&self, ago: Duration) -> Sqlite {
        Sqlite::beside(&self.path(), Arc::new(move || clock::wall() - ago)).unwrap()
    }

    /// The command in this folder; whatever it prints, no key is in it.
    fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
        let keys = format!("{KEY},{OTHER_KEY}");
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(arguments)
            .env_clear()
            .env("GATEWAY_API_KEY", keys)
            .envs(environment.iter().copied())
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ended = Ended {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        };
        for key in [KEY, OTHER_KEY] {
            let secret = &key[24..];
            assert!(!ended.out.contains(secret) && !ended.err.contains(secret), "{}", ended.said());
        }
        ended
    }

    /// The command, which has to do well; what it prints.
    fn done(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments, &[]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{arguments:?}: {}", ended.out);
        ended.out
    }

    /// Enters a purchase so long ago; without an end it stays under way.
    fn enter(
        &self,
        (service, model, toll): (Service, &str, Usd),
        caller: &str,
        ending: Option<Ending>,
        ago: Duration,
    ) -> PurchaseId {
        let ledger = self.ledger(ago);
        let id = PurchaseId::new();
        let mut key = [0; 32];
        key[..16].copy_from_slice(id.0.as_bytes());
        let reservation = Reservation {
            id,
            caller: caller.to_owned(),
            service,
            model: model.into(),
            toll,
            claim: Claim::Key { key, payload: key },
            limits: Limits::default(),
        };
        self.runtime.block_on(async {
            ledger.reserve(&reservation).await.unwrap();
            if let Some(ending) = ending {
                ledger.sent(id).await.unwrap();
                ledger.settle(id, ending).await.unwrap();
            }
        });
        id
    }

    fn lose(&self, what: (Service, &str, Usd), ago: Duration) -> PurchaseId {
        self.enter(what, "192.0.2.1", Some(Ending::Unknown), ago)
    }

    /// Notes what the gateway's books say now, as if it had been noted so long ago.
    fn checkpoint(&self, ago: Duration) {
        let charges = self.sandbox.charges();
        let cents = |micros: u64| micros / 10_000;
        let checkpoint = Checkpoint {
            at: clock::wall() - ago,
            balance_cents: cents(self.sandbox.balance().as_micros()),
            chats: charges.chat,
            chat_cents: cents(charges.chat * 3_000),
            spent_cents: cents(self.sandbox.charged().as_micros()),
        };
        let ledger = self.ledger(Duration::ZERO);
        assert!(self.runtime.block_on(ledger.check(checkpoint)).unwrap());
    }

    fn checked(&self) -> Option<Checkpoint> {
        let ledger = Sqlite::read(&self.path(), Arc::new(clock::wall)).unwrap();
        self.runtime.block_on(ledger.last_check()).unwrap()
    }

    fn rows(&self) -> Vec<Row> {
        let ledger = Sqlite::read(&self.path(), Arc::new(clock::wall)).unwrap();
        self.runtime.block_on(ledger.rows(Duration::ZERO)).unwrap()
    }

    fn state(&self, id: PurchaseId) -> State {
        self.rows().into_iter().find(|row| row.id == id).expect("it is there").state
    }

    /// Has the gateway charge for something.
    fn charge(&self, path: &str, body: &str) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}",
            self.address
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    fn charge_chat(&self) {
        self.charge("/api/v1/chat", CHAT_BODY);
    }

    fn charge_video(&self, model: &str) {
        let body = format!(r#"{{"model":"{model}","prompt":"a lighthouse","duration":8}}"#);
        self.charge("/api/v1/video", &body);
    }
}

impl Ended {
    fn said(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

fn posted(cost: Usd) -> Option<Ending> {
    Some(Ending::Posted { cost, reply: None, keep: MINUTE })
}

fn line<'a>(out: &'a str, id: PurchaseId) -> &'a str {
    let id = id.to_string();
    out.lines().find(|line| line.contains(&id)).unwrap_or_else(|| panic!("no {id} in {out}"))
}

/// Four kinds of purchases of two callers, today, ten days ago, and one that cost nothing.
fn spent() -> Desk {
    let desk = Desk::open();
    let (zero, days) = (Duration::ZERO, 24 * 60 * MINUTE);
    desk.enter(CHAT, "192.0.2.1", posted(CHAT.2), 10 * days);
    desk.enter(CHAT, "192.0.2.1", posted(CHAT.2), zero);
    desk.enter(VIDEO, "192.0.2.2", posted(Usd::mills(3_210)), zero);
    desk.enter(VIDEO, "192.0.2.2", Some(Ending::Unknown), zero);
    desk.enter(DEAR, "192.0.2.2", Some(Ending::Voided), zero);
    desk
}

#[test]
fn usage_is_exact_in_json() {
    let desk = spent();
    let server = desk.server();
    for (arguments, expected) in [
        (
            &["usage", "--by", "member", "--format", "json"][..],
            r#"{"rows":[{"key":"192.0.2.1","count":1,"settled":"0.003000","unknown":"0.000000","held":"0.000000"},{"key":"192.0.2.2","count":2,"settled":"3.210000","unknown":"3.000000","held":"0.000000"}],"total":{"count":3,"settled":"3.213000","unknown":"3.000000","held":"0.000000"}}"#,
        ),
        (
            &["usage", "--by", "model", "--format", "json", "--since", "11d"],
            r#"{"rows":[{"key":"eta-5-mini","count":2,"settled":"0.006000","unknown":"0.000000","held":"0.000000"},{"key":"video-a-2","count":2,"settled":"3.210000","unknown":"3.000000","held":"0.000000"}],"total":{"count":4,"settled":"3.216000","unknown":"3.000000","held":"0.000000"}}"#,
        ),
        (
            &["usage", "--format", "json", "--since", "0s"],
            r#"{"rows":[],"total":{"count":0,"settled":"0.000000","unknown":"0.000000","held":"0.000000"}}"#,
        ),
    ] {
        assert_eq!(desk.done(arguments).trim_end(), expected, "{arguments:?}");
    }
    drop(server);
}

#[test]
fn usage_shows_what_is_under_way_beside_a_running_server() {
    let desk = Desk::open();
    let server = desk.server();
    let reservation = Reservation {
        id: PurchaseId::new(),
        caller: "192.0.2.1".to_owned(),
        service: Service::Video,
        model: "video-a-2".into(),
        toll: Usd::dollars(3),
        claim: Claim::Key { key: [1; 32], payload: [1; 32] },
        limits: Limits::default(),
    };
    desk.runtime.block_on(server.reserve(&reservation)).unwrap();
    let out = desk.done(&["usage", "--by", "model", "--format", "csv"]);
    assert_eq!(out, "key,count,settled,unknown,held\nvideo-a-2,1,0.000000,0.000000,3.000000\n");
    let ended = desk.run(&["reconcile"], &[]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert!(ended.err.contains("purchases are under way; try again"), "{}", ended.err);
    drop(server);
}

#[test]
fn usage_is_aligned_for_people_and_plain_for_spreadsheets() {
    let desk = spent();
    assert_eq!(
        desk.done(&["usage", "--by", "model", "--since", "11d"]),
        "model       count   settled   unknown      held\n\
         eta-5-mini      2  0.006000  0.000000  0.000000\n\
         video-a-2       2  3.210000  3.000000  0.000000\n\
         total           4  3.216000  3.000000  0.000000\n"
    );
    let clock::Date { year, month, day } = clock::Date::at(desk.rows()[0].at);
    let first = format!("{year:04}-{month:02}-{day:02}");
    let out = desk.done(&["usage", "--format", "csv", "--since", &first]);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[0], "key,count,settled,unknown,held");
    assert_eq!(lines[1], format!("{first},1,0.003000,0.000000,0.000000"));
    assert_eq!(lines.len(), 3, "{out}");
}

#[test]
fn reports_say_why_there_is_nothing_to_read() {
    let desk = Desk::open();
    for command in ["usage", "reconcile"] {
        for (environment, says) in [
            (&[][..], "there is no ledger"),
            (&[("TOLLGATE_STORE__URL", "memory")], "store.url is \"memory\""),
            (&[("TOLLGATE_STORE__URL", "sqlite:proxy.toml")], "proxy.toml"),
        ] {
            let ended = desk.run(&[command], environment);
            assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{}", ended.said());
            assert!(ended.err.contains(says) && ended.err.lines().count() == 1, "{}", ended.err);
        }
    }
    assert!(!desk.path().exists(), "nobody but the server makes a ledger");
    let ended = desk.run(&["usage", "--since", "yesterday"], &[]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));

    let sandbox = [("GATEWAY_API_KEY", ""), ("TOLLGATE_GATEWAY__BASE_URL", "")];
    fs::write(desk.folder.path().join("proxy.toml"), "").unwrap();
    let ended = desk.run(&["reconcile"], &sandbox[..1]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
    assert!(ended.err.contains("play money"), "{}", ended.err);
}

#[test]
fn a_chat_is_told_by_the_count_and_a_dry_run_changes_nothing() {
    let desk = Desk::with_ledger();
    let out = desk.done(&["reconcile", "--dry-run"]);
    assert!(out.contains("first checkpoint"), "{out}");
    assert_eq!(desk.checked(), None);
    let out = desk.done(&["reconcile"]);
    assert!(out.contains("first checkpoint"), "{out}");
    let first = desk.checked().expect("it is noted");

    desk.charge_chat();
    let chat = desk.lose(CHAT, Duration::ZERO);
    let before = desk.rows();
    let told = "the gateway counted 1, 0 posted and 1 unknown here";
    let out = desk.done(&["reconcile", "--dry-run"]);
    assert!(line(&out, chat).starts_with("charged") && line(&out, chat).contains(told), "{out}");
    assert!(out.contains("dry run"), "{out}");
    assert_eq!((desk.rows(), desk.checked()), (before, Some(first)));

    let server = desk.server();
    let out = desk.done(&["reconcile"]);
    drop(server);
    assert!(line(&out, chat).contains("by the count") && line(&out, chat).contains(told), "{out}");
    assert!(out.contains("drift      none"), "{out}");
    assert_eq!(desk.state(chat), State::Posted);
    assert!(desk.checked().expect("noted").at > first.at);
    let out = desk.done(&["reconcile"]);
    assert!(out.contains("unknown    none") && out.contains("drift      none"), "{out}");
}

#[test]
fn a_video_is_told_by_what_was_spent() {
    let desk = Desk::with_ledger();
    desk.checkpoint(60 * MINUTE);
    let cheap = desk.lose(VIDEO, 30 * MINUTE);
    let dear = desk.lose(DEAR, 30 * MINUTE);
    let chat = desk.lose(CHAT, 30 * MINUTE);
    desk.enter(CHAT, "192.0.2.1", posted(CHAT.2), 30 * MINUTE);
    desk.charge_chat();
    desk.charge_video("video-d-3.1");
    let out = desk.done(&["reconcile"]);
    assert!(line(&out, dear).starts_with("charged"), "{out}");
    assert!(line(&out, dear).contains("by the spending"), "{out}");
    assert!(line(&out, cheap).starts_with("free"), "{out}");
    assert!(line(&out, chat).starts_with("free") && line(&out, chat).contains("count"), "{out}");
    assert_eq!(
        [dear, cheap, chat].map(|id| desk.state(id)),
        [State::Posted, State::Voided, State::Voided]
    );
    assert!(out.contains("drift      none") && out.contains("a new checkpoint"), "{out}");
}

#[test]
fn what_cannot_be_told_stays_unknown_with_its_reason() {
    let desk = Desk::with_ledger();
    let older = desk.lose(VIDEO, 90 * MINUTE);
    desk.checkpoint(60 * MINUTE);
    let chats = [desk.lose(CHAT, 30 * MINUTE), desk.lose(CHAT, 30 * MINUTE)];
    desk.charge_chat();
    let out = desk.done(&["reconcile"]);
    assert!(line(&out, older).contains("older than the last checkpoint"), "{out}");
    for chat in chats {
        assert!(line(&out, chat).starts_with("unknown"), "{out}");
        assert!(line(&out, chat).contains("1 of 2 alike were charged"), "{out}");
    }

    // Somebody else's chat: from now on nobody can say whose was charged.
    let young = desk.lose(CHAT, Duration::ZERO);
    desk.charge_chat();
    desk.charge_chat();
    let out = desk.done(&["reconcile", "--dry-run"]);
    assert!(line(&out, young).contains("somebody else uses the account"), "{out}");
    assert!(desk.rows().iter().all(|row| row.state == State::Unknown));
}

#[test]
fn what_may_still_be_charged_is_not_given_back_and_keeps_its_checkpoint() {
    let desk = Desk::with_ledger();
    desk.checkpoint(60 * MINUTE);
    let before = desk.checked();
    let chat = desk.lose(CHAT, MINUTE);
    let out = desk.done(&["reconcile"]);
    assert!(line(&out, chat).contains("it may be yet"), "{out}");
    assert!(out.contains("the checkpoint stays"), "{out}");
    assert_eq!((desk.state(chat), desk.checked()), (State::Unknown, before));
    desk.charge_chat();
    assert!(line(&desk.done(&["reconcile"]), chat).starts_with("charged"));
}

#[test]
fn a_gateway_that_does_not_answer_changes_nothing() {
    let desk = Desk::with_ledger();
    desk.checkpoint(60 * MINUTE);
    let (chat, before) = (desk.lose(CHAT, 30 * MINUTE), desk.checked());
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nowhere = format!("http://{closed}");
    for (name, value) in
        [("TOLLGATE_GATEWAY__BASE_URL", &*nowhere), ("GATEWAY_API_KEY", "svc_sk_x")]
    {
        let ended = desk.run(&["reconcile"], &[(name, value)]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
        assert!(ended.err.contains("the gateway's books cannot be read"), "{}", ended.err);
        let ended = desk.run(&["check", "--online"], &[(name, value)]);
        assert_eq!(ended.code, Some(1), "{}", ended.said());
        assert!(!ended.err.is_empty(), "{}", ended.out);
    }
    assert_eq!((desk.state(chat), desk.checked()), (State::Unknown, before));
}

#[test]
fn check_online_prints_what_the_account_has_and_names_a_refused_key_by_its_public_prefix() {
    let desk = Desk::open();
    desk.charge_chat();
    desk.charge_video("video-a-2");
    let out = desk.done(&["check", "--online"]);
    for says in [
        "key 1     accepted (svc_sk_CANARY_01234",
        "key 2     accepted",
        "balance   $46.99",
        "limit     60 requests in 60 s",
        "chat      1 calls, $0.00",
        "spent     $3.00 in all",
        PREFIX,
        "sandbox 0",
    ] {
        assert!(out.contains(says), "{says}: {out}");
    }
    assert!(desk.sandbox.revoke(KEY));
    let ended = desk.run(&["check", "--online"], &[]);
    assert_eq!(ended.code, Some(1), "{}", ended.said());
    assert!(ended.err.starts_with("key 1 (svc_sk_CANARY_"), "{}", ended.err);
    assert!(ended.err.contains("refuses it") && ended.out.contains("key 2     accepted"));
    assert!(ended.out.contains("revoked 20"), "{}", ended.out);
}
