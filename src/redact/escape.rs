//! Decodes what JSON, URLs and HTML escape, and remembers where each byte came from.

/// What every escape begins with.
const LEADS: [u8; 3] = [b'\\', b'%', b'&'];
/// Named entities of characters that keys, base64 and escapes are made of. Of the five of XML only
/// `&amp;` matters.
const NAMED: &[(&[u8], u8)] = &[
    (b"&amp;", b'&'),
    (b"&percnt;", b'%'),
    (b"&bsol;", b'\\'),
    (b"&num;", b'#'),
    (b"&semi;", b';'),
    (b"&lowbar;", b'_'),
    (b"&underbar;", b'_'),
    (b"&plus;", b'+'),
    (b"&sol;", b'/'),
];

pub(super) struct Decoded {
    pub(super) text: Vec<u8>,
    /// Where in the source each byte of the text begins, and where the source ends.
    pub(super) starts: Vec<usize>,
}

impl Decoded {
    /// Decodes once, all notations alike. `None` if there is nothing to decode that a key could be made
    /// of, which is so for most texts.
    pub(super) fn of(source: &[u8]) -> Option<Self> {
        let mut found = next(source, 0)?;
        let mut decoded = Self {
            text: Vec::with_capacity(source.len()),
            starts: Vec::with_capacity(source.len() + 1),
        };
        let mut plain = 0;
        loop {
            decoded.text.extend_from_slice(&source[plain..found.at]);
            decoded.starts.extend(plain..found.at);
            decoded.text.push(found.byte);
            decoded.starts.push(found.at);
            plain = found.at + found.length;
            match next(source, plain) {
                Some(escape) => found = escape,
                None => break,
            }
        }
        decoded.text.extend_from_slice(&source[plain..]);
        decoded.starts.extend(plain..=source.len());
        Some(decoded)
    }

    pub(super) fn again(&self) -> Option<Self> {
        let mut decoded = Self::of(&self.text)?;
        decoded.starts.iter_mut().for_each(|start| *start = self.starts[*start]);
        Some(decoded)
    }
}

struct Escape {
    at: usize,
    byte: u8,
    length: usize,
}

/// The first escape from `from` on that stands for something that a key could be made of.
fn next(source: &[u8], mut from: usize) -> Option<Escape> {
    loop {
        let at = from + source[from..].iter().position(|byte| LEADS.contains(byte))?;
        match escape(&source[at..]) {
            Some((byte, length)) if is_of_interest(byte) => {
                return Some(Escape { at, byte, length });
            }
            _ => from = at + 1,
        }
    }
}

/// Keys, base64, and what escapes are made of.
fn is_of_interest(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-+/\\%&#;".contains(&byte)
}

/// What the text begins with, if that is an escape, and its length.
fn escape(text: &[u8]) -> Option<(u8, usize)> {
    match text {
        [b'\\', b'u' | b'U', b'0', b'0', high, low, ..] => Some((hex(*high, *low)?, 6)),
        [b'\\', b'x' | b'X', high, low, ..] => Some((hex(*high, *low)?, 4)),
        [b'\\', byte @ (b'\\' | b'/'), ..] => Some((*byte, 2)),
        [b'%', high, low, ..] => Some((hex(*high, *low)?, 3)),
        [b'&', b'#', b'x' | b'X', rest @ ..] => number(rest, 16).map(|(byte, end)| (byte, 3 + end)),
        [b'&', b'#', rest @ ..] => number(rest, 10).map(|(byte, end)| (byte, 2 + end)),
        [b'&', letter, ..] if letter.is_ascii_alphabetic() => {
            let is = |name: &[u8]| {
                text.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
            };
            NAMED.iter().find(|(name, _)| is(name)).map(|(name, byte)| (*byte, name.len()))
        }
        _ => None,
    }
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// A character reference, with or without its end. It ends where it would be beyond ASCII: what follows
/// may be the next character of a key, decoded from an escape of its own.
fn number(text: &[u8], radix: u32) -> Option<(u8, usize)> {
    let (mut value, mut length) = (0, 0);
    while let Some(digit) = text.get(length).and_then(|byte| char::from(*byte).to_digit(radix)) {
        let next = value * radix + digit;
        if next > 0x7F {
            break;
        }
        (value, length) = (next, length + 1);
    }
    let end = usize::from(text.get(length) == Some(&b';'));
    Some((u8::try_from(value).ok()?, length + end)).filter(|_| length > 0)
}
