//! The links that guests buy with.

use std::sync::Arc;

use super::column::{insert, read, record, select};
use super::ledger::Ledger;
use super::members::bump_version;
use crate::gateway::contract::selection::Selection;
use crate::ledger::audit_log::{CREATE_LINK, REVOKE_LINK};
use crate::ledger::engine::{Result, Sql, params};
use crate::ledger::name::may_lack_purchases_since;
use crate::ledger::writer::Durability;
use crate::ledger::{Actor, Caller, Link, Store, Unavailable};

record!(Link {
    id: "id",
    label: "label",
    amount: "micros",
    may_buy: "may_buy",
    uses: "uses",
    opened: "opened",
    by: "by",
    created_at: "created",
    expires_at: "until",
    revoked_at: "revoked",
    // Set by what the name of the ledger says.
    may_be_spent: "0",
});

impl Store {
    /// Returns all links, the latest first.
    pub async fn links(&self) -> Result<Vec<Link>, Unavailable> {
        let all = select::<Link>("FROM links ORDER BY number DESC");
        let find = move |ledger: &Ledger| {
            let shared = ledger.db.dialect().is_shared();
            let name = if shared { "SELECT name FROM ledger" } else { "SELECT name FROM identity" };
            let name: Option<Arc<str>> = ledger.db.first(name, (), read)?;
            let may_lack =
                |since| name.as_ref().is_some_and(|it| may_lack_purchases_since(it, since));
            ledger.db.all(&all, (), |row| {
                let link: Link = read(row)?;
                Ok(Link { may_be_spent: may_lack(link.created_at), ..link })
            })
        };
        self.execute("links", Durability::Buffered, find).await
    }

    pub async fn add_link(&self, by: &Actor, link: &Link) -> Result<(), Unavailable> {
        let (by, link) = (by.clone(), link.clone());
        let add = move |ledger: &Ledger| {
            let of = Caller::Link(Arc::clone(&link.id)).name();
            ledger.audit(&by, (CREATE_LINK, &of), None, Some(link.describe()))?;
            insert!(
                ledger.db,
                links {
                    id: link.id,
                    label: link.label,
                    micros: link.amount,
                    may_buy: link.may_buy.as_ref().map(Selection::to_string),
                    uses: link.uses,
                    opened: link.opened,
                    by: link.by,
                    created: link.created_at,
                    until: link.expires_at,
                    revoked: link.revoked_at,
                }
            )?;
            bump_version(&*ledger.db)
        };
        self.run("add_link", Durability::Synced, add).await
    }

    /// Counts a browser that opens a link. Returns its number, from 1; `None` if no more may.
    pub async fn open_link(&self, id: Arc<str>) -> Result<Option<u32>, Unavailable> {
        let open = move |ledger: &Ledger| {
            let count = "UPDATE links SET opened = opened + 1
                WHERE id = ? AND revoked IS NULL AND (uses IS NULL OR opened < uses)
                RETURNING opened";
            let number = ledger.db.first(count, [&id], read)?;
            if number.is_some() {
                bump_version(&*ledger.db)?;
            }
            Ok(number)
        };
        self.run("open_link", Durability::Synced, open).await
    }

    /// Ends a link for good. Returns whether there is one.
    pub async fn revoke_link(&self, by: &Actor, id: Arc<str>) -> Result<bool, Unavailable> {
        let by = by.clone();
        let revoke = move |ledger: &Ledger| {
            let find = select::<Link>("FROM links WHERE id = ?");
            let Some(link): Option<Link> = ledger.db.first(&find, [&id], read)? else {
                return Ok(false);
            };
            if link.revoked_at.is_none() {
                let end = "UPDATE links SET revoked = ? WHERE id = ?";
                ledger.db.run(end, params![ledger.now(), id])?;
                let of = Caller::Link(Arc::clone(&id)).name();
                ledger.audit(&by, (REVOKE_LINK, &of), None, None)?;
                bump_version(&*ledger.db)?;
            }
            Ok(true)
        };
        self.run("revoke_link", Durability::Synced, revoke).await
    }
}
