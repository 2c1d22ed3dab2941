//! Decodes a text once, as programs that read a reply do. Written for tests alone, from the formats'
//! own rules.

use std::io::BufRead;

type Decode = fn(&[u8]) -> Vec<u8>;

/// Each of them.
pub(crate) const ALL: [Decode; 3] = [json, url, html];

/// As a parser of JSON or JavaScript reads the inside of a string.
fn json(text: &[u8]) -> Vec<u8> {
    decoded(text, b'\\', |rest| {
        let rest = rest.strip_prefix(b"\\")?;
        match rest.first()? {
            b'u' => Some((number(rest.get(1..5)?, 16)?, 6)),
            b'x' => Some((number(rest.get(1..3)?, 16)?, 4)),
            letter @ (b'\\' | b'/' | b'"') => Some((char::from(*letter), 2)),
            _ => None,
        }
    })
}

/// Percent-encoding.
fn url(text: &[u8]) -> Vec<u8> {
    decoded(text, b'%', |rest| {
        let code = number(rest.strip_prefix(b"%")?.get(..2)?, 16)?;
        code.is_ascii().then_some((code, 3))
    })
}

/// Character references, with or without their ends.
fn html(text: &[u8]) -> Vec<u8> {
    decoded(text, b'&', |rest| {
        if rest.starts_with(b"&amp;") {
            return Some(('&', 5));
        }
        let digits = rest.strip_prefix(b"&#")?;
        let (digits, radix, lead) = match digits.first()? {
            b'x' | b'X' => (&digits[1..], 16, 3),
            _ => (digits, 10, 2),
        };
        let is_digit = |byte: &u8| char::from(*byte).is_digit(radix);
        let length = digits.iter().position(|byte| !is_digit(byte)).unwrap_or(digits.len());
        let end = usize::from(digits.get(length) == Some(&b';'));
        Some((number(&digits[..length], radix)?, lead + length + end))
    })
}

fn number(digits: &[u8], radix: u32) -> Option<char> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    char::from_u32(u32::from_str_radix(digits, radix).ok()?)
}

/// The text with each escape replaced. Escapes begin with `lead`; `escape` reads one at the beginning of what it is
/// given, and its length.
fn decoded(text: &[u8], lead: u8, escape: impl Fn(&[u8]) -> Option<(char, usize)>) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while !rest.is_empty() {
        let from = rest;
        let copied = rest.read_until(lead, &mut out).expect("a slice can be read");
        if out.last() != Some(&lead) {
            break;
        }
        if let Some((letter, length)) = escape(&from[copied - 1..]) {
            out.pop();
            out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            rest = &from[copied - 1 + length..];
        }
    }
    out
}
