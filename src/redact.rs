//! Finds the gateway's keys in text that came from the gateway and overwrites them with asterisks.
//!
//! A debug page or an error that echoes the request would otherwise hand the key to a browser. The reply
//! is paid for, so the rest of it is delivered.
//!
//! The search works on the text as it is and as readers decode it: escapes of JSON, URLs and HTML, which may
//! be escaped themselves ([`escape`]). Each decoded byte knows where it came from, so whole escapes are
//! overwritten and JSON stays valid. Most texts have no such escape and are searched once.

mod escape;
mod forms;

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tracing::error;

use crate::config::Key;
use crate::metrics::Metrics;
use forms::Forms;

/// Knows every key that this process has used. Clones share what they know.
#[derive(Clone)]
pub struct Redactor {
    forms: Arc<ArcSwap<Forms>>,
    metrics: Arc<Metrics>,
}

impl Redactor {
    /// A redactor that knows no keys yet and counts what it finds in `metrics`.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { forms: Arc::default(), metrics }
    }

    /// Looks for these keys from now on, too. Earlier ones stay known: the gateway may still echo a key
    /// that was replaced, for example in the status of an old job.
    pub fn learn(&self, keys: &[Key]) {
        self.forms.rcu(|known| known.with(keys));
    }

    /// Returns the text without any key. Text without one is not copied.
    pub fn bytes(&self, text: Bytes) -> Bytes {
        self.redacted(&text).map_or(text, Bytes::from)
    }

    /// The same, for text that was decoded from a reply.
    pub fn text(&self, text: String) -> String {
        match self.redacted(text.as_bytes()) {
            None => text,
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    fn redacted(&self, text: &[u8]) -> Option<Vec<u8>> {
        let redacted = self.forms.load().redacted(text)?;
        self.metrics.blotted();
        error!("gateway key redacted from a gateway reply");
        Some(redacted)
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactor")
    }
}

#[cfg(test)]
mod tests;
