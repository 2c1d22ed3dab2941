//! The rules of `POST /api/v1/video` (contract 2.5).

use std::borrow::Cow;

use super::image_url::image_url;
use super::json::{self, Field, FromValue, Text};
use super::object::object;
use super::rule::{Faults, IgnoredFields, blank, not_among, nul, unknown_model};
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
    let body: VideoBody<'_> = json::read_body(payload)?;
    let mut ignored = IgnoredFields::default();
    if body.ignores_aspect_ratio(catalog) {
        ignored.add("aspect_ratio");
    }
    let order = body.finish(catalog, &[], Faults::default())?;
    Ok(VideoOrder { order, size: None, ignored })
}

object! {
    pub(super) struct VideoBody<'a> checked(catalog: &Catalog) {
        "prompt" => prompt: Text<'a>, required("a description of the video"),
            "empty" => |video| {
                let is_empty = video.prompt.value()?.is_empty();
                is_empty.then(|| format!("expected 1 to {MAX_PROMPT} characters; it is empty"))
            },
            "blank" => |video| blank(video.prompt.value()?),
            "too_long" => |video| too_long(video.prompt.value()?),
            "nul_character" => |video| nul(video.prompt.value()?);
        "model" => model: Text<'a>, optional(),
            "required" => |video| {
                let has_default = catalog.video_model(DEFAULT_VIDEO_MODEL).is_some();
                let missing = video.model.missing("the id of a video model: the default is not sold");
                missing.filter(|_| !has_default)
            },
            "unknown_model" => |video| video.unknown_model(catalog);
        "duration" => duration: Field<i128>, optional(),
            "duration_not_offered" => |video| video.duration_not_offered(catalog);
        "aspect_ratio" => aspect_ratio: Text<'a>, optional(),
            "unknown_aspect_ratio" => |video| not_among(video.aspect_ratio.value()?, ASPECT_RATIOS);
        "image_url" => image_url: Field<ImageUrl>, optional(),
            "not_public_url" => |video| video.image_url.value()?.0.clone().err(),
            "image_required" => |video| {
                let row = video.model_row(catalog)?;
                (row.image == ImageInput::Required && video.image_url.is_absent())
                    .then(|| format!("{} requires a public image_url", row.id))
            };
        _ => reject;
    }
}

impl VideoBody<'_> {
    fn model_row<'c>(&self, catalog: &'c Catalog) -> Option<&'c VideoModel> {
        match &self.model {
            Field::Absent => catalog.video_model(DEFAULT_VIDEO_MODEL),
            Field::Present(id) => catalog.video_model(id),
            Field::WrongType(_) => None,
        }
    }

    pub(super) fn ignores_aspect_ratio(&self, catalog: &Catalog) -> bool {
        let ignores = |row: &VideoModel| row.aspect_ratio == AspectRatioSupport::Ignored;
        !self.aspect_ratio.is_absent() && self.model_row(catalog).is_some_and(ignores)
    }

    fn unknown_model(&self, catalog: &Catalog) -> Option<String> {
        let id = self.model.value()?;
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

    fn duration_not_offered(&self, catalog: &Catalog) -> Option<String> {
        let seconds = self.seconds()?;
        let row = self.model_row(catalog);
        let durations = row.map_or(Durations::Unstated, |row| row.durations);
        if u32::try_from(seconds).is_ok_and(|seconds| durations.offers(seconds)) {
            return None;
        }
        Some(match row {
            Some(row) => format!("{} takes {durations}, not {seconds}", row.id),
            None => format!("a video lasts {durations}, not {seconds}"),
        })
    }

    /// Returns the order, or all faults: those of this body, then `elsewhere`.
    ///
    /// `names` are pairs of a pointer and the one that the caller's dialect has for it.
    pub(super) fn finish(
        self,
        catalog: &Catalog,
        names: &[(&str, &str)],
        elsewhere: Faults,
    ) -> Result<Checked<Order>, Problem> {
        let mut faults = self.check(catalog);
        faults.rename(names);
        faults.append(elsewhere);
        let seconds = self.seconds().and_then(|seconds| u32::try_from(seconds).ok());
        let (true, Some(row), Some(duration), Field::Present(prompt)) =
            (faults.is_empty(), self.model_row(catalog), seconds, self.prompt)
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
