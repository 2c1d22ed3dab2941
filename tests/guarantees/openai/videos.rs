//! `/v1/videos…`: jobs in OpenAI's words, ordered in JSON or as a form, under the gateway's own ids.

use std::time::Duration;

use serde_json::{Value, json};

use super::VIDEOS;
use crate::support::client::Answer;
use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::received::ReceivedRequest;
use crate::support::{Gate, Reply, Upstream};

const TOKEN: (&str, &str) = ("authorization", "Bearer sk-any");

/// A gateway that accepts a video as `job-1` and says this of it.
fn upstream(status: &'static str) -> Upstream {
    Upstream::start(move |received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => Reply::new(200, status),
    })
}

/// A form with these fields; a field with a file's name is a file.
fn form(gate: &Gate, fields: &[(&str, Option<&str>, &str)]) -> Answer {
    let mut body = String::new();
    for (name, file, value) in fields {
        let file = file.map(|file| format!("; filename=\"{file}\"\r\nContent-Type: image/png"));
        let file = file.unwrap_or_default();
        body += &format!(
            "--b-1\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{value}\r\n"
        );
    }
    body += "--b-1--\r\n";
    let media_type = ("content-type", "multipart/form-data; boundary=b-1");
    gate.ask("POST", VIDEOS, &[TOKEN, media_type], &body)
}

