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

// Start with `src/gate/pipeline.rs`, which shows the path of a request.
#[doc(hidden)]
pub mod access;
#[doc(hidden)]
pub mod account;
#[doc(hidden)]
pub mod api;
#[doc(hidden)]
pub mod app;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod edge;
#[doc(hidden)]
pub mod gate;
#[doc(hidden)]
pub mod gateway;
#[doc(hidden)]
pub mod ledger;
#[cfg(feature = "cli")]
mod log;
#[doc(hidden)]
pub mod metrics;
#[doc(hidden)]
pub mod purchase;
mod sync;
mod trust;
#[doc(hidden)]
pub mod video;

pub use access::{User, UserError};
#[doc(inline)]
pub use app::embed::{
    Buyer, ChatError, ChatReply, Config, OpsService, SandboxReport, StartError, Tollgate,
};
#[doc(inline)]
pub use gate::caller::Peer;
#[doc(inline)]
pub use gate::response::Body;
#[doc(inline)]
pub use ledger::Role;

/// Compiles the guide's examples.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/library.md")]
struct LibraryGuide;
