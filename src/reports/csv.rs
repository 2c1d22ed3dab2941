//! Writes text into a cell of comma-separated values, so that no reader takes it for more than text.

use std::borrow::Cow;

/// A cell as RFC 4180 wants it. Spreadsheets compute what begins like a formula: an apostrophe before it
/// makes it text.
pub fn cell(text: &str) -> Cow<'_, str> {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let breaks = text.contains([',', '"', '\r', '\n']);
    if !is_formula && !breaks {
        return Cow::Borrowed(text);
    }
    let mark = if is_formula { "'" } else { "" };
    match breaks {
        true => format!("\"{mark}{}\"", text.replace('"', "\"\"")).into(),
        false => format!("{mark}{text}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_quoted_where_it_must_be_and_never_a_formula() {
        for (text, written) in [
            ("plain", "plain"),
            ("", ""),
            ("member:ann", "member:ann"),
            ("2001:db8::/64", "2001:db8::/64"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            ("=1+1", "'=1+1"),
            ("-ann", "'-ann"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("+1,2", "\"'+1,2\""),
            ("=cmd|' /C calc'!\"A0\"", "\"'=cmd|' /C calc'!\"\"A0\"\"\""),
            ("\t=1", "'\t=1"),
            ("\r=1", "\"'\r=1\""),
        ] {
            assert_eq!(cell(text), written, "{text:?}");
        }
    }
}
