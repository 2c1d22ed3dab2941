//! Endpoints: from a request that passed every check to its answer.

pub mod assets;
pub mod file;
pub mod page;
pub mod site;
