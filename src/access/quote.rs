//! Quotes: the price of one order for one caller, and the idempotency key of its purchase.
//!
//! A quote is a name that only this service can make, so it needs no record. Within a slot of time,
//! equal orders of a caller have equal quotes. The quotes of neighbouring slots name each other, so
//! that an order that is quoted twice is bought once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use super::token::Secret;
use crate::config::QUOTE_LIFETIME;
use crate::ledger::Caller;

const PREFIX: &str = "q_";
const VERSION: u8 = 1;
/// A quote is usable in its own slot and those after it, [`SLOTS`] in all.
const SLOTS: u32 = 3;
/// A quote may be used at the end of its life, and its order be repeated as long after that.
const REACH: u32 = 2 * SLOTS;
const SLOT_SECONDS: u64 = QUOTE_LIFETIME.as_secs() / SLOTS as u64;
const MAC_LEN: usize = 16;
const BODY_LEN: usize = 1 + 4 + 1 + 8 + 12;

/// Makes and checks quotes.
///
/// Quotes are worthless for another ledger, which does not know what was bought with them. A shared
/// ledger gets another name when it has lost purchases, so the name is asked for each time.
pub struct QuoteSigner {
    secret: Zeroizing<[u8; 32]>,
    ledger: Box<dyn Fn() -> Arc<str> + Send + Sync>,
}

type SigningKey = Zeroizing<[u8; 32]>;

/// The order that a quote is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderId([u8; 12]);

impl OrderId {
    /// `body` is the canonical payload. An order with another price is another order.
    pub fn new(service: &str, price_micros: u64, body: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("tollgate 2026-11 order of a quote");
        hasher.update(&price_micros.to_le_bytes());
        hasher.update(&(service.len() as u64).to_le_bytes());
        hasher.update(service.as_bytes());
        hasher.update(body);
        Self(first(&hasher.finalize()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote {
    slot: u32,
    /// 0, or the number of further copies that were asked for.
    copy: u8,
    owner: [u8; 8],
    order: OrderId,
    mac: [u8; MAC_LEN],
}

impl QuoteSigner {
    /// `ledger` returns the name of the ledger.
    pub fn new(secret: &Secret, ledger: impl Fn() -> Arc<str> + Send + Sync + 'static) -> Self {
        Self { secret: Zeroizing::new(*secret.quotes), ledger: Box::new(ledger) }
    }

    fn key(&self) -> SigningKey {
        let key = blake3::keyed_hash(&self.secret, (self.ledger)().as_bytes());
        Zeroizing::new(*key.as_bytes())
    }

    /// Returns the quote of an order at `now`, the wall-clock time.
    pub fn quote(&self, caller: &Caller, order: OrderId, copy: u8, now: Duration) -> Quote {
        let key = self.key();
        let owner = first(&blake3::keyed_hash(&key, caller.name().as_bytes()));
        sign(&key, caller, Quote { slot: slot_at(now), copy, owner, order, mac: [0; MAC_LEN] })
    }

    /// Reads a quote of this caller, or `None` if it is none.
    ///
    /// Addresses change, so a client without credentials may use any quote that it knows.
    pub fn read(&self, caller: &Caller, text: &str) -> Option<Quote> {
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(PREFIX)?).ok()?;
        let bytes: &[u8; BODY_LEN + MAC_LEN] = bytes.as_slice().try_into().ok()?;
        let quote = Quote {
            slot: u32::from_be_bytes(part(bytes, 1)),
            copy: bytes[5],
            owner: part(bytes, 6),
            order: OrderId(part(bytes, 14)),
            mac: part(bytes, BODY_LEN),
        };
        let signed = sign(&self.key(), caller, quote.clone());
        let is_equal = constant_time_eq(&signed.mac, &quote.mac) && bytes[0] == VERSION;
        is_equal.then_some(quote)
    }

    /// Returns the idempotency keys of a quote and of the same order's quotes in all slots whose
    /// purchase it may repeat. Its own is the first.
    pub fn keys(&self, caller: &Caller, quote: &Quote) -> Vec<Box<str>> {
        let key = self.key();
        let slots = quote.slot.saturating_sub(REACH)..=quote.slot.saturating_add(REACH);
        let others = slots.filter(|slot| *slot != quote.slot);
        let others = others.map(|slot| sign(&key, caller, Quote { slot, ..quote.clone() }));
        let all = [quote.clone()].into_iter().chain(others);
        all.map(|quote| format!("mcp:{quote}").into()).collect()
    }
}

fn sign(key: &SigningKey, caller: &Caller, quote: Quote) -> Quote {
    let name = caller.name();
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&quote.body());
    hasher.update(caller.namespace(&name).as_bytes());
    Quote { mac: first(&hasher.finalize()), ..quote }
}

impl fmt::Debug for QuoteSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuoteSigner(…)")
    }
}

impl Quote {
    pub fn is_for(&self, order: OrderId) -> bool {
        self.order == order
    }

