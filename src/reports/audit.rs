//! The audit log: `GET /bff/admin/audit` and `tollgate audit`.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::{Reports, unavailable};
use crate::clock::iso8601;
use crate::problem::Problem;
use crate::response::{self, Response};
use crate::store::{AuditEntry, AuditQuery};

const PAGE: usize = 100;

impl Reports {
    /// Reports the latest acts, or those before one.
    pub async fn admin_audit(&self, before: Option<u64>) -> Result<Response, Problem> {
        let query = AuditQuery { before, since: Duration::ZERO, most: PAGE + 1 };
        let mut entries = self.store.audit_log(query).await.map_err(unavailable)?;
        let has_more = entries.len() > PAGE;
        entries.truncate(PAGE);
        Ok(response::json(StatusCode::OK, &document(&entries, has_more)))
    }
}

/// Returns the report's JSON. `has_more` is whether there are earlier entries than these.
pub fn document(entries: &[AuditEntry], has_more: bool) -> Value {
    let row = |entry: &AuditEntry| {
        json!({
            "id": entry.id,
            "at": iso8601(entry.at),
            "by": &*entry.by,
            "act": &*entry.act,
            "of": &*entry.of,
            "old": entry.old.as_deref(),
            "new": entry.new.as_deref(),
        })
    };
    json!({ "entries": entries.iter().map(row).collect::<Vec<_>>(), "more": has_more })
}
