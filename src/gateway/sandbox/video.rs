//! `POST /api/v1/video` (2.5), `GET /api/v1/video/status`, and `GET /clips/<name>.mp4`, which needs
//! no key.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL,
    CONTENT_RANGE, HeaderMap, IF_RANGE, RANGE,
};
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::FakeGateway;
use super::reply::{self, SandboxFault, SandboxResult, refuse};
use crate::clock::{self, Instant};
use crate::gateway::contract::catalog::{
    AspectRatioSupport, DEFAULT_DURATION, DEFAULT_VIDEO_MODEL, ImageInput, Service, VideoModel,
};
use crate::gateway::contract::video::{ASPECT_RATIOS, DEFAULT_ASPECT_RATIO, MAX_PROMPT};
use crate::sync::lock;

const PACE: &[(&str, u32)] = &[
    ("video-c-2", 60),
    ("video-c-3-fast", 70),
    ("video-d-3.1-fast", 70),
    ("video-e-gen4-turbo", 80),
    ("video-d-3.1", 120),
    ("video-e-gen4.5", 130),
];
const QUEUED: u128 = 15;
const FAILS_AT: u128 = 60;

pub(super) async fn order(gateway: &FakeGateway, body: &[u8]) -> SandboxResult {
    let arrived = clock::now();
    let order: Order = serde_json::from_slice(body).map_err(|error| {
        refuse(StatusCode::BAD_REQUEST, &format!("Not a video request: {error}"))
    })?;
    let model = order.check(gateway).map_err(|why| refuse(StatusCode::BAD_REQUEST, why))?;
    let fault = SandboxFault::of(&order.prompt);
    fault.refuse(&order.prompt, &gateway.refused_once)?;
    let (nth, left) = lock(&gateway.account).charge(Service::Video, model.price)?;
    let name = match gateway.settings.run {
        Some(run) => format!("{nth} of {}", run.as_nanos()),
        None => nth.to_string(),
    };
    let request_id = format!("vid_{}", gateway.seed.hex("video id", &name, 24));
    let job = SandboxJob {
        request_id: request_id.clone(),
        model: model.id.to_string(),
        is_portrait: model.aspect_ratio != AspectRatioSupport::Ignored
            && order.aspect_ratio.as_deref() == Some("9:16"),
        takes: pace(&model.id, gateway.settings.job_time),
        fails: fault == SandboxFault("sandbox:fail"),
        started: clock::now(),
        created: clock::wall(),
    };
    lock(&gateway.jobs).insert(request_id.clone(), job);
    fault.delay(&gateway.settings).await?;
    let cost = model.price.short();
    let latency = u64::try_from(clock::now().duration_since(arrived).as_millis());
    Ok(fault.finish(&json!({
        "message": format!("Video accepted. Poll /api/v1/video/status?request_id={request_id}"),
        "request_id": request_id,
        "model": model.id,
        "cost": { "this_request": cost, "per_video": cost },
        "balance": left.short(),
        "metadata": { "latency_ms": latency.unwrap_or(u64::MAX) },
    })))
}

pub(super) fn status(gateway: &FakeGateway, query: &str, origin: &str) -> SandboxResult {
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    let Some((_, id)) = pairs.find(|(name, _)| name == "request_id") else {
        return Err(refuse(StatusCode::BAD_REQUEST, "The query has no request_id"));
    };
    let jobs = lock(&gateway.jobs);
    let Some(job) = jobs.get(id.as_ref()) else {
        return Err(refuse(StatusCode::NOT_FOUND, "There is no such job"));
    };
    Ok(reply::json(StatusCode::OK, &job.status(clock::now(), origin)))
}

pub(super) struct SandboxJob {
    request_id: String,
    model: String,
    is_portrait: bool,
    takes: Duration,
    fails: bool,
    started: Instant,
    created: Duration,
}

#[derive(Deserialize)]
struct Order {
    prompt: String,
    model: Option<String>,
    duration: Option<u32>,
    aspect_ratio: Option<String>,
    image_url: Option<String>,
}

