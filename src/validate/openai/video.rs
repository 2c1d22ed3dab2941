//! `POST /v1/videos`: a video job as OpenAI's SDKs order it, in JSON or as a form.

use std::borrow::Cow;

use serde::de::MapAccess;

use crate::contract::catalog::Catalog;
use crate::contract::video::ASPECT_RATIOS;
use crate::problem::{Fault, Problem};
use crate::validate::json::{self, Entry, Field, Kind, Members, Shape, Unknown, Whole};
use crate::validate::rule::{Faults, Ignored, Rule};
use crate::validate::text::shown;
use crate::validate::video::Picture;
use crate::validate::{Checked, Order, video as native};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoOrder {
    pub order: Checked<Order>,
    /// `size` as it was asked for.
    pub size: Option<String>,
    pub ignored: Ignored,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Text(String),
    /// A file, which is not looked into.
    File,
}

/// Reads and judges a video in JSON, by the rules of [`video`](super::super::video).
///
/// Errors: 400 `malformed_json`; 422 `invalid_request` with every fault, at its place in `payload`.
pub fn video(payload: &[u8], catalog: &Catalog) -> Result<VideoOrder, Problem> {
    let mut draft = Draft::new(catalog);
    json::object(payload, &mut draft)?;
    draft.judged()
}

/// Reads and judges a video that came as the fields of a form.
///
/// Errors: 422 `invalid_request` with every fault.
pub fn video_of_form(fields: &[(String, Input)], catalog: &Catalog) -> Result<VideoOrder, Problem> {
    let mut draft = Draft::new(catalog);
    for (name, input) in fields {
        draft.take(name, input);
    }
    draft.judged()
}

struct Draft<'a> {
    /// `prompt` and `model` are the gateway's own words.
    video: native::Draft<'a>,
    seconds: Field<Seconds>,
    duration: Field<Seconds>,
    size: Field<Cow<'a, str>>,
    aspect_ratio: Field<Cow<'a, str>>,
    image_url: Field<Picture>,
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
            video.size.value().and(video.aspect_ratio.value())?;
            Some("`size` says the same: expected one of the two".to_owned())
        } },
        Rule { pointer: "/input_reference", code: "wrong_type", broken: |video| video.reference.mistyped() },
        Rule { pointer: "/input_reference", code: "not_supported", broken: |video| {
            video.reference.value()?.address.is_none().then(|| NO_FILES.to_owned())
        } },
        Rule { pointer: "/image_url", code: "duplicate", broken: |video| {
            video.reference.value().and(video.image_url.value())?;
            Some("the same as `input_reference`: expected one of the two".to_owned())
        } },
    ];

    fn new(catalog: &'a Catalog) -> Self {
        Self {
            video: native::Draft::new(catalog),
            seconds: Field::Absent,
            duration: Field::Absent,
            size: Field::Absent,
            aspect_ratio: Field::Absent,
            image_url: Field::Absent,
            reference: Field::Absent,
            passed: Unknown::default(),
            ignored: Ignored::default(),
            faults: Faults::default(),
        }
    }

    fn take(&mut self, name: &'a str, input: &'a Input) {
        let text = match input {
            Input::Text(text) => Cow::Borrowed(text.as_str()),
            Input::File if name == "input_reference" => {
                let none = Field::Is(Reference { address: None });
                return put(&mut self.reference, none, name, &mut self.faults);
            }
            Input::File => return self.ignored.add(name),
        };
        let faults = &mut self.faults;
        let reference = |text: Cow<'a, str>| Field::Is(Reference { address: Some(text) });
        match name {
            "prompt" => put(&mut self.video.prompt, Field::Is(text), name, faults),
            "model" => put(&mut self.video.model, Field::Is(text), name, faults),
            "seconds" => put(&mut self.seconds, Seconds::read(&text), name, faults),
            "duration" => put(&mut self.duration, Seconds::read(&text), name, faults),
            "size" => put(&mut self.size, Field::Is(text), name, faults),
            "aspect_ratio" => put(&mut self.aspect_ratio, Field::Is(text), name, faults),
            "image_url" => put(&mut self.image_url, Field::Is(Picture::at(&text)), name, faults),
            "input_reference" | "input_reference[image_url]" => {
                put(&mut self.reference, reference(text), name, faults);
            }
            "input_reference[file_id]" => {
                let none = Field::Is(Reference { address: None });
                put(&mut self.reference, none, name, faults);
            }
            _ => self.ignored.add(name),
        }
    }

    fn judged(mut self) -> Result<VideoOrder, Problem> {
        self.seconds = self.seconds.or_absent();
        self.duration = self.duration.or_absent();
        self.size = self.size.or_absent();
        self.reference = self.reference.or_absent();
        self.video.model = self.video.model.or_absent();
        let mut faults = std::mem::take(&mut self.faults);
        faults.judge(Self::RULES, &self, &"");
        let mut ignored = self.ignored;
        ignored.add_all("", &self.passed);
        let names = Names {
            duration: if self.duration.is_absent() { "/seconds" } else { "/duration" },
            picture: if self.reference.is_absent() { "/image_url" } else { "/input_reference" },
        };
        let size = self.size.into_value();
        let of_size = size.as_deref().and_then(ratio).map(Cow::Borrowed);
        self.video.aspect_ratio = match of_size {
            Some(ratio) => Field::Is(ratio),
            None => self.aspect_ratio.or_absent(),
        };
        if self.video.ignores_ratio() {
            ignored.add(if size.is_some() { "size" } else { "aspect_ratio" });
        }
        // One that is mistyped was told of already, under the caller's own name for it.
        let seconds = self.seconds.into_value().or(self.duration.into_value());
        self.video.duration = seconds.map_or(Field::Absent, |Seconds(whole)| Field::Is(whole));
        let address = self.reference.into_value().and_then(|reference| reference.address);
        self.video.image_url = match address {
            Some(address) => Field::Is(Picture::at(&address)),
            None => self.image_url.or_absent(),
        };
        let order = self.video.judged(faults).map_err(|problem| names.told(problem))?;
        Ok(VideoOrder { order, size: size.map(Cow::into_owned), ignored })
    }
}

