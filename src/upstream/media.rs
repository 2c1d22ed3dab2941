//! Fetches finished videos from where the gateway put them: from the listed origins only, without
//! our key, without following anything.

use std::time::Duration;

use http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName,
    HeaderValue, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, Method, Response, StatusCode};
use hyper::body::Incoming;
use tokio::time::timeout;
use url::Url;

use super::Error;
use super::connect::{Connector, fetch};

const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// What of the reply's head reaches the caller.
const PASSED: &[HeaderName] = &[CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED];
/// How files of these types end; those of any other end as the first.
const ENDINGS: &[(&str, &str)] = &[
    ("video/mp4", "mp4"),
    ("video/webm", "webm"),
    ("video/quicktime", "mov"),
    ("video/x-matroska", "mkv"),
    ("video/ogg", "ogv"),
    ("video/mpeg", "mpg"),
];

/// Fetches from these origins.
#[derive(Clone, Debug)]
pub struct Media {
    origins: Vec<String>,
    patience: Duration,
}

impl Media {
    /// `origins` as browsers write them; `patience` is how long a connection may take.
    pub fn new(origins: Vec<String>, patience: Duration) -> Self {
        Self { origins, patience }
    }

    /// The address, if it may be fetched.
    pub fn allowed(&self, address: &str) -> Option<Url> {
        let address = Url::parse(address).ok()?;
        let origin = address.origin().ascii_serialization();
        let is_plain = address.username().is_empty() && address.password().is_none();
        (is_plain && self.origins.contains(&origin)).then_some(address)
    }

    /// A video, or the range of it that was asked for. The body streams. Whatever is not a video,
    /// or a refusal of the range, is an error.
    pub async fn fetch(
        &self,
        address: &Url,
        method: Method,
        range: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, Error> {
        let connector = Connector::new(address, self.patience).map_err(Error::Unreachable)?;
        let mut connection = connector.connect().await?;
        let range = range.map(|range| (RANGE, range.clone())).into_iter().collect();
        let fetched = timeout(HEAD_TIMEOUT, fetch(&mut connection, address, method, range)).await;
        only_video(fetched.map_err(|_elapsed| Error::Late(HEAD_TIMEOUT))??)
    }
}

fn only_video(reply: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    let (mut head, body) = reply.into_parts();
    let media_type = media_type(&head.headers);
    let fine = match head.status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => media_type.is_some(),
        status => status == StatusCode::RANGE_NOT_SATISFIABLE,
    };
    if !fine {
        return Err(Error::Status(head.status));
    }
    let all = std::mem::take(&mut head.headers);
    let passed = PASSED.iter().filter_map(|name| Some((name.clone(), all.get(name)?.clone())));
    head.headers.extend(passed);
    if let Some(media_type) = media_type {
        let ending =
            ENDINGS.iter().find(|(known, _)| *known == media_type).unwrap_or(&ENDINGS[0]).1;
        let name = format!("inline; filename=\"video.{ending}\"");
        let labels = [(CONTENT_TYPE, media_type), (CONTENT_DISPOSITION, name)];
        let labels =
            labels.into_iter().filter_map(|(label, text)| Some((label, text.try_into().ok()?)));
        head.headers.extend(labels);
    }
    Ok(Response::from_parts(head, body))
}

/// The type of a video, without its parameters. What a browser could read as another type is none: a
/// list, two headers, XML, anything but a token.
fn media_type(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let essence = value.to_str().ok()?.split(';').next()?.trim().to_ascii_lowercase();
    let name = essence.strip_prefix("video/")?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b".+-".contains(&byte);
    let is_video = !name.is_empty() && name.bytes().all(is_token) && !name.ends_with("+xml");
    is_video.then_some(essence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_video_types_pass_and_lose_their_parameters() {
        let read = |values: &[&str]| {
            let value = |text: &&str| (CONTENT_TYPE, HeaderValue::from_str(text).unwrap());
            media_type(&values.iter().map(value).collect())
        };
        for (value, passes) in [
            ("video/mp4", "video/mp4"),
            ("Video/MP4", "video/mp4"),
            ("video/mp4; codecs=\"avc1, mp4a\"", "video/mp4"),
            ("video/mp4;charset=utf-7", "video/mp4"),
            ("video/vnd.dlna.mpeg-tts", "video/vnd.dlna.mpeg-tts"),
            ("video/x+zip", "video/x+zip"),
        ] {
            assert_eq!(read(&[value]).as_deref(), Some(passes), "{value}");
        }
        for value in [
            "",
            "video",
            "video/",
            "video/;x",
            "video/mp4, text/html",
            "video/mp4,text/html",
            "video/mp4 text/html",
            "video/svg+xml",
            "video/SVG+XML; a=b",
            "video/mp4/x",
            "video/*",
            "text/html",
            "text/html; video/mp4",
            "application/octet-stream",
            "video/mp\u{e9}",
        ] {
            assert_eq!(read(&[value]), None, "{value}");
        }
        assert_eq!(read(&[]), None);
        assert_eq!(read(&["video/mp4", "text/html"]), None);
        assert_eq!(read(&["video/mp4", "video/mp4"]), None);
    }

    #[test]
    fn only_listed_origins_are_fetched_from() {
        let media = Media::new(vec!["https://cdn.example".to_owned()], Duration::from_secs(1));
        assert!(media.allowed("https://cdn.example/a.mp4?x=1").is_some());
        for address in [
            "http://cdn.example/a.mp4",
            "https://cdn.example:444/a.mp4",
            "https://cdn.example.evil.example/a.mp4",
            "https://user@cdn.example/a.mp4",
            "https://127.0.0.1/a.mp4",
            "file:///etc/passwd",
            "/a.mp4",
        ] {
            assert!(media.allowed(address).is_none(), "{address}");
        }
    }
}
