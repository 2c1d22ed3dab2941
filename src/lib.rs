//! tollgate: a backend-for-frontend proxy for a prepaid AI gateway that never buys twice.
//!
//! ```text
//! client ─► server ─► downstream ─► routes ─┬─► purchase ─┬─► upstream ─► gateway, or the sandbox
//!                     who may ask           │   what is   │   keys, the
//!                     what, how often       │   bought,   │   window,
//!                                           │   once      │   connections
//!                                           └─► jobs ─────┘
//! ```
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
pub mod jobs;
pub mod metrics;
pub mod pipeline;
pub mod problem;
pub mod purchase;
pub mod routes;
pub mod sandbox;
pub mod server;
pub mod store;
pub mod upstream;
pub mod validate;

pub use downstream::caller::Peer;
