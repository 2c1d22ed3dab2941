//! tollgate: a backend-for-frontend proxy for a prepaid AI gateway that never buys twice.
//!
//! The program `tollgate serve` runs it. As a library, [`Tollgate`] is the whole proxy as one
//! [`tower::Service`], for axum, hyper or any other tower server:
//!
//! ```no_run
//! # async fn served() -> Result<(), Box<dyn std::error::Error>> {
//! use std::path::Path;
//! use tollgate::{Config, Tollgate};
//!
//! let settings = std::fs::read_to_string("proxy.toml")?;
//! let gate = Tollgate::new(Config::read(&settings, Path::new("."), std::env::vars_os())?)?;
//! // … serve clones of `gate`, each request with a `tollgate::Peer` in its extensions. On a signal,
//! // stop accepting connections, and without waiting for the open ones:
//! gate.shutdown().await;
//! # Ok(())
//! # }
//! ```
//! `examples/users.rs`, `examples/axum.rs` and `examples/hyper.rs` are complete servers. The features
//! `cli`, `page`, `openai`, `openapi`, `mcp` and `postgres` are all on by default; an application can
//! leave out each.
//!
//! The names below are the public API. The hidden modules are for this repository's own program and
//! tests, and may change at any time.
//!
//! [`tower::Service`]: https://docs.rs/tower/latest/tower/trait.Service.html

// Start with `src/pipeline.rs`, which shows the path of a request.
#[doc(hidden)]
pub mod access;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod acme;
#[doc(hidden)]
pub mod app;
#[doc(hidden)]
pub mod billing;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod contract;
mod decimal;
#[doc(hidden)]
pub mod downstream;
mod embed;
#[doc(hidden)]
pub mod jobs;
#[doc(hidden)]
pub mod ledger;
#[doc(hidden)]
pub mod log_limit;
#[doc(hidden)]
pub mod media;
#[doc(hidden)]
pub mod metrics;
#[doc(hidden)]
pub mod people;
#[doc(hidden)]
pub mod pictures;
#[doc(hidden)]
pub mod pipeline;
#[doc(hidden)]
pub mod problem;
#[doc(hidden)]
pub mod purchase;
#[doc(hidden)]
pub mod redact;
#[doc(hidden)]
pub mod reports;
#[doc(hidden)]
pub mod response;
#[doc(hidden)]
pub mod routes;
#[doc(hidden)]
pub mod sandbox;
#[doc(hidden)]
pub mod server;
mod sync;
#[doc(hidden)]
pub mod tls;
#[doc(hidden)]
pub mod upstream;
#[doc(hidden)]
pub mod validate;
#[doc(hidden)]
pub mod webhooks;

pub use access::{User, UserError};
#[doc(inline)]
pub use downstream::caller::Peer;
#[doc(inline)]
pub use embed::{
    Buyer, ChatError, ChatReply, Config, OpsService, SandboxReport, StartError, Tollgate,
};
#[doc(inline)]
pub use ledger::Role;
#[doc(inline)]
pub use response::Body;

/// Compiles the guide's examples.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/library.md")]
struct LibraryGuide;