    /// Returns the end of its first use, in wall-clock time.
    pub fn expires_at(&self) -> Duration {
        Duration::from_secs((u64::from(self.slot) + u64::from(SLOTS)) * SLOT_SECONDS)
    }

    fn body(&self) -> [u8; BODY_LEN] {
        let mut body = [0; BODY_LEN];
        body[0] = VERSION;
        body[1..5].copy_from_slice(&self.slot.to_be_bytes());
        body[5] = self.copy;
        body[6..14].copy_from_slice(&self.owner);
        body[14..].copy_from_slice(&self.order.0);
        body
    }
}

impl fmt::Display for Quote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; BODY_LEN + MAC_LEN];
        bytes[..BODY_LEN].copy_from_slice(&self.body());
        bytes[BODY_LEN..].copy_from_slice(&self.mac);
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

fn slot_at(now: Duration) -> u32 {
    u32::try_from(now.as_secs() / SLOT_SECONDS).unwrap_or(u32::MAX)
}

fn first<const N: usize>(hash: &blake3::Hash) -> [u8; N] {
    part(hash.as_bytes(), 0)
}

/// Copies the bytes from `at` on, of which there are enough.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

fn constant_time_eq(one: &[u8; MAC_LEN], other: &[u8; MAC_LEN]) -> bool {
    one.iter().zip(other).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn signer() -> QuoteSigner {
        QuoteSigner::new(&Secret::new(b"a secret"), || "a ledger".into())
    }

    fn member(name: &str) -> Caller {
        Caller::Member(name.into())
    }

    fn order() -> OrderId {
        OrderId::new("video", 3_000_000, b"{}")
    }

    #[test]
    fn quote_is_read_back_by_its_caller_only() {
        let quote = signer().quote(&member("ann"), order(), 0, NOW);
        let text = quote.to_string();
        assert_eq!(text.len(), 58, "{text}");
        assert_eq!(signer().read(&member("ann"), &text), Some(quote));
        assert_eq!(signer().read(&member("bob"), &text), None);
        let other = QuoteSigner::new(&Secret::new(b"a secret"), || "another ledger".into());
        assert_eq!(other.read(&member("ann"), &text), None);
        let open = |last| Caller::Address([192, 0, 2, last].into());
        let text = signer().quote(&open(1), order(), 0, NOW).to_string();
        assert!(signer().read(&open(2), &text).is_some(), "an address may change");
        assert_ne!(signer().quote(&open(2), order(), 0, NOW).to_string(), text);
    }

    #[test]
    fn quote_with_any_changed_character_is_rejected() {
        let text = signer().quote(&member("ann"), order(), 0, NOW).to_string();
        for at in 0..text.len() {
            for letter in ['A', 'b', '0', '-', ' '] {
                let mut changed = text.clone();
                changed.replace_range(at..=at, letter.encode_utf8(&mut [0; 4]));
                let read = signer().read(&member("ann"), &changed);
                assert_eq!(read.is_some(), changed == text, "{changed}");
            }
        }
        for wrong in ["", "q_", "q_AAAA", &format!("{text}A"), &text[..57]] {
            assert_eq!(signer().read(&member("ann"), wrong), None, "{wrong}");
        }
    }

    #[test]
    fn equal_orders_have_equal_quotes_within_a_slot_and_share_keys_after_it() {
        let (signer, ann) = (signer(), member("ann"));
        let quote = |seconds| signer.quote(&ann, order(), 0, NOW + Duration::from_secs(seconds));
        assert_eq!(quote(0), quote(SLOT_SECONDS - 1));
        assert_ne!(quote(0), quote(SLOT_SECONDS));
        let keys = signer.keys(&ann, &quote(0));
        assert_eq!(*keys[0], format!("mcp:{}", quote(0)));
        for slots in 1..=6 {
            let later = signer.keys(&ann, &quote(slots * SLOT_SECONDS));
            assert!(later.contains(&keys[0]) && keys.contains(&later[0]), "{slots}");
        }
        assert!(!keys.contains(&signer.keys(&ann, &quote(7 * SLOT_SECONDS))[0]));
        let copy = signer.quote(&ann, order(), 1, NOW);
        assert!(!keys.contains(&signer.keys(&ann, &copy)[0]));
    }

    #[test]
    fn quote_expires_after_its_third_slot() {
        let quote = signer().quote(&member("ann"), order(), 0, NOW);
        let left = quote.expires_at() - NOW;
        assert!(left > QUOTE_LIFETIME * 2 / 3 && left <= QUOTE_LIFETIME, "{left:?}");
    }

    #[test]
    fn order_with_another_price_body_or_service_is_another() {
        let others = [
            OrderId::new("video", 3_000_001, b"{}"),
            OrderId::new("video", 3_000_000, b"{ }"),
            OrderId::new("vide", 3_000_000, b"o{}"),
        ];
        assert!(others.iter().all(|other| *other != order()));
    }
}
