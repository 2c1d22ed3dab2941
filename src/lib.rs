//! tollgate: a backend-for-frontend proxy for a prepaid AI gateway that never buys twice.
//!
//! ```text
//! client ─► server ─► downstream ─► routes ─┬─► purchase ─┬─► upstream ─► gateway, or the sandbox
//!                     who may ask           │   what is   │   keys, the
//!                     what, how often       │   bought,   │   window,
//!                                           │   once      │   connections
//!                                           └─► jobs ─────┘
//! ```
//! As a program, `tollgate serve` runs it. As a library, [`Tollgate`] is the whole gate as one
//! [`tower::Service`], for axum, hyper or any other server that speaks tower:
//!
//! ```no_run
//! # async fn served() -> Result<(), Box<dyn std::error::Error>> {
//! use std::path::Path;
//! use tollgate::{Config, Tollgate};
//!
//! let settings = std::fs::read_to_string("proxy.toml")?;
//! let gate = Tollgate::new(Config::read(&settings, Path::new("."), std::env::vars())?)?;
//! tokio::spawn(gate.background());
//! // … serve clones of `gate`, each request with a `tollgate::Peer` in its extensions; then:
//! gate.shutdown().await;
//! # Ok(())
//! # }
//! ```
//! `examples/axum.rs` and `examples/hyper.rs` are whole servers.
//!
//! [`pipeline`] holds the three stacks and is the file to read first; the folders are its stations in
//! order. What a station has learned is carried by the type that it hands on: only [`validate`] makes a
//! [`validate::Checked`] order, and only a checked order can become a [`purchase::Purchase`].

pub mod access;
pub mod account;
pub mod answer;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod contract;
pub mod downstream;
pub mod embed;
pub mod jobs;
pub mod metrics;
pub mod pipeline;
pub mod problem;
pub mod purchase;
pub mod redact;
pub mod routes;
pub mod sandbox;
pub mod server;
pub mod store;
pub mod upstream;
pub mod validate;

pub use downstream::caller::Peer;
pub use embed::{Body, Config, StartError, Tollgate};
