//! The models, one row each.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use super::money::Usd;

/// A kind of purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    Chat,
    Video,
    /// An endpoint of `gateway.passthrough`.
    Other,
}

impl Service {
    pub const ALL: [Self; 3] = [Self::Chat, Self::Video, Self::Other];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Video => "video",
            Self::Other => "other",
        }
    }
}

/// The models that are sold: the published ones, as an operator changed them in `[models]`.
#[derive(Clone, Debug)]
pub struct Catalog {
    pub chat: Vec<ChatModel>,
    pub video: Vec<VideoModel>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatModel {
    pub id: Cow<'static, str>,
    pub tier: Tier,
    pub best_for: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Standard,
    Budget,
    /// "Its cost: not shown" (2.6, `eta-5`). Guess: the standard price, the higher of the two.
    Unstated,
    Added(Usd),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoModel {
    pub id: Cow<'static, str>,
    pub price: Usd,
    pub durations: Durations,
    pub image: ImageInput,
    pub aspect_ratio: AspectRatioSupport,
    pub remarks: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durations {
    Between(u32, u32),
    OneOf(&'static [u32]),
    /// "Duration for this model: not shown": the overall range applies.
    Unstated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageInput {
    Optional,
    Required,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AspectRatioSupport {
    Ignored,
    /// The contract names two families that use it, but not their ids. Guess: every model does.
    Unstated,
}

pub const OVERALL_DURATION: (u32, u32) = (4, 15);
/// For a request that names none (2.5). Every model offers it.
pub const DEFAULT_DURATION: u32 = 8;
pub const DEFAULT_VIDEO_MODEL: &str = "video-a-2";
/// The page preselects it if no model is cheaper.
pub const DEFAULT_CHAT_MODEL: &str = "eta-5-mini";

impl Tier {
    pub const fn price(self) -> Usd {
        match self {
            Self::Standard | Self::Unstated => Usd::mills(6),
            Self::Budget => Usd::mills(3),
            Self::Added(price) => price,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Budget => "budget",
            Self::Unstated => "unstated",
            Self::Added(_) => "added",
        }
    }
}

impl Durations {
    const OVERALL: Self = Self::Between(OVERALL_DURATION.0, OVERALL_DURATION.1);

    pub fn offers(self, seconds: u32) -> bool {
        match self {
            Self::Between(low, high) => (low..=high).contains(&seconds),
            Self::OneOf(offered) => offered.contains(&seconds),
            Self::Unstated => Self::OVERALL.offers(seconds),
        }
    }
}

impl fmt::Display for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Between(low, high) => write!(f, "{low} to {high} seconds"),
            Self::OneOf(offered) => {
                let offered: Vec<_> = offered.iter().map(u32::to_string).collect();
                let (last, others) = offered.split_last().ok_or(fmt::Error)?;
                write!(f, "{} or {last} seconds", others.join(", "))
            }
            Self::Unstated => Self::OVERALL.fmt(f),
        }
    }
}

impl ChatModel {
    pub const fn price(&self) -> Usd {
        self.tier.price()
    }
}

impl Catalog {
    pub fn published() -> Self {
        Self { chat: CHAT_MODELS.to_vec(), video: VIDEO_MODELS.to_vec() }
    }

    /// Returns only the models that `keep` returns true for.
    #[must_use]
    pub fn filter(mut self, keep: impl Fn(Service, &str) -> bool) -> Self {
        self.chat.retain(|model| keep(Service::Chat, &model.id));
        self.video.retain(|model| keep(Service::Video, &model.id));
        self
    }

    pub fn ids(&self) -> impl Iterator<Item = &str> {
        let chats = self.chat.iter().map(|model| &*model.id);
        chats.chain(self.video.iter().map(|model| &*model.id))
    }

    pub fn chat_model(&self, id: &str) -> Option<&ChatModel> {
        self.chat.iter().find(|model| model.id == id)
    }

    pub fn video_model(&self, id: &str) -> Option<&VideoModel> {
        self.video.iter().find(|model| model.id == id)
    }
}

const fn chat(id: &'static str, tier: Tier, best_for: &'static str) -> ChatModel {
    ChatModel { id: Cow::Borrowed(id), tier, best_for }
}

const fn video(
    id: &'static str,
    dollars: u64,
    durations: Durations,
    image: ImageInput,
    aspect_ratio: AspectRatioSupport,
    remarks: &'static str,
) -> VideoModel {
    let price = Usd::dollars(dollars);
    VideoModel { id: Cow::Borrowed(id), price, durations, image, aspect_ratio, remarks }
}

use Durations::{Between, OneOf};

pub const UNSTATED_CHAT: &str = "eta-5";

#[rustfmt::skip]
const CHAT_MODELS: &[ChatModel] = &[
    chat("alpha-sonnet-4.5", Tier::Standard, "coding, 200K context window"),
    chat("beta-4-maverick",  Tier::Standard, "multi-modal, open-source"),
    chat("gamma-large",      Tier::Standard, "European languages"),
    chat("delta-k2.5",       Tier::Standard, "advanced reasoning, coding"),
    chat("epsilon-3-pro",    Tier::Standard, "multi-modal reasoning"),
    chat("uncensored-ai",    Tier::Budget,   "unrestricted content"),
    chat("beta-4-scout",     Tier::Budget,   "multilingual, open-source"),
    chat("zeta-m2.5",        Tier::Budget,   "creative writing"),
    chat("eta-5-mini",       Tier::Budget,   "fast, high-volume chat"),
    chat("theta-32b",        Tier::Budget,   "math reasoning, logic"),
    chat("iota-5",           Tier::Budget,   "Chinese/English bilingual"),
    chat(UNSTATED_CHAT,      Tier::Unstated, ""),
];

#[rustfmt::skip]
const VIDEO_MODELS: &[VideoModel] = &[
    //    id                    $  durations            image            aspect ratio      remarks
    video("video-a-2",          3, Between(5, 15),      ImageInput::Optional, AspectRatioSupport::Ignored,  "longest clips; default model"),
    video("video-b",            3, Between(5, 10),      ImageInput::Optional, AspectRatioSupport::Unstated, "motion quality"),
    video("video-c-2",          3, Between(5, 8),       ImageInput::Optional, AspectRatioSupport::Unstated, "fastest, about 40 seconds"),
    video("video-c-3-fast",     3, OneOf(&[4, 6, 8]),   ImageInput::Optional, AspectRatioSupport::Unstated, "budget tier"),
    video("video-d-3.1",        5, OneOf(&[4, 6, 8]),   ImageInput::Optional, AspectRatioSupport::Unstated, "best quality"),
    video("video-d-3.1-fast",   3, OneOf(&[4, 6, 8]),   ImageInput::Optional, AspectRatioSupport::Unstated, "speed-optimized"),
    video("video-e-gen4-turbo", 3, Durations::Unstated, ImageInput::Required, AspectRatioSupport::Unstated, "fast image-to-video; requires image_url"),
    video("video-e-gen4.5",     5, Durations::Unstated, ImageInput::Optional, AspectRatioSupport::Unstated, "flagship of its vendor"),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_model_is_listed_once_and_offers_the_default_duration() {
        let catalog = Catalog::published();
        assert_eq!((catalog.chat.len(), catalog.video.len()), (12, 8));
        let ids: HashSet<_> = catalog.chat.iter().map(|model| &model.id).collect();
        assert_eq!(ids.len(), 12);
        for model in &catalog.chat {
            assert_eq!(catalog.chat_model(&model.id), Some(model));
            assert!(model.price() == Usd::mills(6) || model.price() == Usd::mills(3));
        }
        for model in &catalog.video {
            assert_eq!(catalog.video_model(&model.id), Some(model));
            assert!(model.durations.offers(DEFAULT_DURATION), "{}", model.id);
            assert!(!model.durations.offers(3) && !model.durations.offers(16), "{}", model.id);
        }
        assert!(catalog.video_model(DEFAULT_VIDEO_MODEL).is_some());
    }

    #[test]
    fn model_is_found_by_exact_id_only() {
        let catalog = Catalog::published();
        for id in ["alpha-sonnet-4.5 ", "Alpha-sonnet-4.5", "аlpha-sonnet-4.5", "", "video-b"] {
            assert!(catalog.chat_model(id).is_none(), "{id:?}");
        }
    }

    #[test]
    fn durations_are_displayed_in_words() {
        assert_eq!(OneOf(&[4, 6, 8]).to_string(), "4, 6 or 8 seconds");
        assert_eq!(Between(5, 10).to_string(), "5 to 10 seconds");
    }
}
