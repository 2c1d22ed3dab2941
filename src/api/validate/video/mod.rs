//! The rules of `POST /api/v1/video` (contract 2.5).

use std::borrow::Cow;

use serde::de::MapAccess;

use super::image_url::image_url;
use super::json::{self, Entry, Field, FromObject, FromValue};
use super::rule::{
    Faults, IgnoredFields, Rule, UnknownFields, blank, not_among, nul, unknown_model,
};
use super::{Checked, Order};
use crate::gate::problem::{INTERNAL, Problem};
use crate::gateway::contract::catalog::{
    AspectRatioSupport, Catalog, DEFAULT_DURATION, DEFAULT_VIDEO_MODEL, Durations, ImageInput,
    Service, VideoModel,
};
use crate::gateway::contract::video::{ASPECT_RATIOS, MAX_PROMPT, VideoRequest};
use crate::gateway::contract::wire;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoOrder {
    pub order: Checked<Order>,
    pub size: Option<String>,
    pub ignored: IgnoredFields,
}

/// Always writes model and duration, so that no default of the gateway can change the price.
///
/// Guess: an `aspect_ratio` may be sent to every model.
pub fn video(payload: &[u8], catalog: &Catalog) -> Result<VideoOrder, Problem> {
    let mut draft = VideoDraft::new(catalog);
    json::read_object(payload, &mut draft)?;
    let mut ignored = IgnoredFields::default();
    if draft.ignores_aspect_ratio() {
        ignored.add("aspect_ratio");
    }
    let order = draft.finish(Faults::default(), |pointer| pointer)?;
    Ok(VideoOrder { order, size: None, ignored })
}

pub(super) struct VideoDraft<'a> {
    catalog: &'a Catalog,
    pub(super) prompt: Field<Cow<'a, str>>,
    pub(super) model: Field<Cow<'a, str>>,
    pub(super) duration: Field<i128>,
    pub(super) aspect_ratio: Field<Cow<'a, str>>,
    pub(super) image_url: Field<ImageUrl>,
    unknown: UnknownFields<'a>,
}

