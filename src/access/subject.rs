//! The names of users of the web app's own login, as people see them in logs and lists.

use std::sync::Arc;

const MAX_LEN: usize = 255;

/// Returns the name with invisible characters escaped, or `None` if it cannot be a name.
pub(super) fn escaped(name: &str) -> Option<Arc<str>> {
    // Line breaks and bidirectional controls would forge what people see in logs and lists.
    let is_forbidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let is_name =
        !name.trim().is_empty() && name.len() <= MAX_LEN && !name.chars().any(is_forbidden);
    is_name.then(|| escape_invisible(name).into())
}

/// Escapes invisible characters as `\u{…}`, so that different names look different.
///
/// A literal `\u{` is escaped as well, so that different names stay different.
fn escape_invisible(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for (at, c) in name.char_indices() {
        let looks_escaped = c == '\\' && name[at..].starts_with("\\u{");
        if looks_escaped || is_invisible(c) {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Unicode's `Default_Ignorable_Code_Point`, interlinear annotation, and blank symbols.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{206f}' | '\u{2800}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_in_a_subject_are_escaped() {
        for (name, escaped) in [
            ("ada", "ada"),
            ("CORP\\ada", "CORP\\ada"),
            (
                "zo\u{eb} \u{627}\u{62f}\u{627} \u{1f99c}",
                "zo\u{eb} \u{627}\u{62f}\u{627} \u{1f99c}",
            ),
            ("ada\u{200b}", "ada\\u{200b}"),
            ("a\u{ad}d\u{2060}a\u{e0041}", "a\\u{ad}d\\u{2060}a\\u{e0041}"),
            ("\u{61c}ada\u{fe0f}", "\\u{61c}ada\\u{fe0f}"),
            ("ada\\u{200b}", "ada\\u{5c}u{200b}"),
            ("ada\\u200b", "ada\\u200b"),
        ] {
            assert_eq!(escape_invisible(name), escaped);
            assert_eq!(super::escaped(name).as_deref(), Some(escaped));
        }
    }
}
