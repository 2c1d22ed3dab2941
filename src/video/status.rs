//! Reads the state of a job from a status body, by the words of `[jobs]`. The contract does not
//! show the body (4.3), so the field names are guesses that settings can correct.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use url::Url;

use crate::clock;
use crate::config::JobsConfig;
use crate::ledger::{JobState, StatusUpdate};

impl JobsConfig {
    /// Reads a status body. A job is finished only with a result URL, because a word such as
    /// `success` may be about the request. An unknown word means open, and no word means finished.
    pub fn state(&self, body: &[u8]) -> JobState {
        let word = state_word(body);
        let is = |words| word.as_deref().is_some_and(|word| contains(words, word));
        if is(&self.failed) {
            JobState::Failed
        } else if (word.is_none() || is(&self.finished)) && self.result_url(body).is_some() {
            JobState::Finished
        } else {
            JobState::Open
        }
    }

    /// Returns the state of a job whose status was kept as `known`, by the words of today. A failure
    /// has to be reported twice, so a body alone makes no job fail.
    pub fn reread(&self, known: &StatusUpdate) -> JobState {
        let state = self.state(&known.body);
        let is_first_report = state == JobState::Failed && known.state != JobState::Failed;
        if is_first_report { JobState::Open } else { state }
    }

    /// Returns whether the body has a word for an end, with or without a result.
    pub fn claims_end(&self, body: &[u8]) -> bool {
        let is_end = |word: &str| contains(&self.finished, word) || contains(&self.failed, word);
        state_word(body).is_some_and(|word| is_end(&word))
    }

    /// Returns the address as the parser writes it: without line ends and spaces.
    pub fn result_url(&self, body: &[u8]) -> Option<String> {
        let address = |text: String| {
            let address = Url::parse(&text).ok()?;
            matches!(address.scheme(), "http" | "https").then(|| address.into())
        };
        let at = |pointer| text_at(body, std::slice::from_ref(pointer));
        self.result.iter().find_map(|pointer| at(pointer).and_then(address))
    }
}

fn contains(words: &[String], word: &str) -> bool {
    words.iter().any(|known| known.to_lowercase() == word.to_lowercase())
}

/// Guess: the state is in one of these fields.
const STATE_FIELDS: &[&str] = &["status", "state"];

pub fn state_word(body: &[u8]) -> Option<String> {
    let body = String::from_utf8_lossy(body);
    let members = members(first_value(&body)?)?;
    STATE_FIELDS.iter().find_map(|name| {
        let mut named = members.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name));
        named.find_map(|(_, value)| text(value))
    })
}

/// Returns the string at the first of `pointers` (RFC 6901) that finds one. Only the path to it has
/// to be valid, so that a paid reply is not lost to an odd value elsewhere.
pub fn text_at(body: &[u8], pointers: &[String]) -> Option<String> {
    let body = String::from_utf8_lossy(body);
    pointers.iter().find_map(|pointer| {
        let mut steps = pointer.split('/').skip(1);
        steps.try_fold(first_value(&body)?, inner).and_then(text)
    })
}

fn inner<'a>(outer: &'a RawValue, step: &str) -> Option<&'a RawValue> {
    if let Some(mut members) = members(outer) {
        return members.remove(&step.replace("~1", "/").replace("~0", "~"));
    }
    let elements: Vec<&RawValue> = serde_json::from_str(outer.get()).ok()?;
    elements.get(step.parse::<usize>().ok()?).copied()
}

fn members(outer: &RawValue) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(outer.get()).ok()
}

fn first_value(body: &str) -> Option<&RawValue> {
    Deserialize::deserialize(&mut serde_json::Deserializer::from_str(body)).ok()
}

fn text(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

#[derive(Serialize)]
pub struct StatusDocument<'a> {
    pub request_id: &'a str,
    pub state: &'static str,
    /// When the gateway reported it; `null` before the first status.
    pub at: Option<String>,
    pub status: Option<Box<RawValue>>,
}

impl<'a> StatusDocument<'a> {
    pub fn new(request_id: &'a str, update: Option<&StatusUpdate>) -> Self {
        Self {
            request_id,
            state: update.map_or("open", |update| update.state.name()),
            at: update.map(|update| clock::iso8601(update.at)),
            status: update.and_then(|update| raw(&update.body)),
        }
    }
}

fn raw(body: &Bytes) -> Option<Box<RawValue>> {
    serde_json::from_str(&String::from_utf8_lossy(body)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_pointer_that_finds_a_string_wins() {
        let body =
            br#"{"n":1.5,"x":null,"b":true,"url":7,"output":[{"a/b":"deep"},"second"],"s":"flat"}"#;
        for (pointers, found) in [
            (&["/s"][..], Some("flat")),
            (&["/nothing", "/url", "/output/1"], Some("second")),
            (&["/output/0/a~1b"], Some("deep")),
            (&["/output/2", "/output/x", "/output", "/n", "/x", "/b", "/s/t", ""], None),
        ] {
            let pointers: Vec<_> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
            assert_eq!(text_at(body, &pointers).as_deref(), found, "{pointers:?}");
        }
        assert_eq!(text_at(b"not json", &["/s".to_owned()]), None);
    }

    fn words() -> JobsConfig {
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        JobsConfig {
            finished: list(&["completed", "Done"]),
            failed: list(&["failed"]),
            result: list(&["/url", "/output/0"]),
            keep_prompts: false,
        }
    }

    #[test]
    fn state_follows_configured_words_and_unknown_word_means_open() {
        for (body, state, word) in [
            (r#"{"status":"completed"}"#, JobState::Open, Some("completed")),
            (
                r#"{"status":"completed","data":{"status":"running"},"url":null}"#,
                JobState::Open,
                Some("completed"),
            ),
            (r#"{"status":"failed","url":"https://x/a.mp4"}"#, JobState::Failed, Some("failed")),
            (r#"{"Status":"DONE","url":"https://x/a.mp4"}"#, JobState::Finished, Some("DONE")),
            (r#"{"STATE":"Failed"}"#, JobState::Failed, Some("Failed")),
            (r#"{"state":"failed","status":"rendering"}"#, JobState::Open, Some("rendering")),
            (
                r#"{"state":"completed","status":7,"url":"https://x/a.mp4"}"#,
                JobState::Finished,
                Some("completed"),
            ),
            (r#"{"url":"https://x/a.mp4"}"#, JobState::Finished, None),
            (r#"{"output":["http://x/a.mp4"]}"#, JobState::Finished, None),
            (r#"{"status":"queued","url":"https://x/a.mp4"}"#, JobState::Open, Some("queued")),
            (r#"{"url":"soon"}"#, JobState::Open, None),
            (r#"{"url":"javascript:alert(1)"}"#, JobState::Open, None),
            (r#"{"inner":{"status":"failed"}}"#, JobState::Open, None),
            (r#"{"status":"exploded"}"#, JobState::Open, Some("exploded")),
            ("{}", JobState::Open, None),
            ("[\"failed\"]", JobState::Open, None),
            ("\u{feff}nonsense", JobState::Open, None),
        ] {
            let read = (words().state(body.as_bytes()), state_word(body.as_bytes()));
            assert_eq!((read.0, read.1.as_deref()), (state, word), "{body}");
        }
    }
}
