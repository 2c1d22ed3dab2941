//! Reads the gateway's keys from where secrets may stand, and says what is wrong without repeating them.

use std::path::Path;

use super::fault::{Fault, Place};
use super::{Key, Source};
use crate::contract::wire::{KEY_PREFIX, MOST_KEYS};

const KEY: &str = "GATEWAY_API_KEY";
const KEY_FILE: &str = "GATEWAY_API_KEY_FILE";

/// The keys as given: none given is `None`; a list that is at fault is still given.
pub(super) fn read(source: &Source<'_>, faults: &mut Vec<Fault>) -> Option<(Place, Vec<Key>)> {
    let given = |name| source.environment.get(name).filter(|value| !value.trim().is_empty());
    let place = |name: &str| Place::Variable(name.to_owned());
    match (given(KEY), given(KEY_FILE)) {
        (None, None) => None,
        (Some(text), None) => Some((place(KEY), list(text, &place(KEY), faults))),
        (Some(_), Some(_)) => {
            let text = format!("expected {KEY} or {KEY_FILE}, not both");
            faults.push(Fault::new(place(KEY), text));
            Some((place(KEY), Vec::new()))
        }
        (None, Some(name)) => {
            let keys = match (source.key_file)(&source.folder.join(Path::new(name.trim()))) {
                Ok(text) => list(&text, &place(KEY_FILE), faults),
                Err(reason) => {
                    let text = format!("expected a file with the key: {reason}");
                    faults.push(Fault::new(place(KEY_FILE), text));
                    Vec::new()
                }
            };
            Some((place(KEY_FILE), keys))
        }
    }
}

/// Guess: keys are made of these (the contract shows none in full). No encoder escapes them, so that an
/// echoed key is found in plain text.
fn is_of_a_key(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-')
}

fn list(text: &str, place: &Place, faults: &mut Vec<Fault>) -> Vec<Key> {
    let keys: Vec<_> = text.split(',').map(str::trim).collect();
    let mut fault = |text: String| faults.push(Fault::new(place.clone(), text));
    if keys.len() > MOST_KEYS {
        fault(format!("expected at most {MOST_KEYS} keys, not {}", keys.len()));
    }
    for (index, key) in keys.iter().enumerate() {
        let number = index + 1;
        let rest = key.strip_prefix(KEY_PREFIX).unwrap_or_default();
        if key.is_empty() {
            fault(format!("key {number}: expected a key, nothing is there"));
        } else if rest.is_empty() {
            fault(format!("key {number}: expected a key that begins with {KEY_PREFIX}"));
        } else if let Some(place) = key.chars().position(|letter| !is_of_a_key(letter)) {
            let place = place + 1;
            fault(format!("key {number}: character {place}: expected a letter, digit, _ or -"));
        } else if let Some(first) = keys[..index].iter().position(|other| other == key) {
            fault(format!("key {number}: expected another key than key {}", first + 1));
        }
    }
    keys.into_iter().map(|key| Key::new(key.to_owned())).collect()
}
