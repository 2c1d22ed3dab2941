//! The faults of a request, and checks and quoting of text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Display;

use strsim::osa_distance;

use crate::gate::problem::{FieldError, Problem};

pub(super) const MAX_FAULTS: usize = 64;

#[derive(Default)]
pub(super) struct Faults {
    listed: Vec<FieldError>,
    is_truncated: bool,
}

impl Faults {
    /// Guess: the gateway has no fields but those that the contract shows (4, note 1).
    pub(super) fn unknown_fields(
        &mut self,
        unknown: &UnknownFields<'_>,
        known: &[&str],
        at: &impl Display,
    ) {
        for name in &unknown.first {
            let segment = quote(name).replace('~', "~0").replace('/', "~1");
            let hint = match nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known: {}", known.join(", ")),
            };
            let detail = format!("there is no field `{}`; {hint}", quote(name));
            self.push(format_args!("{at}/{segment}"), "unknown_field", detail);
        }
    }

    pub(super) fn push(&mut self, at: impl Display, code: &'static str, detail: String) {
        if self.listed.len() < MAX_FAULTS {
            self.listed.push(FieldError { pointer: at.to_string(), code, detail });
        } else {
            self.is_truncated = true;
        }
    }

    pub(super) fn append(&mut self, part: Self) {
        self.append_at(&"", part);
    }

    pub(super) fn append_at(&mut self, at: &impl Display, part: Self) {
        for fault in part.listed {
            self.push(format_args!("{at}{}", fault.pointer), fault.code, fault.detail);
        }
        self.is_truncated |= part.is_truncated;
    }

    /// Renames fields, for a dialect that has other names for them.
    pub(super) fn rename(&mut self, names: &[(&str, &str)]) {
        for fault in &mut self.listed {
            let renamed = names.iter().find(|(from, _)| *from == fault.pointer);
            renamed.into_iter().for_each(|(_, to)| fault.pointer = (*to).to_owned());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Returns the value unless there are faults.
    pub(super) fn accept<T>(self, value: Option<T>) -> Result<T, Problem> {
        match value {
            Some(value) if self.is_empty() => Ok(value),
            _ => Err(self.into_problem()),
        }
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    pub(super) fn into_problem(mut self) -> Problem {
        if self.is_truncated {
            self.listed.push(FieldError {
                pointer: String::new(),
                code: "more_faults",
                detail: format!("only the first {MAX_FAULTS} faults are listed"),
            });
        }
        Problem::invalid(self.listed)
    }
}

/// The unknown keys of an object: all of them, and the first few in order that are faults or ignored.
#[derive(Default)]
pub(super) struct UnknownFields<'de> {
    pub(super) names: HashSet<Cow<'de, str>>,
    pub(super) first: Vec<Cow<'de, str>>,
    pub(super) ignored: Vec<Cow<'de, str>>,
}

pub(super) const MAX_IGNORED: usize = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoredFields(Vec<String>);

impl IgnoredFields {
    /// Returns the value of `Tollgate-Ignored`, such as `temperature, messages.name`.
    pub fn names(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join(", "))
    }

    pub(super) fn add(&mut self, name: &str) {
        let plain = |letter: char| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => letter,
            _ => '?',
        };
        let name = if name.is_empty() { "?" } else { name };
        let name: String = name.chars().take(MAX_QUOTE).map(plain).collect();
        if self.0.len() < MAX_IGNORED && !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    pub(super) fn add_all(&mut self, parent: &str, ignored: &UnknownFields<'_>) {
        for name in &ignored.ignored {
            self.add(&format!("{parent}{name}"));
        }
    }

    pub(super) fn append(&mut self, part: Self) {
        part.0.iter().for_each(|name| self.add(name));
    }
}

const MAX_QUOTE: usize = 64;

/// Blank code points besides Unicode's `White_Space`, as inclusive ranges.
///
/// Guess: what the gateway calls "whitespace-only" (2.5) is no wider than this.
#[rustfmt::skip]
const INVISIBLE: &[(char, char)] = &[
    ('\u{1C}', '\u{1F}'),       // separators, which Python strips
    ('\u{AD}', '\u{AD}'),       // soft hyphen
    ('\u{34F}', '\u{34F}'),     // combining grapheme joiner
    ('\u{61C}', '\u{61C}'),     // Arabic letter mark
    ('\u{115F}', '\u{1160}'),   // Hangul fillers
    ('\u{17B4}', '\u{17B5}'),   // Khmer inherent vowels
    ('\u{180B}', '\u{180F}'),   // Mongolian selectors and vowel separator
    ('\u{200B}', '\u{200F}'),   // zero-width space, joiners, direction marks
    ('\u{202A}', '\u{202E}'),   // direction embeddings
    ('\u{2060}', '\u{206F}'),   // word joiner, invisible operators, direction isolates
    ('\u{2800}', '\u{2800}'),   // the empty Braille pattern
    ('\u{3164}', '\u{3164}'),   // Hangul filler
    ('\u{FE00}', '\u{FE0F}'),   // variation selectors
    ('\u{FEFF}', '\u{FEFF}'),   // byte order mark, which JavaScript strips
    ('\u{FFA0}', '\u{FFA0}'),   // halfwidth Hangul filler
    ('\u{FFF0}', '\u{FFF8}'),   // unassigned, ignorable by default
    ('\u{1BCA0}', '\u{1BCA3}'), // shorthand format controls
    ('\u{1D173}', '\u{1D17A}'), // musical format controls
    ('\u{E0000}', '\u{E0FFF}'), // tags and more variation selectors
];

