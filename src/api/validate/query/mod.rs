//! Strict parsing of query strings, without the `?`. Unknown and duplicate parameters are faults.

use jiff::tz::TimeZone;
use percent_encoding::percent_decode_str;

use super::rule::{Faults, quote};
use crate::gate::problem::{FieldError, MALFORMED_REQUEST, Problem};
use crate::gateway::contract::video::{MAX_REQUEST_ID, is_request_id};

/// The code and the detail of a fault.
type InvalidValue = (&'static str, String);

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
        parse: impl Fn(&str) -> Result<T, InvalidValue>,
    ) -> Option<T> {
        match self.values(name)[..] {
            [] => None,
            [value] => self.accept(name, parse(value)),
            ref several => {
                let detail = format!("expected one {name}, not {}", several.len());
                self.accept(name, Err(("duplicate", detail)))
            }
        }
    }

    fn accept<T>(&mut self, name: &str, result: Result<T, InvalidValue>) -> Option<T> {
        let mut push = |(code, detail)| self.faults.push(format_args!("/{name}"), code, detail);
        result.map_err(&mut push).ok()
    }

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
            let segment = name.replace('~', "~0").replace('/', "~1");
            self.faults.push(format_args!("/{segment}"), "unknown_parameter", expected);
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

/// Decodes percent-encoding and `+`. Returns `None` for an incomplete escape, which is ambiguous.
fn decode(text: &str) -> Option<Vec<u8>> {
    let is_escape = |rest: &str| {
        rest.as_bytes().first_chunk::<2>().is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    };
    let is_valid = text.split('%').skip(1).all(is_escape);
    is_valid.then(|| percent_decode_str(&text.replace('+', " ")).collect())
}

pub const MAX_JOBS: usize = 50;

const REQUEST_ID: &str = "request_id";

pub fn video_status(query: Option<&str>) -> Result<Box<str>, Problem> {
    let mut params = Params::read(query);
    let request_id = match params.values(REQUEST_ID)[..] {
        [] => {
            let detail = "required: the request_id from the reply to the video request";
            params.accept(REQUEST_ID, Err(("required", detail.to_owned())))
        }
        _ => params.single(REQUEST_ID, parse_request_id),
    };
    params.finish().map(|()| request_id.unwrap_or_default())
}

pub fn request_id(segment: &str) -> Result<Box<str>, Problem> {
    let mut params = Params::read(None);
    // In a path, `+` is literal.
    let request_id = params.accept(REQUEST_ID, parse_request_id(&segment.replace('+', "%2B")));
    params.finish().map(|()| request_id.unwrap_or_default())
}

pub fn job_ids(query: Option<&str>) -> Result<Vec<Box<str>>, Problem> {
    let mut params = Params::read(query);
    let mut request_ids: Vec<Box<str>> = Vec::new();
    for value in params.values(REQUEST_ID) {
        let id = params.accept(REQUEST_ID, parse_request_id(value));
        request_ids.extend(id.filter(|id| !request_ids.contains(id)));
        if request_ids.len() > MAX_JOBS {
            let detail = format!("expected at most {MAX_JOBS} jobs");
            params.accept::<()>(REQUEST_ID, Err(("too_many", detail)));
            break;
        }
    }
    params.finish().map(|()| request_ids)
}

fn parse_request_id(value: &str) -> Result<Box<str>, InvalidValue> {
    match decode(value) {
        None => Err(("bad_encoding", "expected two hexadecimal digits after each %".to_owned())),
        Some(id) if id.is_empty() => {
            Err(("empty", format!("expected 1 to {MAX_REQUEST_ID} characters; it is empty")))
        }
        Some(id) if id.len() > MAX_REQUEST_ID => {
            let length = id.len();
            Err(("too_long", format!("expected at most {MAX_REQUEST_ID} characters, not {length}")))
        }
        Some(id) => match String::from_utf8(id) {
            Ok(id) if is_request_id(&id) => Ok(id.into()),
            _ => Err(("bad_character", "expected visible ASCII characters only".to_owned())),
        },
    }
}

const MAX_RETURN: usize = 512;
/// Not pages, and `/bff/login` would redirect in a circle.
const NOT_PAGES: &[&str] = &["/api/", "/bff/", "/mcp", "/v1/"];

/// Reads the path that a sign-in returns to, which must be one of this site, below `prefix`.
pub fn login_return(query: Option<&str>, prefix: &str) -> Result<String, Problem> {
    let mut params = Params::read(query);
    let path = params.single("return", |value| {
        let path = decode(value).and_then(|path| String::from_utf8(path).ok());
        let path = path.filter(|path| is_own_page(path, prefix));
        path.ok_or_else(|| ("bad_parameter", String::new()))
    });
    if params.finish().is_err() {
        let detail = "return: expected one path of this site, such as /usage";
        return Err(Problem::new(&MALFORMED_REQUEST).detail(detail));
    }
    Ok(path.unwrap_or_else(|| format!("{prefix}/")))
}

