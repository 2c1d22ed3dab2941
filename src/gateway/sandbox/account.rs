//! The prepaid account: its keys, its credit and its rate limit.

use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::time::Duration;

use http::StatusCode;
use serde_json::json;

use super::reply::{self, Rejection, SandboxResponse};
use super::{FakeGateway, Sandbox, SandboxSettings};
use crate::clock::{self, Instant, iso8601};
use crate::gateway::contract::catalog::Service;
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::wire::{INVALID_API_KEY, KEY_PREFIX, MAX_KEYS};
use crate::sync::lock;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChargeCounts {
    pub chat: u64,
    pub video: u64,
}

pub(super) struct SandboxAccount {
    keys: Vec<Key>,
    balance: Usd,
    charges: ChargeCounts,
    chat_micros: u64,
    window: SlidingWindow,
}

/// A key and its record (2.1). Times are since the Unix epoch.
struct Key {
    secret: String,
    id: String,
    name: String,
    created: Duration,
    last_used: Option<Duration>,
    revoked: Option<Duration>,
    uses: u64,
}

impl SandboxAccount {
    pub(super) fn open(settings: &SandboxSettings, seed: &Seed) -> Self {
        let mut secrets = settings.keys.clone();
        secrets.truncate(MAX_KEYS);
        if secrets.is_empty() {
            secrets.push(derived_key(seed, 0));
        }
        let keys = secrets.into_iter().enumerate();
        Self {
            keys: keys.map(|(nth, secret)| Key::new(secret, seed, nth)).collect(),
            balance: settings.balance,
            charges: ChargeCounts::default(),
            chat_micros: 0,
            window: SlidingWindow::new(settings.window),
        }
    }

    pub(super) fn admit(&mut self, secret: &str) -> Result<(), Rejection> {
        let is_good = |key: &&mut Key| key.secret == secret && key.revoked.is_none();
        let key = self.keys.iter_mut().find(is_good).filter(|_| secret.starts_with(KEY_PREFIX));
        let Some(key) = key else {
            return Err(reply::refuse_key(INVALID_API_KEY, "The API key is not valid"));
        };
        self.window.admit(clock::now()).map_err(reply::limited)?;
        key.uses += 1;
        key.last_used = Some(clock::wall());
        Ok(())
    }

    /// Returns how many of this kind were sold, and the balance left.
    pub(super) fn charge(&mut self, service: Service, price: Usd) -> Result<(u64, Usd), Rejection> {
        let Some(left) = self.balance.checked_sub(price) else {
            let (price, balance) = (price.short(), self.balance.short());
            let message = format!("This costs {price}, and the balance is {balance}");
            return Err(reply::refuse(StatusCode::PAYMENT_REQUIRED, &message));
        };
        self.balance = left;
        let count = if service == Service::Video {
            &mut self.charges.video
        } else {
            self.chat_micros += price.as_micros();
            &mut self.charges.chat
        };
        *count += 1;
        Ok((*count, left))
    }

    fn active(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter().filter(|key| key.revoked.is_none())
    }
}

impl Sandbox {
    pub fn keys(&self) -> Vec<String> {
        self.account().active().map(|key| key.secret.clone()).collect()
    }

    pub fn add_key(&self) -> Option<String> {
        let (mut account, seed) = (self.account(), &self.0.seed);
        if account.active().count() >= MAX_KEYS {
            return None;
        }
        let nth = account.keys.len();
        let secret = derived_key(seed, nth);
        account.keys.push(Key::new(secret.clone(), seed, nth));
        Some(secret)
    }

    pub fn revoke(&self, key: &str) -> bool {
        let mut account = self.account();
        let active = account.keys.iter_mut().find(|it| it.secret == key && it.revoked.is_none());
        active.map(|key| key.revoked = Some(clock::wall())).is_some()
    }

    pub fn balance(&self) -> Usd {
        self.account().balance
    }

    pub fn charged(&self) -> Usd {
        self.0.settings.balance.saturating_sub(self.balance())
    }

    pub fn charges(&self) -> ChargeCounts {
        self.account().charges
    }

    fn account(&self) -> MutexGuard<'_, SandboxAccount> {
        lock(&self.0.account)
    }
}

impl Key {
    fn new(secret: String, seed: &Seed, nth: usize) -> Self {
        let nth = nth.to_string();
        Self {
            id: format!("key_{}", seed.hex("key id", &nth, 12)),
            name: format!("sandbox {nth}"),
            secret,
            created: clock::wall(),
            last_used: None,
            revoked: None,
            uses: 0,
        }
    }

