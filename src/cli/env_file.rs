//! Reads `.env`. Values are taken as they are written: nothing is expanded in them, because they may be secrets.

use std::iter;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct EnvEntry<'a> {
    pub(super) name: &'a str,
    /// `None` if programs that read such files disagree about it.
    pub(super) value: Option<&'a str>,
}

/// Returns the entries with the numbers of their lines. `None` is a line without a name, or a quote without an
/// end.
pub(super) fn entries(text: &str) -> impl Iterator<Item = (usize, Option<EnvEntry<'_>>)> {
    let (mut rest, mut line) = (text.trim_start_matches('\u{feff}'), 1);
    let next = move || {
        let (entry, end) = read(rest);
        let (own, first) = (&rest[..end], line);
        (rest, line) = (&rest[end..], line + own.matches('\n').count());
        let is_comment = own.trim().is_empty() || own.trim_start().starts_with('#');
        (!own.is_empty()).then_some((first, !is_comment, entry))
    };
    let entries = iter::from_fn(next).filter(|(_, is_entry, _)| *is_entry);
    entries.map(|(line, _, entry)| (line, entry))
}

/// Reads the entry at the start, and returns where the next line begins.
fn read(text: &str) -> (Option<EnvEntry<'_>>, usize) {
    let line_end = |from: usize| text[from..].find('\n').map_or(text.len(), |at| from + at + 1);
    let end = line_end(0);
    let Some((name, value)) = text[..end].split_once('=') else { return (None, end) };
    let name = name.trim();
    let name = name.strip_prefix("export ").map_or(name, str::trim_start);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_plain) {
        return (None, end);
    }
    let Some(quote) = value.trim_start().chars().next().filter(|it| ['\'', '"'].contains(it))
    else {
        return (Some(EnvEntry { name, value: unquoted(value) }), end);
    };
    let start = end - value.trim_start().len() + 1;
    let Some(length) = closing(&text[start..], quote) else { return (None, end) };
    let (value, after) = text[start..].split_at(length);
    let end = line_end(start + length);
    let after = &after[1..end - start - length];
    let is_alone = after.trim().is_empty() || without_comment(after).trim().is_empty();
    let is_escaped = quote == '"' && value.contains('\\');
    (Some(EnvEntry { name, value: Some(value).filter(|_| is_alone && !is_escaped) }), end)
}

/// Returns where the quote ends, which a backslash in double quotes may delay.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut letters = text.char_indices();
    loop {
        match letters.next()? {
            (at, letter) if letter == quote => return Some(at),
            (_, '\\') if quote == '"' => _ = letters.next(),
            _ => {}
        }
    }
}

fn unquoted(text: &str) -> Option<&str> {
    let value = without_comment(text).trim();
    let is_read_otherwise = |letter: char| letter.is_whitespace() || "\"'\\".contains(letter);
    (!value.contains(is_read_otherwise)).then_some(value)
}

fn without_comment(text: &str) -> &str {
    let mut marks = text.match_indices('#').map(|(at, _)| text.split_at(at).0);
    marks.find(|before| before.ends_with(char::is_whitespace)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(written: &str) -> Option<String> {
        let text = format!("# A='\nA={written}\nB=2\n");
        let all: Vec<_> = entries(&text).collect();
        let (line, Some(EnvEntry { name: "A", value })) = &all[0] else { return None };
        assert_eq!(*line, 2, "{written}");
        let last = EnvEntry { name: "B", value: Some("2") };
        let line = 3 + written.matches('\n').count();
        assert_eq!(all[1..], [(line, Some(last))], "{written}");
        value.map(str::to_owned)
    }

    #[test]
    fn values_are_taken_as_written_in_every_kind_of_quoting() {
        for secret in
            ["p$HOME", "$$", "a${HOME}b", "$(id)", "`id`", "a#b", "#a", "a=b=", "é!%\u{a0}"]
        {
            if !secret.contains('\u{a0}') {
                assert_eq!(value(secret).as_deref(), Some(secret));
                assert_eq!(value(&format!("{secret}\t # x")).as_deref(), Some(secret));
            }
            for quote in ['\'', '"'] {
                for after in ["", " ", " # it's a \"comment\"", "\r"] {
                    let written = format!("{quote}{secret}{quote}{after}");
                    assert_eq!(value(&written).as_deref(), Some(secret), "{written}");
                }
            }
        }
        for (written, expected) in [
            ("", ""),
            ("  # x", ""),
            ("''", ""),
            ("' a b '", " a b "),
            ("'\\n\\$'", "\\n\\$"),
            ("'a\nC=\nb'", "a\nC=\nb"),
            ("\"it's\"", "it's"),
            ("'[\"a\"]'", "[\"a\"]"),
        ] {
            assert_eq!(value(written).as_deref(), Some(expected), "{written}");
        }
    }

    #[test]
    fn values_that_programs_read_in_different_ways_are_not_taken() {
        for written in [
            "a b",
            "a\\$b",
            "a\\",
            "a\"b\"",
            "it's",
            "\"a\\$b\"",
            "\"a\\nb\"",
            "\"a\\\"b\"",
            "'a'b",
            "'a' b",
            "'a'#b",
            "\"a\"'b'",
        ] {
            assert_eq!(value(written), None, "{written}");
        }
    }

    #[test]
    fn lines_without_a_name_or_an_end_are_found() {
        let lines =
            |text| entries(text).map(|(line, entry)| (line, entry.is_some())).collect::<Vec<_>>();
        assert_eq!(lines("\u{feff}export A=1\n\nB\n C = 1\n"), [(1, true), (3, false), (4, true)]);
        assert_eq!(lines("A='x\nB=1"), [(1, false), (2, true)]);
        assert_eq!(
            lines("=1\nA B=1\r\nA-B=1\nexport A"),
            [(1, false), (2, false), (3, false), (4, false)]
        );
        assert_eq!(lines(""), []);
    }
}