/// Accepts only what every browser takes for a path of this host.
fn is_own_page(text: &str, prefix: &str) -> bool {
    let path = text.split(['?', '#']).next().unwrap_or_default();
    let Some(own) = path.strip_prefix(prefix).filter(|own| own.starts_with('/')) else {
        return false;
    };
    let is_dots = |segment: &str| {
        let plain = percent_decode_str(segment).collect::<Vec<_>>();
        plain == b"." || plain == b".."
    };
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    text.len() <= MAX_RETURN
        && is_plain
        && !path.contains("//")
        && !path.split('/').any(is_dots)
        && !NOT_PAGES.iter().any(|other| own.starts_with(other))
}

const DEFAULT_DAYS: u64 = 7;
const MAX_DAYS: u64 = 31;
const MAX_ADMIN_DAYS: u64 = 366;
/// Twice the length of the longest name.
const MAX_TIME_ZONE: usize = 64;

/// The days of a usage report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageDays {
    /// How many days, today included.
    pub count: u64,
    /// The time zone whose days they are.
    pub zone: TimeZone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageFormat {
    #[default]
    Json,
    Csv,
}

pub fn usage_days(query: Option<&str>) -> Result<UsageDays, Problem> {
    let mut params = Params::read(query);
    let days = days(&mut params, MAX_DAYS);
    params.finish().map(|()| days)
}

fn days(params: &mut Params<'_>, most: u64) -> UsageDays {
    let count = params.single("since", |value| parse_days(value, most));
    let zone = params.single("time_zone", parse_time_zone);
    UsageDays { count: count.unwrap_or(DEFAULT_DAYS), zone: zone.unwrap_or(TimeZone::UTC) }
}

pub fn admin_usage(query: Option<&str>) -> Result<(UsageDays, UsageFormat), Problem> {
    let mut params = Params::read(query);
    let days = days(&mut params, MAX_ADMIN_DAYS);
    let format = params.single("format", |value| match value {
        "json" => Ok(UsageFormat::Json),
        "csv" => Ok(UsageFormat::Csv),
        _ => Err(("bad_format", "expected json or csv".to_owned())),
    });
    params.finish().map(|()| (days, format.unwrap_or_default()))
}

/// Reads the query of `GET /bff/admin/audit`: only entries before the one with this id.
pub fn admin_audit(query: Option<&str>) -> Result<Option<u64>, Problem> {
    let mut params = Params::read(query);
    let before = params.single("before", |value| {
        let is_plain = value.bytes().all(|byte| byte.is_ascii_digit());
        let id = value.parse().ok().filter(|id| is_plain && *id > 0);
        id.ok_or_else(|| ("bad_parameter", "expected the id of an entry".to_owned()))
    });
    params.finish().map(|()| before)
}

fn parse_days(value: &str, max: u64) -> Result<u64, InvalidValue> {
    let digits = value.strip_suffix('d').unwrap_or_default();
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let days = digits.parse().ok().filter(|days| is_plain && (1..=max).contains(days));
    let detail = || format!("expected 1d to {max}d, such as since={DEFAULT_DAYS}d");
    days.ok_or_else(|| ("bad_period", detail()))
}

/// Reads the name of a time zone in the IANA database.
fn parse_time_zone(value: &str) -> Result<TimeZone, InvalidValue> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-/".contains(&byte);
    let name = decode(value).and_then(|name| String::from_utf8(name).ok());
    let name = name.filter(|name| name.len() <= MAX_TIME_ZONE && name.bytes().all(plain));
    let detail = "expected the name of a time zone, such as Europe/Berlin or UTC";
    let zone = name.and_then(|name| TimeZone::get(&name).ok());
    zone.ok_or_else(|| ("bad_time_zone", detail.to_owned()))
}

pub fn too_many_rows(max: usize) -> Problem {
    Problem::invalid(vec![FieldError {
        pointer: "/since".to_owned(),
        code: "too_many_rows",
        detail: format!(
            "more than {max} rows: ask for fewer days, or run `tollgate usage` on the server"
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

/// Reads the query of `GET /v1/videos`, ignoring unknown parameters.
pub fn list_query(query: Option<&str>) -> Result<ListQuery, Problem> {
    let mut params = Params::read(query);
    let limit = params.single("limit", |value| {
        let limit = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
        let detail = || format!("expected a whole number from 1 to {MAX_PAGE}");
        limit.ok_or_else(|| ("bad_parameter", detail()))
    });
    let after = params.single("after", |value| {
        let decoded = decode(value).unwrap_or_else(|| value.as_bytes().to_vec());
        Ok(String::from_utf8_lossy(&decoded).into_owned())
    });
    let is_ascending = params.single("order", |value| match value {
        "asc" => Ok(true),
        "desc" => Ok(false),
        other => Err(("bad_parameter", format!("expected asc or desc, not `{}`", quote(other)))),
    });
    params.finish_ignoring_unknown()?;
    let limit = limit.unwrap_or(DEFAULT_PAGE);
    let is_ascending = is_ascending.unwrap_or_default();
    Ok(ListQuery { limit, after, is_ascending })
}

#[cfg(test)]
mod tests;
