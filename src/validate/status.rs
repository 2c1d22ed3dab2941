//! The query of `GET /api/v1/video/status` (contract 4): one `request_id`, and nothing else.

use url::form_urlencoded;

use super::Checked;
use super::rule::{Faults, Rule};
use super::text::shown;
use crate::problem::Problem;

/// The longest identifier, in bytes.
///
/// Guess: the contract does not show the identifiers' form (2.5). Whatever is visible ASCII and not
/// longer than this is taken, as an identifier that we refuse is a paid video that nobody can fetch.
const LONGEST_REQUEST_ID: usize = 128;

/// A checked query for a job's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusQuery {
    /// The job's identifier, percent-decoded: 1 to 128 characters of visible ASCII.
    pub request_id: Box<str>,
}

impl StatusQuery {
    /// The query as it is sent: `request_id=…`, encoded anew, so that nothing in the identifier can
    /// add a parameter or end the query.
    pub fn encoded(&self) -> String {
        form_urlencoded::Serializer::new(String::new())
            .append_pair("request_id", &self.request_id)
            .finish()
    }
}

/// Reads and judges the query, without its `?`.
///
/// Errors: 422 `invalid_request` with every fault; its pointers name the parameters.
pub fn status(query: Option<&str>) -> Result<Checked<StatusQuery>, Problem> {
    let mut draft = Draft::default();
    let mut faults = Faults::default();
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match decoded(name).as_deref() {
            Some(b"request_id") => draft.ids.push(decoded(value)),
            _ => faults.push(
                format_args!("/{}", shown(name).replace('~', "~0").replace('/', "~1")),
                "unknown_parameter",
                format!("there is no parameter `{}`; known: request_id", shown(name)),
            ),
        }
    }
    let mut all = Faults::default();
    all.judge(RULES, &draft, &"");
    all.append(faults);
    let id = draft.only().and_then(|id| String::from_utf8(id.to_vec()).ok());
    match (all.is_empty(), id) {
        (true, Some(id)) => Ok(Checked(StatusQuery { request_id: id.into() })),
        _ => Err(all.into_problem()),
    }
}

/// Reads and judges an identifier that is one segment of a path.
///
/// Errors: 422 `invalid_request` with every fault, at `/request_id`.
pub fn request_id(segment: &str) -> Result<Checked<StatusQuery>, Problem> {
    // In a path, a plus is a plus.
    let draft = Draft { ids: vec![decoded(&segment.replace('+', "%2B"))] };
    let mut faults = Faults::default();
    faults.judge(RULES, &draft, &"");
    let id = draft.only().and_then(|id| String::from_utf8(id.to_vec()).ok());
    match (faults.is_empty(), id) {
        (true, Some(id)) => Ok(Checked(StatusQuery { request_id: id.into() })),
        _ => Err(faults.into_problem()),
    }
}

/// Every `request_id` of the query; `None` for one whose percent-encoding is broken.
#[derive(Default)]
struct Draft {
    ids: Vec<Option<Vec<u8>>>,
}

#[rustfmt::skip]
const RULES: &[Rule<Draft>] = &[
    Rule { pointer: "/request_id", code: "required", broken: |query| {
        query.ids.is_empty().then(|| "required: the request_id that the video request was answered with".to_owned())
    } },
    Rule { pointer: "/request_id", code: "duplicate", broken: |query| {
        (query.ids.len() > 1).then(|| format!("expected one request_id, not {}", query.ids.len()))
    } },
    Rule { pointer: "/request_id", code: "bad_encoding", broken: |query| {
        query.ids.contains(&None).then(|| "expected two hexadecimal digits after each %".to_owned())
    } },
    Rule { pointer: "/request_id", code: "empty", broken: |query| {
        query.only()?.is_empty().then(|| format!("expected 1 to {LONGEST_REQUEST_ID} characters; it is empty"))
    } },
    Rule { pointer: "/request_id", code: "too_long", broken: |query| {
        let length = query.only()?.len();
        (length > LONGEST_REQUEST_ID).then(|| format!("expected at most {LONGEST_REQUEST_ID} characters, not {length}"))
    } },
    Rule { pointer: "/request_id", code: "bad_character", broken: |query| {
        (!query.only()?.iter().all(u8::is_ascii_graphic)).then(|| "expected visible ASCII characters only".to_owned())
    } },
];

impl Draft {
    fn only(&self) -> Option<&[u8]> {
        match &*self.ids {
            [id] => id.as_deref(),
            _ => None,
        }
    }
}

/// `text` with its percent-encoding and its `+` undone as forms write them; `None` where a `%` is not
/// followed by two hexadecimal digits, which readers make different things of.
pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    let digit = |bytes: &mut std::str::Bytes<'_>| {
        let digit = char::from(bytes.next()?).to_digit(16)?;
        u8::try_from(digit).ok()
    };
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => digit(&mut bytes)? << 4 | digit(&mut bytes)?,
            b'+' => b' ',
            _ => byte,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn codes(query: Option<&str>) -> Vec<(String, &'static str)> {
        let problem = status(query).expect_err("a fault");
        assert_eq!(problem.kind().code, "invalid_request");
        problem.faults().iter().map(|fault| (fault.pointer.clone(), fault.code)).collect()
    }

    #[test]
    fn one_visible_identifier_is_taken_as_it_decodes() {
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
            let checked = status(Some(query)).expect(query);
            assert_eq!(&*checked.get().request_id, id);
            assert_eq!(checked.get().encoded(), sent);
        }
    }

    #[test]
    fn an_identifier_in_a_path_is_taken_as_it_decodes() {
        for (segment, id) in [("vid_1", "vid_1"), ("a%2Fb%2B", "a/b+"), ("a+b&c=d", "a+b&c=d")] {
            assert_eq!(&*request_id(segment).expect(segment).get().request_id, id);
        }
        for segment in ["", "%", "%00", "a%20b", "é"] {
            assert!(request_id(segment).is_err(), "{segment:?}");
        }
    }

    #[test]
    fn anything_else_says_what_is_wrong() {
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
    fn a_parameter_that_nobody_knows_is_named() {
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
        fn every_visible_identifier_survives_being_sent(id in "[!-~]{1,128}") {
            let query = StatusQuery { request_id: id.into() };
            prop_assert_eq!(status(Some(&query.encoded())).unwrap().into_inner(), query);
        }

        #[test]
        fn no_query_panics(query in any::<String>()) {
            let _ = status(Some(&query));
        }
    }
}