impl Order {
    fn check<'a>(&self, gateway: &'a FakeGateway) -> Result<&'a VideoModel, &'static str> {
        let id = self.model.as_deref().unwrap_or(DEFAULT_VIDEO_MODEL);
        let model = gateway.catalog.video_model(id).ok_or("The model is not known")?;
        let aspect_ratio = self.aspect_ratio.as_deref().unwrap_or(DEFAULT_ASPECT_RATIO);
        let image = self.image_url.as_deref().and_then(|text| url::Url::parse(text).ok());
        let has_image = image.is_some_and(|url| matches!(url.scheme(), "http" | "https"));
        let faults = [
            (self.prompt.trim().is_empty(), "The prompt is empty"),
            (self.prompt.chars().count() > MAX_PROMPT, "The prompt is too long"),
            (
                !model.durations.offers(self.duration.unwrap_or(DEFAULT_DURATION)),
                "The model does not make this duration",
            ),
            (!ASPECT_RATIOS.contains(&aspect_ratio), "The aspect_ratio is neither 16:9 nor 9:16"),
            (self.image_url.is_some() && !has_image, "The image_url is not a web address"),
            (model.image == ImageInput::Required && !has_image, "The model needs an image_url"),
        ];
        match faults.iter().find(|(is_fault, _)| *is_fault) {
            Some((_, why)) => Err(why),
            None => Ok(model),
        }
    }
}

impl SandboxJob {
    /// All fields are guesses (2.5).
    fn status(&self, now: Instant, origin: &str) -> Value {
        let done = match self.takes.as_millis() {
            0 => 100,
            takes => (now.duration_since(self.started).as_millis() * 100 / takes).min(100),
        };
        let (status, progress) = match done {
            _ if self.fails && done >= FAILS_AT => ("failed", FAILS_AT),
            100 => ("completed", 100),
            _ if done < QUEUED => ("queued", 0),
            _ => ("processing", done),
        };
        let mut body = json!({
            "request_id": self.request_id,
            "status": status,
            "progress": progress,
            "model": self.model,
            "created_at": clock::iso8601(self.created),
        });
        if status == "completed" {
            let (clip, _) = CLIPS[usize::from(self.is_portrait)];
            body["video_url"] = json!(format!("{origin}{CLIP_FOLDER}{clip}"));
        }
        if status == "failed" {
            body["error"] = json!("the prompt asked the sandbox to fail");
        }
        body
    }
}

fn pace(model: &str, job_time: Duration) -> Duration {
    let percent = PACE.iter().find(|(id, _)| *id == model).map_or(100, |(_, percent)| *percent);
    job_time.saturating_mul(percent) / 100
}

pub(super) const CLIP_FOLDER: &str = "/clips/";

/// Drawn by `contrib/make-clips.sh`.
const CLIPS: &[(&str, &[u8])] = &[
    ("landscape.mp4", include_bytes!("clips/landscape.mp4")),
    ("portrait.mp4", include_bytes!("clips/portrait.mp4")),
];