impl<'a> VideoDraft<'a> {
    const FIELDS: &'static [&'static str] =
        &["prompt", "model", "duration", "aspect_ratio", "image_url"];

    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/prompt", code: "required", check: |video| video.prompt.missing("a description of the video") },
        Rule { pointer: "/prompt", code: "wrong_type", check: |video| video.prompt.wrong_type() },
        Rule { pointer: "/prompt", code: "empty", check: |video| {
            video.prompt.value()?.is_empty().then(|| format!("expected 1 to {MAX_PROMPT} characters; it is empty"))
        } },
        Rule { pointer: "/prompt", code: "blank", check: |video| blank(video.prompt.value()?) },
        Rule { pointer: "/prompt", code: "too_long", check: |video| too_long(video.prompt.value()?) },
        Rule { pointer: "/prompt", code: "nul_character", check: |video| nul(video.prompt.value()?) },
        Rule { pointer: "/model", code: "required", check: |video| {
            let is_sold = video.catalog.video_model(DEFAULT_VIDEO_MODEL).is_some();
            (!is_sold).then(|| video.model.missing("the id of a video model: the default is not sold")).flatten()
        } },
        Rule { pointer: "/model", code: "wrong_type", check: |video| video.model.wrong_type() },
        Rule { pointer: "/model", code: "unknown_model", check: Self::unknown_model },
        Rule { pointer: "/duration", code: "wrong_type", check: |video| video.duration.wrong_type() },
        Rule { pointer: "/duration", code: "duration_not_offered", check: Self::duration_not_offered },
        Rule { pointer: "/aspect_ratio", code: "wrong_type", check: |video| video.aspect_ratio.wrong_type() },
        Rule { pointer: "/aspect_ratio", code: "unknown_aspect_ratio", check: |video| {
            not_among(video.aspect_ratio.value()?, ASPECT_RATIOS)
        } },
        Rule { pointer: "/image_url", code: "wrong_type", check: |video| video.image_url.wrong_type() },
        Rule { pointer: "/image_url", code: "not_public_url", check: |video| video.image_url.value()?.0.clone().err() },
        Rule { pointer: "/image_url", code: "image_required", check: |video| {
            let row = video.model_row()?;
            (row.image == ImageInput::Required && video.image_url.is_absent())
                .then(|| format!("{} requires a public image_url", row.id))
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
            unknown: UnknownFields::default(),
        }
    }

    fn model_row(&self) -> Option<&'a VideoModel> {
        match &self.model {
            Field::Absent => self.catalog.video_model(DEFAULT_VIDEO_MODEL),
            Field::Present(id) => self.catalog.video_model(id),
            Field::WrongType(_) => None,
        }
    }

    pub(super) fn ignores_aspect_ratio(&self) -> bool {
        let ignores = |row: &VideoModel| row.aspect_ratio == AspectRatioSupport::Ignored;
        !self.aspect_ratio.is_absent() && self.model_row().is_some_and(ignores)
    }

    fn unknown_model(&self) -> Option<String> {
        let (id, catalog) = (self.model.value()?, self.catalog);
        if catalog.video_model(id).is_some() {
            return None;
        }
        let known = catalog.video.iter().map(|model| &*model.id);
        Some(match catalog.chat_model(id) {
            Some(row) => format!("{} is a chat model: send it to {}", row.id, wire::CHAT),
            None => unknown_model("video", id, known),
        })
    }

    fn seconds(&self) -> Option<i128> {
        match self.duration {
            Field::Absent => Some(DEFAULT_DURATION.into()),
            Field::Present(seconds) => Some(seconds),
            Field::WrongType(_) => None,
        }
    }

    fn duration_not_offered(&self) -> Option<String> {
        let seconds = self.seconds()?;
        let row = self.model_row();
        let durations = row.map_or(Durations::Unstated, |row| row.durations);
        if u32::try_from(seconds).is_ok_and(|seconds| durations.offers(seconds)) {
            return None;
        }
        Some(match row {
            Some(row) => format!("{} takes {durations}, not {seconds}", row.id),
            None => format!("a video lasts {durations}, not {seconds}"),
        })
    }

    /// Returns the order, or all faults: those of this draft, then `elsewhere`.
    ///
    /// `pointer` maps a field to its name in the caller's dialect.
    pub(super) fn finish(
        self,
        elsewhere: Faults,
        pointer: impl Fn(&'static str) -> &'static str,
    ) -> Result<Checked<Order>, Problem> {
        let mut faults = Faults::default();
        for rule in Self::RULES {
            if let Some(detail) = (rule.check)(&self) {
                faults.push(pointer(rule.pointer), rule.code, detail);
            }
        }
        faults.unknown_fields(&self.unknown, Self::FIELDS, &"");
        faults.append_at(&"", elsewhere);
        let seconds = self.seconds().and_then(|seconds| u32::try_from(seconds).ok());
        let (true, Some(row), Some(duration), Field::Present(prompt)) =
            (faults.is_empty(), self.model_row(), seconds, self.prompt)
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
            service: Service::Video,
            model: row.id.clone(),
            price: row.price,
            body: body.into(),
        }))
    }
}

impl<'a> FromObject<'a> for VideoDraft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "prompt" => entry.read_into(&mut self.prompt),
            "model" => entry.read_into(&mut self.model),
            "duration" => entry.read_into(&mut self.duration),
            "aspect_ratio" => entry.read_into(&mut self.aspect_ratio),
            "image_url" => entry.read_into(&mut self.image_url),
            _ => entry.reject(&mut self.unknown),
        }
    }
}

pub(super) struct ImageUrl(pub(super) Result<String, String>);

impl<'a> FromValue<'a> for ImageUrl {
    const EXPECTED: &'static str = "a string";

    fn string(text: Cow<'a, str>) -> Option<Self> {
        Some(Self(image_url(&text)))
    }
}

fn too_long(prompt: &str) -> Option<String> {
    if prompt.len() <= MAX_PROMPT {
        return None;
    }
    let length = prompt.chars().count();
    (length > MAX_PROMPT).then(|| {
        format!("expected at most {MAX_PROMPT} characters (Unicode code points), not {length}")
    })
}

#[cfg(test)]
mod tests;
