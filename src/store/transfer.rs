//! Temporary.
use super::postgres::PostgresTarget;
use super::{Clock, Digest, Reason};
use crate::contract::money::Usd;
use std::path::Path;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEvent {
    Started { rows: u64 },
    Resumed { rows: u64 },
    Restarted { rows: u64 },
    Copied { table: &'static str, rows: u64 },
    Compared { table: &'static str, rows: u64 },
    TableDone { table: &'static str },
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedTable {
    pub name: &'static str,
    pub rows: u64,
    pub sums: Vec<(String, Usd)>,
    pub hash: Digest,
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedLedger {
    pub tables: Vec<CopiedTable>,
    pub destination: String,
    pub secret: Option<Digest>,
}
pub async fn move_to_postgres(
    _: &Path,
    _: PostgresTarget,
    _: Clock,
    _: &mut dyn FnMut(CopyEvent),
) -> Result<MovedLedger, Reason> {
    Err("no copy".into())
}
pub async fn move_to_sqlite(
    _: PostgresTarget,
    _: &Path,
    _: &mut dyn FnMut(CopyEvent),
) -> Result<MovedLedger, Reason> {
    Err("no copy".into())
}
