//! tollgate: a backend-for-frontend proxy for a prepaid AI gateway that never buys twice.

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
