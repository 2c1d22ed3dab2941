//! What a caller may know and have of what was bought.

pub mod events;
pub mod jobs;
pub mod media;
