//! `GET /bff/proof`, and the proof of work that comes with a purchase.

use http::header::{CACHE_CONTROL, HeaderName};
use http::{HeaderValue, StatusCode};

use super::HandlerContext;
use crate::access::proof::{CheckedProof, bits};
use crate::gate::problem::{INVALID_IDEMPOTENCY_KEY, NOT_FOUND, PROOF_REQUIRED, Problem};
use crate::gate::response::{self, HandlerResult};
use crate::gateway::contract::catalog::Service;
use crate::purchase::{DedupeBy, PurchaseRequest};

const TOLLGATE_PROOF: HeaderName = HeaderName::from_static("tollgate-proof");

/// Answers with a new challenge.
pub(super) async fn challenge(cx: HandlerContext) -> HandlerResult {
    let proofs = cx.handlers.access.proofs.as_ref();
    let proofs =
        proofs.ok_or_else(|| Problem::new(&NOT_FOUND).detail("access.proof is \"off\""))?;
    let (needed, now) = (cx.needed_bits().await?, cx.handlers.ledger_name.ledger_time());
    let given = proofs.challenge(&cx.call.caller, needed, now);
    let mut response = response::json(StatusCode::OK, &given);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

impl HandlerContext {
    /// Has a purchase of a caller without credentials paid for by a proof of work. Without a valid proof, it
    /// only replays what its key has bought.
    pub(super) async fn with_proof(
        &self,
        purchase: PurchaseRequest,
    ) -> Result<PurchaseRequest, Problem> {
        let proofs = self.handlers.access.proofs.as_ref().filter(|_| self.call.is_anonymous());
        let (None, Some(proofs)) = (&purchase.replay_or, proofs) else { return Ok(purchase) };
        let needed = self.needed_bits().await?;
        let now = self.handlers.ledger_name.ledger_time();
        let checked = self.sent_proof().and_then(|sent| {
            let proof = proofs.check(&self.call.caller, sent, needed, now)?;
            Ok((proof, sent.split('.').next().unwrap_or_default()))
        });
        let (purchase, refusal) = match checked {
            Ok((CheckedProof { challenge, refusal }, name)) => {
                check_key(&purchase)?;
                (paid_with(purchase, challenge, name), refusal)
            }
            Err(why) => (purchase, (needed > 0).then_some(why)),
        };
        let replay_or = refusal.map(|why| {
            let next = proofs.challenge(&self.call.caller, needed, now);
            let detail = format!(
                "{why}; find a nonce so that SHA-256 of proof.challenge and the nonce begins with {needed} \
                 zero bits, and send Tollgate-Proof: <challenge>.<nonce>"
            );
            Box::new(Problem::new(&PROOF_REQUIRED).hint(detail).with_proof(next))
        });
        Ok(PurchaseRequest { replay_or, ..purchase })
    }

    fn sent_proof(&self) -> Result<&str, &'static str> {
        let sent = self.call.head.headers.get(TOLLGATE_PROOF);
        let sent = sent.ok_or("callers without credentials compute before they buy")?;
        sent.to_str().map_err(|_| "Tollgate-Proof is not ASCII")
    }

    async fn needed_bits(&self) -> Result<u8, Problem> {
        let left = self.handlers.me.left_today().await?;
        Ok(left.map_or(0, |(left, budget)| bits(left, budget)))
    }
}

/// A repeat comes with another proof, so only a key tells that it is one.
fn check_key(purchase: &PurchaseRequest) -> Result<(), Problem> {
    let is_keyless = matches!(purchase.dedupe_by, DedupeBy::Fingerprint);
    if is_keyless && purchase.order.get().service == Service::Video {
        let detail = "with Tollgate-Proof, send an Idempotency-Key for a video";
        return Err(Problem::new(&INVALID_IDEMPOTENCY_KEY).detail(detail));
    }
    Ok(())
}

/// Without an `Idempotency-Key`, the challenge is the key: a second use is the same purchase.
fn paid_with(purchase: PurchaseRequest, challenge: [u8; 32], name: &str) -> PurchaseRequest {
    let dedupe_by = match purchase.dedupe_by {
        DedupeBy::Fingerprint => DedupeBy::IdempotencyKey(format!("proof:{name}").into()),
        keyed @ (DedupeBy::IdempotencyKey(_) | DedupeBy::Quote(_)) => keyed,
    };
    PurchaseRequest { dedupe_by, challenge: Some(challenge), ..purchase }
}
