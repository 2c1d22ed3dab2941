//! The audit log: `GET /bff/admin/audit` and `tollgate audit`.

use std::time::Duration;

use http::StatusCode;
use serde::Serialize;
use serde_json::json;

use super::{Reports, list_of, unavailable};
use crate::clock::iso8601;
use crate::gate::problem::Problem;
use crate::gate::response::{self, Response};
use crate::ledger::{AuditEntry, AuditQuery};

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
pub fn document(entries: &[AuditEntry], has_more: bool) -> impl Serialize {
    let row = |entry: &AuditEntry| {
        let (caller, group) = concerned(entry);
        json!({
            "id": entry.id,
            "at": iso8601(entry.at),
            "by": &*entry.by,
            "act": &*entry.act,
            "caller": caller,
            "group": group,
            "old": entry.old.as_deref(),
            "new": entry.new.as_deref(),
        })
    };
    list_of(entries.iter().map(row)).with(json!({ "more": has_more }))
}

/// Returns the caller or the group that an act concerns.
pub fn concerned(entry: &AuditEntry) -> (Option<&str>, Option<&str>) {
    match entry.of.strip_prefix("group:") {
        Some(group) => (None, Some(group)),
        None => (Some(&entry.of), None),
    }
}
