//! The rules of `POST /api/v1/video` (contract 2.5).

use std::borrow::Cow;

use serde::de::MapAccess;

use super::image_url::image_url;
use super::json::{self, Entry, Field, Members, Shape};
use super::rule::{Faults, Ignored, Rule, Unknown, blank, not_among, nul, unknown_model};
use super::{Checked, Order, Paid};
use crate::contract::catalog::{
    Aspect, Catalog, DEFAULT_DURATION, DEFAULT_VIDEO_MODEL, Durations, Image, VideoModel,
};
use crate::contract::video::{ASPECT_RATIOS, PROMPT_LIMIT, VideoRequest};
use crate::contract::wire;
use crate::problem::{INTERNAL, Problem};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoOrder {
    pub order: Checked<Order>,
    pub size: Option<String>,
    pub ignored: Ignored,
}

pub fn video(payload: &[u8], catalog: &Catalog) -> Result<Checked<Order>, Problem> {
    video_order(payload, catalog).map(|video| video.order)
}

/// The body names the model and the duration even if the caller left them out: no default of the gateway can
/// drift from what was set aside. Guess: an `aspect_ratio` may be sent to every model.
pub fn video_order(payload: &[u8], catalog: &Catalog) -> Result<VideoOrder, Problem> {
    let mut draft = Draft::new(catalog);
    json::object(payload, &mut draft)?;
    let mut ignored = Ignored::default();
    if draft.ignores_ratio() {
        ignored.add("aspect_ratio");
    }
    let order = draft.judged(Faults::default(), |pointer| pointer)?;
    Ok(VideoOrder { order, size: None, ignored })
}

pub(super) struct Draft<'a> {
    catalog: &'a Catalog,
    pub(super) prompt: Field<Cow<'a, str>>,
    pub(super) model: Field<Cow<'a, str>>,
    pub(super) duration: Field<i128>,
    pub(super) aspect_ratio: Field<Cow<'a, str>>,
    pub(super) image_url: Field<Picture>,
    unknown: Unknown<'a>,
}

