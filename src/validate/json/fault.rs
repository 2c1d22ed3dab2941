//! Says where a body stops being JSON, and what was expected there, without quoting it.

use serde_json::error::Category;

use crate::problem::{MALFORMED_JSON, Problem};

/// The reader's own words for a fault of syntax, and ours, which say what was expected.
#[rustfmt::skip]
pub(super) const WORDS: &[(&str, &str)] = &[
    ("EOF while parsing a list",          "the body ends within an array"),
    ("EOF while parsing an object",       "the body ends within an object"),
    ("EOF while parsing a string",        "the body ends within a string"),
    ("EOF while parsing a value",         "the body ends where a value is expected"),
    ("control character",                 "expected an escape such as \\n instead of a raw control character"),
    ("expected `,` or `]`",               "expected `,` or `]` after an element of an array"),
    ("expected `,` or `}`",               "expected `,` or `}` after a value of an object"),
    ("expected `:`",                      "expected `:` after a key"),
    ("expected ident",                    "expected `true`, `false` or `null`"),
    ("expected value",                    "expected a value"),
    ("invalid escape",                    "expected \" \\ / b f n r t, or u and four hexadecimal digits, after a backslash"),
    ("invalid number",                    "expected a number as JSON writes it"),
    ("key must be a string",              "expected a key in double quotes"),
    ("lone leading surrogate",            "expected a whole surrogate pair, such as \\ud83d\\ude00"),
    ("number out of range",               "expected a number that is not this large"),
    ("trailing characters",               "expected nothing after the object"),
    ("trailing comma",                    "expected a further item after the comma, or no comma"),
    ("unexpected end of hex escape",      "expected a whole surrogate pair, such as \\ud83d\\ude00"),
];

pub(super) fn text(payload: &[u8]) -> Result<&str, Problem> {
    let text = std::str::from_utf8(payload)
        .map_err(|error| problem(payload, error.valid_up_to() + 1, "expected UTF-8"))?;
    let start = text.bytes().position(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    match start.map(|start| (start, payload[start])) {
        Some((_, b'{')) => Ok(text),
        Some((_, 0xEF)) if text.starts_with('\u{FEFF}') => {
            Err(problem(payload, 1, "expected `{` without a byte order mark before it"))
        }
        Some((start, _)) => {
            Err(problem(payload, start + 1, "expected `{`: the body is one JSON object"))
        }
        None => Err(problem(payload, payload.len(), "expected a JSON object: the body is empty")),
    }
}

/// The refusal for an error in `part`, which is a slice of `payload`.
pub(super) fn malformed(payload: &[u8], part: &str, error: &serde_json::Error) -> Problem {
    let start = part.as_ptr().addr().saturating_sub(payload.as_ptr().addr());
    let line_start: usize =
        part.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    problem(payload, start + line_start + error.column(), &words(error))
}

fn words(error: &serde_json::Error) -> String {
    let said = error.to_string();
    match error.classify() {
        Category::Data => {
            let place = format!(" at line {} column {}", error.line(), error.column());
            said.strip_suffix(&place).unwrap_or(&said).to_owned()
        }
        Category::Syntax | Category::Eof | Category::Io => WORDS
            .iter()
            .find(|(theirs, _)| said.starts_with(theirs))
            .map_or("expected well-formed JSON", |(_, ours)| ours)
            .to_owned(),
    }
}

/// `read` is how many bytes lie before the fault, or end with it.
fn problem(payload: &[u8], read: usize, expected: &str) -> Problem {
    let before = &payload[..read.min(payload.len())];
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    let column = before[line_start..].iter().filter(|byte| **byte & 0xC0 != 0x80).count().max(1);
    Problem::new(&MALFORMED_JSON).detail(format!("line {line}, column {column}: {expected}"))
}