pub(super) fn is_blank(text: &str) -> bool {
    let is_within =
        |letter| INVISIBLE.iter().any(|(first, last)| (*first..=*last).contains(&letter));
    text.chars().all(|letter| letter.is_whitespace() || is_within(letter))
}

pub(super) fn blank(text: &str) -> Option<String> {
    (!text.is_empty() && is_blank(text)).then(|| "expected text; it is only whitespace".to_owned())
}

/// A C string ends at U+0000, so another reader may see less. Guess: no prompt needs it.
pub(super) fn nul(text: &str) -> Option<String> {
    text.as_bytes().contains(&0).then(|| "expected text without U+0000".to_owned())
}

pub(super) fn not_among(text: &str, known: &[&str]) -> Option<String> {
    let expected = || join_list(known.iter().copied(), "or");
    (!known.contains(&text)).then(|| format!("expected {}, not `{}`", expected(), quote(text)))
}

/// Truncates `text` to [`MAX_QUOTE`] characters and escapes control characters.
pub(super) fn quote(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(MAX_QUOTE));
    for (position, letter) in text.chars().enumerate() {
        if position == MAX_QUOTE {
            shown.push('…');
            break;
        }
        match letter {
            '"' | '\'' => shown.push(letter),
            _ => shown.extend(letter.escape_debug()),
        }
    }
    shown
}

/// Returns the name that `given` is probably a misspelling of.
pub fn nearest<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if given.len() > MAX_QUOTE {
        return None; // the distance costs the product of both lengths
    }
    let given = given.trim().to_lowercase();
    let near = known.into_iter().filter_map(|name| {
        let most = (name.chars().count() / 3).clamp(1, 4);
        // The lower bound rules out most names at a fraction of the cost.
        let distance = (min_distance(&given, name) <= most).then(|| osa_distance(&given, name))?;
        (distance <= most).then_some((distance, name))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Returns a lower bound of the edit distance: how many characters one of the texts has more of.
/// Characters of one remainder count as equal, which only lowers it.
fn min_distance(one: &str, other: &str) -> usize {
    let mut surplus = [0_isize; 64];
    let place = |character: char| usize::try_from(u32::from(character) % 64).unwrap_or_default();
    one.chars().for_each(|character| surplus[place(character)] += 1);
    other.chars().for_each(|character| surplus[place(character)] -= 1);
    let sum = |sign: isize| -> usize {
        surplus.iter().map(|more| (more * sign).max(0).unsigned_abs()).sum()
    };
    sum(1).max(sum(-1))
}

pub(super) fn join_list<'n>(names: impl IntoIterator<Item = &'n str>, last: &str) -> String {
    let names: Vec<_> = names.into_iter().collect();
    match names.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => names.concat(),
    }
}

