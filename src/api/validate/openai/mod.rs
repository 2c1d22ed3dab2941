//! Translates requests of OpenAI's API. `docs/guide/openai.md` says what happens to each field.
//!
//! `null` counts as absent, because SDKs send it for unset fields. Unknown fields are ignored.

mod chat;
mod video;

pub use super::query::{ListQuery, list_query};
pub use chat::{ChatOrder, chat};
pub use video::{FormValue, video, video_from_form};

#[cfg(test)]
mod tests;
