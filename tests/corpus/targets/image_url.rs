//! The canonical form of an accepted address is accepted, is its own canonical form, and never leads to
//! a private host.

use tollgate::api::validate;

use super::oracle;

#[rustfmt::skip]
pub(super) const WORDS: &[&str] = &[
    "http://", "https://", "HTTPS://", "://", "//", "@", ":", "[", "]", "%", "%2e", "%00", "\\", "\t", "#", "?", "..", ".",
    "127.0.0.1", "0x7f.1", "2130706433", "0177.1", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:7f00:1]",
    "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1%25eth0]", "localhost", "localhost.", ".local", ".internal",
    "example.com", "xn--", "ⅼocalhost", "１２７", "。", "．", "\u{ad}", "\u{200d}", "ß", ":80", ":99999", "user:pw@",
];

pub(super) fn image_url(data: &[u8]) -> bool {
    let Ok(raw) = std::str::from_utf8(data) else { return false };
    match validate::image_url(raw) {
        Ok(canonical) => {
            assert!(canonical.len() <= 2_048, "{} bytes", canonical.len());
            assert_eq!(validate::image_url(&canonical).as_ref(), Ok(&canonical), "of {raw:?}");
            oracle::is_public(&canonical);
            true
        }
        Err(why) => {
            assert!(!why.is_empty() && why.len() < 300, "{why}");
            false
        }
    }
}
