//! `POST /v1/videos`: a video job as OpenAI's SDKs order it, in JSON or as a form.

use std::borrow::Cow;
use std::mem;

use serde::de::MapAccess;

use crate::contract::catalog::Catalog;
use crate::contract::video::ASPECT_RATIOS;
use crate::problem::Problem;
use crate::validate::json::{self, Entry, Field, Members, Shape, Unknown};
use crate::validate::rule::{Faults, Ignored, Rule, shown};
use crate::validate::video::{self as native, Picture, VideoOrder};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Text(String),
    /// A file, which is not looked into.
    File,
}

pub fn video(payload: &[u8], catalog: &Catalog) -> Result<VideoOrder, Problem> {
    let mut draft = Draft::new(catalog);
    json::object(payload, &mut draft)?;
    draft.judged()
}

pub fn video_of_form(fields: &[(String, Input)], catalog: &Catalog) -> Result<VideoOrder, Problem> {
    let mut draft = Draft::new(catalog);
    for (name, input) in fields {
        draft.take(name, input);
    }
    draft.judged()
}

struct Draft<'a> {
    video: native::Draft<'a>,
    seconds: Field<Seconds>,
    duration: Field<Seconds>,
    size: Field<Cow<'a, str>>,
    reference: Field<Reference<'a>>,
    passed: Unknown<'a>,
    ignored: Ignored,
    /// What only a form can get wrong.
    faults: Faults,
}

impl<'a> Draft<'a> {
    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/seconds", code: "wrong_type", broken: |video| video.seconds.mistyped() },
        Rule { pointer: "/duration", code: "wrong_type", broken: |video| video.duration.mistyped() },
        Rule { pointer: "/duration", code: "duplicate", broken: |video| {
            video.seconds.value().and(video.duration.value())?;
            Some("the same as `seconds`: expected one of the two".to_owned())
        } },
        Rule { pointer: "/size", code: "wrong_type", broken: |video| video.size.mistyped() },
        Rule { pointer: "/size", code: "size_not_offered", broken: |video| {
            let size = video.size.value()?;
            ratio(size).is_none().then(|| {
                format!("expected a size of 16:9 or 9:16, such as 1280x720 or 720x1280, not `{}`", shown(size))
            })
        } },
        Rule { pointer: "/aspect_ratio", code: "duplicate", broken: |video| {
            video.size.value().and(video.video.aspect_ratio.value())?;
            Some("`size` says the same: expected one of the two".to_owned())
        } },
        Rule { pointer: "/input_reference", code: "wrong_type", broken: |video| video.reference.mistyped() },
        Rule { pointer: "/input_reference", code: "not_supported", broken: |video| {
            video.reference.value()?.address.is_none().then(|| NO_FILES.to_owned())
        } },
        Rule { pointer: "/image_url", code: "duplicate", broken: |video| {
            video.reference.value().and(video.video.image_url.value())?;
            Some("the same as `input_reference`: expected one of the two".to_owned())
        } },
    ];

    fn new(catalog: &'a Catalog) -> Self {
        Self {
            video: native::Draft::new(catalog),
            seconds: Field::Absent,
            duration: Field::Absent,
            size: Field::Absent,
            reference: Field::Absent,
            passed: Unknown::default(),
            ignored: Ignored::default(),
            faults: Faults::default(),
        }
    }

    fn take(&mut self, name: &'a str, input: &'a Input) {
        let (file, faults) = (Field::Is(Reference { address: None }), &mut self.faults);
        let text = match input {
            Input::Text(text) => Cow::Borrowed(text.as_str()),
            Input::File if name == "input_reference" => {
                return put(&mut self.reference, file, name, faults);
            }
            Input::File => return self.ignored.add(name),
        };
        let video = &mut self.video;
        match name {
            "prompt" => put(&mut video.prompt, Field::Is(text), name, faults),
            "model" => put(&mut video.model, Field::Is(text), name, faults),
            "seconds" => put(&mut self.seconds, Seconds::read(&text), name, faults),
            "duration" => put(&mut self.duration, Seconds::read(&text), name, faults),
            "size" => put(&mut self.size, Field::Is(text), name, faults),
            "aspect_ratio" => put(&mut video.aspect_ratio, Field::Is(text), name, faults),
            "image_url" => put(&mut video.image_url, Field::Is(Picture::at(&text)), name, faults),
            "input_reference" | "input_reference[image_url]" => {
                let reference = Field::Is(Reference { address: Some(text) });
                put(&mut self.reference, reference, name, faults);
            }
            "input_reference[file_id]" => put(&mut self.reference, file, name, faults),
            _ => self.ignored.add(name),
        }
    }

    fn judged(mut self) -> Result<VideoOrder, Problem> {
        self.seconds = self.seconds.or_absent();
        self.duration = self.duration.or_absent();
        self.size = self.size.or_absent();
        self.reference = self.reference.or_absent();
        let mut faults = mem::take(&mut self.faults);
        faults.judge(Self::RULES, &self, &"");
        let (mut video, mut ignored) = (self.video, self.ignored);
        ignored.add_all("", &self.passed);
        let duration = if self.duration.is_absent() { "/seconds" } else { "/duration" };
        let picture = if self.reference.is_absent() { "/image_url" } else { "/input_reference" };
        let size = self.size.into_value();
        video.model = video.model.or_absent();
        video.aspect_ratio = match size.as_deref().and_then(ratio) {
            Some(ratio) => Field::Is(Cow::Borrowed(ratio)),
            None => video.aspect_ratio.or_absent(),
        };
        if video.ignores_ratio() {
            ignored.add(if size.is_some() { "size" } else { "aspect_ratio" });
        }
        // One that is mistyped was told of already, under the caller's own name for it.
        let seconds = self.seconds.into_value().or(self.duration.into_value());
        video.duration = seconds.map_or(Field::Absent, |Seconds(whole)| Field::Is(whole));
        video.image_url = match self.reference.into_value().and_then(|it| it.address) {
            Some(address) => Field::Is(Picture::at(&address)),
            None => video.image_url.or_absent(),
        };
        let order = video.judged(faults, |pointer| match pointer {
            "/duration" => duration,
            "/image_url" => picture,
            same => same,
        })?;
        Ok(VideoOrder { order, size: size.map(Cow::into_owned), ignored })
    }
}

