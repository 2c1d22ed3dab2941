//! Remembers what a browser was told of each job, in the ids of its events alone: any server can go on
//! where another one ended.

use std::collections::HashSet;

use crate::jobs::{News, Word};

/// What was told of one state of one job: the start of a hash of both.
pub(super) type Mark = String;

/// The longest id that is read.
const LONGEST: usize = 4_096;
const BETWEEN: char = '.';

/// The mark of what is known of a job; `None` before the first word.
pub(super) fn mark(request_id: &str, news: &News) -> Option<Mark> {
    let Word { body, state, .. } = news.word.as_ref()?;
    let mut hasher = blake3::Hasher::new();
    for part in [request_id.as_bytes(), state.name().as_bytes(), body] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    Some(hasher.finalize().to_hex()[..12].to_owned())
}

/// The id of an event after which all of these were told.
pub(super) fn id<'a>(marks: impl Iterator<Item = &'a Mark>) -> String {
    marks.map(String::as_str).collect::<Vec<_>>().join(&BETWEEN.to_string())
}

/// What the browser that sends this `Last-Event-ID` was told.
pub(super) fn read(last_event_id: &str) -> HashSet<Mark> {
    let readable = if last_event_id.len() <= LONGEST { last_event_id } else { "" };
    readable.split(BETWEEN).filter(|mark| !mark.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::jobs::JobState;

    fn news(body: &'static str, at: u64) -> News {
        let word =
            Word { at: Duration::from_secs(at), body: Bytes::from(body), state: JobState::Open };
        News { word: Some(word), ..News::default() }
    }

    #[test]
    fn an_id_tells_which_jobs_were_told_as_they_are_now() {
        let marks = [mark("a", &news("{}", 1)), mark("b", &news("{}", 1))].map(Option::unwrap);
        let told = read(&id(marks.iter()));
        assert_eq!(told.len(), 2);
        assert!(told.contains(&mark("a", &news("{}", 2)).unwrap()), "the time is no news");
        assert!(!told.contains(&mark("a", &news("{ }", 1)).unwrap()));
        assert_eq!(mark("a", &News::default()), None);
    }

    #[test]
    fn what_is_no_id_of_ours_tells_nothing() {
        for text in ["", ".", "...", &"a.".repeat(5_000)] {
            assert!(read(text).is_empty(), "{text}");
        }
        assert!(!read("17").contains(&mark("a", &news("{}", 1)).unwrap()));
    }
}
