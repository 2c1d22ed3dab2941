//! Every rule of a video request, broken and kept.

use proptest::prelude::*;

use super::*;
use crate::api::validate::object::HasRules;
use crate::api::validate::rule::is_blank;

fn order(payload: &str) -> Order {
    video(payload.as_bytes(), &Catalog::published()).expect(payload).order.into_inner()
}

fn sent(payload: &str) -> String {
    String::from_utf8(order(payload).body.to_vec()).unwrap()
}

/// Pointer, code and detail of every fault.
fn faults(payload: &str) -> Vec<(String, &'static str, String)> {
    let Err(problem) = video(payload.as_bytes(), &Catalog::published()) else {
        return Vec::new();
    };
    assert_eq!(problem.kind().code, "invalid_request", "{payload}");
    let faults = problem.errors().iter();
    faults.map(|fault| (fault.pointer.clone(), fault.code, fault.detail.clone())).collect()
}

#[rustfmt::skip]
const BROKEN: &[(&str, &str, &str, &str)] = &[
    (r#"{}"#, "/prompt", "required", "a description of the video"),
    (r#"{"prompt":null}"#, "/prompt", "wrong_type", "expected a string, found null"),
    (r#"{"prompt":["a tide"]}"#, "/prompt", "wrong_type", "expected a string, found an array"),
    (r#"{"prompt":""}"#, "/prompt", "empty", "expected 1 to 4000 characters; it is empty"),
    (r#"{"prompt":" \n"}"#, "/prompt", "blank", "it is only whitespace"),
    (r#"{"prompt":"\ufeff\u2800\u00ad"}"#, "/prompt", "blank", "it is only whitespace"),
    (r#"{"prompt":"a\u0000b"}"#, "/prompt", "nul_character", "expected text without U+0000"),
    (r#"{"prompt":"a","model":null}"#, "/model", "wrong_type", "expected a string, found null"),
    (r#"{"prompt":"a","model":{}}"#, "/model", "wrong_type", "expected a string, found an object"),
    (r#"{"prompt":"a","model":""}"#, "/model", "unknown_model", "known: video-a-2, video-b"),
    (r#"{"prompt":"a","model":"video-a-2 "}"#, "/model", "unknown_model", "did you mean `video-a-2`?"),
    (r#"{"prompt":"a","model":"VIDEO-D-3.1"}"#, "/model", "unknown_model", "did you mean `video-d-3.1`?"),
    (r#"{"prompt":"a","model":"video-e-gen4.5-turbo"}"#, "/model", "unknown_model", "did you mean `video-e-gen4-turbo`?"),
    (r#"{"prompt":"a","model":"gamma-large"}"#, "/model", "unknown_model", "gamma-large is a chat model: send it to /api/v1/chat"),
    (r#"{"prompt":"a","model":"video-x","duration":3}"#, "/model", "unknown_model", "there is no video model `video-x`"),
    (r#"{"prompt":"a","duration":null}"#, "/duration", "wrong_type", "a whole number, written without a point or an exponent, found null"),
    (r#"{"prompt":"a","duration":"8"}"#, "/duration", "wrong_type", "found a string"),
    (r#"{"prompt":"a","duration":8.0}"#, "/duration", "wrong_type", "found a number"),
    (r#"{"prompt":"a","duration":8e0}"#, "/duration", "wrong_type", "found a number"),
    (r#"{"prompt":"a","duration":-0}"#, "/duration", "wrong_type", "found a number"),
    (r#"{"prompt":"a","duration":99999999999999999999}"#, "/duration", "wrong_type", "found a number"),
    (r#"{"prompt":"a","duration":0}"#, "/duration", "duration_not_offered", "video-a-2 takes 5 to 15 seconds, not 0"),
    (r#"{"prompt":"a","duration":-8}"#, "/duration", "duration_not_offered", "video-a-2 takes 5 to 15 seconds, not -8"),
    (r#"{"prompt":"a","duration":4294967304}"#, "/duration", "duration_not_offered", "not 4294967304"),
    (r#"{"prompt":"a","model":"video-d-3.1","duration":7}"#, "/duration", "duration_not_offered", "video-d-3.1 takes 4, 6 or 8 seconds, not 7"),
    (r#"{"prompt":"a","model":"video-e-gen4.5","duration":16}"#, "/duration", "duration_not_offered", "video-e-gen4.5 takes 4 to 15 seconds, not 16"),
    (r#"{"prompt":"a","model":"video-x","duration":3}"#, "/duration", "duration_not_offered", "a video lasts 4 to 15 seconds, not 3"),
    (r#"{"prompt":"a","aspect_ratio":null}"#, "/aspect_ratio", "wrong_type", "expected a string, found null"),
    (r#"{"prompt":"a","aspect_ratio":"1:1"}"#, "/aspect_ratio", "unknown_aspect_ratio", "expected 16:9 or 9:16, not `1:1`"),
    (r#"{"prompt":"a","aspect_ratio":"16:9 "}"#, "/aspect_ratio", "unknown_aspect_ratio", "not `16:9 `"),
    (r#"{"prompt":"a","image_url":null}"#, "/image_url", "wrong_type", "expected a string, found null"),
    (r#"{"prompt":"a","image_url":""}"#, "/image_url", "not_public_url", "starts with http:// or https://"),
    (r#"{"prompt":"a","image_url":"http://localhost/x.png"}"#, "/image_url", "not_public_url", "a name with a dot"),
    (r#"{"prompt":"a","image_url":"https://169.254.169.254/"}"#, "/image_url", "not_public_url", "link-local"),
    (r#"{"prompt":"a","model":"video-e-gen4-turbo"}"#, "/image_url", "image_required", "video-e-gen4-turbo requires a public image_url"),
    (r#"{"prompt":"a","model":"video-e-gen4-turbo","image_url":null}"#, "/image_url", "wrong_type", "found null"),
    (r#"{"prompt":"a","seed":1}"#, "/seed", "unknown_field", "there is no field `seed`; known: prompt, model, duration, aspect_ratio, image_url"),
    (r#"{"prompt":"a","aspectRatio":"9:16"}"#, "/aspectRatio", "unknown_field", "did you mean `aspect_ratio`?"),
    (r#"{"prompt":"a","imageurl":"https://example.com/"}"#, "/imageurl", "unknown_field", "did you mean `image_url`?"),
];

#[test]
fn each_rule_reports_what_was_expected() {
    for (payload, pointer, code, detail) in BROKEN {
        let found = faults(payload);
        let fault = found.iter().find(|(at, named, _)| at == pointer && named == code);
        let (_, _, said) = fault.unwrap_or_else(|| panic!("{payload}: {found:?}"));
        assert!(said.contains(detail), "{payload}: {said}");
        // An unknown model also takes the overall range.
        assert!(found.len() == 1 || payload.contains("video-x"), "{payload}: {found:?}");
    }
    let long = format!(r#"{{"prompt":"{}"}}"#, "a".repeat(4_001));
    assert_eq!(faults(&long)[0].1, "too_long");
    let unsold = Catalog::published().filter(|_, id| id != DEFAULT_VIDEO_MODEL);
    let problem = video(br#"{"prompt":"a"}"#, &unsold).expect_err("it names no model");
    let [fault] = problem.errors() else { panic!("one fault: {problem:?}") };
    assert_eq!((&*fault.pointer, fault.code), ("/model", "required"));
    let met_above = [("/prompt", "too_long"), ("/model", "required")];
    let rules = VideoBody::codes().into_iter().filter(|rule| !met_above.contains(rule));
    for (pointer, code) in rules {
        let met = BROKEN.iter().any(|(_, at, named, _)| (*at, *named) == (pointer, code));
        assert!(met, "{pointer} {code}");
    }
}

#[test]
fn all_faults_are_reported_at_once() {
    let payload = r#"{"seed":1,"duration":7,"prompt":" ","aspect_ratio":"4:3",
        "image_url":"file:///x","model":"video-d-3.1","style":{"a":[]}}"#;
    let found = faults(payload);
    let found: Vec<_> = found.iter().map(|(at, code, _)| (&**at, *code)).collect();
    assert_eq!(
        found,
        [
            ("/prompt", "blank"),
            ("/duration", "duration_not_offered"),
            ("/aspect_ratio", "unknown_aspect_ratio"),
            ("/image_url", "not_public_url"),
            ("/seed", "unknown_field"),
            ("/style", "unknown_field"),
        ]
    );
    let found = faults(r#"{"model":"video-e-gen4-turbo","duration":99}"#);
    let codes: Vec<_> = found.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes, ["required", "duration_not_offered", "image_required"]);
}

#[test]
fn ambiguous_body_is_malformed() {
    for payload in [
        r#"[{"prompt":"a"}]"#,
        r#"{"prompt":"a","prompt":"b"}"#,
        r#"{"prompt":"a","\u0070rompt":"b"}"#,
        r#"{"prompt":"a","duration":08}"#,
        r#"{"prompt":"a","duration":1e400}"#,
        r#"{"prompt":"a","duration":NaN}"#,
        r#"{"prompt":"\ud83d"}"#,
        r#"{"prompt":"a"}x"#,
        "\u{feff}{\"prompt\":\"a\"}",
        "",
    ] {
        let problem = video(payload.as_bytes(), &Catalog::published()).unwrap_err();
        assert_eq!(problem.kind().code, "malformed_json", "{payload}");
        assert!(problem.errors().is_empty());
    }
}

#[test]
fn prompt_length_is_counted_in_code_points() {
    for letter in ["a", "é", "界", "😀", "\\ud83d\\ude00", "\\n", "\u{301}"] {
        let prompt = |count: usize| format!(r#"{{"prompt":"a{}"}}"#, letter.repeat(count - 1));
        assert_eq!(faults(&prompt(4_000)), [], "{letter}");
        let found = faults(&prompt(4_001));
        assert_eq!(found[0].1, "too_long", "{letter}");
        let said = "expected at most 4000 characters (Unicode code points), not 4001";
        assert_eq!(found[0].2, said, "{letter}");
    }
    let families = "👨\u{200d}👩\u{200d}👧\u{200d}👦".repeat(571);
    assert_eq!(families.chars().count(), 3_997);
    assert_eq!(faults(&format!(r#"{{"prompt":"abc{families}"}}"#)), []);
    assert_eq!(faults(&format!(r#"{{"prompt":"abcd{families}"}}"#))[0].1, "too_long");
    let blank = faults(&format!(r#"{{"prompt":"{}"}}"#, " ".repeat(4_001)));
    let codes: Vec<_> = blank.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes, ["blank", "too_long"]);
}

#[test]
fn sent_body_always_names_model_and_duration() {
    #[rustfmt::skip]
    let cases = [
        (r#"{"prompt":"a tide"}"#, r#"{"prompt":"a tide","model":"video-a-2","duration":8}"#),
        (
            " { \"duration\" : 6 , \"model\" : \"video\\u002dd-3.1\" , \"prompt\" : \" a \\u00e9\\/\" } ",
            r#"{"prompt":" a é/","model":"video-d-3.1","duration":6}"#,
        ),
        (
            r#"{"image_url":"HTTPS://Example.com/a b","prompt":"a"}"#,
            "",
        ),
        (
            r#"{"image_url":"HTTPS://Bücher.example:443/é","aspect_ratio":"9:16","prompt":"a","model":"video-e-gen4-turbo","duration":15}"#,
            r#"{"prompt":"a","model":"video-e-gen4-turbo","duration":15,"aspect_ratio":"9:16","image_url":"https://xn--bcher-kva.example/%C3%A9"}"#,
        ),
        (
            r#"{"prompt":"a","aspect_ratio":"16:9"}"#,
            r#"{"prompt":"a","model":"video-a-2","duration":8,"aspect_ratio":"16:9"}"#,
        ),
    ];
    for (payload, body) in cases {
        match body {
            "" => assert_eq!(faults(payload)[0].1, "not_public_url"),
            _ => assert_eq!(sent(payload), body),
        }
    }
}

#[test]
fn every_model_takes_its_durations_at_its_price() {
    for row in &Catalog::published().video {
        for seconds in 0..=20 {
            let payload = format!(
                r#"{{"prompt":"a","model":"{}","duration":{seconds},"image_url":"https://example.com/a.png"}}"#,
                row.id
            );
            let expected: &[&str] = match row.durations.offers(seconds) {
                true => &[],
                false => &["duration_not_offered"],
            };
            let found = faults(&payload);
            let codes: Vec<_> = found.iter().map(|(_, code, _)| *code).collect();
            assert_eq!(codes, expected, "{payload}");
        }
        let payload = format!(
            r#"{{"prompt":"a","model":"{}","image_url":"https://example.com/a.png"}}"#,
            row.id
        );
        let order = order(&payload);
        assert_eq!(
            (order.service, &*order.model, order.price),
            (Service::Video, &*row.id, row.price)
        );
        let body: serde_json::Value = serde_json::from_slice(&order.body).unwrap();
        assert_eq!((&body["model"], &body["duration"]), (&(*row.id).into(), &8.into()));
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(payload: Vec<u8>) {
        let _ = video(&payload, &Catalog::published());
    }

    #[test]
    fn reserialized_order_validates_to_itself(
        prompt in any::<String>(),
        model in prop::option::of(0usize..8),
        duration in prop::option::of(3u32..17),
        ratio in prop::option::of(prop::sample::select(ASPECT_RATIOS)),
        picture in prop::option::of("https://[a-z]{1,9}\\.org/\\PC{0,9}"),
    ) {
        let catalog = Catalog::published();
        let mut payload = serde_json::json!({ "prompt": prompt });
        if let Some(model) = model { payload["model"] = (*catalog.video[model].id).into() }
        if let Some(duration) = duration { payload["duration"] = duration.into() }
        if let Some(ratio) = ratio { payload["aspect_ratio"] = ratio.into() }
        if let Some(picture) = &picture { payload["image_url"] = picture.as_str().into() }
        if let Ok(VideoOrder { order, .. }) = video(payload.to_string().as_bytes(), &catalog) {
            prop_assert_eq!(&video(&order.get().body, &catalog).unwrap().order, &order);
            let body: serde_json::Value = serde_json::from_slice(&order.get().body).unwrap();
            prop_assert_eq!(body["prompt"].as_str(), Some(prompt.as_str()));
        } else {
            let row = model.map_or("video-a-2", |model| &catalog.video[model].id);
            let row = catalog.video_model(row).unwrap();
            let excused = is_blank(&prompt)
                || nul(&prompt).is_some()
                || duration.is_some_and(|seconds| !row.durations.offers(seconds))
                || (row.image == ImageInput::Required && picture.is_none())
                || picture.is_some_and(|picture| image_url(&picture).is_err());
            prop_assert!(excused, "{}", payload);
        }
    }
}