#[test]
fn video_is_ordered_watched_and_listed_under_one_id() {
    let upstream = upstream(r#"{"status":"rendering"}"#);
    let gate = Gate::start(&upstream, "");
    let order =
        r#"{"model":"video-c-2","prompt":"a tide","seconds":"6","size":"720x1280","quality":"hd"}"#;
    let made = gate.post(VIDEOS, order);
    assert_eq!((made.status, made.cost()), (200, Some(3_000_000)), "{}", made.text());
    assert_eq!(made.value("tollgate-ignored"), Some("quality"));
    let received =
        json!({ "prompt": "a tide", "model": "video-c-2", "duration": 6, "aspect_ratio": "9:16" });
    assert_eq!(upstream.received_requests()[0].json(), received);
    let video = made.json();
    assert_eq!(
        (&video["id"], &video["object"], &video["model"]),
        (&json!("job-1"), &json!("video"), &json!("video-c-2"))
    );
    assert_eq!(
        (&video["seconds"], &video["size"], &video["prompt"]),
        (&json!("6"), &json!("720x1280"), &json!("a tide"))
    );
    assert_eq!((&video["progress"], &video["error"]), (&json!(0), &Value::Null));

    let watched = gate.get("/v1/videos/job-1");
    for answer in [&made, &watched] {
        assert!(answer.value("openai-poll-after-ms").unwrap().parse::<u32>().unwrap() >= 1_000);
    }
    let now = watched.json();
    assert_eq!(
        (&now["id"], &now["status"], &now["created_at"]),
        (&json!("job-1"), &json!("in_progress"), &video["created_at"])
    );
    assert_eq!(
        (&now["seconds"], &now["prompt"]),
        (&Value::Null, &Value::Null),
        "what nobody remembers is not told"
    );
    let list = gate.get(VIDEOS).json();
    assert_eq!(
        (&list["object"], &list["data"][0]["id"], &list["has_more"]),
        (&json!("list"), &json!("job-1"), &json!(false))
    );
    assert_eq!((&list["first_id"], &list["last_id"]), (&json!("job-1"), &json!("job-1")));
    let rest = gate.get("/v1/videos?after=job-1&limit=5&order=asc").json();
    assert_eq!((&rest["data"], &rest["has_more"]), (&json!([]), &json!(false)));
    let content = gate.get("/v1/videos/job-1/content");
    assert_eq!((content.status, content.code().as_str()), (404, "not_found"));
    assert!(content.text().contains("names no video yet"), "{}", content.text());
    assert!(gate.get("/api/v1/video/status?request_id=job-1").text().contains("rendering"));
    assert_eq!(upstream.charges().iter().sum::<u64>(), 3_000_000);
}

#[tokio::test(start_paused = true)]
async fn job_status_is_translated_for_openai() {
    for (status, word, progress) in [
        (r#"{"status":"queued"}"#, "queued", 0),
        (r#"{"state":"Pending"}"#, "queued", 0),
        (r#"{"status":"rendering","progress":55}"#, "in_progress", 0),
        (r#"{"status":"strange"}"#, "in_progress", 0),
        ("{}", "in_progress", 0),
        (r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#, "completed", 100),
        (r#"{"status":"failed","error":{"message":"too dark"}}"#, "failed", 0),
    ] {
        let upstream = PausedUpstream::start(move |received| match received.method.as_str() {
            "POST" => Reply::video("job-1"),
            _ => Reply::new(200, status),
        });
        let gate = PausedGate::start(&upstream, "").await;
        assert_eq!(gate.post(VIDEOS, r#"{"prompt":"a tide"}"#).await.status, 200);
        // A failure has to last.
        gate.advance(Duration::from_secs(120)).await;
        let video = gate.get("/v1/videos/job-1").await.json();
        assert_eq!(
            (&video["status"], &video["progress"]),
            (&json!(word), &json!(progress)),
            "{status}"
        );
        assert_eq!(video["completed_at"].is_u64(), word == "completed");
        let reason = if word == "failed" { json!("too dark") } else { Value::Null };
        assert_eq!(video["error"]["message"], reason);
    }
}

#[test]
fn video_hosted_elsewhere_is_not_reported_as_a_wrong_path() {
    let status = r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#;
    let upstream = upstream(status);
    let gate = Gate::start(&upstream, "page.media_origins = [\"https://other.example\"]");
    assert_eq!(gate.post(VIDEOS, r#"{"prompt":"a tide"}"#).status, 200);
    let native = gate.get("/bff/video/content?request_id=job-1");
    let dialect = gate.get("/v1/videos/job-1/content");
    for answer in [&native, &dialect] {
        assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"));
        let said = answer.text();
        for told in
            ["the video is finished", "https://cdn.example", "page.media_origins", "video_url"]
        {
            assert!(said.contains(told), "{told}: {said}");
        }
        assert!(!said.contains("path"), "{said}");
    }
    assert_eq!(native.charged().as_deref(), Some("no"));
}

#[test]
fn every_openai_video_field_is_mapped_ignored_or_refused() {
    const PICTURE: &str = "https://pictures.example/a.png";
    let upstream = upstream("{}");
    let gate = Gate::start(&upstream, "");
    let with = |more: Value| {
        let mut order = json!({ "prompt": "a tide", "model": "video-c-3-fast" });
        order.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        order
    };
    let sent = |more: Value| {
        let mut order = with(json!({ "duration": 8 }));
        order.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        order
    };
    let mut bought = 0;
    for (more, received) in [
        (json!({}), json!({})),
        (json!({ "seconds": 4 }), json!({ "duration": 4 })),
        (json!({ "seconds": "4" }), json!({ "duration": 4 })),
        (json!({ "duration": 6 }), json!({ "duration": 6 })),
        (json!({ "seconds": null, "size": null, "input_reference": null }), json!({})),
        (json!({ "size": "1920x1080" }), json!({ "aspect_ratio": "16:9" })),
        (json!({ "size": "1080x1920" }), json!({ "aspect_ratio": "9:16" })),
        (json!({ "size": "9:16" }), json!({ "aspect_ratio": "9:16" })),
        (json!({ "aspect_ratio": "9:16" }), json!({ "aspect_ratio": "9:16" })),
        (json!({ "image_url": PICTURE }), json!({ "image_url": PICTURE })),
        (json!({ "input_reference": PICTURE }), json!({ "image_url": PICTURE })),
        (json!({ "input_reference": { "image_url": PICTURE } }), json!({ "image_url": PICTURE })),
    ] {
        let order = with(more);
        let key = format!("k-{bought}");
        let answer = gate.ask("POST", VIDEOS, &[("idempotency-key", &key)], &order.to_string());
        assert_eq!(
            (answer.status, answer.value("tollgate-ignored")),
            (200, None),
            "{order}: {}",
            answer.text()
        );
        let mut orders =
            upstream.received_requests().into_iter().filter(|received| received.method == "POST");
        assert_eq!(orders.next_back().unwrap().json(), sent(received), "{order}");
        bought += 1;
    }
    for (more, param) in [
        (json!({ "seconds": 7 }), "seconds"),
        (json!({ "seconds": "8.0" }), "seconds"),
        (json!({ "seconds": " 8" }), "seconds"),
        (json!({ "duration": 5 }), "duration"),
        (json!({ "seconds": 4, "duration": 4 }), "duration"),
        (json!({ "size": "1792x1024" }), "size"),
        (json!({ "size": "0x0" }), "size"),
        (json!({ "size": "1280x720", "aspect_ratio": "16:9" }), "aspect_ratio"),
        (json!({ "aspect_ratio": "1:1" }), "aspect_ratio"),
        (json!({ "image_url": "http://10.0.0.1/a.png" }), "image_url"),
        (json!({ "input_reference": "data:image/png;base64,AAAA" }), "input_reference"),
        (json!({ "input_reference": { "file_id": "f-1" } }), "input_reference"),
        (json!({ "input_reference": { "image_url": "http://localhost/" } }), "input_reference"),
        (json!({ "model": "sora-2" }), "model"),
        (json!({ "prompt": " " }), "prompt"),
    ] {
        let order = with(more);
        let answer = gate.post(VIDEOS, &order.to_string());
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (422, &json!(param)),
            "{order}: {}",
            answer.text()
        );
    }
    let sold = upstream.charges().into_iter().filter(|micros| *micros > 0).count();
    assert_eq!(sold, bought);
}

#[test]
fn ignored_aspect_ratio_is_named_as_requested() {
    const NATIVE: &str = "/api/v1/video";
    let upstream = upstream("{}");
    let gate = Gate::start(&upstream, "");
    for (row, (target, more, named)) in [
        (VIDEOS, json!({ "size": "720x1280" }), Some("size")),
        (VIDEOS, json!({ "size": "720x1280", "quality": "hd" }), Some("quality, size")),
        (VIDEOS, json!({ "aspect_ratio": "9:16" }), Some("aspect_ratio")),
        (VIDEOS, json!({ "size": null, "aspect_ratio": null }), None),
        (VIDEOS, json!({ "size": "720x1280", "model": "video-b" }), None),
        (VIDEOS, json!({ "": 1, "model": "video-b" }), Some("?")),
        (NATIVE, json!({ "aspect_ratio": "9:16" }), Some("aspect_ratio")),
        (NATIVE, json!({ "aspect_ratio": "16:9", "model": "video-a-2" }), Some("aspect_ratio")),
        (NATIVE, json!({ "aspect_ratio": "9:16", "model": "video-b" }), None),
        (NATIVE, json!({}), None),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k-{row}");
        let mut order = json!({ "prompt": "a tide" });
        order.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        for is_replay in [false, true] {
            let key = [("idempotency-key", key.as_str())];
            let answer = gate.ask("POST", target, &key, &order.to_string());
            assert_eq!((answer.status, answer.is_replay()), (200, is_replay), "{}", answer.text());
            assert_eq!(answer.value("tollgate-ignored"), named, "{target} {order}");
        }
    }
    let polls = |received: &ReceivedRequest| received.method == "GET";
    let mut orders = upstream.received_requests().into_iter().filter(|received| !polls(received));
    assert_eq!(orders.next().unwrap().json()["aspect_ratio"], "9:16", "it is sent all the same");
    let fields = [("prompt", None, "a tide in a form"), ("size", None, "720x1280")];
    assert_eq!(form(&gate, &fields).value("tollgate-ignored"), Some("size"));
}

#[test]
fn multipart_order_equals_the_json_order_and_is_bought_once() {
    let upstream = upstream("{}");
    let gate = Gate::start(&upstream, "");
    let fields = [
        ("model", None, "video-d-3.1-fast"),
        ("prompt", None, "a tide"),
        ("seconds", None, "4"),
        ("size", None, "1280x720"),
        ("input_reference[image_url]", None, "https://pictures.example/a.png"),
        ("quality", None, "hd"),
    ];
    let first = form(&gate, &fields);
    assert_eq!((first.status, first.cost()), (200, Some(3_000_000)), "{}", first.text());
    assert_eq!(
        (&first.json()["id"], first.value("tollgate-ignored")),
        (&json!("job-1"), Some("quality"))
    );
    let received = json!({ "prompt": "a tide", "model": "video-d-3.1-fast", "duration": 4, "aspect_ratio": "16:9",
        "image_url": "https://pictures.example/a.png" });
    assert_eq!(upstream.received_requests()[0].json(), received);
    let order = json!({ "model": "video-d-3.1-fast", "prompt": "a tide", "seconds": 4, "size": "1280x720",
        "input_reference": "https://pictures.example/a.png" });
    let again = gate.ask("POST", VIDEOS, &[("x-stainless-retry-count", "1")], &order.to_string());
    assert_eq!((again.is_replay(), &again.json()["id"]), (true, &json!("job-1")));
    assert_eq!(upstream.charges().iter().sum::<u64>(), 3_000_000);
}

#[test]
fn unsupported_multipart_order_says_why() {
    let upstream = upstream("{}");
    let gate = Gate::start(&upstream, "");
    let prompt = ("prompt", None, "a tide");
    let file = form(&gate, &[prompt, ("input_reference", Some("a.png"), "PNG")]);
    assert_eq!((file.status, &file.json()["error"]["param"]), (422, &json!("input_reference")));
    assert!(file.text().contains("public URL"), "{}", file.text());
    let twice = form(&gate, &[prompt, prompt]);
    assert_eq!(
        (twice.status, &twice.json()["error"]["errors"][0]["code"]),
        (422, &json!("duplicate"))
    );
    let empty = form(&gate, &[]);
    assert_eq!((empty.status, &empty.json()["error"]["param"]), (422, &json!("prompt")));
    for (media_type, body) in [
        ("multipart/form-data", "--b\r\n"),
        (
            "multipart/form-data; boundary=b",
            "--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\ncut",
        ),
        ("multipart/form-data; boundary=b", "no form at all"),
    ] {
        let answer = gate.ask("POST", VIDEOS, &[TOKEN, ("content-type", media_type)], body);
        assert_eq!((answer.status, answer.code().as_str()), (400, "malformed_request"), "{body}");
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn open_mode_lists_no_jobs() {
    let upstream = upstream("{}");
    let gate = Gate::start(&upstream, "server.trusted_proxies = [\"127.0.0.0/8\"]");
    assert_eq!(gate.post(VIDEOS, r#"{"prompt":"a tide"}"#).status, 200);
    let list = gate.get(VIDEOS);
    assert_eq!((list.status, list.code().as_str()), (403, "forbidden"), "{}", list.text());
    assert_eq!(gate.get("/v1/videos/job-1").status, 200, "who names it may see it");
}
