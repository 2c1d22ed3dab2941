//! Reads one character that may be escaped as JSON, URLs or HTML do.
//!
//! The reader knows which character it looks for, so nothing is decoded and nothing is allocated. It can
//! start anywhere: an escape that is cut short before a key cannot hide the key's first character.

/// What every escape begins with.
pub(super) const LEADS: [u8; 3] = [b'\\', b'%', b'&'];
/// How often a character may be escaped: `_` as `\u005f`, and this as `%5cu005f`.
const DEPTH: u8 = 2;
const HEX: &[u8; 16] = b"0123456789abcdef";
/// Named entities of characters that keys, base64 and escapes are made of. Of the five of XML only
/// `&amp;` matters: the others are no part of a key.
const NAMED: &[(u8, &[u8])] = &[
    (b'&', b"amp;"),
    (b'%', b"percnt;"),
    (b'\\', b"bsol;"),
    (b'#', b"num;"),
    (b';', b"semi;"),
    (b'_', b"lowbar;"),
    (b'_', b"underbar;"),
    (b'+', b"plus;"),
    (b'/', b"sol;"),
];

/// Returns where `byte` ends if it stands at `at`, in either case of letters, plain or escaped.
pub(super) fn skip(text: &[u8], at: usize, byte: u8) -> Option<usize> {
    unit(text, at, byte, DEPTH)
}

fn unit(text: &[u8], at: usize, byte: u8, depth: u8) -> Option<usize> {
    let first = *text.get(at)?;
    if first.eq_ignore_ascii_case(&byte) {
        return Some(at + 1);
    }
    match depth {
        0 => None,
        _ if !LEADS.contains(&first) => None,
        _ => escape(text, at, byte, depth - 1),
    }
}

/// The same, escaped. `depth`: how often the escape's own characters may be escaped.
fn escape(text: &[u8], at: usize, byte: u8, depth: u8) -> Option<usize> {
    LEADS.into_iter().find_map(|lead| {
        let plain = (text.get(at) == Some(&lead)).then_some(at + 1);
        let escaped = depth.checked_sub(1).and_then(|depth| escape(text, at, lead, depth));
        plain.into_iter().chain(escaped).find_map(|at| rest(text, at, lead, byte, depth))
    })
}

/// What follows an escape's first character.
fn rest(text: &[u8], at: usize, lead: u8, byte: u8, depth: u8) -> Option<usize> {
    let word = |at, word: &[u8]| word.iter().try_fold(at, |at, c| unit(text, at, *c, depth));
    let cases = [byte.to_ascii_lowercase(), byte.to_ascii_uppercase()];
    let hex = |at| cases.iter().find_map(|byte| word(at, &digits(*byte)));
    match lead {
        b'\\' => {
            // JSON writes `\\` and `\/`.
            let plain = || matches!(byte, b'\\' | b'/').then(|| unit(text, at, byte, depth));
            let unicode = word(at, b"u00").and_then(hex);
            unicode.or_else(|| word(at, b"x").and_then(hex)).or_else(|| plain().flatten())
        }
        b'%' => hex(at),
        _ => {
            let mut named = NAMED.iter().filter(|(named, _)| *named == byte);
            let number = || {
                let at = word(at, b"#")?;
                let zeros = |mut at| {
                    while let Some(next) = unit(text, at, b'0', depth) {
                        at = next;
                    }
                    at
                };
                let decimal = |byte: &u8| word(zeros(at), byte.to_string().as_bytes());
                let end = cases.iter().find_map(decimal).or_else(|| hex(zeros(word(at, b"x")?)))?;
                // HTML reads it without its end, too.
                Some(unit(text, end, b';', depth).unwrap_or(end))
            };
            number().or_else(|| named.find_map(|(_, name)| word(at, name)))
        }
    }
}

fn digits(byte: u8) -> [u8; 2] {
    [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]
}
