//! Opens what a server remembers, and names it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use crate::clock;
use crate::store::memory::Memory;
use crate::store::sqlite::{OpenError, Opening, Sqlite};
use crate::store::{JobBook, Ledger, Members, Money, Store, WindowLog};

/// What a server remembers, by what it is asked for.
#[derive(Clone)]
pub struct Remembered {
    /// Every purchase.
    pub ledger: Arc<dyn Ledger>,
    /// Every job.
    pub book: Arc<dyn JobBook>,
    /// What was sent to the gateway.
    pub log: Arc<dyn WindowLog>,
    /// Who may call, where members may.
    pub members: Arc<dyn Members>,
    /// Another name once purchases may be forgotten. It is public, so it holds no secret.
    pub name: Arc<str>,
}

impl Remembered {
    /// All of it in one place, of this name.
    pub fn by<T: Store>(store: Arc<T>, name: Arc<str>) -> Self {
        let (ledger, book) = (Arc::clone(&store) as _, Arc::clone(&store) as _);
        Self { ledger, book, log: Arc::clone(&store) as _, members: store, name }
    }
}

/// A store that ends with the process, and whose purchases are forgotten at the next start.
pub fn memory() -> Remembered {
    let name = Uuid::now_v7().to_string();
    Remembered::by(Arc::new(Memory::new(Arc::new(clock::wall))), name.into())
}

/// A store in a file, to sell from; operators' commands find the server at `admin`. It may be a while until it is
/// [open](Opening).
///
/// # Errors
/// Another server has it, or it cannot be used.
pub async fn sqlite(
    path: &Path,
    money: Money,
    admin: Option<SocketAddr>,
) -> Result<(Remembered, Opening), OpenError> {
    let (store, opening) = Sqlite::begin(path, Arc::new(clock::wall), money, admin).await?;
    let name = store.name().unwrap_or_default();
    Ok((Remembered::by(Arc::new(store), name), opening))
}
