//! Identifies pictures by their content.

use crate::gate::problem::{INVALID_REQUEST, Problem, UNSUPPORTED_MEDIA_TYPE};

/// The maximum width and height. Some decoders fail, or take up gigabytes, above it.
const MAX_SIDE: u32 = 8_192;

#[derive(Debug)]
pub struct PictureFormat {
    pub media_type: &'static str,
    pub extension: &'static str,
    /// Returns width and height, or `None` if it is another format or has bytes before or after.
    dimensions: fn(&[u8]) -> Option<(u32, u32)>,
}

static FORMATS: [PictureFormat; 3] = [
    PictureFormat { media_type: "image/png", extension: "png", dimensions: png },
    PictureFormat { media_type: "image/jpeg", extension: "jpg", dimensions: jpeg },
    PictureFormat { media_type: "image/webp", extension: "webp", dimensions: webp },
];

pub(super) fn with_extension(extension: &str) -> Option<&'static PictureFormat> {
    FORMATS.iter().find(|format| format.extension == extension)
}

/// Returns a picture's format by its content.
pub(super) fn identify(bytes: &[u8]) -> Result<&'static PictureFormat, Problem> {
    let found = FORMATS.iter().find_map(|format| Some((format, (format.dimensions)(bytes)?)));
    match found {
        Some((format, (1..=MAX_SIDE, 1..=MAX_SIDE))) => Ok(format),
        Some((_, (width, height))) => Err(Problem::new(&INVALID_REQUEST).detail(format!(
            "expected a picture of 1 to {MAX_SIDE} pixels a side, not {width} by {height}"
        ))),
        None => Err(Problem::new(&UNSUPPORTED_MEDIA_TYPE)
            .detail("expected one whole PNG, JPEG or WebP picture, without bytes after it")),
    }
}

fn png(bytes: &[u8]) -> Option<(u32, u32)> {
    let header = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")?;
    let is_whole = bytes.ends_with(b"\0\0\0\0IEND\xaeB`\x82");
    let (width, rest) = header.split_first_chunk()?;
    let (height, _) = rest.split_first_chunk()?;
    is_whole.then_some((u32::from_be_bytes(*width), u32::from_be_bytes(*height)))
}

fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut rest = bytes.strip_prefix(b"\xff\xd8")?.strip_suffix(b"\xff\xd9")?;
    loop {
        // A segment: its marker, and its length, which includes the length's own two bytes.
        let [0xff, marker, high, low, ..] = *rest else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let segment = rest.get(4..2 + length)?;
        if matches!(marker, 0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf) {
            let [_, height_high, height_low, width_high, width_low, ..] = *segment else {
                return None;
            };
            let side = |high, low| u32::from(u16::from_be_bytes([high, low]));
            return Some((side(width_high, width_low), side(height_high, height_low)));
        }
        rest = rest.get(2 + length..)?;
    }
}

fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    let little = |at: usize, length: usize| {
        let digits = bytes.get(at..at + length)?.iter().rev();
        Some(digits.fold(0, |number, byte| (number << 8) | u32::from(*byte)))
    };
    let is_whole = u64::from(little(4, 4)?) + 8 == bytes.len() as u64;
    if !bytes.starts_with(b"RIFF") || bytes.get(8..12)? != b"WEBP" || !is_whole {
        return None;
    }
    match bytes.get(12..16)? {
        b"VP8X" => Some((little(24, 3)? + 1, little(27, 3)? + 1)),
        b"VP8L" if bytes.get(20)? == &0x2f => {
            let sides = little(21, 4)?;
            Some(((sides & 0x3fff) + 1, ((sides >> 14) & 0x3fff) + 1))
        }
        b"VP8 " if bytes.get(23..26)? == b"\x9d\x01\x2a" => {
            Some((little(26, 2)? & 0x3fff, little(28, 2)? & 0x3fff))
        }
        _ => None,
    }
}
