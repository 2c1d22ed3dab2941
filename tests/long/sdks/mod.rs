//! The stock SDKs, unchanged and with their default settings, against the real stack: they work, and
//! whatever the gateway does, one call of theirs is charged once at most. They send no idempotency key.

mod agents;
mod calls;
mod faults;
mod program;
mod snippets;
mod typescript;
mod webhooks;

use crate::support::Server;

/// The real binary with its sandbox.
fn sandbox() -> Server {
    Server::sandboxed(&[("TOLLGATE_SANDBOX__JOB_TIME", "1s")])
}
