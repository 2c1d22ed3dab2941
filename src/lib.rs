//! tollgate: a backend-for-frontend proxy for a prepaid AI gateway that never buys twice.

pub mod answer;
pub mod clock;
pub mod config;
pub mod contract;
pub mod problem;
pub mod routes;
