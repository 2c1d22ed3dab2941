//! The one prepaid account: its keys, its credit and its window, behind one lock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::contract::money::Usd;
use crate::contract::wire::{KEY_PREFIX, MOST_KEYS};

use super::Settings;
use super::seed::Seed;
use super::window::Window;
use super::wire::{self, Stop};

/// How many charges there were of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charges {
    /// Chats that were paid for.
    pub chat: u64,
    /// Video jobs that were paid for.
    pub video: u64,
}

/// What is charged for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sale {
    Chat,
    Video,
}

/// One charge.
pub(super) struct Receipt {
    /// Its number among those of its kind, from 1.
    pub(super) nth: u64,
    /// The credit that is left.
    pub(super) left: Usd,
}

pub(super) struct Account(Mutex<State>);

/// The account's books at one moment.
pub(super) struct State {
    pub(super) keys: Vec<Key>,
    pub(super) balance: Usd,
    pub(super) chat: Spent,
    pub(super) video: Spent,
    window: Window,
}

/// What one kind of sale took in.
#[derive(Clone, Copy, Default)]
pub(super) struct Spent {
    pub(super) count: u64,
    pub(super) micros: u64,
}

/// A key and its record (2.1). Dates count from the Unix epoch.
pub(super) struct Key {
    secret: String,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) created: Duration,
    pub(super) last_used: Option<Duration>,
    pub(super) revoked: Option<Duration>,
    pub(super) uses: u64,
}

impl Account {
    /// An account that holds the settings' keys and balance.
    pub(super) fn open(settings: &Settings, seed: &Seed, created: Duration) -> Self {
        let mut secrets = settings.keys.clone();
        secrets.truncate(MOST_KEYS);
        if secrets.is_empty() {
            secrets.push(derived_key(seed, 0));
        }
        let keys = secrets.into_iter().enumerate();
        Self(Mutex::new(State {
            keys: keys.map(|(nth, secret)| Key::new(secret, seed, nth, created)).collect(),
            balance: settings.balance,
            chat: Spent::default(),
            video: Spent::default(),
            window: Window::new(settings.window),
        }))
    }

    /// Lets a call with this key in: the key is active, and the account's window has a place.
    pub(super) fn admit(&self, secret: &str) -> Result<(), Stop> {
        let mut guard = self.books();
        let state = &mut *guard;
        let key = state.keys.iter_mut().find(|key| key.secret == secret && key.revoked.is_none());
        let Some(key) = key.filter(|_| secret.starts_with(KEY_PREFIX)) else {
            return Err(wire::refuse(wire::BAD_KEY, "The API key is not valid"));
        };
        // Asked under the lock, so that the log stays in order.
        state.window.admit(clock::now()).map_err(wire::limited)?;
        key.uses += 1;
        key.last_used = Some(clock::wall());
        Ok(())
    }

    /// Takes `toll` from the credit, or takes nothing and refuses.
    pub(super) fn charge(&self, sale: Sale, toll: Usd) -> Result<Receipt, Stop> {
        let mut state = self.books();
        let Some(left) = state.balance.checked_sub(toll) else {
            let (toll, balance) = (toll.short(), state.balance.short());
            let message = format!("This costs {toll}, and the balance is {balance}");
            return Err(wire::refuse(wire::NO_CREDIT, &message));
        };
        state.balance = left;
        let spent = match sale {
            Sale::Chat => &mut state.chat,
            Sale::Video => &mut state.video,
        };
        spent.count += 1;
        // No overflow: what was spent never exceeds the balance that there once was.
        spent.micros += toll.as_micros();
        Ok(Receipt { nth: spent.count, left })
    }

    pub(super) fn active_keys(&self) -> Vec<String> {
        let state = self.books();
        let active = state.keys.iter().filter(|key| key.revoked.is_none());
        active.map(|key| key.secret.clone()).collect()
    }

    pub(super) fn add_key(&self, seed: &Seed, now: Duration) -> Option<String> {
        let mut state = self.books();
        if state.keys.iter().filter(|key| key.revoked.is_none()).count() >= MOST_KEYS {
            return None;
        }
        let nth = state.keys.len();
        let secret = derived_key(seed, nth);
        state.keys.push(Key::new(secret.clone(), seed, nth, now));
        Some(secret)
    }

    pub(super) fn revoke(&self, secret: &str, now: Duration) -> bool {
        let mut state = self.books();
        let key = state.keys.iter_mut().find(|key| key.secret == secret && key.revoked.is_none());
        key.map(|key| key.revoked = Some(now)).is_some()
    }

    pub(super) fn balance(&self) -> Usd {
        self.books().balance
    }

    pub(super) fn charged(&self) -> Usd {
        self.books().charged()
    }

    pub(super) fn charges(&self) -> Charges {
        let state = self.books();
        Charges { chat: state.chat.count, video: state.video.count }
    }

    pub(super) fn books(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn charged(&self) -> Usd {
        Usd::micros(self.chat.micros + self.video.micros)
    }
}

impl Key {
    fn new(secret: String, seed: &Seed, nth: usize, created: Duration) -> Self {
        let nth = nth.to_string();
        Self {
            id: format!("key_{}", seed.hex("key id", &nth, 12)),
            name: format!("sandbox {nth}"),
            secret,
            created,
            last_used: None,
            revoked: None,
            uses: 0,
        }
    }

    /// The leading part that the list shows (2.1). Guess: twelve characters, never over half of
    /// what is secret.
    pub(super) fn prefix(&self) -> String {
        let rest = self.secret.strip_prefix(KEY_PREFIX).unwrap_or_default();
        let shown = (rest.chars().count() / 2).min(12);
        format!("{KEY_PREFIX}{}", rest.chars().take(shown).collect::<String>())
    }
}

fn derived_key(seed: &Seed, nth: usize) -> String {
    format!("{KEY_PREFIX}sandbox_{}", seed.hex("key", &nth.to_string(), 32))
}
