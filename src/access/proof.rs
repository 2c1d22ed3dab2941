//! Proof of work: callers without credentials compute before they buy, the more the less of the day's total
//! budget is left.
//!
//! A challenge needs no record: it is signed, and it expires. The ledger lets it pay for one purchase.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use zeroize::Zeroizing;

use super::token::{Secret, constant_time_eq};
use crate::clock::iso8601;
use crate::gate::problem::ProofChallenge;
use crate::gateway::contract::money::Usd;
use crate::ledger::{Caller, Digest, PurchaseId};

/// The work, in leading zero bits, by the percentage of the budget that is left at least. The guide has this table.
///
/// A phone tries about 300,000 nonces a second.
pub const STEPS: [(u64, u8); 9] =
    [(90, 0), (75, 12), (60, 14), (45, 15), (35, 17), (25, 19), (15, 20), (5, 22), (0, 23)];
/// How long a challenge is valid, in minutes, with the one in which it was made.
const LIFETIME: u32 = 5;
/// The budget drains while a client computes, so a challenge of half the work is accepted.
const SLACK: u8 = 1;
const SALT_LEN: usize = 8;
const BODY_LEN: usize = 4 + 1 + SALT_LEN;
const MAX_NONCE_LEN: usize = 64;

/// Returns the work that a purchase needs while this is `left` of the day's total budget.
pub fn bits(left: Usd, budget: Usd) -> u8 {
    let percent = left.as_micros().saturating_mul(100).checked_div(budget.as_micros());
    let reached = |(from, _): &&(u64, u8)| percent.unwrap_or_default() >= *from;
    STEPS.iter().find(reached).map_or(0, |(_, bits)| *bits)
}

/// Makes challenges, and checks proofs.
///
/// They are worthless for another ledger, which does not know the purchases that were paid for.
pub struct ProofOfWork {
    secret: Zeroizing<[u8; 32]>,
    ledger: Box<dyn Fn() -> Arc<str> + Send + Sync>,
}

/// A proof with all the work of its challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedProof {
    /// Stands for the challenge.
    pub challenge: Digest,
    /// The reason why it pays for nothing new. It still names the purchase that it has paid for.
    pub refusal: Option<&'static str>,
}

impl ProofOfWork {
    /// `ledger` returns the name of the ledger.
    pub fn new(secret: &Secret, ledger: impl Fn() -> Arc<str> + Send + Sync + 'static) -> Self {
        Self { secret: Zeroizing::new(*secret.proofs), ledger: Box::new(ledger) }
    }

    /// Returns a new challenge at `now`, the wall-clock time.
    pub fn challenge(&self, caller: &Caller, bits: u8, now: Duration) -> ProofChallenge {
        let minute = minute_of(now);
        let mut body = [0; BODY_LEN];
        body[..4].copy_from_slice(&minute.to_be_bytes());
        body[4] = bits;
        // The end of an id is random.
        body[5..].copy_from_slice(&PurchaseId::generate().0.as_bytes()[16 - SALT_LEN..]);
        let end = Duration::from_secs(60 * u64::from(minute.saturating_add(LIFETIME)));
        let challenge = URL_SAFE_NO_PAD.encode([&body[..], &self.sign(caller, &body)].concat());
        ProofChallenge { challenge, bits, expires: iso8601(end) }
    }

    /// Checks `<challenge>.<nonce>`.
    ///
    /// # Errors
    /// The reason, for the caller, if this is no proof of this caller.
    pub fn check(
        &self,
        caller: &Caller,
        proof: &str,
        needed: u8,
        now: Duration,
    ) -> Result<CheckedProof, &'static str> {
        const MALFORMED: &str = "Tollgate-Proof is not <challenge>.<nonce> with a challenge of this server \
                                 for your address";
        let (challenge, nonce) = proof.split_once('.').ok_or(MALFORMED)?;
        let bytes = URL_SAFE_NO_PAD.decode(challenge).map_err(|_| MALFORMED)?;
        let (body, mac) = bytes.split_at_checked(BODY_LEN).ok_or(MALFORMED)?;
        let mac = Digest::try_from(mac).map_err(|_| MALFORMED)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !constant_time_eq(&self.sign(caller, body), &mac)
            || !(1..=MAX_NONCE_LEN).contains(&nonce.len())
            || !nonce.bytes().all(is_plain)
        {
            return Err(MALFORMED);
        }
        let minute = u32::from_be_bytes(body[..4].try_into().map_err(|_| MALFORMED)?);
        let bits = body[4];
        if leading_zeros(digest(&SHA256, [challenge, nonce].concat().as_bytes()).as_ref())
            < bits.into()
        {
            return Err("SHA-256 of challenge and nonce does not begin with that many zero bits");
        }
        let refusal = if minute_of(now).saturating_sub(minute) >= LIFETIME {
            Some("the challenge of Tollgate-Proof has expired")
        } else if bits.saturating_add(SLACK) < needed {
            Some("by now, less of the budget is left, and a purchase needs more work")
        } else {
            None
        };
        Ok(CheckedProof { challenge: mac, refusal })
    }

    fn sign(&self, caller: &Caller, body: &[u8]) -> Digest {
        let key = blake3::keyed_hash(&self.secret, (self.ledger)().as_bytes());
        let mut hasher = blake3::Hasher::new_keyed(key.as_bytes());
        hasher.update(body).update(caller.name().as_bytes());
        *hasher.finalize().as_bytes()
    }
}

