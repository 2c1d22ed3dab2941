//! The queries that name jobs: one `request_id` (contract 4), or several.

use url::form_urlencoded;

use super::Checked;
use super::query::{Params, Wrong, decoded};
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

/// The jobs that a query names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobIds {
    /// Their identifiers, each as in [`StatusQuery`], each once; none where none is named.
    pub request_ids: Vec<Box<str>>,
}

/// The most jobs that one question may be about.
pub const MOST_JOBS: usize = 50;

const NAME: &str = "request_id";

/// Reads and judges the query, without its `?`.
///
/// # Errors
/// 422 `invalid_request` with every fault; its pointers name the parameters.
pub fn status(query: Option<&str>) -> Result<Checked<StatusQuery>, Problem> {
    let mut params = Params::read(query);
    let request_id = params.one(NAME, identifier);
    if !params.has(NAME) {
        let detail = "required: the request_id that the video request was answered with".to_owned();
        params.accept(NAME, Err::<(), _>(Wrong { code: "required", detail }));
    }
    params.finish()?;
    Ok(Checked(StatusQuery { request_id: request_id.unwrap_or_default() }))
}

/// Reads and judges an identifier that is one segment of a path.
///
/// # Errors
/// 422 `invalid_request`, at `/request_id`.
pub fn request_id(segment: &str) -> Result<Checked<StatusQuery>, Problem> {
    let mut params = Params::read(None);
    // In a path, a plus is a plus.
    let request_id = params.accept(NAME, identifier(&segment.replace('+', "%2B")));
    params.finish()?;
    Ok(Checked(StatusQuery { request_id: request_id.unwrap_or_default() }))
}

/// Reads and judges a query that names any number of jobs, up to [`MOST_JOBS`].
///
/// # Errors
/// As [`status`].
pub fn job_ids(query: Option<&str>) -> Result<Checked<JobIds>, Problem> {
    let mut params = Params::read(query);
    let mut request_ids: Vec<Box<str>> = Vec::new();
    for value in params.all(NAME) {
        match params.accept(NAME, identifier(value)) {
            Some(id) if !request_ids.contains(&id) => request_ids.push(id),
            Some(_) | None => {}
        }
        if request_ids.len() > MOST_JOBS {
            let detail = format!("expected at most {MOST_JOBS} jobs");
            params.accept(NAME, Err::<(), _>(Wrong { code: "too_many", detail }));
            break;
        }
    }
    params.finish()?;
    Ok(Checked(JobIds { request_ids }))
}

fn identifier(value: &str) -> Result<Box<str>, Wrong> {
    let Some(id) = decoded(value) else {
        let detail = "expected two hexadecimal digits after each %".to_owned();
        return Err(Wrong { code: "bad_encoding", detail });
    };
    let length = id.len();
    if length == 0 {
        let detail = format!("expected 1 to {LONGEST_REQUEST_ID} characters; it is empty");
        return Err(Wrong { code: "empty", detail });
    }
    if length > LONGEST_REQUEST_ID {
        let detail = format!("expected at most {LONGEST_REQUEST_ID} characters, not {length}");
        return Err(Wrong { code: "too_long", detail });
    }
    let visible = String::from_utf8(id).ok().filter(|id| id.bytes().all(|b| b.is_ascii_graphic()));
    visible.map(String::into_boxed_str).ok_or_else(|| {
        let detail = "expected visible ASCII characters only".to_owned();
        Wrong { code: "bad_character", detail }
    })
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

    fn ids(query: Option<&str>) -> Vec<String> {
        let checked = job_ids(query).expect("no fault").into_inner();
        checked.request_ids.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn any_number_of_jobs_up_to_the_bound_is_named_each_once() {
        assert!(ids(None).is_empty() && ids(Some("&&")).is_empty());
        assert_eq!(ids(Some("request_id=a&request_id=b%2F&request_id=a")), ["a", "b/"]);
        assert_eq!(ids(Some("request_id=a&request%5fid=b&request_id=c")), ["a", "b", "c"]);
    }

    #[test]
    fn as_many_jobs_as_the_bound_says_may_be_named_and_not_one_more() {
        let query = |count| (0..count).map(|id| format!("request_id={id}&")).collect::<String>();
        assert_eq!(ids(Some(&query(MOST_JOBS))).len(), MOST_JOBS);
        assert!(job_ids(Some(&query(MOST_JOBS + 1))).is_err());
    }

    #[test]
    fn every_fault_is_named() {
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
                problem.faults().iter().map(|fault| (&*fault.pointer, fault.code)).collect();
            assert_eq!(faults, expected, "{query}");
        }
    }
}
