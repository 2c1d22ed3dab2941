//! Reports read months of purchases: however many are asked for, they stand in nobody's way.

use std::fs;
use std::path::Path;

use rusqlite::{Connection, params};
use tollgate::clock::{self, Date};

use super::MEMBERS;
use crate::support::members::SECRET;
use crate::support::process::run;
use crate::support::{CHAT, Gate, Reply, Upstream};

/// Purchases of ann in the ledger.
const BOUGHT: u64 = 60_000;

fn add(folder: &Path, name: &str) -> String {
    let added = run(folder, &["member", "add", name], &[("TOLLGATE_SECRET", SECRET)]);
    assert_eq!(added.code, Some(0), "{added:?}");
    format!("Bearer {}", added.stdout.trim())
}

/// Enters what ann has bought today.
fn fill(folder: &Path) {
    let wall = clock::wall();
    let (day, date) = (wall.as_secs() / 86_400, Date::at(wall));
    let month = date.year * 12 + date.month - 1;
    let at = u64::try_from(wall.as_nanos()).unwrap();
    let mut file = Connection::open(folder.join("ledger.db")).unwrap();
    let entry = file.transaction().unwrap();
    entry
        .execute(
            "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < ?1)
             INSERT INTO purchases (id, at, day, month, caller, service, model, price_micros,
                cost_micros, state, ended_at, keep_until)
             SELECT randomblob(16), ?2, ?3, ?4, 'member:ann', 'chat', 'alpha-' || x % 9, 3000, 3000,
                'charged', ?2, ?2 FROM n",
            params![BOUGHT, at, day, month],
        )
        .unwrap();
    for scope in ["total", "caller member:ann"] {
        for (unit, period) in [("day", day), ("month", month)] {
            let row = params![scope, unit, period, 3_000 * BOUGHT];
            entry.execute("INSERT INTO spent VALUES (?, ?, ?, ?)", row).unwrap();
        }
    }
    entry.commit().unwrap();
}

fn threads(gate: &Gate) -> usize {
    fs::read_dir(format!("/proc/{}/task", gate.id())).unwrap().count()
}

#[test]
fn hundred_concurrent_reports_block_no_purchase() {
    const AT_ONCE: usize = 100;
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let mut tokens = Vec::new();
    let gate = Gate::binary_in(
        &upstream,
        &format!("store.url = \"sqlite:ledger.db\"\n{MEMBERS}"),
        |folder| {
            tokens.extend(["ann", "bob"].map(|name| add(folder, name)));
            fill(folder);
        },
    );
    let [ann, bob] = [0, 1].map(|who| ("Authorization", tokens[who].as_str()));
    assert_eq!(gate.ask("POST", "/api/v1/chat", &[bob], CHAT).status, 200);
    let before = threads(&gate);
    let mut clients: Vec<_> = (0..AT_ONCE)
        .map(|number| {
            let mut client = gate.client();
            let days = 1 + number % 31;
            client.send("GET", &format!("/bff/usage?since={days}d"), &[ann], "");
            client
        })
        .collect();
    // Ten times in the middle of it.
    for _ in 0..10 {
        assert_eq!(gate.ask("GET", "/bff/me", &[bob], "").status, 200);
        let most = threads(&gate);
        assert!(most <= before, "{most} threads, {before} before");
    }
    let bought = gate.ask("POST", "/api/v1/chat", &[bob], &CHAT.replace("hello", "go on"));
    assert_eq!(bought.status, 200);
    let left = clients.split_off(AT_ONCE / 2);
    drop(left);
    for client in &mut clients {
        let answer = client.answer();
        assert_eq!(answer.json()["total_micros"], 3_000 * BOUGHT, "{}", answer.text());
    }
    let usage = gate.ask("GET", "/bff/usage?since=7d", &[bob], "");
    assert_eq!(usage.json()["total_micros"], 12_000);
}
