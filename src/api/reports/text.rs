//! Formats rows as comma-separated values and as aligned columns, and limits as text.

use std::borrow::Cow;

use crate::gateway::contract::money::SpendLimit;

/// Returns lines of comma-separated values, the header first.
pub fn csv(head: &str, rows: impl Iterator<Item = impl AsRef<[String]>>) -> String {
    let mut text = format!("{head}\n");
    for row in rows {
        text += &row.as_ref().iter().map(|text| csv_cell(text)).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    text
}

/// Returns aligned columns under a comma-separated header. Columns from `numbers` on are
/// right-aligned.
pub fn table(
    head: &str,
    rows: impl Iterator<Item = impl AsRef<[String]>>,
    numbers: usize,
) -> String {
    let head: Vec<_> = head.split(',').map(str::to_owned).collect();
    let lines: Vec<_> =
        std::iter::once(head).chain(rows.map(|row| row.as_ref().to_vec())).collect();
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells =
            line.iter().zip(widths.iter().copied()).enumerate().map(|(column, (cell, width))| {
                if column < numbers { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Quotes a cell according to RFC 4180.
fn csv_cell(text: &str) -> Cow<'_, str> {
    let text = without_formulas(text);
    if text.contains([',', '"', '\r', '\n']) {
        return format!("\"{}\"", text.replace('"', "\"\"")).into();
    }
    text
}

/// Writes an apostrophe before whatever a spreadsheet could run as a formula. Some separate cells at
/// other characters than commas, and then ignore the quotes.
fn without_formulas(text: &str) -> Cow<'_, str> {
    let begins = |c: char| matches!(c, '=' | '+' | '-' | '@' | '＝' | '＋' | '－' | '＠');
    let separates = |c: char| c.is_whitespace() || c.is_control() || ",;:|\"".contains(c);
    if !text.contains(begins) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 1);
    let mut is_start = true;
    for c in text.chars() {
        if is_start && begins(c) {
            safe.push('\'');
        }
        safe.push(c);
        is_start = separates(c);
    }
    safe.into()
}

/// Removes control characters, and those that change the direction of text.
pub fn strip_controls(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().filter(|c| !c.is_control() && !turns(*c)).collect()
}

pub fn pluralize(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Describes a limit such as `$5.00 a day and $50.00 a month`; `None` if there is no limit.
pub fn limit_text(limit: SpendLimit) -> Option<String> {
    let texts =
        limit.rows().map(|(period, amount)| format!("{} {}", amount.short(), period.phrase()));
    let texts: Vec<_> = texts.collect();
    (!texts.is_empty()).then(|| texts.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_is_quoted_when_needed_and_is_never_a_formula() {
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
            ("\t=1", "\t'=1"),
            ("\r=1", "\"\r'=1\""),
            ("x;=cmd|' /C calc'!A0", "x;'=cmd|' /C calc'!A0"),
            ("x; =1+1", "x; '=1+1"),
            ("x\t@A1|+1:-1", "x\t'@A1|'+1:'-1"),
            ("x;\"=1\"", "\"x;\"\"'=1\"\"\""),
            ("x,\n＝1", "\"x,\n'＝1\""),
            ("ann-marie+bob=c@example.com", "ann-marie+bob=c@example.com"),
        ] {
            assert_eq!(csv_cell(text), written, "{text:?}");
        }
    }

    #[test]
    fn control_characters_are_stripped() {
        assert_eq!(strip_controls("a\u{1b}[31mb\r\n\u{202e}c é"), "a[31mbc é");
    }
}
