//! `tollgate reconcile --format json`.

use std::io::{self, Write};

use serde::Serialize;

use super::{Outcome, by_id, checkpoint, drift};
use crate::clock::iso8601;
use crate::store::{PurchaseId, State};

/// Money as decimal strings of six places.
#[derive(Serialize)]
struct Document {
    dry_run: bool,
    /// When the checkpoint was noted that is compared from; none for the first.
    since: Option<String>,
    purchases: Vec<Purchase>,
    charged: Option<String>,
    unknown: Option<String>,
    spent: Option<String>,
    drift: Option<String>,
    checkpoint: &'static str,
}

#[derive(Serialize)]
struct Purchase {
    id: String,
    service: Option<&'static str>,
    model: Option<String>,
    price: Option<String>,
    /// `charged`, `released` or `unknown`.
    state: &'static str,
    reason: String,
}

pub(super) fn print(outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let Outcome { look, verdict, is_noted } = outcome;
    let rows = by_id(&look.evidence);
    let purchase = |id: PurchaseId, state: State, reason: String| {
        let row = rows.get(&id);
        Purchase {
            id: id.to_string(),
            service: row.map(|row| row.service.name()),
            model: row.map(|row| row.model.clone()),
            price: row.map(|row| row.toll.to_string()),
            state: state.shown(),
            reason,
        }
    };
    let purchases = match verdict {
        Some(verdict) => {
            let settled = verdict.settled.iter().map(|settled| {
                let state = if settled.charged.is_some() { State::Posted } else { State::Voided };
                purchase(settled.id, state, settled.proof.to_string())
            });
            let left = verdict.undecided.iter();
            let left = left.map(|(id, doubt)| purchase(*id, State::Unknown, doubt.to_string()));
            settled.chain(left).collect()
        }
        None => {
            let why = "there is no checkpoint to tell it by";
            let lost = look.evidence.iter();
            lost.map(|entry| purchase(entry.row.id, State::Unknown, why.to_owned())).collect()
        }
    };
    let books = verdict.as_ref().map(|verdict| verdict.drift);
    let document = Document {
        dry_run: is_noted.is_none(),
        since: look.before.map(|before| iso8601(before.snapshot.at)),
        purchases,
        charged: books.map(|books| books.posted.to_string()),
        unknown: books.map(|books| books.unknown.to_string()),
        spent: books.and_then(|books| books.spent).map(|spent| spent.to_string()),
        drift: books.map(|books| drift(books.difference())),
        checkpoint: checkpoint(*is_noted),
    };
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}
