//! Names the setting that a user probably meant.

use super::fault::{Fault, Place};

/// Names that people give a key where none may stand.
const KEY_NAMES: &[&str] = &["key", "keys", "api_key", "api_keys", "secret", "token"];
/// The longest name that is repeated to its writer.
const LONGEST_NAME: usize = 60;

/// The fault of a name that is no setting; `name` is a section's, or `section.setting`.
pub(super) fn unknown(place: Place, name: &str, known: &[String]) -> Fault {
    let shown: String = name.chars().take(LONGEST_NAME).flat_map(char::escape_debug).collect();
    let kind = if name.contains('.') { "setting" } else { "section" };
    let mut text = format!("unknown {kind} `{shown}`");
    let own = name.rsplit('.').next().unwrap_or(name);
    if KEY_NAMES.contains(&own) {
        text.push_str(", expected keys in GATEWAY_API_KEY or GATEWAY_API_KEY_FILE alone");
    } else if let Some(nearest) = nearest(name, known) {
        let meant = match &place {
            Place::Variable(_) => variable(nearest),
            Place::Spot { .. } | Place::Line { .. } | Place::File(_) | Place::Nowhere => {
                nearest.to_owned()
            }
        };
        text.push_str(&format!(", did you mean `{meant}`?"));
    }
    Fault::new(place, text)
}

fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let sections = known.iter().filter_map(|full| full.split_once('.')).map(|(section, _)| section);
    let settings = known.iter().map(String::as_str);
    if name.contains('.') {
        let full = closest(name, settings.clone());
        // The right setting in the wrong section.
        full.or_else(|| settings.clone().find(|full| own(full) == own(name)))
    } else {
        // A setting that stands before the first section looks like one.
        settings.clone().find(|full| own(full) == name).or_else(|| closest(name, sections))
    }
}

fn own(full: &str) -> &str {
    full.split_once('.').map_or(full, |(_, name)| name)
}

fn closest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = 2.max(own(name).chars().count() / 3);
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= far)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn variable(setting: &str) -> String {
    format!("TOLLGATE_{}", setting.replacen('.', "__", 1).to_ascii_uppercase())
}