pub(super) fn unknown_model<'k>(
    kind: &str,
    id: &str,
    known: impl Iterator<Item = &'k str> + Clone,
) -> String {
    let name = quote(id);
    if known.clone().next().is_none() {
        return format!("no {kind} models are sold");
    }
    match nearest(id, known.clone()) {
        Some(near) => format!("there is no {kind} model `{name}`; did you mean `{near}`?"),
        None => format!("there is no {kind} model `{name}`; known: {}", join_list(known, "and")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_without_visible_characters_is_blank() {
        for blank in [
            "",
            " ",
            "\t\r\n",
            "\u{b}\u{c}",
            "\u{85}",
            "\u{a0}",
            "\u{1680}",
            "\u{2003}",
            "\u{2028}",
            "\u{3000}",
            "\u{feff}",
            "\u{1c}\u{1f}",
            "\u{200b}",
            "\u{200d}",
            "\u{2060}",
            "\u{180e}",
            "\u{3164}",
            "\u{2800}",
            "\u{ad}",
            "\u{fe0f}",
            "\u{e0020}\u{e007f}",
            "\u{115f}\u{1160}",
            "\u{ffa0}",
            "\u{200e}\u{200f}",
            " \u{feff}\u{200b}\n",
        ] {
            assert!(is_blank(blank), "{blank:?}");
        }
        for seen in ["a", " . ", "\u{200b}a\u{200b}", "❤\u{fe0f}", "\u{301}", "ㅤx", "\u{0}", "﹏"]
        {
            assert!(!is_blank(seen), "{seen:?}");
        }
    }

    #[test]
    fn invisible_ranges_are_sorted_and_disjoint() {
        for (first, last) in INVISIBLE {
            assert!(first <= last);
        }
        for pair in INVISIBLE.windows(2) {
            assert!(pair[0].1 < pair[1].0, "{pair:?}");
        }
    }

    #[test]
    fn quoted_text_is_short_and_escaped() {
        assert_eq!(quote("aspect_ratio"), "aspect_ratio");
        assert_eq!(quote("it's \"so\""), "it's \"so\"");
        assert_eq!(quote("\u{1b}[2J\n\0"), "\\u{1b}[2J\\n\\0");
        assert_eq!(quote("\u{202e}abc"), "\\u{202e}abc");
        assert_eq!(quote(&"é".repeat(64)), "é".repeat(64));
        assert_eq!(quote(&"é".repeat(65)), format!("{}…", "é".repeat(64)));
    }

    #[test]
    fn nearest_name_is_found_for_typos_only() {
        let known = ["alpha-sonnet-4.5", "eta-5", "eta-5-mini", "theta-32b"];
        for (given, found) in [
            ("alpha-sonnet-45", Some("alpha-sonnet-4.5")),
            ("Alpha-Sonnet-4.5 ", Some("alpha-sonnet-4.5")),
            ("eta5", Some("eta-5")),
            ("eta-5-mimi", Some("eta-5-mini")),
            ("gpt-4o", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, known), found, "{given}");
        }
        let padded = |width| format!("{:width$}", "eta-5-mini");
        assert_eq!(nearest(&padded(MAX_QUOTE), known), Some("eta-5-mini"));
        assert_eq!(nearest(&padded(MAX_QUOTE + 1), known), None);
        assert_eq!(nearest(&"a".repeat(2_000_000), known), None);
    }

    proptest! {
        #[test]
        fn bound_is_not_above_the_distance(one in "[a-dé漢]{0,12}", other in "[a-dé漢]{0,12}") {
            prop_assert!(min_distance(&one, &other) <= osa_distance(&one, &other));
            prop_assert_eq!(min_distance(&one, &one), 0);
        }
    }

    #[test]
    fn names_are_joined_as_in_a_sentence() {
        assert_eq!(join_list([], "or"), "");
        assert_eq!(join_list(["a"], "or"), "a");
        assert_eq!(join_list(["a", "b"], "or"), "a or b");
        assert_eq!(join_list(["a", "b", "c"], "and"), "a, b and c");
    }

    /// Stripped by Rust, JavaScript or Python, or invisible.
    const STRIPPED: &[char] = &[
        ' ',
        '\t',
        '\n',
        '\u{b}',
        '\u{c}',
        '\r',
        '\u{85}',
        '\u{a0}',
        '\u{1680}',
        '\u{2000}',
        '\u{200a}',
        '\u{2028}',
        '\u{2029}',
        '\u{202f}',
        '\u{205f}',
        '\u{3000}',
        '\u{feff}',
        '\u{1c}',
        '\u{1d}',
        '\u{1e}',
        '\u{1f}',
        '\u{200b}',
        '\u{200c}',
        '\u{200d}',
        '\u{2060}',
        '\u{180e}',
        '\u{3164}',
        '\u{2800}',
        '\u{ad}',
        '\u{fe0f}',
        '\u{e0020}',
        '\u{e007f}',
    ];

    proptest! {
        #[test]
        fn text_is_blank_exactly_if_stripping_leaves_nothing(
            blanks in prop::collection::vec(prop::sample::select(STRIPPED), 0..12),
            ink in prop::option::weighted(0.5, prop::sample::select(&['a', '.', '0', 'é', '水', '\u{1f30a}'][..])),
            at in any::<prop::sample::Index>(),
        ) {
            let mut letters = blanks;
            if let Some(ink) = ink {
                letters.insert(at.index(letters.len() + 1), ink);
            }
            let text: String = letters.into_iter().collect();
            prop_assert_eq!(is_blank(&text), text.trim_matches(STRIPPED).is_empty());
            let order = serde_json::json!({ "prompt": text }).to_string();
            let catalog = crate::gateway::contract::catalog::Catalog::published();
            let judged = crate::api::validate::video(order.as_bytes(), &catalog);
            prop_assert_eq!(judged.is_err(), is_blank(&text));
        }

        #[test]
        fn text_that_trims_to_nothing_is_blank(text in "\\PC{0,8}|\\s{0,8}") {
            prop_assert!(!text.trim().is_empty() || is_blank(&text));
        }

        #[test]
        fn quoted_text_is_bounded_without_control_characters(text in any::<String>()) {
            let shown = quote(&text);
            prop_assert!(shown.len() <= 12 * MAX_QUOTE);
            prop_assert!(!shown.chars().any(char::is_control));
        }
    }
}
