//! What the layers know of each endpoint, as a row. The table of all rows is `routes::endpoints`.

use http::Method;

use super::dialect::hint;
use super::step::{Onward, Step};
use super::{Arrival, check};
use crate::problem::{METHOD_NOT_ALLOWED, Problem, UNKNOWN_ENDPOINT};

/// What the limiter counts a call as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Spends money: `limits.requests`.
    Paid,
    /// Asks the gateway or the store: ten times the room.
    Read,
    /// Costs next to nothing: not counted.
    Free,
}

/// What body a row takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Nothing,
    /// JSON, at most `server.chat_body` bytes.
    ChatJson,
    /// JSON, at most `server.video_body` bytes.
    VideoJson,
    /// The same, or a form of as many bytes (`multipart/form-data`).
    VideoForm,
    /// JSON, a few bytes.
    LoginJson,
}

/// Whom a row is for, where `access.mode` is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Everybody: it costs nothing and tells nothing of anybody. Credentials are not looked at.
    Nobody,
    /// Callers whose credentials hold; others get 401.
    Caller,
}

/// Which pages of other sites may read a row's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Those of `access.allowed_origins`; anybody may navigate to it.
    Listed,
    /// Scripts of `access.allowed_origins`; nobody navigates to it.
    Scripts,
    /// All: there is nothing in it that is not public.
    Any,
}

/// How a row's path is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Byte for byte, as sent: nothing is decoded or normalised.
    Exact(&'static str),
    /// Everything below this prefix.
    Below(&'static str),
}

/// What the layers know of an endpoint.
#[derive(Debug, PartialEq, Eq)]
pub struct Route {
    /// `GET` rows answer `HEAD`, too.
    pub method: Method,
    pub path: Path,
    pub class: Class,
    pub takes: Takes,
    pub needs: Needs,
    pub pages: Pages,
}

/// A public `GET` that is not counted: what most rows are, but for a field or two.
pub const BASE: Route = Route {
    method: Method::GET,
    path: Path::Below("/"),
    class: Class::Free,
    takes: Takes::Nothing,
    needs: Needs::Nobody,
    pages: Pages::Listed,
};

/// Every row that there is.
#[derive(Debug)]
pub struct Table {
    rows: Vec<&'static Route>,
    /// What `gateway.passthrough` adds: exact paths below `/api/v1/`, and the row that each belongs to.
    passthrough: Vec<(String, &'static Route)>,
    /// The row of all other paths.
    page: &'static Route,
}

/// Where only endpoints live: an unknown path here is never the page.
const RESERVED: &[&str] = &["/api/", "/bff/", "/v1/"];

/// Whether a path is one of an endpoint, or of none, and never of the page.
pub(super) fn is_reserved(path: &str) -> bool {
    let is_in = |prefix: &&str| path.starts_with(*prefix) || path == &prefix[..prefix.len() - 1];
    RESERVED.iter().any(is_in)
}

impl Path {
    fn matches(self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => path == exact,
            Self::Below(prefix) => path.starts_with(prefix),
        }
    }

    /// The path as labels and documents write it.
    pub const fn template(self) -> &'static str {
        match self {
            Self::Exact(template) | Self::Below(template) => template,
        }
    }
}

impl Route {
    fn takes_method(&self, method: &Method) -> bool {
        self.method == *method || (self.method == Method::GET && *method == Method::HEAD)
    }

    fn allows(&self) -> &'static str {
        match self.method == Method::GET {
            true => "GET, HEAD",
            false => "POST",
        }
    }
}

impl Table {
    /// Makes a table of the endpoints, what the settings add, and the page.
    pub fn new(
        rows: impl IntoIterator<Item = &'static Route>,
        passthrough: Vec<(String, &'static Route)>,
        page: &'static Route,
    ) -> Self {
        Self { rows: rows.into_iter().collect(), passthrough, page }
    }

    /// Returns the row for a request.
    ///
    /// # Errors
    /// 404 or 405, with a hint for paths that people try in vain.
    pub fn find(&self, method: &Method, path: &str) -> Result<&'static Route, Problem> {
        let mut allowed = None;
        let known = self.rows.iter().copied().filter(|route| route.path.matches(path));
        let added = self.passthrough.iter().filter(|(exact, _)| exact == path);
        for route in known.chain(added.map(|(_, route)| *route)) {
            if route.takes_method(method) {
                return Ok(route);
            }
            allowed = match allowed {
                None => Some(route.allows()),
                // One path may be there for both methods.
                Some(_) => Some("GET, HEAD, POST"),
            };
        }
        let is_page = allowed.is_none() && !is_reserved(path);
        if is_page && path.starts_with('/') && self.page.takes_method(method) {
            return Ok(self.page);
        }
        Err(self.no_row(path, allowed))
    }

    fn no_row(&self, path: &str, allowed: Option<&'static str>) -> Problem {
        let hint = hint(path);
        if allowed.is_none() && (is_reserved(path) || !path.starts_with('/')) {
            let problem = Problem::new(&UNKNOWN_ENDPOINT);
            return match hint.filter(|_| is_reserved(path)) {
                Some(hint) => problem.hint(hint),
                None => problem,
            };
        }
        let allowed = allowed.unwrap_or(self.page.allows());
        let detail = match hint.filter(|_| !is_reserved(path)) {
            Some(hint) => format!("this path takes {allowed}; {hint}"),
            None => format!("this path takes {allowed}"),
        };
        Problem::new(&METHOD_NOT_ALLOWED).detail(detail).allow(allowed)
    }
}

/// Answers 404 and 405.
pub fn layer<B: http_body::Body>()
-> Step<impl Fn(Arrival<B>) -> Onward<Arrival<B>> + Clone + use<B>> {
    check(|request: &Arrival<B>| match &request.body().route {
        Ok(_) => Ok(()),
        Err(problem) => Err(problem.clone()),
    })
}
