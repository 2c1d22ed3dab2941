//! Identifies videos by their first bytes, whatever the media server calls them.

#[derive(Debug, PartialEq, Eq)]
pub(super) struct VideoFormat {
    pub(super) media_type: &'static str,
    pub(super) extension: &'static str,
}

/// How many bytes identify a video.
pub(super) const HEAD_SIZE: usize = 64;

const MP4: VideoFormat = VideoFormat { media_type: "video/mp4", extension: "mp4" };
const QUICKTIME: VideoFormat = VideoFormat { media_type: "video/quicktime", extension: "mov" };
const WEBM: VideoFormat = VideoFormat { media_type: "video/webm", extension: "webm" };
const MATROSKA: VideoFormat = VideoFormat { media_type: "video/x-matroska", extension: "mkv" };
const OGG: VideoFormat = VideoFormat { media_type: "video/ogg", extension: "ogv" };
const MPEG: VideoFormat = VideoFormat { media_type: "video/mpeg", extension: "mpg" };
const AVI: VideoFormat = VideoFormat { media_type: "video/x-msvideo", extension: "avi" };

/// Brands of pictures and of sound, which have the boxes of MP4, too.
const OTHER_BRANDS: [&[u8]; 10] =
    [b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1", b"M4A ", b"M4B "];

/// Returns the format of a file that starts with these bytes, if it is a video.
///
/// A list of known brands would lose the videos of brands to come.
pub(super) fn identify(head: &[u8]) -> Option<VideoFormat> {
    let has = |word: &[u8]| head.windows(word.len()).any(|window| window == word);
    match head {
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => {
            let brand = brand.get(..4)?;
            let is_other = OTHER_BRANDS.contains(&brand);
            (!is_other).then_some(if brand == b"qt  " { QUICKTIME } else { MP4 })
        }
        [0, _, _, _, b'm', b'o' | b'd', b'o' | b'a', b'v' | b't', ..] => Some(QUICKTIME),
        [0x1A, 0x45, 0xDF, 0xA3, ..] => Some(if has(b"webm") { WEBM } else { MATROSKA }),
        [b'O', b'g', b'g', b'S', ..] => has(b"\x80theora").then_some(OGG),
        [0, 0, 1, 0xBA | 0xB3, ..] => Some(MPEG),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'A', b'V', b'I', b' ', ..] => Some(AVI),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn video_is_identified_by_its_first_bytes() {
        for (head, media_type) in [
            (&b"\0\0\0\x20ftypisom\0\0\x02\0"[..], Some("video/mp4")),
            (b"\0\0\0\x18ftypnew!\0\0\0\0", Some("video/mp4")),
            (b"\0\0\0\x14ftypqt  \0\0\0\0", Some("video/quicktime")),
            (b"\0\0\0\x6cmoov\0\0\0\x64mvhd", Some("video/quicktime")),
            (b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\x82\x84webm", Some("video/webm")),
            (b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\x82\x88matroska", Some("video/x-matroska")),
            (b"OggS\0\x02\0\0\0\0\0\0\0\0\x80theora", Some("video/ogg")),
            (b"OggS\0\x02\0\0\0\0\0\0\0\0OpusHead", None),
            (b"\0\0\x01\xba!\0\x01", Some("video/mpeg")),
            (b"RIFF\x24\x08\0\0AVI LIST", Some("video/x-msvideo")),
            (b"RIFF\x24\x08\0\0WAVEfmt ", None),
            (b"\0\0\0\x1cftypavif\0\0\0\0", None),
            (b"\0\0\0\x20ftypM4A \0\0\0\0", None),
            (b"\0\0\0\x08ftyp", None),
            (b"<!doctype html><video>", None),
            (b"\x89PNG\r\n\x1a\n", None),
            (b"~~~", None),
            (b"", None),
        ] {
            let found = identify(head).map(|format| format.media_type);
            assert_eq!(found, media_type, "{}", head.escape_ascii());
        }
    }
}
