//! The properties of a route that the layers need. All routes are in `routes::endpoints`.

use http::header::HOST;
use http::{HeaderMap, Method};

use super::dialect::{hint, path_matches};
use crate::problem::{METHOD_NOT_ALLOWED, Problem, UNKNOWN_ENDPOINT};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Paid,
    /// Counts as `Paid`, but few may run at once, because bodies are large.
    Upload,
    /// Has ten times the limits of `Paid`.
    Read,
    Free,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    Nothing,
    ChatJson,
    VideoJson,
    /// JSON, or `multipart/form-data` of the same size.
    VideoForm,
    Picture,
    LoginJson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Open to all: credentials are ignored.
    Public,
    /// Open to all, but known callers see what is theirs. Invalid credentials are ignored.
    Optional,
    /// Needs valid credentials; 401 without them.
    Caller,
    Admin,
}

/// Which pages of other origins may read a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossOrigin {
    /// Pages of `access.allowed_origins`, and navigations from anywhere.
    Listed,
    /// Scripts of `access.allowed_origins`, but no navigation.
    Scripts,
    Any,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Route {
    /// `GET` includes `HEAD`.
    pub method: Method,
    /// Compared without decoding or normalization. A final `/` matches all below.
    pub path: &'static str,
    pub class: Class,
    pub body: BodyKind,
    pub auth: Auth,
    pub cross_origin: CrossOrigin,
}

/// A public `GET` without limits.
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
    /// The exact paths of `gateway.passthrough`.
    pub passthrough: Vec<(String, &'static Route)>,
    pub page: &'static Route,
}

/// The endpoint for agents.
pub const MCP_PATH: &str = "/mcp";
/// Names the login of the endpoint for agents (RFC 9728).
pub const RESOURCE_METADATA_PATH: &str = "/.well-known/oauth-protected-resource/mcp";

/// Returns what clients put before our paths: the public address, or else the `Host`.
pub fn public_base(
    public_url: Option<&str>,
    (prefix, is_https): (&str, bool),
    headers: &HeaderMap,
) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    match public_url {
        Some(origin) => format!("{origin}{prefix}"),
        None => format!("{}://{host}{prefix}", if is_https { "https" } else { "http" }),
    }
}

/// Unknown paths below these are a 404, never the page.
const API_PREFIXES: &[&str] = &["/api/", "/bff/", "/mcp/", "/v1/"];

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
        let (hint, is_api) = (hint(path), is_api_path(path));
        if allowed.is_none() && (is_api || !path.starts_with('/')) {
            let problem = Problem::new(&UNKNOWN_ENDPOINT);
            return match hint {
                Some(hint) if is_api => problem.hint(hint),
                Some(_) | None => problem,
            };
        }
        let allowed = allowed.unwrap_or(self.page.allowed_methods());
        let detail = match hint {
            Some(hint) if !is_api => format!("this path supports {allowed}; {hint}"),
            Some(_) | None => format!("this path supports {allowed}"),
        };
        Problem::new(&METHOD_NOT_ALLOWED).detail(detail).allow(allowed)
    }
}
