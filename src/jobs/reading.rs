//! Reads what a status body says of a job, by the words of `[jobs]`: the contract does not show the
//! body (4.3), so where things are and what they are called is a guess that settings can mend.

use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::value::RawValue;
use url::Url;

use crate::clock;
use crate::store::{JobState, Word};

/// The words of `[jobs]`.
#[derive(Clone, Debug, Default)]
pub struct Words {
    /// Values of its state in any case of letters, when there is a video.
    pub finished: Vec<String>,
    /// The same, when there will be none.
    pub failed: Vec<String>,
    /// JSON pointers to the video's address.
    pub result: Vec<String>,
}

/// What a status body says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The text of its field `status`, or else `state`; names in any case of letters.
    pub word: Option<String>,
    /// What that means. A word that nobody knows means that the job goes on: it is never called
    /// failed for being strange.
    pub state: JobState,
    /// Where the video is: http or https.
    pub address: Option<String>,
}

impl Words {
    /// Reads a status body. One that names no state, but an address, is one of a finished job.
    pub fn read(&self, body: &[u8]) -> Reading {
        let word = word(body);
        let address = self.address(body);
        let is = |words: &[String]| {
            let lower = word.as_ref().map(|word| word.to_lowercase());
            lower.is_some_and(|word| words.iter().any(|known| known.to_lowercase() == word))
        };
        let state = if is(&self.finished) || (word.is_none() && address.is_some()) {
            JobState::Finished
        } else if is(&self.failed) {
            JobState::Failed
        } else {
            JobState::Open
        };
        Reading { word, state, address }
    }

    /// The first web address that one of the pointers leads to.
    pub fn address(&self, body: &[u8]) -> Option<String> {
        let is_web = |text: &String| {
            Url::parse(text).is_ok_and(|address| matches!(address.scheme(), "http" | "https"))
        };
        let at = |pointer| text_at(body, std::slice::from_ref(pointer));
        self.result.iter().find_map(|pointer| at(pointer).filter(is_web))
    }
}

/// The word that a status body has for the state.
pub fn word(body: &[u8]) -> Option<String> {
    STATE_FIELDS.iter().find_map(|name| field(body, name))
}

/// Guess: one of these fields of the body tells the state.
const STATE_FIELDS: &[&str] = &["status", "state"];

fn field(body: &[u8], name: &str) -> Option<String> {
    Field(name).deserialize(&mut serde_json::Deserializer::from_slice(body)).ok().flatten()
}

/// The text of a field of the outermost object.
struct Field<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Option<String>, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            match found.is_none() && name.eq_ignore_ascii_case(self.0) {
                true => found = map.next_value_seed(At(&[]))?,
                false => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

/// The text at the first of `pointers` (RFC 6901) that leads to one.
pub fn text_at(body: &[u8], pointers: &[String]) -> Option<String> {
    pointers.iter().find_map(|pointer| {
        let path: Vec<String> = pointer
            .split('/')
            .skip(1)
            .map(|part| part.replace("~1", "/").replace("~0", "~"))
            .collect();
        let mut json = serde_json::Deserializer::from_slice(body);
        At(&path).deserialize(&mut json).ok().flatten()
    })
}

/// Follows the rest of a pointer into whatever comes.
struct At<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Option<String>, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<Option<String>, E> {
        Ok(self.0.is_empty().then(|| text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            match self.0.split_first() {
                Some((first, rest)) if *first == name => found = map.next_value_seed(At(rest))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Option<String>, A::Error> {
        let wanted = self
            .0
            .split_first()
            .and_then(|(first, rest)| first.parse::<usize>().ok().map(|position| (position, rest)));
        let mut found = None;
        for position in 0.. {
            let more = match wanted {
                Some((at, rest)) if at == position => {
                    let item = list.next_element_seed(At(rest))?;
                    let is_there = item.is_some();
                    found = item.flatten();
                    is_there
                }
                _ => list.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(found)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<String>, E> {
        Ok(None)
    }
}

/// How far a job is, as lists and events tell it.
#[derive(Serialize)]
pub struct Status<'a> {
    request_id: &'a str,
    /// `open`, `finished` or `failed`, by the words of `[jobs]`.
    state: &'static str,
    /// When the gateway said so; `null` before it said anything.
    at: Option<String>,
    /// The gateway's status body, unchanged.
    status: Option<Box<RawValue>>,
}

impl<'a> Status<'a> {
    /// A job of this id, with the latest word on it.
    pub fn new(request_id: &'a str, word: Option<&Word>) -> Self {
        Self {
            request_id,
            state: word.map_or("open", |word| word.state.name()),
            at: word.map(|word| clock::iso8601(word.at)),
            status: word.and_then(|word| raw(&word.body)),
        }
    }
}

/// The body as it came. It was found to be JSON when it did.
fn raw(body: &Bytes) -> Option<Box<RawValue>> {
    serde_json::from_str(&String::from_utf8_lossy(body)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pointer_that_leads_to_a_text_holds() {
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

    fn words() -> Words {
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Words {
            finished: list(&["completed", "Done"]),
            failed: list(&["failed"]),
            result: list(&["/url", "/output/0"]),
        }
    }

    #[test]
    fn a_body_is_read_by_the_words_of_the_settings_and_never_failed_for_being_strange() {
        for (body, state, word) in [
            (r#"{"status":"completed"}"#, JobState::Finished, Some("completed")),
            (r#"{"Status":"DONE","url":"https://x/a.mp4"}"#, JobState::Finished, Some("DONE")),
            (r#"{"STATE":"Failed"}"#, JobState::Failed, Some("Failed")),
            (r#"{"state":"failed","status":"rendering"}"#, JobState::Open, Some("rendering")),
            (r#"{"state":"completed","status":7}"#, JobState::Finished, Some("completed")),
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
            let reading = words().read(body.as_bytes());
            assert_eq!((reading.state, reading.word.as_deref()), (state, word), "{body}");
        }
    }
}