fn minute_of(now: Duration) -> u32 {
    u32::try_from(now.as_secs() / 60).unwrap_or(u32::MAX)
}

fn leading_zeros(hash: &[u8]) -> u32 {
    let zeros = hash.iter().take_while(|byte| **byte == 0).count();
    let rest = hash.get(zeros).map_or(0, |byte| byte.leading_zeros());
    u32::try_from(zeros).unwrap_or(u32::MAX).saturating_mul(8).saturating_add(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_030);
    const MINUTE: Duration = Duration::from_secs(60);

    fn signer(secret: &[u8], ledger: &'static str) -> ProofOfWork {
        ProofOfWork::new(&Secret::new(secret), move || ledger.into())
    }

    fn proofs() -> ProofOfWork {
        signer(b"a secret", "a ledger")
    }

    fn caller(last: u8) -> Caller {
        Caller::Address([192, 0, 2, last].into())
    }

    /// Finds the first nonce whose hash begins with `bits` zero bits, or with fewer.
    fn solve(challenge: &str, fits: impl Fn(u32) -> bool) -> String {
        let hash = |nonce: &u64| digest(&SHA256, format!("{challenge}{nonce}").as_bytes());
        let nonce = (0..).find(|nonce| fits(leading_zeros(hash(nonce).as_ref()))).unwrap();
        format!("{challenge}.{nonce}")
    }

    #[test]
    fn work_follows_what_is_left_of_the_budget() {
        let budget = Usd::dollars(10);
        for (cents, expected) in
            [(1_000, 0), (900, 0), (899, 12), (500, 15), (449, 17), (100, 22), (49, 23), (0, 23)]
        {
            assert_eq!(bits(Usd::micros(cents * 10_000), budget), expected, "{cents}");
        }
        assert_eq!(bits(Usd::ZERO, Usd::ZERO), 23, "a budget of nothing");
    }

    #[test]
    fn proof_is_valid_for_its_caller_server_and_ledger_until_it_expires() {
        let given = proofs().challenge(&caller(1), 9, NOW);
        assert_eq!((given.bits, &*given.expires), (9, "2027-01-15T08:05:00.000Z"));
        let proof = solve(&given.challenge, |zeros| zeros >= 9);
        let checked = |needed, now| proofs().check(&caller(1), &proof, needed, now).unwrap();
        let challenge = checked(9, NOW).challenge;
        for (needed, now, is_refused) in [
            (0, NOW, false),
            (10, NOW + 4 * MINUTE, false),
            (11, NOW, true),
            (9, NOW + 5 * MINUTE, true),
        ] {
            let found = checked(needed, now);
            let found = (found.challenge, found.refusal.is_some());
            assert_eq!(found, (challenge, is_refused), "{needed} {now:?}");
        }
        assert!(proofs().check(&caller(2), &proof, 9, NOW).is_err());
        for other in [signer(b"another", "a ledger"), signer(b"a secret", "another")] {
            assert!(other.check(&caller(1), &proof, 9, NOW).is_err());
        }
        let next = proofs().challenge(&caller(1), 9, NOW);
        assert_ne!(
            next.challenge, given.challenge,
            "callers behind one address share no challenge"
        );
    }

    #[test]
    fn proof_without_its_work_is_refused() {
        let given = proofs().challenge(&caller(1), 9, NOW).challenge;
        let easy = solve(&given, |zeros| zeros == 8);
        assert!(proofs().check(&caller(1), &easy, 9, NOW).is_err());
        let full = solve(&given, |zeros| zeros >= 9);
        let nonce = full.split_once('.').unwrap().1;
        let no_work = proofs().challenge(&caller(1), 0, NOW).challenge;
        for wrong in [
            "".to_owned(),
            given.clone(),
            format!("{given}."),
            format!("{given}.{}", "0".repeat(65)),
            format!("{given}.\u{e9}"),
            format!("{full} "),
            format!("{given}A.{nonce}"),
        ] {
            assert!(proofs().check(&caller(1), &wrong, 9, NOW).is_err(), "{wrong:?}");
        }
        let free = proofs().check(&caller(1), &format!("{no_work}.{nonce}"), 9, NOW);
        assert!(free.is_ok_and(|proof| proof.refusal.is_some()), "its own bits count");
    }

    #[test]
    fn challenge_with_any_changed_character_is_refused() {
        let given = proofs().challenge(&caller(1), 0, NOW).challenge;
        assert!(proofs().check(&caller(1), &format!("{given}.0"), 0, NOW).is_ok());
        for at in 0..given.len() {
            let mut changed = given.clone();
            let letter = if &given[at..=at] == "A" { "B" } else { "A" };
            changed.replace_range(at..=at, letter);
            assert!(proofs().check(&caller(1), &format!("{changed}.0"), 0, NOW).is_err(), "{at}");
        }
    }
}
