//! The gate that every query passes, the counterpart of [`super::json`]: names and values are decoded once, a
//! name that is not asked for is a fault, and so is one that is there twice. Every query is given without
//! its `?`; its refusals are 422 `invalid_request` with every fault, and their pointers name the parameters.

use percent_encoding::percent_decode_str;

use super::rule::{Faults, quote};
use crate::problem::{FieldError, Problem};

/// A value at fault: the fault's stable name, and what was expected.
struct InvalidValue {
    code: &'static str,
    detail: String,
}

struct Params<'q> {
    pairs: Vec<(&'q str, &'q str)>,
    known: Vec<&'static str>,
    faults: Faults,
}

impl<'q> Params<'q> {
    fn read(query: Option<&'q str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        Self { pairs, known: Vec::new(), faults: Faults::default() }
    }

    fn values(&mut self, name: &'static str) -> Vec<&'q str> {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        let named = |pair: &&(&str, _)| decode(pair.0).as_deref() == Some(name.as_bytes());
        self.pairs.iter().filter(named).map(|(_, value)| *value).collect()
    }

    fn single<T>(
        &mut self,
        name: &'static str,
        judge: impl Fn(&str) -> Result<T, InvalidValue>,
    ) -> Option<T> {
        match self.values(name)[..] {
            [] => None,
            [value] => self.accept(name, judge(value)),
            ref several => {
                let detail = format!("expected one {name}, not {}", several.len());
                self.accept(name, Err(InvalidValue { code: "duplicate", detail }))
            }
        }
    }

    fn accept<T>(&mut self, name: &str, read: Result<T, InvalidValue>) -> Option<T> {
        let fault =
            |InvalidValue { code, detail }| self.faults.push(format_args!("/{name}"), code, detail);
        read.map_err(fault).ok()
    }

    /// Lists every parameter that was not asked for, and ends the reading.
    fn finish(mut self) -> Result<(), Problem> {
        for (name, _) in &self.pairs {
            if decode(name).is_some_and(|name| self.known.iter().any(|it| it.as_bytes() == name)) {
                continue;
            }
            let name = quote(name);
            let expected = if self.known.is_empty() {
                "this endpoint takes no query".to_owned()
            } else {
                format!("there is no parameter `{name}`; known: {}", self.known.join(", "))
            };
            let place = name.replace('~', "~0").replace('/', "~1");
            self.faults.push(format_args!("/{place}"), "unknown_parameter", expected);
        }
        self.finish_ignoring_unknown()
    }

    fn finish_ignoring_unknown(self) -> Result<(), Problem> {
        if self.faults.is_empty() { Ok(()) } else { Err(self.faults.into_problem()) }
    }
}

pub fn no_query(query: Option<&str>) -> Result<(), Problem> {
    Params::read(query).finish()
}

/// `text` with its percent-encoding and its `+` undone as forms write them; `None` where a `%` is not
/// followed by two hexadecimal digits, which readers make different things of.
fn decode(text: &str) -> Option<Vec<u8>> {
    let is_escape = |rest: &str| {
        rest.as_bytes().first_chunk::<2>().is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    };
    let is_sound = text.split('%').skip(1).all(is_escape);
    is_sound.then(|| percent_decode_str(&text.replace('+', " ")).collect())
}

/// Guess: the contract does not show the identifiers' form (2.5). If a real one were refused, nobody could
/// fetch a paid video.
const MAX_REQUEST_ID: usize = 128;

pub const MAX_JOBS: usize = 50;

const REQUEST_ID: &str = "request_id";

pub fn video_status(query: Option<&str>) -> Result<Box<str>, Problem> {
    let mut params = Params::read(query);
    if params.values(REQUEST_ID).is_empty() {
        let detail = "required: the request_id that the video request was answered with".to_owned();
        params.accept(REQUEST_ID, Err::<(), _>(InvalidValue { code: "required", detail }));
    }
    let request_id = params.single(REQUEST_ID, parse_request_id).unwrap_or_default();
    params.finish().map(|()| request_id)
}

pub fn request_id(segment: &str) -> Result<Box<str>, Problem> {
    let mut params = Params::read(None);
    // In a path, a plus is a plus.
    let request_id = params.accept(REQUEST_ID, parse_request_id(&segment.replace('+', "%2B")));
    params.finish().map(|()| request_id.unwrap_or_default())
}

pub fn job_ids(query: Option<&str>) -> Result<Vec<Box<str>>, Problem> {
    let mut params = Params::read(query);
    let mut request_ids: Vec<Box<str>> = Vec::new();
    for value in params.values(REQUEST_ID) {
        match params.accept(REQUEST_ID, parse_request_id(value)) {
            Some(id) if !request_ids.contains(&id) => request_ids.push(id),
            Some(_) | None => {}
        }
        if request_ids.len() > MAX_JOBS {
            let detail = format!("expected at most {MAX_JOBS} jobs");
            params.accept(REQUEST_ID, Err::<(), _>(InvalidValue { code: "too_many", detail }));
            break;
        }
    }
    params.finish().map(|()| request_ids)
}

fn parse_request_id(value: &str) -> Result<Box<str>, InvalidValue> {
    let Some(id) = decode(value) else {
        let detail = "expected two hexadecimal digits after each %".to_owned();
        return Err(InvalidValue { code: "bad_encoding", detail });
    };
    match id.len() {
        0 => {
            let detail = format!("expected 1 to {MAX_REQUEST_ID} characters; it is empty");
            Err(InvalidValue { code: "empty", detail })
        }
        1..=MAX_REQUEST_ID => {
            let visible = id.iter().all(u8::is_ascii_graphic).then(|| String::from_utf8(id).ok());
            let detail = "expected visible ASCII characters only".to_owned();
            let id = visible.flatten().map(String::into_boxed_str);
            id.ok_or(InvalidValue { code: "bad_character", detail })
        }
        length => {
            let detail = format!("expected at most {MAX_REQUEST_ID} characters, not {length}");
            Err(InvalidValue { code: "too_long", detail })
        }
    }
}

const DEFAULT_DAYS: u64 = 7;
/// A caller sees no more days than a month has, an admin no more than a year has.
const MAX_DAYS: u64 = 31;
const MAX_ADMIN_DAYS: u64 = 366;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminUsageQuery {
    /// UTC days, today included: 1 to 366.
    pub days: u64,
    pub format: UsageFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageFormat {
    #[default]
    Json,
    Csv,
}

pub fn usage_days(query: Option<&str>) -> Result<u64, Problem> {
    let mut params = Params::read(query);
    let days = params.single("since", |value| parse_days(value, MAX_DAYS));
    params.finish().map(|()| days.unwrap_or(DEFAULT_DAYS))
}

pub fn admin_usage(query: Option<&str>) -> Result<AdminUsageQuery, Problem> {
    let mut params = Params::read(query);
    let days = params.single("since", |value| parse_days(value, MAX_ADMIN_DAYS));
    let shape = params.single("format", |value| match value {
        "json" => Ok(UsageFormat::Json),
        "csv" => Ok(UsageFormat::Csv),
        _ => Err(InvalidValue { code: "bad_format", detail: "expected json or csv".to_owned() }),
    });
    params.finish()?;
    let (days, shape) = (days.unwrap_or(DEFAULT_DAYS), shape.unwrap_or_default());
    Ok(AdminUsageQuery { days, format: shape })
}

fn parse_days(value: &str, most: u64) -> Result<u64, InvalidValue> {
    let digits = value.strip_suffix('d').unwrap_or_default();
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let days = digits.parse().ok().filter(|days| plain && (1..=most).contains(days));
    let detail = || format!("expected 1d to {most}d, such as since={DEFAULT_DAYS}d");
    days.ok_or_else(|| InvalidValue { code: "bad_period", detail: detail() })
}

pub fn too_many_rows(most: usize) -> Problem {
    Problem::invalid(vec![FieldError {
        pointer: "/since".to_owned(),
        code: "too_many_rows",
        detail: format!(
            "there are more than {most} rows; ask for fewer days, or run `tollgate usage` beside the \
             ledger"
        ),
    }])
}

const DEFAULT_PAGE: usize = 20;
const MAX_PAGE: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    pub limit: usize,
    pub after: Option<String>,
    pub is_ascending: bool,
}

/// The query of `GET /v1/videos`; unknown parameters are passed over, and the last of several counts.
pub fn list_query(query: Option<&str>) -> Result<ListQuery, Problem> {
    let mut params = Params::read(query);
    let mut last = |name| params.values(name).last().map(|value| decode_lossy(value));
    let (limit, after, order) = (last("limit"), last("after"), last("order"));
    let limit = limit.map_or(Ok(DEFAULT_PAGE), |limit| {
        let limit = limit.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
        let detail = format!("expected a whole number from 1 to {MAX_PAGE}");
        limit.ok_or(InvalidValue { code: "bad_parameter", detail })
    });
    let is_ascending = match order.as_deref() {
        None | Some("desc") => Ok(false),
        Some("asc") => Ok(true),
        Some(order) => {
            let detail = format!("expected asc or desc, not `{}`", quote(order));
            Err(InvalidValue { code: "bad_parameter", detail })
        }
    };
    let limit = params.accept("limit", limit).unwrap_or_default();
    let is_ascending = params.accept("order", is_ascending).unwrap_or_default();
    params.finish_ignoring_unknown()?;
    Ok(ListQuery { limit, after, is_ascending })
}

fn decode_lossy(value: &str) -> String {
    let decoded = decode(value).unwrap_or_else(|| value.as_bytes().to_vec());
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests;
