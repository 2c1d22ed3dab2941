//! Callers take turns over all servers.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use crate::support::client::Client;
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::received::ReceivedRequest;
use crate::support::{Reply, Upstream, until};

use super::trial::{SERVERS, chat};

const CHATS: &str = "/api/v1/chat";
const LIMIT: usize = 6;
const PERIOD: Duration = Duration::from_secs(2);
const SETTINGS: &str =
    "gateway.rate_limit = { requests = 6, seconds = 2 }\ngateway.max_wait = \"600s\"";
/// First come, first served would take a minute for these.
const FLOOD: usize = 180;
const MIN_ROUNDS: usize = 4;
const MAX_ROUNDS: usize = 20;

fn send(fleet: &Fleet<'_>, server: usize, caller: u8, words: &str) -> Client {
    let address = fleet.servers[server].address;
    let mut client = Client::from(Ipv4Addr::new(127, 0, 0, caller), address, &fleet.record());
    client.send("POST", CHATS, &[("idempotency-key", words)], &chat(words));
    client
}

#[test]
fn caller_that_floods_all_servers_delays_no_other() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = Fleet::start(Cluster::shared(), &upstream, SETTINGS, SERVERS);
    let flood: Vec<_> = (0..FLOOD)
        .map(|number| send(&fleet, number % SERVERS, 2, &format!("flood-{number}")))
        .collect();
    until("the flood fills the limit", || upstream.purchases() > LIMIT);
    let mut round = 0;
    // Once most of the flood was served, it delays little.
    while round < MAX_ROUNDS && upstream.purchases() < FLOOD / 2 {
        let words = format!("once-a-second-{round}");
        let before = upstream.purchases();
        let mut client = send(&fleet, round % SERVERS, 3, &words);
        assert_eq!(client.answer().status, 200);
        let received = upstream.received_requests();
        let purchases = received.iter().filter(|received| received.method == "POST");
        let content =
            |received: &ReceivedRequest| received.json()["messages"][0]["content"] == *words;
        let place = purchases.into_iter().position(content).expect("it was bought");
        // Those that had their slots before it asked, and those of the periods in which its request
        // arrived: two on a busy machine. The flood is much longer than that.
        assert!(place - before <= 3 * LIMIT, "{} went ahead", place - before);
        thread::sleep(Duration::from_secs(1));
        round += 1;
    }
    assert!(round >= MIN_ROUNDS, "the flood has ended too early to delay anything");
    upstream.assert_held(LIMIT, PERIOD);
    drop(flood);
}