const NO_FILES: &str = "the gateway fetches a picture by its public address and takes no file: \
                        give its URL, as `input_reference` or as `image_url`";

fn put<T>(field: &mut Field<T>, value: Field<T>, name: &str, faults: &mut Faults) {
    if field.is_absent() {
        *field = value;
    } else {
        let detail = "expected once in a form".to_owned();
        faults.push(format_args!("/{}", shown(name)), "duplicate", detail);
    }
}

/// The ratio that a size stands for: `1280x720` is 16:9.
fn ratio(size: &str) -> Option<&'static str> {
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

impl<'a> Members<'a> for Draft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "prompt" => entry.fill(&mut self.video.prompt),
            "model" => entry.fill(&mut self.video.model),
            "seconds" => entry.fill(&mut self.seconds),
            "duration" => entry.fill(&mut self.duration),
            "size" => entry.fill(&mut self.size),
            "aspect_ratio" => entry.fill(&mut self.video.aspect_ratio),
            "image_url" => entry.fill(&mut self.video.image_url),
            "input_reference" => entry.fill(&mut self.reference),
            _ => entry.pass_over(&mut self.passed),
        }
    }
}

/// A length that is a number, or a text with one in it, as OpenAI has it.
#[derive(Clone, Copy)]
struct Seconds(i128);

impl Seconds {
    /// Of a form, where all is text.
    fn read(text: &str) -> Field<Self> {
        Self::string(Cow::Borrowed(text)).map_or(Field::Wrong("a string"), Field::Is)
    }
}

impl<'a> Shape<'a> for Seconds {
    const EXPECTED: &'static str = "a whole number of seconds";

    fn string(text: Cow<'a, str>) -> Option<Self> {
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i128>().ok().filter(|_| is_plain).map(Self)
    }

    fn whole(number: i128) -> Option<Self> {
        Some(Self(number))
    }
}

/// What the video starts from: an address, or something that is none.
struct Reference<'a> {
    address: Option<Cow<'a, str>>,
}

impl<'a> Shape<'a> for Reference<'a> {
    const EXPECTED: &'static str = "a public URL, or an object with image_url";

    fn string(text: Cow<'a, str>) -> Option<Self> {
        Some(Self { address: Some(text) })
    }

    fn members<A: MapAccess<'a>>(map: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let parts = <ReferenceParts<'_> as Shape<'_>>::members(map, depth)?;
        Ok(parts.map(|parts| Self { address: parts.image_url.into_value() }))
    }
}

#[derive(Default)]
struct ReferenceParts<'a> {
    image_url: Field<Cow<'a, str>>,
    rest: Unknown<'a>,
}

impl<'a> Members<'a> for ReferenceParts<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "image_url" => entry.fill(&mut self.image_url),
            _ => entry.pass_over(&mut self.rest),
        }
    }
}