impl<'a> Draft<'a> {
    const FIELDS: &'static [&'static str] =
        &["prompt", "model", "duration", "aspect_ratio", "image_url"];

    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/prompt", code: "required", broken: |video| video.prompt.missing("what the video shows") },
        Rule { pointer: "/prompt", code: "wrong_type", broken: |video| video.prompt.mistyped() },
        Rule { pointer: "/prompt", code: "empty", broken: |video| {
            video.prompt.value()?.is_empty().then(|| format!("expected 1 to {PROMPT_LIMIT} characters; it is empty"))
        } },
        Rule { pointer: "/prompt", code: "blank", broken: |video| blank(video.prompt.value()?) },
        Rule { pointer: "/prompt", code: "too_long", broken: |video| too_long(video.prompt.value()?) },
        Rule { pointer: "/prompt", code: "nul_character", broken: |video| nul(video.prompt.value()?) },
        Rule { pointer: "/model", code: "wrong_type", broken: |video| video.model.mistyped() },
        Rule { pointer: "/model", code: "unknown_model", broken: Self::unknown_model },
        Rule { pointer: "/duration", code: "wrong_type", broken: |video| video.duration.mistyped() },
        Rule { pointer: "/duration", code: "duration_not_offered", broken: Self::duration_not_offered },
        Rule { pointer: "/aspect_ratio", code: "wrong_type", broken: |video| video.aspect_ratio.mistyped() },
        Rule { pointer: "/aspect_ratio", code: "unknown_aspect_ratio", broken: |video| {
            not_among(video.aspect_ratio.value()?, ASPECT_RATIOS)
        } },
        Rule { pointer: "/image_url", code: "wrong_type", broken: |video| video.image_url.mistyped() },
        Rule { pointer: "/image_url", code: "not_public_url", broken: |video| video.image_url.value()?.0.clone().err() },
        Rule { pointer: "/image_url", code: "image_required", broken: |video| {
            let row = video.row()?;
            (row.image == Image::Required && video.image_url.is_absent())
                .then(|| format!("{} animates a picture: it needs a public image_url", row.id))
        } },
    ];

    pub(super) fn new(catalog: &'a Catalog) -> Self {
        Self {
            catalog,
            prompt: Field::Absent,
            model: Field::Absent,
            duration: Field::Absent,
            aspect_ratio: Field::Absent,
            image_url: Field::Absent,
            unknown: Unknown::default(),
        }
    }

    fn row(&self) -> Option<&'a VideoModel> {
        match &self.model {
            Field::Absent => self.catalog.video_model(DEFAULT_VIDEO_MODEL),
            Field::Is(id) => self.catalog.video_model(id),
            Field::Wrong(_) => None,
        }
    }

    pub(super) fn ignores_ratio(&self) -> bool {
        let ignores = |row: &VideoModel| row.aspect_ratio == Aspect::Ignored;
        !self.aspect_ratio.is_absent() && self.row().is_some_and(ignores)
    }

    fn unknown_model(&self) -> Option<String> {
        let (id, catalog) = (self.model.value()?, self.catalog);
        if catalog.video_model(id).is_some() {
            return None;
        }
        let known = catalog.video.iter().map(|model| &*model.id);
        Some(match catalog.chat_model(id) {
            Some(row) => format!("{} answers chats: send it to {}", row.id, wire::CHAT),
            None => unknown_model("video", id, known),
        })
    }

    fn seconds(&self) -> Option<i128> {
        match self.duration {
            Field::Absent => Some(DEFAULT_DURATION.into()),
            Field::Is(seconds) => Some(seconds),
            Field::Wrong(_) => None,
        }
    }

    /// A model that is not known is held to the overall range.
    fn duration_not_offered(&self) -> Option<String> {
        let seconds = self.seconds()?;
        let row = self.row();
        let durations = row.map_or(Durations::Unstated, |row| row.durations);
        if u32::try_from(seconds).is_ok_and(|seconds| durations.offers(seconds)) {
            return None;
        }
        Some(match row {
            Some(row) => format!("{} takes {durations}, not {seconds}", row.id),
            None => format!("a video lasts {durations}, not {seconds}"),
        })
    }

    /// The order, or every fault: its own, with the pointers that the caller's own words have, and
    /// then what was found `elsewhere`.
    pub(super) fn judged(
        self,
        elsewhere: Faults,
        pointer: impl Fn(&'static str) -> &'static str,
    ) -> Result<Checked<Order>, Problem> {
        let mut faults = Faults::default();
        for rule in Self::RULES {
            if let Some(detail) = (rule.broken)(&self) {
                faults.push(pointer(rule.pointer), rule.code, detail);
            }
        }
        faults.unknown(&self.unknown, Self::FIELDS, &"");
        faults.append_at(&"", elsewhere);
        let seconds = self.seconds().and_then(|seconds| u32::try_from(seconds).ok());
        let (true, Some(row), Some(duration), Field::Is(prompt)) =
            (faults.is_empty(), self.row(), seconds, self.prompt)
        else {
            return Err(faults.into_problem());
        };
        let request = VideoRequest {
            prompt,
            model: Cow::Borrowed(&row.id),
            duration,
            aspect_ratio: self.aspect_ratio.into_value(),
            image_url: self.image_url.into_value().and_then(|it| it.0.ok()).map(Cow::Owned),
        };
        let body = serde_json::to_vec(&request).map_err(|_| Problem::new(&INTERNAL))?;
        Ok(Checked(Order {
            paid: Paid::Video,
            model: (*row.id).into(),
            price: row.price,
            body: body.into(),
        }))
    }
}

impl<'a> Members<'a> for Draft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "prompt" => entry.fill(&mut self.prompt),
            "model" => entry.fill(&mut self.model),
            "duration" => entry.fill(&mut self.duration),
            "aspect_ratio" => entry.fill(&mut self.aspect_ratio),
            "image_url" => entry.fill(&mut self.image_url),
            _ => entry.refuse(&mut self.unknown),
        }
    }
}

pub(super) struct Picture(Result<String, String>);

impl Picture {
    pub(super) fn at(address: &str) -> Self {
        Self(image_url(address))
    }
}

impl<'a> Shape<'a> for Picture {
    const EXPECTED: &'static str = "a string";

    fn string(text: Cow<'a, str>) -> Option<Self> {
        Some(Self::at(&text))
    }
}

fn too_long(prompt: &str) -> Option<String> {
    if prompt.len() <= PROMPT_LIMIT {
        return None;
    }
    let length = prompt.chars().count();
    (length > PROMPT_LIMIT).then(|| {
        format!("expected at most {PROMPT_LIMIT} characters (Unicode code points), not {length}")
    })
}

#[cfg(test)]
mod tests;
