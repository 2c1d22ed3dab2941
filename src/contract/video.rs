//! The video request as the gateway takes it, and what it answers (2.5).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The longest prompt, in characters (2.5). Guess: the unit is the code point, JSON Schema's unit.
pub const PROMPT_LIMIT: usize = 4_000;
/// What `aspect_ratio` may be (2.5).
pub const ASPECT_RATIOS: &[&str] = &["16:9", "9:16"];
/// `aspect_ratio` where a request names none (2.5).
pub const DEFAULT_ASPECT_RATIO: &str = "16:9";

/// A video request with its defaults filled in (2.5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VideoRequest<'a> {
    /// What to show.
    pub prompt: Cow<'a, str>,
    /// One of the catalog's video models; always sent, so that no default can drift.
    pub model: Cow<'a, str>,
    /// Seconds; always sent, for the same reason.
    pub duration: u32,
    /// One of [`ASPECT_RATIOS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aspect_ratio: Option<Cow<'a, str>>,
    /// A public picture to start from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_url: Option<Cow<'a, str>>,
}

/// What of the answer to an accepted job (2.5) tollgate itself reads; the body passes unchanged.
#[derive(Clone, Debug, Deserialize)]
pub struct VideoAccepted {
    /// The job's identifier.
    pub request_id: String,
    /// What was charged.
    #[serde(default)]
    pub cost: Option<Cost>,
    /// Dollar text of the credit that is left.
    #[serde(default)]
    pub balance: Option<String>,
}

/// What a job cost (2.5).
#[derive(Clone, Debug, Deserialize)]
pub struct Cost {
    /// Dollar text, `$5.00`.
    #[serde(default)]
    pub this_request: Option<String>,
}
