//! Callers take turns at each server, and servers share the slots.

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

fn words_of(received: &ReceivedRequest) -> String {
    received.json()["messages"][0]["content"].as_str().expect("words").to_owned()
}

/// The number of a chat of the flood.
fn number_of(chat: &str) -> Option<usize> {
    chat.strip_prefix("flood-")?.parse().ok()
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
        let before = upstream.purchases();
        let server = round % SERVERS;
        let mut client = send(&fleet, server, OTHER, &words);
        assert_eq!(client.answer().status, 200);
        let bought = upstream.received_requests();
        let bought = bought.iter().filter(|received| received.method == "POST");
        let bought: Vec<_> = bought.map(words_of).skip(before).collect();
        let place = bought.iter().position(|chat| *chat == words).expect("it was bought");
        let ahead = &bought[..place];
        let is_own = |chat: &&String| number_of(chat).is_some_and(|it| it % SERVERS == server);
        let own = ahead.iter().filter(|chat| is_own(chat)).count();
        // The one that was asking when it came, and those that were on their way.
        assert!(own <= 3, "{own} went ahead at the same server");
        // Which server gets a slot is a matter of chance. The flood is much longer than that.
        assert!(ahead.len() <= 10 * LIMIT, "{} went ahead", ahead.len());
    }
    upstream.assert_held(LIMIT, PERIOD);
    drop(flood);
}
