//! Compares what clients know about their charges with what the gateway charged.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use super::client::Answer;
use super::received::{fingerprint, price};
use super::upstream::Charge;
use super::{lock, login};

/// The charges of one gate's clients, in micro-dollars.
#[derive(Debug, Default)]
pub(crate) struct Books(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    /// Prices of charged answers to requests without a key.
    told: u64,
    /// Prices of purchases without a key whose outcome is unknown to clients.
    unknown: u64,
    /// What clients know about each key's purchase.
    keys: HashMap<Key, Known>,
    /// How often a payload may have been bought.
    offers: HashMap<String, Offers>,
    /// Whether a client wrote raw bytes, which are not parsed.
    is_blind: bool,
}

/// A key and its service.
type Key = (String, String);

#[derive(Debug, Default)]
struct Known {
    paid: Option<u64>,
    unknown: u64,
}

#[derive(Debug, Default)]
struct Offers {
    keys: HashSet<Key>,
    without_a_key: usize,
}

/// A request without an answer yet.
#[derive(Debug)]
pub(super) struct Errand {
    price: u64,
    key: Option<Key>,
}

impl Books {
    /// Records a request of a client.
    pub(super) fn asked(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Errand {
        let price = price(method, target, body.as_bytes());
        let is_key = |(name, _): &&(&str, &str)| name.eq_ignore_ascii_case("idempotency-key");
        let key = headers.iter().find(is_key).filter(|_| price > 0);
        // A key belongs to a service, in either API.
        let service = match target {
            "/v1/chat/completions" => "/api/v1/chat",
            "/v1/videos" => "/api/v1/video",
            native => native,
        };
        // These have other fields than the gateway, so their tests count the charges themselves.
        lock(&self.0).is_blind |= target.starts_with("/v1/") || target == "/mcp";
        // Each member and each subject has its own keys. Any other token is ignored.
        let is_token = |(name, _): &&(&str, &str)| name.eq_ignore_ascii_case("authorization");
        let token = headers.iter().find(is_token).map_or("", |(_, token)| token);
        let member = Some(token).filter(|token| token.starts_with("Bearer tg_"));
        let holder = member.map(str::to_owned).or_else(|| login::subject(token));
        let scope = format!("{service} {}", holder.unwrap_or_default());
        let key = key.map(|(_, key)| (scope, key.trim_matches('"').to_owned()));
        if let Some(fingerprint) = fingerprint(method, target, body.as_bytes()) {
            let mut sums = lock(&self.0);
            let offers = sums.offers.entry(fingerprint).or_default();
            match &key {
                Some(key) => _ = offers.keys.insert(key.clone()),
                None => offers.without_a_key += 1,
            }
        }
        Errand { price, key }
    }

    /// Records a charge, certain or possible, of a program that is no client of the test.
    pub(super) fn told_elsewhere(&self, micros: u64) {
        let mut sums = lock(&self.0);
        sums.told += micros;
        sums.is_blind = true;
    }

    /// Records that a client wrote raw bytes.
    pub(super) fn blind(&self) {
        lock(&self.0).is_blind = true;
    }

    /// Records an answer.
    pub(super) fn answered(&self, answer: &Answer, errand: Option<Errand>) {
        let Errand { price, key } = errand.unwrap_or(Errand { price: 0, key: None });
        let mut sums = lock(&self.0);
        let charged = answer.charged();
        if (200..300).contains(&answer.status) && charged.is_none() {
            let Some(price) = answer.cost() else { return };
            match key {
                Some(key) => {
                    let before = sums.keys.entry(key.clone()).or_default().paid.replace(price);
                    let before = before.unwrap_or(price);
                    assert_eq!(before, price, "two prices for one key: {key:?}");
                }
                None if !answer.is_replay() => sums.told += price,
                None => {}
            }
        } else if charged.is_some_and(|charged| charged != "no") {
            sums.lost(price, key);
        }
    }

    /// Records that no answer came.
    pub(super) fn unanswered(&self, errand: Errand) {
        lock(&self.0).lost(errand.price, errand.key);
    }

    /// From now on, keys may be used for other purchases.
    pub(crate) fn forget_keys(&self) {
        let mut sums = lock(&self.0);
        sums.told += sums.told_by_key();
        sums.unknown += sums.unknown_by_key();
        sums.keys.clear();
        for offers in sums.offers.values_mut() {
            offers.without_a_key += offers.keys.len();
            offers.keys.clear();
        }
    }

    /// Who was told that it was charged was charged, and nobody else but who was told that it is
    /// not known; and no key was charged twice.
    pub(super) fn assert_balanced(&self, charges: &[Charge]) {
        let sums = lock(&self.0);
        let told = sums.told + sums.told_by_key();
        let unknown = sums.unknown + sums.unknown_by_key();
        let charged: u64 = charges.iter().map(|charge| charge.micros).sum();
        let adds_up = told <= charged && charged <= told + unknown;
        assert!(
            adds_up,
            "the gateway charged {charged} micro-dollars, clients know of {told}, and of {unknown} that they may have been charged"
        );
        if sums.is_blind {
            return;
        }
        let mut times: HashMap<&str, usize> = HashMap::new();
        for fingerprint in charges.iter().filter_map(|charge| charge.fingerprint.as_deref()) {
            *times.entry(fingerprint).or_default() += 1;
        }
        for (fingerprint, times) in times {
            let offers = sums.offers.get(fingerprint);
            let most = offers.map_or(0, |offers| offers.keys.len() + offers.without_a_key);
            assert!(
                times <= most,
                "charged {times} times, {most} at most were asked: {fingerprint}"
            );
        }
    }
}

impl Sums {
    fn lost(&mut self, price: u64, key: Option<Key>) {
        match key {
            Some(key) => self.keys.entry(key).or_default().unknown = price,
            None => self.unknown += price,
        }
    }

    fn told_by_key(&self) -> u64 {
        self.keys.values().filter_map(|known| known.paid).sum()
    }

    fn unknown_by_key(&self) -> u64 {
        self.keys.values().filter(|known| known.paid.is_none()).map(|known| known.unknown).sum()
    }
}
