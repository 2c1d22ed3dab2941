//! What a caller may know and have of what was bought.

pub mod media;