    /// Returns the public prefix (2.1). Guess: twelve characters, at most half of the secret.
    fn prefix(&self) -> String {
        let rest = self.secret.strip_prefix(KEY_PREFIX).unwrap_or_default();
        let shown = (rest.chars().count() / 2).min(12);
        format!("{KEY_PREFIX}{}", rest.chars().take(shown).collect::<String>())
    }
}

/// `GET /api/api-keys` (2.1 to 2.3). Guesses: a missing date is `null`, cents are rounded down, and
/// videos show in the total only.
pub(super) fn list(gateway: &FakeGateway) -> SandboxResponse {
    let (requests, window) = gateway.settings.window;
    let account = lock(&gateway.account);
    let cents = |micros| micros / 10_000;
    let spent = gateway.settings.balance.saturating_sub(account.balance);
    let counter = |count, micros| json!({ "count": count, "costCents": cents(micros) });
    let row = |key: &Key| {
        json!({
            "id": key.id,
            "name": key.name,
            "keyPrefix": key.prefix(),
            "createdAt": iso8601(key.created),
            "lastUsedAt": key.last_used.map(iso8601),
            "revokedAt": key.revoked.map(iso8601),
            "usageCount": key.uses,
        })
    };
    let shown = json!({
        "keys": account.keys.iter().map(row).collect::<Vec<_>>(),
        "stats": {
            "activeKeys": account.active().count(),
            "totalUsage": account.keys.iter().map(|key| key.uses).sum::<u64>(),
        },
        "billing": {
            "hasCredits": account.balance > Usd::ZERO,
            "balanceCents": cents(account.balance.as_micros()),
            "balanceFormatted": account.balance.short(),
            "rateLimit": { "requests": requests, "windowSeconds": window.as_secs() },
            "usage": {
                "chat": counter(account.charges.chat, account.chat_micros),
                "search": counter(0, 0),
                "images": counter(0, 0),
                "totalSpentCents": cents(spent.as_micros()),
            },
        },
    });
    reply::json(StatusCode::OK, &shown)
}

fn derived_key(seed: &Seed, nth: usize) -> String {
    format!("{KEY_PREFIX}sandbox_{}", seed.hex("key", &nth.to_string(), 32))
}

struct SlidingWindow {
    limit: usize,
    length: Duration,
    taken: VecDeque<Instant>,
}

impl SlidingWindow {
    fn new((limit, length): (u32, Duration)) -> Self {
        Self { limit: limit as usize, length, taken: VecDeque::new() }
    }

    /// Fails with the time until a slot is free. Guess: a refused request takes none.
    fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        while self.taken.front().is_some_and(|taken| now.duration_since(*taken) >= self.length) {
            self.taken.pop_front();
        }
        if self.taken.len() < self.limit {
            self.taken.push_back(now);
            return Ok(());
        }
        let oldest = self.taken.front().map_or(Duration::ZERO, |taken| now.duration_since(*taken));
        Err(self.length.saturating_sub(oldest))
    }
}

pub(super) struct Seed([u8; 32]);

impl Seed {
    pub(super) fn new(seed: u64) -> Self {
        Self(blake3::derive_key("tollgate sandbox seed", &seed.to_le_bytes()))
    }

    pub(super) fn hex(&self, purpose: &str, text: &str, length: usize) -> String {
        let mut hex = self.hash(purpose, text).to_hex().to_string();
        hex.truncate(length);
        hex
    }

    pub(super) fn pick<'a>(&self, purpose: &str, text: &str, choices: &[&'a str]) -> &'a str {
        let first = self.hash(purpose, text).as_bytes()[0];
        choices.get(usize::from(first) % choices.len().max(1)).copied().unwrap_or_default()
    }

    fn hash(&self, purpose: &str, text: &str) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&(purpose.len() as u64).to_le_bytes());
        hasher.update(purpose.as_bytes());
        hasher.update(text.as_bytes());
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stretch_of_the_windows_length_holds_more_than_the_limit() {
        let start = clock::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut window = SlidingWindow::new((2, Duration::from_secs(1)));
        assert_eq!(window.admit(at(0)), Ok(()));
        assert_eq!(window.admit(at(600)), Ok(()));
        assert_eq!(window.admit(at(700)), Err(Duration::from_millis(300)));
        assert_eq!(window.admit(at(999)), Err(Duration::from_millis(1)));
        assert_eq!(window.admit(at(1000)), Ok(()), "the first has left");
        assert_eq!(window.admit(at(1599)), Err(Duration::from_millis(1)), "the second has not");
        assert_eq!(window.admit(at(1600)), Ok(()));
    }

    #[test]
    fn limit_of_zero_admits_no_request() {
        let mut window = SlidingWindow::new((0, Duration::from_secs(5)));
        assert_eq!(window.admit(clock::now()), Err(Duration::from_secs(5)));
    }
}
