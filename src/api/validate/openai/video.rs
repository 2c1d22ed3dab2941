//! `POST /v1/videos`, as JSON or as a form.

use std::borrow::Cow;

use serde::de::MapAccess;
use serde_json::json;

use crate::api::validate::image_url;
use crate::api::validate::json::{self, Field, FromObject, FromValue, Text};
use crate::api::validate::object::object;
use crate::api::validate::rule::{Faults, IgnoredFields, quote};
use crate::api::validate::video::{ImageUrl, VideoBody, VideoOrder};
use crate::gate::problem::{INTERNAL, Problem};
use crate::gateway::contract::catalog::Catalog;
use crate::gateway::contract::video::ASPECT_RATIOS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormValue {
    Text(String),
    File,
}

pub fn video(payload: &[u8], catalog: &Catalog) -> Result<VideoOrder, Problem> {
    let body: OpenAiVideo<'_> = json::read_body(payload)?;
    body.finish(catalog, Faults::default())
}

const INPUT_REFERENCE: &str = "input_reference";

/// Reads a form as a JSON object of texts. A file becomes an empty object, which no field accepts.
pub fn video_from_form(
    fields: &[(String, FormValue)],
    catalog: &Catalog,
) -> Result<VideoOrder, Problem> {
    let mut object = serde_json::Map::new();
    let mut faults = Faults::default();
    for (name, value) in fields {
        let (name, value) = match (name.as_str(), value) {
            ("input_reference[file_id]", _) => (INPUT_REFERENCE, json!({})),
            ("input_reference[image_url]", FormValue::Text(text)) => (INPUT_REFERENCE, json!(text)),
            (name, FormValue::Text(text)) => (name, json!(text)),
            (name, FormValue::File) => (name, json!({})),
        };
        if !object.contains_key(name) {
            object.insert(name.to_owned(), value);
        } else if OpenAiVideo::KEYS.contains(&name) {
            let detail = "given twice in the form".to_owned();
            faults.push(format_args!("/{name}"), "duplicate", detail);
        }
    }
    let payload = serde_json::to_vec(&object).map_err(|_| Problem::new(&INTERNAL))?;
    let body: OpenAiVideo<'_> = json::read_body(&payload)?;
    body.finish(catalog, faults)
}

object! {
    struct OpenAiVideo<'a> checked() {
        "prompt" => prompt: Text<'a>;
        "model" => model: Text<'a>;
        "seconds" => seconds: Field<Seconds>, optional();
        "duration" => duration: Field<Seconds>, optional(),
            "duplicate" => |video| {
                video.seconds.value().and(video.duration.value())?;
                Some("use either `seconds` or `duration`, not both".to_owned())
            };
        "size" => size: Text<'a>, optional(),
            "size_not_offered" => |video| {
                let size = video.size.value()?;
                let expected = "a size of 16:9 or 9:16, such as 1280x720 or 720x1280";
                let detail = || format!("expected {expected}, not `{}`", quote(size));
                aspect_ratio(size).is_none().then(detail)
            };
        "aspect_ratio" => aspect_ratio: Text<'a>,
            "duplicate" => |video| {
                video.size.value().and(video.aspect_ratio.value())?;
                Some("use either `size` or `aspect_ratio`, not both".to_owned())
            };
        "input_reference" => reference: Field<InputReference<'a>>, optional(),
            "not_supported" => |video| {
                video.reference.value()?.0.is_none().then(|| NO_FILES.to_owned())
            };
        "image_url" => image_url: Field<ImageUrl>,
            "duplicate" => |video| {
                video.reference.value().and(video.image_url.value())?;
                Some("use either `input_reference` or `image_url`, not both".to_owned())
            };
        _ => ignore;
    }
}

impl OpenAiVideo<'_> {
    fn finish(mut self, catalog: &Catalog, mut faults: Faults) -> Result<VideoOrder, Problem> {
        self.seconds = self.seconds.null_as_absent();
        self.duration = self.duration.null_as_absent();
        self.size = self.size.null_as_absent();
        self.reference = self.reference.null_as_absent();
        faults.append(self.check());
        let mut ignored = IgnoredFields::default();
        ignored.add_all("", &self.unknown);
        let duration = if self.duration.is_absent() { "/seconds" } else { "/duration" };
        let picture = if self.reference.is_absent() { "/image_url" } else { "/input_reference" };
        let size = self.size.into_value();
        // A wrong type was already reported under the caller's name of the field.
        let seconds = self.seconds.into_value().or(self.duration.into_value());
        let video = VideoBody {
            prompt: self.prompt,
            model: self.model.null_as_absent(),
            duration: seconds.map_or(Field::Absent, |Seconds(whole)| Field::Present(whole)),
            aspect_ratio: match size.as_deref().and_then(aspect_ratio) {
                Some(ratio) => Field::Present(Cow::Borrowed(ratio)),
                None => self.aspect_ratio.null_as_absent(),
            },
            image_url: match self.reference.into_value().and_then(|reference| reference.0) {
                Some(address) => Field::Present(ImageUrl(image_url(&address))),
                None => self.image_url.null_as_absent(),
            },
            ..VideoBody::default()
        };
        if video.ignores_aspect_ratio(catalog) {
            ignored.add(if size.is_some() { "size" } else { "aspect_ratio" });
        }
        let names = [("/duration", duration), ("/image_url", picture)];
        let order = video.finish(catalog, &names, faults)?;
        Ok(VideoOrder { order, size: size.map(Cow::into_owned), ignored })
    }
}

const NO_FILES: &str =
    "files are not supported: give a public URL as `input_reference` or `image_url`";

fn aspect_ratio(size: &str) -> Option<&'static str> {
    if let Some(known) = ASPECT_RATIOS.iter().find(|known| **known == size) {
        return Some(known);
    }
    let number = |text: &str| {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|number| plain && (1..=100_000).contains(number))
    };
    let (width, height) = size.split_once('x')?;
    let width = number(width)?;
    let height = number(height)?;
    ASPECT_RATIOS.iter().copied().find(|known| {
        let sides = known.split_once(':').and_then(|(w, h)| Some((number(w)?, number(h)?)));
        sides.is_some_and(|(w, h)| width * h == height * w)
    })
}

/// OpenAI's SDKs send a number or a string of digits.
#[derive(Clone, Copy)]
struct Seconds(i128);

impl<'a> FromValue<'a> for Seconds {
    const EXPECTED: &'static str = "a whole number of seconds";

    fn string(text: Cow<'a, str>) -> Option<Self> {
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i128>().ok().filter(|_| is_plain).map(Self)
    }

    fn integer(number: i128) -> Option<Self> {
        Some(Self(number))
    }
}

struct InputReference<'a>(Option<Cow<'a, str>>);

impl<'a> FromValue<'a> for InputReference<'a> {
    const EXPECTED: &'static str = "a public URL, or an object with image_url";

    fn string(text: Cow<'a, str>) -> Option<Self> {
        Some(Self(Some(text)))
    }

    fn members<A: MapAccess<'a>>(map: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let parts = <ReferenceObject<'_> as FromValue<'_>>::members(map, depth)?;
        Ok(parts.map(|parts| Self(parts.image_url.into_value())))
    }
}

object! {
    struct ReferenceObject<'a> {
        "image_url" => image_url: Text<'a>;
        _ => ignore;
    }
}