const NO_FILES: &str = "the gateway fetches a picture by its public address and takes no file: \
                        give its URL, as `input_reference` or as `image_url`";

/// What the caller called the fields that the gateway has other names for.
struct Names {
    duration: &'static str,
    picture: &'static str,
}

impl Names {
    /// The same refusal, its pointers into what the caller sent.
    fn told(&self, problem: Problem) -> Problem {
        if problem.faults().is_empty() {
            return problem;
        }
        let renamed = |fault: &Fault| {
            let pointer = match &*fault.pointer {
                "/duration" if fault.code != "duplicate" => self.duration,
                "/image_url" if fault.code != "duplicate" => self.picture,
                same => same,
            };
            Fault { pointer: pointer.to_owned(), ..fault.clone() }
        };
        Problem::invalid(problem.faults().iter().map(renamed).collect())
    }
}

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
            "aspect_ratio" => entry.fill(&mut self.aspect_ratio),
            "image_url" => entry.fill(&mut self.image_url),
            "input_reference" => entry.fill(&mut self.reference),
            _ => entry.pass_over(&mut self.passed),
        }
    }
}

/// A length that is a number, or a text with one in it, as OpenAI has it.
#[derive(Clone, Copy)]
struct Seconds(Whole);

impl Seconds {
    /// Of a form, where all is text.
    fn read(text: &str) -> Field<Self> {
        Self::string(Cow::Borrowed(text)).map_or(Field::Wrong(Kind::String), Field::Is)
    }
}

impl<'a> Shape<'a> for Seconds {
    const EXPECTED: &'static str = "a whole number of seconds";

    fn string(text: Cow<'a, str>) -> Option<Self> {
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i128>().ok().filter(|_| is_plain).map(|number| Self(Whole(number)))
    }

    fn whole(number: i128) -> Option<Self> {
        Some(Self(Whole(number)))
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
        let parts: Option<ReferenceParts<'a>> = json::inner(map, depth)?;
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
