//! What the layers know of each endpoint, as a row. The table of all rows is `routes::endpoints`.

use http::Method;

use super::dialect::{hint, path_matches};
use crate::problem::{METHOD_NOT_ALLOWED, Problem, UNKNOWN_ENDPOINT};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Paid,
    /// Asks the gateway or the store: ten times the room.
    Read,
    /// Costs next to nothing: not counted.
    Free,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    Nothing,
    ChatJson,
    VideoJson,
    /// The same, or a form of as many bytes (`multipart/form-data`).
    VideoForm,
    LoginJson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Everybody: it costs nothing and tells nothing of anybody. Credentials are not looked at.
    Public,
    /// Callers whose credentials hold; others get 401.
    Caller,
    Admin,
}

/// Which pages of other sites may read a row's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossOrigin {
    /// Those of `access.allowed_origins`; anybody may navigate to it.
    Listed,
    /// Scripts of `access.allowed_origins`; nobody navigates to it.
    Scripts,
    /// All: there is nothing in it that is not public.
    Any,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Route {
    /// `GET` rows answer `HEAD`, too.
    pub method: Method,
    /// As sent: nothing is decoded or normalised. One that ends in `/` stands for all below it.
    pub path: &'static str,
    pub class: Class,
    pub body: BodyKind,
    pub auth: Auth,
    pub cross_origin: CrossOrigin,
}

/// A public `GET` that is not counted: what most rows are, but for a field or two.
pub const DEFAULT_ROUTE: Route = Route {
    method: Method::GET,
    path: "/",
    class: Class::Free,
    body: BodyKind::Nothing,
    auth: Auth::Public,
    cross_origin: CrossOrigin::Listed,
};

#[derive(Debug)]
pub struct RouteTable {
    pub rows: Vec<&'static Route>,
    /// What `gateway.passthrough` adds: exact paths below `/api/v1/`, and the row that each belongs to.
    pub passthrough: Vec<(String, &'static Route)>,
    pub page: &'static Route,
}

/// Where only endpoints live: an unknown path here is never the page.
const API_PREFIXES: &[&str] = &["/api/", "/bff/", "/v1/"];

pub(super) fn is_api_path(path: &str) -> bool {
    API_PREFIXES
        .iter()
        .any(|prefix| path_matches(prefix, path) || path == &prefix[..prefix.len() - 1])
}

impl Route {
    fn matches_method(&self, method: &Method) -> bool {
        self.method == *method || (self.method == Method::GET && *method == Method::HEAD)
    }

    fn allowed_methods(&self) -> &'static str {
        if self.method == Method::GET { "GET, HEAD" } else { "POST" }
    }
}

impl RouteTable {
    pub fn find(&self, method: &Method, path: &str) -> Result<&'static Route, Problem> {
        let mut allowed = None;
        let known = self.rows.iter().copied().filter(|route| path_matches(route.path, path));
        let added = self.passthrough.iter().filter(|(exact, _)| exact == path);
        for route in known.chain(added.map(|(_, route)| *route)) {
            if route.matches_method(method) {
                return Ok(route);
            }
            allowed = match allowed {
                None => Some(route.allowed_methods()),
                // One path may be there for both methods.
                Some(_) => Some("GET, HEAD, POST"),
            };
        }
        let is_page = allowed.is_none() && !is_api_path(path);
        if is_page && path.starts_with('/') && self.page.matches_method(method) {
            return Ok(self.page);
        }
        Err(self.no_route(path, allowed))
    }

    fn no_route(&self, path: &str, allowed: Option<&'static str>) -> Problem {
        let hint = hint(path);
        if allowed.is_none() && (is_api_path(path) || !path.starts_with('/')) {
            let problem = Problem::new(&UNKNOWN_ENDPOINT);
            return match hint.filter(|_| is_api_path(path)) {
                Some(hint) => problem.hint(hint),
                None => problem,
            };
        }
        let allowed = allowed.unwrap_or(self.page.allowed_methods());
        let detail = match hint.filter(|_| !is_api_path(path)) {
            Some(hint) => format!("this path takes {allowed}; {hint}"),
            None => format!("this path takes {allowed}"),
        };
        Problem::new(&METHOD_NOT_ALLOWED).detail(detail).allow(allowed)
    }
}
