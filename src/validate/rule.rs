//! A rule is a row: where it looks, what it is called, and what it says when it is broken. What is found
//! is listed as faults, or passed over and named in `Tollgate-Ignored`.

use std::fmt::Display;

use super::json::Unknown;
use super::text::{MAX_QUOTE, nearest, shown};
use crate::problem::{Fault, Problem};

/// The most faults that one problem lists: enough to mend a payload, too few to flood a reader.
pub(super) const MAX_FAULTS: usize = 64;

pub(super) struct Rule<T> {
    /// JSON pointer of the field, from the value that the table judges.
    pub(super) pointer: &'static str,
    pub(super) code: &'static str,
    /// `None` when the rule holds; otherwise what the caller is told.
    pub(super) broken: fn(&T) -> Option<String>,
}

/// The faults of one payload, so that the caller mends it in one round.
#[derive(Default)]
pub(super) struct Faults {
    listed: Vec<Fault>,
    more: bool,
}

impl Faults {
    /// Runs every rule on `value`, which lies at the pointer `at`.
    pub(super) fn judge<T>(&mut self, rules: &[Rule<T>], value: &T, at: &impl Display) {
        for rule in rules {
            if let Some(detail) = (rule.broken)(value) {
                self.push(format_args!("{at}{}", rule.pointer), rule.code, detail);
            }
        }
    }

    /// A fault for each field that the object at `at` does not take.
    ///
    /// Guess: the gateway has no fields but those that the contract shows (4, note 1).
    pub(super) fn unknown(&mut self, unknown: &Unknown<'_>, known: &[&str], at: &impl Display) {
        for name in unknown.first() {
            let place = shown(name).replace('~', "~0").replace('/', "~1");
            let hint = match nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known: {}", known.join(", ")),
            };
            let detail = format!("there is no field `{}`; {hint}", shown(name));
            self.push(format_args!("{at}/{place}"), "unknown_field", detail);
        }
    }

    pub(super) fn push(&mut self, at: impl Display, code: &'static str, detail: String) {
        if self.listed.len() < MAX_FAULTS {
            self.listed.push(Fault { pointer: at.to_string(), code, detail });
        } else {
            self.more = true;
        }
    }

    pub(super) fn append(&mut self, part: Self) {
        self.append_at(&"", part);
    }

    /// Lists the faults of a part that lies at the pointer `at`.
    pub(super) fn append_at(&mut self, at: &impl Display, part: Self) {
        for fault in part.listed {
            self.push(format_args!("{at}{}", fault.pointer), fault.code, fault.detail);
        }
        self.more |= part.more;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Whether faults were left out already, so that nobody needs to look for more.
    pub(super) fn is_overfull(&self) -> bool {
        self.more
    }

    /// The refusal; where faults were left out, its last one says so.
    pub(super) fn into_problem(mut self) -> Problem {
        if self.more {
            self.listed.push(Fault {
                pointer: String::new(),
                code: "more_faults",
                detail: format!("only the first {MAX_FAULTS} faults are listed"),
            });
        }
        Problem::invalid(self.listed)
    }
}

/// The most fields that are named.
pub(super) const MAX_IGNORED: usize = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored(Vec<String>);

impl Ignored {
    /// `temperature, messages.name`; nothing where nothing was passed over. Letters, digits, `.`, `_`
    /// and `-` only, whatever the caller sent.
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

    /// Names what was passed over in an object at `place`, which ends in a point or is empty.
    pub(super) fn add_all(&mut self, place: &str, passed: &Unknown<'_>) {
        for name in passed.first() {
            self.add(&format!("{place}{name}"));
        }
    }

    pub(super) fn append(&mut self, part: Self) {
        for name in part.0 {
            self.add(&name);
        }
    }
}
