//! What a caller may know and have of what was bought, and how our books compare with the gateway's.

pub mod books;
pub mod media;
pub mod reconcile;
pub mod usage;
