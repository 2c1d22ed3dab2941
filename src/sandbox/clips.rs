//! `GET /clips/<name>.mp4`: the clips that jobs end in, for any player, with ranges and without a key.

use std::ops::Range;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL,
    CONTENT_RANGE, HeaderMap, IF_RANGE, RANGE,
};
use http::{HeaderValue, StatusCode};

use super::wire::{self, Answer, Reply};

/// Where clips live.
pub(super) const FOLDER: &str = "/clips/";

/// Drawn by `contrib/make-clips.sh`.
const CLIPS: &[(&str, &[u8])] = &[
    ("landscape.mp4", include_bytes!("clips/landscape.mp4")),
    ("portrait.mp4", include_bytes!("clips/portrait.mp4")),
];

/// The absolute address of a clip on `origin`.
pub(super) fn address(origin: &str, is_portrait: bool) -> String {
    let (name, _) = CLIPS[usize::from(is_portrait)];
    format!("{origin}{FOLDER}{name}")
}

/// The clip at `path`, or the part of it that `Range` asks for.
pub(super) fn send(path: &str, headers: &HeaderMap) -> Reply {
    let name = path.strip_prefix(FOLDER).unwrap_or_default();
    let Some((_, clip)) = CLIPS.iter().find(|(known, _)| *known == name) else {
        return Err(wire::refuse(wire::NOT_FOUND, "There is no such clip"));
    };
    // We give no validator, so whatever If-Range holds does not match: the whole clip, then.
    let range = headers.get(RANGE).filter(|_| !headers.contains_key(IF_RANGE));
    let part = range
        .and_then(|value| value.to_str().ok())
        .map_or(Part::Whole, |range| Part::of(range, clip.len()));
    Ok(decorate(match part {
        Part::Whole => mp4(StatusCode::OK, clip),
        Part::Some(bytes) => {
            let shown = format!("bytes {}-{}/{}", bytes.start, bytes.end - 1, clip.len());
            with_range(mp4(StatusCode::PARTIAL_CONTENT, &clip[bytes]), &shown)
        }
        Part::Beyond => {
            let shown = format!("bytes */{}", clip.len());
            with_range(mp4(StatusCode::RANGE_NOT_SATISFIABLE, &[]), &shown)
        }
    }))
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// Not empty, and within the clip.
    Some(Range<usize>),
    Beyond,
}

impl Part {
    /// Reads one range of bytes (RFC 9110, 14.1.2). What is malformed, and several ranges at once,
    /// ask for the whole.
    fn of(range: &str, length: usize) -> Self {
        let one = range.strip_prefix("bytes=").and_then(|range| range.trim().split_once('-'));
        let (first, last) = match one {
            Some(("", suffix)) => match suffix.parse::<usize>() {
                Ok(0) => return Self::Beyond,
                Ok(suffix) => (length.saturating_sub(suffix), length - 1),
                Err(_) => return Self::Whole,
            },
            Some((first, last)) => match (first.parse::<usize>(), last.parse::<usize>()) {
                (Ok(first), Ok(last)) if first <= last => (first, last),
                (Ok(first), Err(_)) if last.is_empty() => (first, length - 1),
                _ => return Self::Whole,
            },
            None => return Self::Whole,
        };
        match first < length {
            true => Self::Some(first..last.min(length - 1) + 1),
            false => Self::Beyond,
        }
    }
}

fn mp4(status: StatusCode, bytes: &'static [u8]) -> Answer {
    wire::answer(status, "video/mp4", Bytes::from_static(bytes))
}

fn with_range(mut answer: Answer, range: &str) -> Answer {
    if let Ok(range) = HeaderValue::from_str(range) {
        answer.headers_mut().insert(CONTENT_RANGE, range);
    }
    answer
}

/// Any page may play a clip and read it by script.
fn decorate(mut answer: Answer) -> Answer {
    for (name, value) in [
        (ACCEPT_RANGES, "bytes"),
        (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (ACCESS_CONTROL_EXPOSE_HEADERS, "accept-ranges, content-length, content-range"),
        (CACHE_CONTROL, "public, max-age=3600"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_players_write_them() {
        for (range, part) in [
            ("bytes=0-", Part::Some(0..100)),
            ("bytes=0-0", Part::Some(0..1)),
            ("bytes=10-19", Part::Some(10..20)),
            ("bytes=99-200", Part::Some(99..100)),
            ("bytes=-1", Part::Some(99..100)),
            ("bytes=-500", Part::Some(0..100)),
            ("bytes=100-", Part::Beyond),
            ("bytes=-0", Part::Beyond),
            ("bytes=20-10", Part::Whole),
            ("bytes=a-b", Part::Whole),
            ("bytes=-", Part::Whole),
            ("bytes=0-1,4-5", Part::Whole),
            ("lines=0-1", Part::Whole),
            ("", Part::Whole),
        ] {
            assert_eq!(Part::of(range, 100), part, "{range}");
        }
    }

    #[test]
    fn both_clips_are_small_and_ready_to_stream() {
        for (name, clip) in CLIPS {
            assert!(clip.len() < 60 * 1024, "{name} has {} bytes", clip.len());
            let place = |word: &[u8]| clip.windows(4).position(|four| four == word);
            assert!(place(b"moov") < place(b"mdat"), "{name}: its index comes last");
            assert_eq!(place(b"ftyp"), Some(4), "{name}");
        }
    }
}
