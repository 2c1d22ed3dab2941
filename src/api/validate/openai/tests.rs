//! Bodies that are sent, faults, and ignored fields.

use std::sync::Arc;

use super::*;
use crate::api::validate::rule::MAX_IGNORED;
use crate::api::validate::{ChatRules, Checked, Order};
use crate::gate::problem::{FieldError, Problem};
use crate::gateway::contract::catalog::Catalog;

/// The ignored fields of a chat with these extra fields.
fn named(further: &str) -> Option<String> {
    let rules = ChatRules { catalog: Arc::new(Catalog::published()), fields: Vec::new() };
    let payload = format!(
        r#"{{"model":"eta-5-mini","messages":[{{"role":"user","content":"hi"}}]{further}}}"#
    );
    chat(payload.as_bytes(), &rules).expect(further).ignored.names()
}

#[test]
fn ignored_fields_are_named_unless_null() {
    assert_eq!(named(""), None);
    assert_eq!(named(r#","seed":null"#), None);
    assert_eq!(named(r#","seed":7,"user":"ann","top_p":null"#), Some("seed, user".to_owned()));
}

#[test]
fn ignored_field_names_are_valid_in_a_header() {
    assert_eq!(named(r#","a b\r\n":1,"é.-_":1"#), Some("a?b??, ?.-_".to_owned()));
    let many: String = (0..MAX_IGNORED + 2).map(|number| format!(r#","f{number}":1"#)).collect();
    let names = named(&many).expect("names");
    assert_eq!(names.split(", ").count(), MAX_IGNORED);
    assert!(names.starts_with("f0, f1, ") && names.ends_with(", f31"), "{names}");
}

/// The body that is sent, or each fault as `pointer code`.
fn sent(order: Result<Checked<Order>, Problem>) -> String {
    let body = |order: Checked<Order>| String::from_utf8(order.get().body.to_vec()).expect("JSON");
    let fault = |fault: &FieldError| format!("{} {}", fault.pointer, fault.code);
    order.map_or_else(
        |refused| refused.errors().iter().map(fault).collect::<Vec<_>>().join(", "),
        body,
    )
}

const PICTURE: &str = "https://pictures.example/a.png";

/// The body of a video with these extra fields, without the common ones.
fn ordered(fields: &str) -> String {
    let payload = format!(r#"{{"prompt":"a tide","model":"video-c-3-fast"{fields}}}"#);
    let order = video(payload.as_bytes(), &Catalog::published()).map(|video| video.order);
    bare(&sent(order))
}

/// The same, of the fields of a form; `None` is a file.
fn ordered_by_form(fields: &[(&str, Option<&str>)]) -> String {
    let input =
        |value: &Option<&str>| value.map_or(FormValue::File, |text| FormValue::Text(text.into()));
    let mut form = vec![
        ("prompt".to_owned(), FormValue::Text("a tide".into())),
        ("model".to_owned(), FormValue::Text("video-c-3-fast".into())),
    ];
    form.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), input(value))));
    bare(&sent(video_from_form(&form, &Catalog::published()).map(|video| video.order)))
}

fn bare(sent: &str) -> String {
    let begin = r#"{"prompt":"a tide","model":"video-c-3-fast""#;
    sent.strip_prefix(begin).unwrap_or(sent).replace(PICTURE, "P")
}

#[test]
fn openai_video_fields_map_to_the_gateways() {
    for (fields, becomes) in [
        ("", r#","duration":8}"#),
        (r#","seconds":4"#, r#","duration":4}"#),
        (r#","seconds":"4""#, r#","duration":4}"#),
        (r#","duration":6"#, r#","duration":6}"#),
        (r#","size":"1280x720""#, r#","duration":8,"aspect_ratio":"16:9"}"#),
        (r#","size":"9:16""#, r#","duration":8,"aspect_ratio":"9:16"}"#),
        (r#","aspect_ratio":"9:16""#, r#","duration":8,"aspect_ratio":"9:16"}"#),
        (r#","image_url":"P""#, r#","duration":8,"image_url":"P"}"#),
        (r#","input_reference":"P""#, r#","duration":8,"image_url":"P"}"#),
        (r#","input_reference":{"image_url":"P"}"#, r#","duration":8,"image_url":"P"}"#),
        (r#","quality":"hd""#, r#","duration":8}"#),
        (r#","seconds":"4s""#, "/seconds wrong_type"),
        (r#","seconds":"""#, "/seconds wrong_type"),
        (r#","seconds":"-4""#, "/seconds wrong_type"),
        (r#","seconds":4.5"#, "/seconds wrong_type"),
        (r#","seconds":7"#, "/seconds duration_not_offered"),
        (r#","duration":7"#, "/duration duration_not_offered"),
        (r#","seconds":4,"duration":4"#, "/duration duplicate"),
        (r#","size":"1280x721""#, "/size size_not_offered"),
        (r#","size":"0x0""#, "/size size_not_offered"),
        (r#","size":"+16x9""#, "/size size_not_offered"),
        (r#","size":"200000x112500""#, "/size size_not_offered"),
        (r#","size":"16x9","aspect_ratio":"16:9""#, "/aspect_ratio duplicate"),
        (r#","image_url":"P","input_reference":"P""#, "/image_url duplicate"),
        (r#","input_reference":{"file_id":"f"}"#, "/input_reference not_supported"),
        (r#","input_reference":"http://a""#, "/input_reference not_public_url"),
        (r#","image_url":"http://a""#, "/image_url not_public_url"),
    ] {
        assert_eq!(ordered(&fields.replace('P', PICTURE)), becomes, "{fields}");
    }
}

#[test]
fn form_fields_map_like_json_fields() {
    for (fields, becomes) in [
        (&[][..], r#","duration":8}"#),
        (&[("seconds", Some("4"))], r#","duration":4}"#),
        (&[("duration", Some("6"))], r#","duration":6}"#),
        (&[("size", Some("720x1280"))], r#","duration":8,"aspect_ratio":"9:16"}"#),
        (&[("aspect_ratio", Some("16:9"))], r#","duration":8,"aspect_ratio":"16:9"}"#),
        (&[("image_url", Some(PICTURE))], r#","duration":8,"image_url":"P"}"#),
        (&[("input_reference", Some(PICTURE))], r#","duration":8,"image_url":"P"}"#),
        (&[("input_reference[image_url]", Some(PICTURE))], r#","duration":8,"image_url":"P"}"#),
        (&[("input_reference[file_id]", Some("f"))], "/input_reference not_supported"),
        (&[("input_reference", None)], "/input_reference not_supported"),
        (&[("mask", None), ("quality", Some("hd"))], r#","duration":8}"#),
        (&[("image_url", None)], "/image_url wrong_type"),
        (&[("tags[]", Some("a")), ("tags[]", Some("b"))], r#","duration":8}"#),
        (&[("seconds", Some("four"))], "/seconds wrong_type"),
        (&[("model", Some("eta-5"))], "/model duplicate"),
        (&[("prompt", Some("another"))], "/prompt duplicate"),
        (
            &[("size", Some("1x1")), ("size", Some("1x1"))],
            "/size duplicate, /size size_not_offered",
        ),
    ] {
        assert_eq!(ordered_by_form(fields), becomes, "{fields:?}");
    }
}

#[test]
fn message_content_becomes_one_text_or_is_rejected() {
    let rules = ChatRules { catalog: Arc::new(Catalog::published()), fields: Vec::new() };
    for (message, becomes) in [
        (r#"{"role":"user","content":"a"}"#, r#"{"role":"user","content":"a"}"#),
        (r#"{"role":"developer","content":"a"}"#, r#"{"role":"system","content":"a"}"#),
        (
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"text","text":"c"}]}"#,
            r#"{"role":"user","content":"a\nb\nc"}"#,
        ),
        (
            r#"{"role":"assistant","content":"a","tool_calls":[]}"#,
            r#"{"role":"assistant","content":"a"}"#,
        ),
        (
            r#"{"role":"assistant","content":"a","tool_calls":[{}]}"#,
            "/messages/0/tool_calls not_supported",
        ),
        (
            r#"{"role":"assistant","content":"a","function_call":{}}"#,
            "/messages/0/function_call not_supported",
        ),
        (
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","text":1}]}"#,
            "/messages/0/content/1/type not_supported",
        ),
        (r#"{"role":"user","content":[{"text":"a"}]}"#, "/messages/0/content/0/type required"),
        (r#"{"role":"user","content":[{"type":"text"}]}"#, "/messages/0/content/0/text required"),
        (
            r#"{"role":"user","content":[{"type":"text","text":1}]}"#,
            "/messages/0/content/0/text wrong_type",
        ),
        (r#"{"role":"user","content":["a"]}"#, "/messages/0/content/0 wrong_type"),
        (r#"{"role":"user","content":1}"#, "/messages/0/content wrong_type"),
    ] {
        let payload = format!(r#"{{"model":"eta-5-mini","messages":[{message}]}}"#);
        let sent_body = sent(chat(payload.as_bytes(), &rules).map(|chat| chat.order));
        let begin = r#"{"model":"eta-5-mini","messages":["#;
        let message = sent_body.strip_prefix(begin).and_then(|rest| rest.strip_suffix("]}"));
        assert_eq!(message.unwrap_or(&sent_body), becomes);
    }
}

#[test]
fn chat_fields_are_honored_ignored_or_rejected() {
    let rules = ChatRules { catalog: Arc::new(Catalog::published()), fields: Vec::new() };
    let read = |fields: &str| {
        let payload = format!(
            r#"{{"model":"eta-5-mini","messages":[{{"role":"user","content":"hi"}}]{fields}}}"#
        );
        let chat = chat(payload.as_bytes(), &rules).map_err(|refused| sent(Err(refused)))?;
        let ignored = chat.ignored.names().unwrap_or_default();
        Ok::<_, String>((sent(Ok(chat.order)), chat.is_stream, chat.wants_usage, ignored))
    };
    let (plain, ..) = read("").expect("no fault");
    for (fields, is_stream, wants_usage, ignored) in [
        (r#","stream":true"#, true, false, ""),
        (r#","stream":true,"stream_options":{"include_usage":true}"#, true, true, ""),
        (r#","stream":false,"stream_options":{"include_usage":false}"#, false, false, ""),
        (r#","stream_options":{"x":1}"#, false, false, "stream_options.x"),
        (r#","n":1,"logprobs":false,"top_logprobs":0"#, false, false, ""),
        (r#","tools":[],"tool_choice":"auto","modalities":["text"]"#, false, false, ""),
        (r#","functions":[],"function_call":"none""#, false, false, ""),
        (r#","response_format":{"type":"text","x":1}"#, false, false, ""),
        (r#","tools":null,"n":null,"stream":null"#, false, false, ""),
        (r#","top_p":1,"seed":7"#, false, false, "top_p, seed"),
    ] {
        let read = read(fields).unwrap_or_else(|faults| panic!("{fields}: {faults}"));
        assert_eq!(read, (plain.clone(), is_stream, wants_usage, ignored.to_owned()), "{fields}");
    }
    for (fields, faults) in [
        (r#","n":2"#, "/n not_supported"),
        (r#","n":"1""#, "/n not_supported"),
        (r#","tools":[{}]"#, "/tools not_supported"),
        (r#","tools":"none""#, "/tools not_supported"),
        (r#","tool_choice":"required""#, "/tool_choice not_supported"),
        (r#","tool_choice":{"type":"auto"}"#, "/tool_choice not_supported"),
        (r#","logprobs":true"#, "/logprobs not_supported"),
        (r#","top_logprobs":3"#, "/top_logprobs not_supported"),
        (r#","modalities":["text","audio"]"#, "/modalities not_supported"),
        (r#","modalities":["audio","text"]"#, "/modalities not_supported"),
        (r#","response_format":{"type":"json_object"}"#, "/response_format not_supported"),
        (r#","response_format":{}"#, "/response_format not_supported"),
        (r#","stream":"yes""#, "/stream wrong_type"),
        (r#","stream_options":true"#, "/stream_options wrong_type"),
        (r#","stream_options":{"include_usage":1}"#, "/stream_options/include_usage wrong_type"),
    ] {
        assert_eq!(read(fields).expect_err(fields), faults, "{fields}");
    }
}

#[test]
fn faults_and_ignored_fields_name_their_position() {
    let rules = ChatRules { catalog: Arc::new(Catalog::published()), fields: Vec::new() };
    let read = |messages: &str| {
        chat(format!(r#"{{"model":"eta-5-mini","messages":[{messages}]}}"#).as_bytes(), &rules)
    };
    let fine = r#"{"role":"user","content":"hi"}"#;
    let refused = read(&format!(r#"{fine},{fine},{{"role":"user","content":[1]}}"#));
    assert_eq!(sent(refused.map(|chat| chat.order)), "/messages/2/content/0 wrong_type");
    let named =
        read(r#"{"role":"user","name":"ann","content":[{"type":"text","text":"hi","x":1}]}"#);
    let names = named.expect("no fault").ignored.names();
    assert_eq!(names.as_deref(), Some("messages.name, messages.content.x"));
}

#[test]
fn ignored_aspect_ratio_is_reported() {
    let catalog = Catalog::published();
    let native = |fields: &str| {
        let payload = format!(r#"{{"prompt":"a tide"{fields}}}"#);
        let order = crate::api::validate::video(payload.as_bytes(), &catalog).expect(fields);
        order.ignored.names()
    };
    let dialect = |fields: &str| {
        let payload = format!(r#"{{"prompt":"a tide"{fields}}}"#);
        video(payload.as_bytes(), &catalog).expect(fields).ignored.names()
    };
    let ratio = Some("aspect_ratio".to_owned());
    for (fields, here, there) in [
        ("", None, None),
        (r#","aspect_ratio":"9:16""#, ratio.clone(), ratio.clone()),
        (r#","model":"video-a-2","aspect_ratio":"9:16""#, ratio.clone(), ratio),
        (r#","model":"video-c-2","aspect_ratio":"9:16""#, None, None),
        (r#","model":"video-c-2""#, None, None),
    ] {
        assert_eq!((native(fields), dialect(fields)), (here, there), "{fields}");
    }
    assert_eq!(dialect(r#","size":"720x1280""#).as_deref(), Some("size"));
    assert_eq!(dialect(r#","size":"720x1280","model":"video-c-2""#), None);
}
