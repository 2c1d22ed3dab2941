//! The ledger's public name, as responses carry it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderValue;

use crate::ledger::Store;

/// A shared ledger gets another name when it has lost purchases, so it is asked for each time.
pub struct LedgerName {
    ledger: Store,
    latest: ArcSwap<(Arc<str>, HeaderValue)>,
}

impl LedgerName {
    pub fn new(ledger: Store) -> io::Result<Self> {
        let name = ledger.name();
        let header = HeaderValue::try_from(&*name).map_err(io::Error::other)?;
        Ok(Self { ledger, latest: ArcSwap::from_pointee((name, header)) })
    }

    pub fn text(&self) -> Arc<str> {
        self.ledger.name()
    }

    /// Returns the time that servers of one ledger agree on.
    pub fn ledger_time(&self) -> Duration {
        self.ledger.now()
    }

    pub fn header(&self) -> HeaderValue {
        self.current().1.clone()
    }

    /// Returns the name, also as a header.
    pub fn current(&self) -> Arc<(Arc<str>, HeaderValue)> {
        let name = self.ledger.name();
        let latest = self.latest.load_full();
        if latest.0 == name {
            return latest;
        }
        match HeaderValue::try_from(&*name) {
            Ok(header) => {
                let current = Arc::new((name, header));
                self.latest.store(Arc::clone(&current));
                current
            }
            // Names are identifiers, which headers can hold.
            Err(_) => latest,
        }
    }
}
