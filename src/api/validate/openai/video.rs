//! `POST /v1/videos`, as JSON or as a form.

use std::borrow::Cow;
use std::mem;

use serde::de::MapAccess;
use serde_json::json;

use crate::api::validate::image_url;
use crate::api::validate::json::{self, Entry, Field, FromObject, FromValue};
use crate::api::validate::rule::{Faults, IgnoredFields, Rule, UnknownFields, quote};
use crate::api::validate::video::{self as native, ImageUrl, VideoOrder};
use crate::gate::problem::{INTERNAL, Problem};
use crate::gateway::contract::catalog::Catalog;
use crate::gateway::contract::video::ASPECT_RATIOS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormValue {
    Text(String),
    File,
}

pub fn video(payload: &[u8], catalog: &Catalog) -> Result<VideoOrder, Problem> {
    let mut draft = Draft::new(catalog);
    json::read_object(payload, &mut draft)?;
    draft.finish()
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
        } else if Draft::FIELDS.contains(&name) {
            let detail = "given twice in the form".to_owned();
            faults.push(format_args!("/{name}"), "duplicate", detail);
        }
    }
    let payload = serde_json::to_vec(&object).map_err(|_| Problem::new(&INTERNAL))?;
    let mut draft = Draft { faults, ..Draft::new(catalog) };
    json::read_object(&payload, &mut draft)?;
    draft.finish()
}

struct Draft<'a> {
    video: native::VideoDraft<'a>,
    seconds: Field<Seconds>,
    duration: Field<Seconds>,
    size: Field<Cow<'a, str>>,
    reference: Field<InputReference<'a>>,
    unknown: UnknownFields<'a>,
    faults: Faults,
}

impl<'a> Draft<'a> {
    #[rustfmt::skip]
    const FIELDS: &'static [&'static str] = &[
        "prompt", "model", "seconds", "duration", "size", "aspect_ratio", "image_url", INPUT_REFERENCE,
    ];

    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/seconds", code: "wrong_type", check: |video| video.seconds.wrong_type() },
        Rule { pointer: "/duration", code: "wrong_type", check: |video| video.duration.wrong_type() },
        Rule { pointer: "/duration", code: "duplicate", check: |video| {
            video.seconds.value().and(video.duration.value())?;
            Some("use either `seconds` or `duration`, not both".to_owned())
        } },
        Rule { pointer: "/size", code: "wrong_type", check: |video| video.size.wrong_type() },
        Rule { pointer: "/size", code: "size_not_offered", check: |video| {
            let size = video.size.value()?;
            aspect_ratio(size).is_none().then(|| {
                format!("expected a size of 16:9 or 9:16, such as 1280x720 or 720x1280, not `{}`", quote(size))
            })
        } },
        Rule { pointer: "/aspect_ratio", code: "duplicate", check: |video| {
            video.size.value().and(video.video.aspect_ratio.value())?;
            Some("use either `size` or `aspect_ratio`, not both".to_owned())
        } },
        Rule { pointer: "/input_reference", code: "wrong_type", check: |video| video.reference.wrong_type() },
        Rule { pointer: "/input_reference", code: "not_supported", check: |video| {
            video.reference.value()?.0.is_none().then(|| NO_FILES.to_owned())
        } },
        Rule { pointer: "/image_url", code: "duplicate", check: |video| {
            video.reference.value().and(video.video.image_url.value())?;
            Some("use either `input_reference` or `image_url`, not both".to_owned())
        } },
    ];

    fn new(catalog: &'a Catalog) -> Self {
        Self {
            video: native::VideoDraft::new(catalog),
            seconds: Field::Absent,
            duration: Field::Absent,
            size: Field::Absent,
            reference: Field::Absent,
            unknown: UnknownFields::default(),
            faults: Faults::default(),
        }
    }

    fn finish(mut self) -> Result<VideoOrder, Problem> {
        self.seconds = self.seconds.null_as_absent();
        self.duration = self.duration.null_as_absent();
        self.size = self.size.null_as_absent();
        self.reference = self.reference.null_as_absent();
        let mut faults = mem::take(&mut self.faults);
        faults.check(Self::RULES, &self, &"");
        let (mut video, mut ignored) = (self.video, IgnoredFields::default());
        ignored.add_all("", &self.unknown);
        let duration = if self.duration.is_absent() { "/seconds" } else { "/duration" };
        let picture = if self.reference.is_absent() { "/image_url" } else { "/input_reference" };
        let size = self.size.into_value();
        video.model = video.model.null_as_absent();
        video.aspect_ratio = match size.as_deref().and_then(aspect_ratio) {
            Some(ratio) => Field::Present(Cow::Borrowed(ratio)),
            None => video.aspect_ratio.null_as_absent(),
        };
        if video.ignores_aspect_ratio() {
            ignored.add(if size.is_some() { "size" } else { "aspect_ratio" });
        }
        // A wrong type was already reported under the caller's name of the field.
        let seconds = self.seconds.into_value().or(self.duration.into_value());
        video.duration = seconds.map_or(Field::Absent, |Seconds(whole)| Field::Present(whole));
        video.image_url = match self.reference.into_value().and_then(|reference| reference.0) {
            Some(address) => Field::Present(ImageUrl(image_url(&address))),
            None => video.image_url.null_as_absent(),
        };
        let order = video.finish(faults, |pointer| match pointer {
            "/duration" => duration,
            "/image_url" => picture,
            same => same,
        })?;
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
    let (width, height) = (number(width)?, number(height)?);
    ASPECT_RATIOS.iter().copied().find(|known| {
        let sides = known.split_once(':').and_then(|(w, h)| Some((number(w)?, number(h)?)));
        sides.is_some_and(|(w, h)| width * h == height * w)
    })
}

impl<'a> FromObject<'a> for Draft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "prompt" => entry.read_into(&mut self.video.prompt),
            "model" => entry.read_into(&mut self.video.model),
            "seconds" => entry.read_into(&mut self.seconds),
            "duration" => entry.read_into(&mut self.duration),
            "size" => entry.read_into(&mut self.size),
            "aspect_ratio" => entry.read_into(&mut self.video.aspect_ratio),
            "image_url" => entry.read_into(&mut self.video.image_url),
            INPUT_REFERENCE => entry.read_into(&mut self.reference),
            _ => entry.ignore(&mut self.unknown),
        }
    }
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

#[derive(Default)]
struct ReferenceObject<'a> {
    image_url: Field<Cow<'a, str>>,
    ignored: UnknownFields<'a>,
}

impl<'a> FromObject<'a> for ReferenceObject<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "image_url" => entry.read_into(&mut self.image_url),
            _ => entry.ignore(&mut self.ignored),
        }
    }
}
