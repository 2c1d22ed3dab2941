//! What `./test long` runs: courses of a fleet, stock SDKs, fronts, packages, ACME and Prometheus. Each needs a program
//! that few people have, or minutes.

mod acme;
mod fleet;
mod fronts;
mod installation;
pub(crate) mod packaging;
mod prometheus;
mod sdks;
