//! Words in a prompt that make the sandbox misbehave, so that an app's error handling can be tried.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use http::StatusCode;

use super::Settings;
use super::front::{self, Answer, Stop};
use crate::sync::lock;

/// Every word that changes the sandbox's mood, and what it does, in words: for `docs/guide/getting-started.md` and the
/// page. A word counts in a video's prompt and in a chat's last user message.
pub const MOODS: &[(&str, &str)] = &const {
    let mut listed = [("", ""); ROWS.len()];
    let mut row = 0;
    while row < ROWS.len() {
        listed[row] = (ROWS[row].1, ROWS[row].2);
        row += 1;
    }
    listed
};

#[rustfmt::skip]
const ROWS: &[(Mood, &str, &str)] = &[
    (Mood::Slow,       "sandbox:slow",    "charges, and answers late"),
    (Mood::Drop,       "sandbox:drop",    "charges, then drops the connection without a reply"),
    (Mood::Hang,       "sandbox:hang",    "charges, and never answers"),
    (Mood::BadGateway, "sandbox:502",     "charges, then answers 502 with a page of HTML"),
    (Mood::Limited,    "sandbox:429",     "answers 429 without a charge; the same prompt passes when it is sent again"),
    (Mood::Garbled,    "sandbox:garbled", "charges, then answers 200 with broken JSON"),
    (Mood::Broke,      "sandbox:broke",   "answers 402 without a charge: no credit is left"),
    (Mood::Revoked,    "sandbox:revoked", "answers 401 without a charge, as if the key had been revoked"),
    (Mood::Fail,       "sandbox:fail",    "charges for a video whose job ends as failed; a chat is answered"),
];

const WORD_START: &str = "sandbox:";
/// How long `sandbox:429` asks to wait.
const LIMITED_WAIT: Duration = Duration::from_secs(2);
/// Beyond this many, prompts that wait for their second try are forgotten.
const MOST_REFUSED: usize = 10_000;

const HTML_502: &str = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n\
    <center><h1>502 Bad Gateway</h1></center>\r\n</body>\r\n</html>\r\n";
const GARBLED: &str =
    "{\"id\":\"9f2c\",\"message\":{\"role\":\"assistant\",\"content\":\"It was a br";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Calm,
    Slow,
    Drop,
    Hang,
    BadGateway,
    Limited,
    Garbled,
    Broke,
    Revoked,
    Fail,
}

impl Mood {
    /// The mood that the first such word in `text` asks for, in any case of letters.
    pub(super) fn of(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        let mood = |(at, start): (usize, &str)| {
            let rest = text[at + start.len()..].bytes();
            let length = rest.take_while(u8::is_ascii_alphanumeric).count();
            let word = &text[at..at + start.len() + length];
            ROWS.iter().find(|row| row.1 == word).map(|row| row.0)
        };
        text.match_indices(WORD_START).find_map(mood).unwrap_or(Self::Calm)
    }

    /// Refuses the call before anything is charged, where the mood does.
    pub(super) fn refuse(self, prompt: &str, refused: &RefusedOnce) -> Result<(), Stop> {
        if self == Self::Broke {
            return Err(front::refuse(front::NO_CREDIT, "No credit is left"));
        }
        if self == Self::Revoked {
            return Err(front::refuse(front::BAD_KEY, "The API key has been revoked"));
        }
        if self == Self::Limited && refused.is_first_try(prompt) {
            return Err(front::limited(LIMITED_WAIT));
        }
        Ok(())
    }

    /// Takes the time that the answer to a paid call takes, or drops its connection.
    pub(super) async fn dawdle(self, settings: &Settings) -> Result<(), Stop> {
        let wait = if self == Self::Drop {
            Duration::ZERO
        } else if self == Self::Hang {
            settings.hang
        } else if self == Self::Slow {
            settings.slow
        } else {
            settings.reply_delay
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        if matches!(self, Self::Drop | Self::Hang) { Err(Stop::Dropped) } else { Ok(()) }
    }

    /// Spoils the answer to a paid call, where the mood does.
    pub(super) fn spoil(self, answer: Answer) -> Answer {
        if self == Self::BadGateway {
            return front::answer(StatusCode::BAD_GATEWAY, "text/html", HTML_502.into());
        }
        if self == Self::Garbled {
            return front::answer(StatusCode::OK, "application/json", GARBLED.into());
        }
        answer
    }
}

/// The prompts that `sandbox:429` refused and that have not come again yet.
#[derive(Default)]
pub(super) struct RefusedOnce(Mutex<HashSet<[u8; 32]>>);

impl RefusedOnce {
    /// Every other try is a first one, so that a person can watch it more than once.
    fn is_first_try(&self, prompt: &str) -> bool {
        let prompt = *blake3::hash(prompt.as_bytes()).as_bytes();
        let mut waiting = lock(&self.0);
        if waiting.remove(&prompt) {
            return false;
        }
        if waiting.len() >= MOST_REFUSED {
            waiting.clear();
        }
        waiting.insert(prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_its_own_mood_and_says_what_it_does() {
        for (mood, word, does) in ROWS {
            assert_eq!(Mood::of(word), *mood);
            assert_eq!(Mood::of(&format!("Please (Sandbox:{}), now", &word[8..])), *mood);
            assert_eq!(Mood::of(&format!("{word}ly")), Mood::Calm);
            assert!(MOODS.contains(&(*word, *does)) && !does.is_empty());
        }
        assert_eq!(MOODS.len(), ROWS.len());
    }

    #[test]
    fn the_first_word_that_is_one_decides() {
        assert_eq!(Mood::of("sandbox: sandbox:nap sandbox:drop sandbox:slow"), Mood::Drop);
        assert_eq!(Mood::of("a sandbox on the beach, é sandbox:"), Mood::Calm);
    }
}
