//! Callers take turns over all servers.

use std::net::Ipv4Addr;
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
/// How many requests of the flood wait at least. First come, first served, they would go ahead.
const FLOOD: usize = 90;
const ROUNDS: usize = 20;

/// Callers, by the end of their addresses.
const FLOODER: u8 = 2;
const OTHER: u8 = 3;

fn address(caller: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, caller)
}

fn send(fleet: &Fleet<'_>, server: usize, caller: u8, words: &str) -> Client {
    let server = fleet.servers[server].address;
    let mut client = Client::from(address(caller), server, &fleet.record());
    client.send("POST", CHATS, &[("idempotency-key", words)], &chat(words));
    client
}

#[test]
fn caller_that_floods_all_servers_delays_no_other() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = Fleet::start(Cluster::shared(), &upstream, SETTINGS, SERVERS);
    let mut flood = Vec::new();
    for round in 0..ROUNDS {
        while flood.len() < upstream.purchases() + FLOOD {
            let number = flood.len();
            flood.push(send(&fleet, number % SERVERS, FLOODER, &format!("flood-{number}")));
        }
        // Once a period: those of the flood use its slots meanwhile.
        let sold = upstream.purchases();
        until("the flood fills the limit", || upstream.purchases() > sold + LIMIT);
        let words = format!("once-a-period-{round}");
        let mut client = send(&fleet, round % SERVERS, OTHER, &words);
        let place = || {
            let received = upstream.received_requests();
            let mut purchases = received.iter().filter(|received| received.method == "POST");
            let content =
                |received: &ReceivedRequest| received.json()["messages"][0]["content"] == *words;
            purchases.position(content)
        };
        let waits = format!("SELECT count(*) FROM waiting WHERE caller = '{}'", address(OTHER));
        until("it waits", || fleet.database.sql(&waits) == "1" || place().is_some());
        let before = upstream.purchases();
        assert_eq!(client.answer().status, 200);
        let ahead = place().expect("it was bought").saturating_sub(before);
        // Those that had their slots before it asked, and those of the period in which it waited. The
        // flood is much longer than that.
        assert!(ahead <= 3 * LIMIT, "{ahead} went ahead");
    }
    upstream.assert_held(LIMIT, PERIOD);
    drop(flood);
}
