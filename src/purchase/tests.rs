//! What the tests of these stations buy, on which terms, and what they get for it.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::{Claim, Purchase, Receipt, Terms};
use crate::contract::catalog::Catalog;
use crate::contract::money::Usd;
use crate::store::{Caller, Limits};
use crate::validate;

pub(super) const SOON: Duration = Duration::from_secs(1);

/// No limits, and who waits does so for `patience`.
pub(super) fn terms(patience: Duration) -> Terms {
    Terms {
        limits: Limits::default(),
        balance_floor: Usd::ZERO,
        dedupe_window: SOON,
        keep_chats: SOON,
        keep_videos: SOON,
        patience,
    }
}

/// A video, told from others by its likeness.
pub(super) fn purchase() -> Purchase {
    claimed(Claim::Likeness { is_retry: false })
}

/// The same one each time, as its key says.
pub(super) fn keyed() -> Purchase {
    claimed(Claim::Key("k".into()))
}

fn claimed(claim: Claim) -> Purchase {
    let order = validate::video(br#"{"prompt":"a tide"}"#, &Catalog::published()).unwrap();
    Purchase::new(Caller::Address([192, 0, 2, 1].into()), order, claim)
}

/// What it costs at the list price, without a body.
pub(super) fn receipt() -> Receipt {
    Receipt {
        status: StatusCode::OK,
        is_json: true,
        body: Bytes::new(),
        toll: Usd::dollars(3),
        is_replay: false,
        delivery: None,
        accepted: None,
        key: None,
    }
}
