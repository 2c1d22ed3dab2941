//! Accepted queries, and the faults of rejected ones.

use proptest::prelude::*;

use super::*;

/// The query as it is sent to the gateway.
fn encoded(request_id: &str) -> String {
    let id = url::form_urlencoded::byte_serialize(request_id.as_bytes());
    format!("request_id={}", id.collect::<String>())
}

fn codes(query: Option<&str>) -> Vec<(String, &'static str)> {
    let problem = video_status(query).expect_err("a fault");
    assert_eq!(problem.kind().code, "invalid_request");
    problem.errors().iter().map(|fault| (fault.pointer.clone(), fault.code)).collect()
}

#[test]
fn request_id_is_percent_decoded() {
    let longest = format!("request_id={}", "x".repeat(128));
    for (query, id, sent) in [
        ("request_id=abc", "abc", "request_id=abc"),
        ("request_id=req_0198-f.~:9", "req_0198-f.~:9", "request_id=req_0198-f.%7E%3A9"),
        ("request_id=a%2Fb%2B%3D", "a/b+=", "request_id=a%2Fb%2B%3D"),
        ("request_id=a%26model%3Dx%23", "a&model=x#", "request_id=a%26model%3Dx%23"),
        ("request_id=a=b", "a=b", "request_id=a%3Db"),
        ("request%5Fid=abc", "abc", "request_id=abc"),
        ("&request_id=abc&", "abc", "request_id=abc"),
        (&longest, &longest[11..], &longest),
    ] {
        let checked = video_status(Some(query)).expect(query);
        assert_eq!(&*checked, id);
        assert_eq!(encoded(&checked), sent);
    }
}

#[test]
fn request_id_in_a_path_is_percent_decoded() {
    for (segment, id) in [("vid_1", "vid_1"), ("a%2Fb%2B", "a/b+"), ("a+b&c=d", "a+b&c=d")] {
        assert_eq!(&*request_id(segment).expect(segment), id);
    }
    for segment in ["", "%", "%00", "a%20b", "é"] {
        assert!(request_id(segment).is_err(), "{segment:?}");
    }
}

#[test]
fn invalid_request_id_reports_its_fault() {
    let long = format!("request_id={}", "x".repeat(10_240));
    for (query, code) in [
        (None, "required"),
        (Some(""), "required"),
        (Some("&&"), "required"),
        (Some("request_id=a&request_id=a"), "duplicate"),
        (Some("request_id=a&request%5fid=b"), "duplicate"),
        (Some("request_id=a%"), "bad_encoding"),
        (Some("request_id=a%2"), "bad_encoding"),
        (Some("request_id=%zz"), "bad_encoding"),
        (Some("request_id=%+1"), "bad_encoding"),
        (Some("request_id="), "empty"),
        (Some("request_id"), "empty"),
        (Some(&*long), "too_long"),
        (Some("request_id=a%00"), "bad_character"),
        (Some("request_id=a+b"), "bad_character"),
        (Some("request_id=a%20b"), "bad_character"),
        (Some("request_id=a%0d%0aHost:x"), "bad_character"),
        (Some("request_id=%c3%a9"), "bad_character"),
        (Some("request_id=é"), "bad_character"),
        (Some("request_id=%ff"), "bad_character"),
    ] {
        assert_eq!(codes(query), [("/request_id".to_owned(), code)], "{query:?}");
    }
}

#[test]
fn unknown_parameters_are_reported() {
    assert_eq!(codes(Some("request_id=a&x=1")), [("/x".to_owned(), "unknown_parameter")]);
    assert_eq!(
        codes(Some("request_id[]=a&a/b~c")),
        [
            ("/request_id".to_owned(), "required"),
            ("/request_id[]".to_owned(), "unknown_parameter"),
            ("/a~1b~0c".to_owned(), "unknown_parameter"),
        ]
    );
    let many: String = (0..500).map(|number| format!("p{number}=&")).collect();
    assert_eq!(codes(Some(&many)).len(), 65);
}

proptest! {
    #[test]
    fn every_visible_request_id_survives_encoding(id in "[!-~]{1,128}") {
        prop_assert_eq!(video_status(Some(&encoded(&id))).unwrap(), id.into());
    }

    #[test]
    fn arbitrary_query_never_panics(query in any::<String>()) {
        let _ = video_status(Some(&query));
    }
}

fn ids(query: Option<&str>) -> Vec<String> {
    job_ids(query).expect("no fault").iter().map(ToString::to_string).collect()
}

#[test]
fn job_ids_are_deduplicated() {
    assert!(ids(None).is_empty() && ids(Some("&&")).is_empty());
    assert_eq!(ids(Some("request_id=a&request_id=b%2F&request_id=a")), ["a", "b/"]);
    assert_eq!(ids(Some("request_id=a&request%5fid=b&request_id=c")), ["a", "b", "c"]);
}

