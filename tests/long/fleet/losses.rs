//! A failover has lost a purchase while another request is on its way to it: that one buys nothing.

use super::crashes::before;
use super::relay::{Relay, Traffic, Verdict};
use crate::support::client::{Answer, Client};
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::reply::Latch;
use crate::support::{CHAT, Reply, Upstream};

/// Begins a transaction.
const BEGIN: Traffic = Traffic::Statement("BEGIN; SELECT version", "");
/// Looks whether a purchase of another server has ended. A server prepares it once.
const LOOK: Traffic = Traffic::Statement("SELECT number, state, price_micros", "WHERE id =");
const LOSE: &str = "DELETE FROM purchases; DELETE FROM spent";
/// Renames the ledger, as a server does after it has noticed a loss.
const RENAME: &str = "UPDATE ledger SET name = 'durable-next'";

/// Adds a server behind a relay to the database.
fn add_behind_relay(fleet: &mut Fleet<'_>) -> Relay {
    let relay = Relay::to(Cluster::shared().address());
    let url = fleet.database.url_at(relay.address);
    fleet.add_with(&[("DATABASE_URL", &url)]);
    relay
}

fn name(fleet: &Fleet<'_>) -> String {
    let catalog = fleet.ask(0, "GET", "/bff/catalog", &[], "");
    catalog.value("tollgate-ledger").expect("a name").to_owned()
}

fn send(client: &mut Client, headers: &[(&str, &str)]) {
    let headers = [&[("idempotency-key", "k")], headers].concat();
    client.send("POST", "/api/v1/chat", &headers, CHAT);
}

fn assert_changed(answer: &Answer, name: &str) {
    assert_eq!((answer.status, &*answer.code()), (412, "ledger_changed"), "{}", answer.text());
    assert_eq!(answer.charged().as_deref(), Some("no"));
    assert_eq!(answer.value("tollgate-ledger"), Some(name));
}

#[test]
fn purchase_is_refused_if_the_ledger_is_renamed_after_its_name_was_checked() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, "", 0);
    let relay = add_behind_relay(&mut fleet);
    let old = name(&fleet);
    relay.arm(before(BEGIN));
    let mut client = fleet.client(0);
    send(&mut client, &[("tollgate-ledger", &old)]);
    relay.wait_until_stopped();
    fleet.database.sql(RENAME);
    relay.release(Verdict::Pass);
    assert_changed(&client.answer(), "durable-next");
    assert_eq!(upstream.requests(), 0);
    assert_eq!(fleet.database.sql("SELECT count(*) FROM purchases"), "0");
}

#[test]
fn duplicate_buys_nothing_if_the_purchase_that_it_waits_for_is_lost() {
    for (is_renamed, is_named) in [(true, true), (true, false), (false, true), (false, false)] {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
        let mut fleet = Fleet::start(Cluster::shared(), &upstream, "", 1);
        let relay = add_behind_relay(&mut fleet);
        let old = name(&fleet);
        let named = [("tollgate-ledger", &*old)];
        let headers = if is_named { &named[..] } else { &[] };
        let (mut first, mut second) = (fleet.client(0), fleet.client(1));
        send(&mut first, headers);
        upstream.wait_for(1);
        relay.arm(before(LOOK));
        send(&mut second, headers);
        relay.wait_until_stopped();
        fleet.database.sql(LOSE);
        if is_renamed {
            fleet.database.sql(RENAME);
        }
        relay.release(Verdict::Pass);
        assert_changed(&second.answer(), if is_renamed { "durable-next" } else { &old });
        latch.open();
        assert_eq!(first.answer().status, 200);
        assert_eq!(upstream.charges(), [6_000], "{is_renamed} {is_named}");
    }
}
