//! What the clients of a gate were told about their money, held against what the gateway took.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use super::client::Answer;
use super::received::{fingerprint, price};
use super::upstream::Charge;
use super::{lock, login};

/// One gate's books, in micro-dollars. Whatever joins the money's invariants comes in here.
#[derive(Debug, Default)]
pub(crate) struct Books(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    /// Prices of answers that say that they were charged, to requests without a key.
    told: u64,
    /// Prices of purchases without a key whose outcome no client knows.
    unknown: u64,
    /// Whatever clients know of each key's one purchase.
    keys: HashMap<Key, Known>,
    /// In how many ways a payload may have been bought.
    offers: HashMap<String, Offers>,
    /// Somebody wrote bytes that are not looked into.
    is_blind: bool,
}

/// A key with the service that it is for.
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

/// A request on its way.
#[derive(Debug)]
pub(super) struct Errand {
    price: u64,
    key: Option<Key>,
}

impl Books {
    /// A client sends this.
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
        // A key is of the service, in whichever dialect it is asked for.
        let service = match target {
            "/v1/chat/completions" => "/api/v1/chat",
            "/v1/videos" => "/api/v1/video",
            native => native,
        };
        // The dialect's words are not the gateway's: its tests count the charges themselves.
        lock(&self.0).is_blind |= target.starts_with("/v1/");
        // Each member and each subject has keys of its own; whatever else is sent as a token means nothing.
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

    /// Somebody who is no client of the test was told that it was charged so much, or may have been.
    pub(super) fn told_elsewhere(&self, micros: u64) {
        let mut sums = lock(&self.0);
        sums.told += micros;
        sums.is_blind = true;
    }

    /// A client writes bytes of its own.
    pub(super) fn blind(&self) {
        lock(&self.0).is_blind = true;
    }

    /// A client had this answer.
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

    /// A client never had an answer.
    pub(super) fn unanswered(&self, errand: Errand) {
        lock(&self.0).lost(errand.price, errand.key);
    }

    /// Keys may be used for another purchase from now on.
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
