//! Reads orders in OpenAI's dialect: what the gateway has a word for goes through the gate of its own
//! orders, what it has none for is passed over and named, and what must not be passed over is a fault.
//!
//! `docs/guide/openai.md` has the fate of every field. `null` is absence here: SDKs write it for what was
//! not set. A field that nobody knows is passed over like one that the gateway has no word for.

mod chat;
mod video;

pub use super::query::{ListQuery, list_query};
pub use chat::{ChatOrder, chat};
pub use video::{FormValue, video, video_from_form};

#[cfg(test)]
mod tests;