#[test]
fn number_of_job_ids_is_limited() {
    let query = |count| (0..count).map(|id| format!("request_id={id}&")).collect::<String>();
    assert_eq!(ids(Some(&query(MAX_JOBS))).len(), MAX_JOBS);
    assert!(job_ids(Some(&query(MAX_JOBS + 1))).is_err());
}

#[test]
fn all_query_faults_are_reported_at_once() {
    let many: String = (0..60).map(|number| format!("request_id={number}&")).collect();
    for (query, expected) in [
        ("request_id=a&x=1", &[("/x", "unknown_parameter")][..]),
        (
            "request_id=&request_id=a+b",
            &[("/request_id", "empty"), ("/request_id", "bad_character")],
        ),
        (&many, &[("/request_id", "too_many")]),
    ] {
        let problem = job_ids(Some(query)).expect_err(query);
        let faults: Vec<_> =
            problem.errors().iter().map(|fault| (&*fault.pointer, fault.code)).collect();
        assert_eq!(faults, expected, "{query}");
    }
}

#[test]
fn usage_period_is_one_to_thirty_one_days() {
    for (query, days) in [(None, 7), (Some(""), 7), (Some("since=1d"), 1), (Some("since=31d"), 31)]
    {
        let expected = UsageDays { count: days, zone: TimeZone::UTC };
        assert_eq!(usage_days(query).expect("right"), expected, "{query:?}");
    }
    for (query, code) in [
        ("since=0d", "bad_period"),
        ("since=32d", "bad_period"),
        ("since=7", "bad_period"),
        ("since=+7d", "bad_period"),
        ("since=", "bad_period"),
        ("since=24h", "bad_period"),
        ("since=99999999999999999999d", "bad_period"),
        ("since=1d&since=1d", "duplicate"),
        ("until=1d", "unknown_parameter"),
    ] {
        let problem = usage_days(Some(query)).expect_err(query);
        let codes: Vec<_> = problem.errors().iter().map(|fault| fault.code).collect();
        assert_eq!(codes, [code], "{query}");
    }
}

#[test]
fn days_of_a_time_zone_can_be_asked_for() {
    for (query, zone) in [
        ("time_zone=Europe/Berlin", "Europe/Berlin"),
        ("time_zone=Europe%2FKyiv", "Europe/Kyiv"),
        ("time_zone=Etc%2FGMT%2B1", "Etc/GMT+1"),
        ("since=7d&time_zone=UTC", "UTC"),
    ] {
        let days = UsageDays { count: 7, zone: TimeZone::get(zone).expect("a zone") };
        assert_eq!(usage_days(Some(query)).expect("right"), days, "{query}");
        assert_eq!(admin_usage(Some(query)).expect("right").0, days, "{query}");
    }
    let long = "a".repeat(65);
    for zone in [
        "",
        "60",
        "%2B60",
        "Berlin",
        "Europe/Nowhere",
        "../etc/passwd",
        "/etc/passwd",
        "EST5EDT,M3.2.0",
        &long,
    ] {
        let query = format!("time_zone={zone}");
        let problem = usage_days(Some(&query)).expect_err(&query);
        let codes: Vec<_> = problem.errors().iter().map(|fault| fault.code).collect();
        assert_eq!(codes, ["bad_time_zone"], "{query}");
    }
}

#[test]
fn admin_usage_takes_up_to_a_year_as_json_or_csv() {
    for (query, days, shape) in [
        (None, 7, UsageFormat::Json),
        (Some("since=366d"), 366, UsageFormat::Json),
        (Some("format=csv"), 7, UsageFormat::Csv),
        (Some("format=json&since=1d"), 1, UsageFormat::Json),
    ] {
        let found = admin_usage(query).expect("right");
        let days = UsageDays { count: days, zone: TimeZone::UTC };
        assert_eq!(found, (days, shape), "{query:?}");
    }
    for (query, codes) in [
        ("since=367d", &["bad_period"][..]),
        ("since=0d&format=xml", &["bad_period", "bad_format"]),
        ("format=", &["bad_format"]),
        ("format=csv&format=csv", &["duplicate"]),
        ("since=1d&since=2d", &["duplicate"]),
        ("caller=ann", &["unknown_parameter"]),
    ] {
        let problem = admin_usage(Some(query)).expect_err(query);
        let found: Vec<_> = problem.errors().iter().map(|fault| fault.code).collect();
        assert_eq!(found, codes, "{query}");
    }
}

#[test]
fn list_query_takes_the_parameters_sdks_send() {
    for (query, limit, after, is_ascending) in [
        (None, 20, None, false),
        (Some("limit=5&after=vid_1&order=asc&x=y"), 5, Some("vid_1"), true),
        (Some("limit=100&order=desc"), 100, None, false),
    ] {
        let page = list_query(query).expect("right");
        let after = after.map(str::to_owned);
        assert_eq!(page, ListQuery { limit, after, is_ascending });
    }
    for query in ["limit=0", "limit=101", "limit=x", "limit=", "order=up"] {
        assert!(list_query(Some(query)).is_err(), "{query}");
    }
}
