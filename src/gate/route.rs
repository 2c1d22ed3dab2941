//! The properties of a route that the layers need. All routes are in `api::endpoints`.

use http::header::HOST;
use http::{HeaderMap, Method};

use super::dialect::{hint, path_matches, segment};
use crate::gate::problem::{METHOD_NOT_ALLOWED, Problem, UNKNOWN_ENDPOINT};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Paid,
    /// Counts as `Paid`, but few may run at once, because bodies are large.
    Upload,
    /// Has ten times the limits of `Paid`.
    Read,
    /// Counts as `Read`, but holds one of the slots of `Paid`: what it buys needs no other.
    Agent,
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
    AdminJson,
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

/// The pages of other origins that may read a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossOrigin {
    /// Pages of `access.allowed_origins`, and navigations from anywhere.
    Listed,
    /// Scripts of `access.allowed_origins`, but no navigation.
    Scripts,
    /// Like [`Listed`](Self::Listed), but no cookie comes from another origin: what is made or read here
    /// outlasts the page.
    Own,
    Any,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Route {
    /// `GET` includes `HEAD`.
    pub method: Method,
    /// Compared without decoding or normalization. A final `/` matches all below, a `*` one segment.
    pub path: &'static str,
    pub class: Class,
    pub body: BodyKind,
    pub auth: Auth,
    pub cross_origin: CrossOrigin,
    /// Whether it begins or ends a session.
    pub signs_in: bool,
}

/// A public `GET` without limits.
pub const DEFAULT_ROUTE: Route = Route {
    method: Method::GET,
    path: "/",
    class: Class::Free,
    body: BodyKind::Nothing,
    auth: Auth::Public,
    cross_origin: CrossOrigin::Listed,
    signs_in: false,
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

/// The methods of routes, as `Allow` names them.
const METHODS: &[(Method, &str)] = &[
    (Method::GET, "GET, HEAD"),
    (Method::POST, "POST"),
    (Method::PATCH, "PATCH"),
    (Method::DELETE, "DELETE"),
];

impl Route {
    fn matches_method(&self, method: &Method) -> bool {
        self.method == *method || (self.method == Method::GET && *method == Method::HEAD)
    }

    /// Returns the part of a path that the `*` of this route stands for; empty if it has none.
    pub fn segment<'p>(&self, path: &'p str) -> &'p str {
        segment(self.path, path).unwrap_or_default()
    }
}

impl RouteTable {
    pub fn find(&self, method: &Method, path: &str) -> Result<&'static Route, Problem> {
        let known = self.rows.iter().copied().filter(|route| path_matches(route.path, path));
        let added = self.passthrough.iter().filter(|(exact, _)| exact == path);
        let mut others = Vec::new();
        for route in known.chain(added.map(|(_, route)| *route)) {
            if route.matches_method(method) {
                return Ok(route);
            }
            others.push(&route.method);
        }
        let is_page = others.is_empty() && !is_api_path(path);
        if is_page && path.starts_with('/') && self.page.matches_method(method) {
            return Ok(self.page);
        }
        Err(self.no_route(path, others))
    }

    fn no_route<'r>(&'r self, path: &str, mut methods: Vec<&'r Method>) -> Problem {
        let (hint, is_api) = (hint(path), is_api_path(path));
        if methods.is_empty() && (is_api || !path.starts_with('/')) {
            let problem = Problem::new(&UNKNOWN_ENDPOINT);
            return match hint {
                Some(hint) if is_api => problem.hint(hint),
                Some(_) | None => problem,
            };
        }
        if methods.is_empty() {
            methods.push(&self.page.method);
        }
        let allowed = METHODS.iter().filter(|(method, _)| methods.contains(&method));
        let allowed = allowed.map(|(_, names)| *names).collect::<Vec<_>>().join(", ");
        let detail = match hint {
            Some(hint) if !is_api => format!("this path supports {allowed}; {hint}"),
            Some(_) | None => format!("this path supports {allowed}"),
        };
        Problem::new(&METHOD_NOT_ALLOWED).detail(detail).allow(allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMED: Route = Route { method: Method::PATCH, path: "/bff/things/*", ..DEFAULT_ROUTE };
    static ROWS: [Route; 4] = [
        Route { path: "/bff/things", ..DEFAULT_ROUTE },
        Route { method: Method::POST, path: "/bff/things", ..DEFAULT_ROUTE },
        NAMED,
        Route { method: Method::DELETE, ..NAMED },
    ];
    static PART: Route =
        Route { method: Method::POST, path: "/bff/things/*/part", ..DEFAULT_ROUTE };

    fn table() -> RouteTable {
        let rows = ROWS.iter().chain([&PART]).collect();
        RouteTable { rows, passthrough: Vec::new(), page: &DEFAULT_ROUTE }
    }

    #[test]
    fn star_matches_one_segment_and_names_it() {
        let table = table();
        for (path, route, name) in [
            ("/bff/things/ann", Some(&NAMED), "ann"),
            ("/bff/things/a.n-n_2%20", Some(&NAMED), "a.n-n_2%20"),
            ("/bff/things/*", Some(&NAMED), "*"),
            ("/bff/things/", None, ""),
            ("/bff/things/ann/", None, ""),
            ("/bff/things/ann/part/", None, ""),
            ("/bff/things//part", None, ""),
            ("/bff/thingsann", None, ""),
        ] {
            let found = table.find(&Method::PATCH, path).ok();
            assert_eq!(found, route, "{path}");
            assert_eq!(found.map_or("", |route| route.segment(path)), name, "{path}");
        }
        let part = table.find(&Method::POST, "/bff/things/ann/part").unwrap();
        assert_eq!((part, part.segment("/bff/things/ann/part")), (&PART, "ann"));
        assert_eq!(ROWS[0].segment("/bff/things"), "");
    }

    #[test]
    fn refused_method_names_those_of_all_routes_of_the_path() {
        let table = table();
        for (path, allowed) in [
            ("/bff/things", "GET, HEAD, POST"),
            ("/bff/things/ann", "PATCH, DELETE"),
            ("/bff/things/ann/part", "POST"),
            ("/", "GET, HEAD"),
        ] {
            let response = table.find(&Method::PUT, path).unwrap_err();
            let response = crate::gate::response::from_problem(response, "id");
            assert_eq!(response.headers()["allow"], allowed, "{path}");
        }
    }
}