pub(super) fn clip(path: &str, headers: &HeaderMap) -> SandboxResult {
    let name = path.strip_prefix(CLIP_FOLDER).unwrap_or_default();
    let Some((_, clip)) = CLIPS.iter().find(|(known, _)| *known == name) else {
        return Err(refuse(StatusCode::NOT_FOUND, "There is no such clip"));
    };
    // Clips have no validator, so `If-Range` never matches.
    let asked = headers.get(RANGE).filter(|_| !headers.contains_key(IF_RANGE));
    let asked = asked.and_then(|value| parse_range(value.to_str().ok()?, clip.len()));
    let status = match &asked {
        None => StatusCode::OK,
        Some(range) if range.is_empty() => StatusCode::RANGE_NOT_SATISFIABLE,
        Some(_) => StatusCode::PARTIAL_CONTENT,
    };
    let bytes = asked.clone().map_or(*clip, |range| &clip[range]);
    let mut answer = reply::answer(status, "video/mp4", Bytes::from_static(bytes));
    let headers = answer.headers_mut();
    if let Some(range) = asked {
        let part = if range.is_empty() {
            "*".to_owned()
        } else {
            format!("{}-{}", range.start, range.end - 1)
        };
        let value = HeaderValue::try_from(format!("bytes {part}/{}", clip.len()));
        headers.extend(value.ok().map(|value| (CONTENT_RANGE, value)));
    }
    for (name, value) in [
        (ACCEPT_RANGES, "bytes"),
        (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (ACCESS_CONTROL_EXPOSE_HEADERS, "accept-ranges, content-length, content-range"),
        (CACHE_CONTROL, "public, max-age=3600"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(answer)
}

/// Parses a range (RFC 9110, 14.1.2): `None` if it is malformed or has several parts, and empty if
/// it starts beyond the end.
fn parse_range(text: &str, length: usize) -> Option<Range<usize>> {
    let (first, last) = match text.strip_prefix("bytes=")?.trim().split_once('-')? {
        ("", suffix) => (length.saturating_sub(suffix.parse().ok()?), length - 1),
        (first, "") => (first.parse().ok()?, length - 1),
        (first, last) => {
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some((first, last))?
        }
    };
    Some(first.min(length)..last.min(length - 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::contract::catalog::Catalog;

    fn job(fails: bool) -> SandboxJob {
        SandboxJob {
            request_id: "vid_1".to_owned(),
            model: "video-b".to_owned(),
            is_portrait: true,
            takes: Duration::from_secs(10),
            fails,
            started: clock::now(),
            created: Duration::ZERO,
        }
    }

    /// Returns the state and the progress.
    fn at(job: &SandboxJob, millis: u64) -> (Value, Value) {
        let mut status = job.status(job.started + Duration::from_millis(millis), "http://here");
        (status["status"].take(), status["progress"].take())
    }

    #[test]
    fn a_job_is_queued_then_processed_then_completed() {
        let job = job(false);
        assert_eq!(at(&job, 0), (json!("queued"), json!(0)));
        assert_eq!(at(&job, 1_499), (json!("queued"), json!(0)));
        assert_eq!(at(&job, 1_500), (json!("processing"), json!(15)));
        assert_eq!(at(&job, 9_999), (json!("processing"), json!(99)));
        assert_eq!(at(&job, 10_000), (json!("completed"), json!(100)));
        assert_eq!(at(&job, 10_000_000), (json!("completed"), json!(100)));
        let done = job.status(job.started + job.takes, "http://here:1");
        assert_eq!(done["video_url"], "http://here:1/clips/portrait.mp4");
        assert_eq!(done["created_at"], "1970-01-01T00:00:00.000Z");
        assert_eq!(done.get("error"), None);
    }

    #[test]
    fn a_job_that_fails_says_so_and_has_no_clip() {
        let job = job(true);
        assert_eq!(at(&job, 5_999), (json!("processing"), json!(59)));
        assert_eq!(at(&job, 6_000), (json!("failed"), json!(60)));
        let end = job.status(job.started + 2 * job.takes, "http://here");
        assert_eq!((&end["status"], end.get("video_url")), (&json!("failed"), None));
        assert!(end["error"].is_string());
    }

    #[test]
    fn every_pace_is_that_of_a_model_on_offer() {
        let catalog = Catalog::published();
        for (id, _) in PACE {
            assert!(catalog.video_model(id).is_some(), "{id}");
        }
        assert_eq!(pace("video-c-2", Duration::from_secs(30)), Duration::from_secs(18));
        assert_eq!(pace("video-a-2", Duration::from_secs(30)), Duration::from_secs(30));
    }

    #[test]
    fn ranges_are_read_as_players_write_them() {
        for (range, part) in [
            ("bytes=0-", Some(0..100)),
            ("bytes=0-0", Some(0..1)),
            ("bytes=10-19", Some(10..20)),
            ("bytes=99-200", Some(99..100)),
            ("bytes=-1", Some(99..100)),
            ("bytes=-500", Some(0..100)),
            ("bytes=100-", Some(100..100)),
            ("bytes=-0", Some(100..100)),
            ("bytes=20-10", None),
            ("bytes=a-b", None),
            ("bytes=-", None),
            ("bytes=0-1,4-5", None),
            ("lines=0-1", None),
            ("", None),
        ] {
            assert_eq!(parse_range(range, 100), part, "{range}");
        }
    }

    #[test]
    fn both_clips_are_small_and_ready_to_stream() {
        for (name, clip) in CLIPS {
            assert!(clip.len() < 60 * 1024, "{name} has {} bytes", clip.len());
            let place = |word: &[u8]| clip.windows(4).position(|four| four == word);
            assert!(place(b"moov") < place(b"mdat"), "{name}: its index comes last");
            assert_eq!(place(b"ftyp"), Some(4), "{name}");
        }
    }
}
