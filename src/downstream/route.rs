//! Every path that the gate serves, as rows. Dispatch, `Allow`, limits and labels read them.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use http::{Method, Request};
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::{hint, refuse};
use crate::answer::Answer;
use crate::problem::{METHOD_NOT_ALLOWED, Problem, UNKNOWN_ENDPOINT};

/// What answers a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// One chat.
    Chat,
    /// One video job.
    Video,
    /// How far a job is.
    VideoStatus,
    /// What becomes of jobs, as it happens.
    Events,
    /// The caller's jobs.
    Jobs,
    /// A finished video.
    VideoContent,
    /// The price list.
    Catalog,
    /// What other sites put into their pages.
    Embed,
    /// The API's description.
    OpenApi,
    /// What the caller may know of itself and the account.
    Me,
    /// What the caller has spent.
    Usage,
    /// A member's cookie.
    LogIn,
    /// Its end.
    LogOut,
    /// What everybody has spent, for admins.
    AdminUsage,
    /// Who may call, for admins.
    AdminMembers,
    /// Everybody's jobs, for admins.
    AdminJobs,
    /// The account, for admins.
    AdminBilling,
    /// An endpoint of `gateway.passthrough` that costs.
    Buy,
    /// An endpoint of `gateway.passthrough` that does not.
    Ask,
    /// The same in OpenAI's dialect.
    OpenAi(OpenAi),
    /// Alive.
    Healthz,
    /// A kind of problem, explained.
    Problem,
    /// The page or the fronted site.
    Page,
}

/// What answers a row of OpenAI's dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAi {
    /// The models, in OpenAI's dialect.
    Models,
    /// One of them.
    Model,
    /// One chat, in OpenAI's dialect.
    Chat,
    /// One video job, in OpenAI's dialect.
    Video,
    /// The caller's jobs, in OpenAI's dialect.
    Videos,
    /// How far one job is, or its finished video.
    VideoNamed,
}

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
    /// None at all.
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

/// How a row's path is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Byte for byte, as sent: nothing is decoded or normalised.
    Exact(&'static str),
    /// Everything below this prefix.
    Below(&'static str),
}

/// One row.
#[derive(Debug, PartialEq, Eq)]
pub struct Route {
    /// `GET` rows answer `HEAD`, too.
    pub method: Method,
    /// Where it is.
    pub path: Path,
    /// What answers.
    pub endpoint: Endpoint,
    /// What the limiter counts it as.
    pub class: Class,
    /// What body it takes.
    pub takes: Takes,
    /// Whom it is for.
    pub needs: Needs,
}

#[rustfmt::skip]
/// Every endpoint. What is in none of these rows is the page's, or nobody's.
pub const ROUTES: &[Route] = &[
    Route { method: Method::POST, path: Path::Exact("/api/v1/chat"),         endpoint: Endpoint::Chat,        class: Class::Paid, takes: Takes::ChatJson, needs: Needs::Caller },
    Route { method: Method::POST, path: Path::Exact("/api/v1/video"),        endpoint: Endpoint::Video,       class: Class::Paid, takes: Takes::VideoJson, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/api/v1/video/status"), endpoint: Endpoint::VideoStatus, class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/bff/video/content"),   endpoint: Endpoint::VideoContent, class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/bff/events"),          endpoint: Endpoint::Events,      class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/bff/jobs"),            endpoint: Endpoint::Jobs,        class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/bff/catalog"),         endpoint: Endpoint::Catalog,     class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Exact("/bff/me"),              endpoint: Endpoint::Me,          class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/bff/usage"),           endpoint: Endpoint::Usage,       class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::POST, path: Path::Exact("/bff/login"),           endpoint: Endpoint::LogIn,       class: Class::Free, takes: Takes::LoginJson, needs: Needs::Nobody },
    Route { method: Method::POST, path: Path::Exact("/bff/logout"),          endpoint: Endpoint::LogOut,      class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Exact("/bff/admin/usage"),    endpoint: Endpoint::AdminUsage, class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/bff/admin/members"),  endpoint: Endpoint::AdminMembers, class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/bff/admin/jobs"),     endpoint: Endpoint::AdminJobs, class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/bff/admin/billing"),  endpoint: Endpoint::AdminBilling, class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/bff/client.js"),       endpoint: Endpoint::Embed,       class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Exact("/bff/client.d.ts"),     endpoint: Endpoint::Embed,       class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Exact("/bff/elements.js"),     endpoint: Endpoint::Embed,       class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Exact("/bff/purchasing.js"),   endpoint: Endpoint::Embed,       class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Exact("/bff/purchases.js"),    endpoint: Endpoint::Embed,       class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Exact("/bff/dom.js"),          endpoint: Endpoint::Embed,       class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Exact("/bff/format.js"),       endpoint: Endpoint::Embed,       class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Exact("/bff/openapi.json"),    endpoint: Endpoint::OpenApi,     class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Exact("/v1/models"),           endpoint: Endpoint::OpenAi(OpenAi::Models), class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Below("/v1/models/"),          endpoint: Endpoint::OpenAi(OpenAi::Model), class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::POST, path: Path::Exact("/v1/chat/completions"), endpoint: Endpoint::OpenAi(OpenAi::Chat),  class: Class::Paid, takes: Takes::ChatJson, needs: Needs::Caller },
    Route { method: Method::POST, path: Path::Exact("/v1/videos"),           endpoint: Endpoint::OpenAi(OpenAi::Video), class: Class::Paid, takes: Takes::VideoForm, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/v1/videos"),           endpoint: Endpoint::OpenAi(OpenAi::Videos), class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Below("/v1/videos/"),          endpoint: Endpoint::OpenAi(OpenAi::VideoNamed), class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Exact("/healthz"),             endpoint: Endpoint::Healthz,     class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
    Route { method: Method::GET,  path: Path::Below("/problems/"),           endpoint: Endpoint::Problem,     class: Class::Free, takes: Takes::Nothing, needs: Needs::Nobody },
];

/// Whatever no row claims: the page's files, or those of the fronted site.
const PAGE: Route = Route {
    method: Method::GET,
    path: Path::Below("/"),
    endpoint: Endpoint::Page,
    class: Class::Free,
    takes: Takes::Nothing,
    needs: Needs::Nobody,
};
const PAGE_ROW: &Route = &PAGE;

/// An endpoint that the settings let through, besides [`ROUTES`] (`gateway.passthrough`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Further {
    /// `POST` buys, `GET` asks.
    pub method: Method,
    /// Its exact path, below `/api/v1/`.
    pub path: String,
}

/// What the settings let through: one row for all that costs, and one for all that does not, so that
/// labels and logs do not grow with the settings.
#[rustfmt::skip]
const FURTHER: &[Route] = &[
    Route { method: Method::POST, path: Path::Below("/api/v1/"), endpoint: Endpoint::Buy, class: Class::Paid, takes: Takes::ChatJson, needs: Needs::Caller },
    Route { method: Method::GET,  path: Path::Below("/api/v1/"), endpoint: Endpoint::Ask, class: Class::Read, takes: Takes::Nothing, needs: Needs::Caller },
];

impl Further {
    fn row(&self) -> Option<&'static Route> {
        FURTHER.iter().find(|row| row.method == self.method)
    }
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

/// The row for a request, or why there is none.
pub fn find(method: &Method, path: &str, further: &[Further]) -> Result<&'static Route, Problem> {
    let mut allowed = None;
    let known = ROUTES.iter().filter(|route| route.path.matches(path));
    let further = further.iter().filter(|one| one.path == path).filter_map(Further::row);
    for route in known.chain(further) {
        if route.takes_method(method) {
            return Ok(route);
        }
        allowed = match allowed {
            None => Some(route.allows()),
            // One path may be there for both methods.
            Some(_) => Some("GET, HEAD, POST"),
        };
    }
    let reserved = is_reserved(path);
    let hint = hint::of(path);
    match allowed {
        None if reserved => Err(match hint {
            Some(hint) => Problem::new(&UNKNOWN_ENDPOINT).detail(hint),
            None => Problem::new(&UNKNOWN_ENDPOINT),
        }),
        None if !path.starts_with('/') => Err(Problem::new(&UNKNOWN_ENDPOINT)),
        None if PAGE.takes_method(method) => Ok(PAGE_ROW),
        allowed => {
            let allowed = allowed.unwrap_or(PAGE.allows());
            let detail = match hint {
                Some(hint) if !reserved => format!("this path takes {allowed}; {hint}"),
                Some(_) | None => format!("this path takes {allowed}"),
            };
            Err(Problem::new(&METHOD_NOT_ALLOWED).detail(detail).allow(allowed))
        }
    }
}

/// See [`layer`].
#[derive(Clone, Debug)]
pub struct Routed<S> {
    inner: S,
    further: Arc<[Further]>,
}

/// Finds the request's row and hands both on; answers 404 and 405 itself.
pub fn layer<S>(further: Arc<[Further]>) -> impl Layer<S, Service = Routed<S>> + Clone {
    layer_fn(move |inner| Routed { inner, further: Arc::clone(&further) })
}

impl<S, B> Service<Request<B>> for Routed<S>
where
    S: Service<(&'static Route, Request<B>), Response = Answer, Error = Infallible>,
    B: http_body::Body,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Answer, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match find(request.method(), request.uri().path(), &self.further) {
            Ok(route) => Either::Left(self.inner.call((route, request))),
            Err(problem) => {
                Either::Right(ready(Ok(refuse(problem, request.headers(), request.body()))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(method: Method, path: &str) -> &'static str {
        find(&method, path, &[]).map_or_else(|problem| problem.kind().code, |_| "found")
    }

    #[test]
    fn every_row_is_found_by_its_own_path_and_no_other() {
        for route in ROUTES {
            assert_eq!(find(&route.method, route.path.template(), &[]).unwrap(), route);
        }
        for path in [
            "/api/v1/chat/",
            "/api/v1//chat",
            "//api/v1/chat",
            "/api/v1/../api-keys",
            "/API/v1/chat",
            "/api/v1/chat;x=y",
            "/api/v1/%63hat",
            "/api/api-keys",
            "/api/v1/search",
            "/api",
            "/v1/x",
        ] {
            let outcome = find(&Method::POST, path, &[]);
            assert!(outcome.is_err(), "{path}");
        }
        assert_eq!(code(Method::GET, "/api/api-keys"), "unknown_endpoint");
        assert_eq!(code(Method::GET, "/api/v1/../api-keys"), "unknown_endpoint");
    }

    #[test]
    fn a_wrong_method_names_the_right_ones() {
        assert_eq!(code(Method::GET, "/api/v1/chat"), "method_not_allowed");
        assert_eq!(code(Method::POST, "/bff/catalog"), "method_not_allowed");
        assert_eq!(code(Method::POST, "/"), "method_not_allowed");
        assert_eq!(code(Method::HEAD, "/bff/catalog"), "found");
        assert_eq!(code(Method::GET, "/anything.css"), "found");
    }

    #[test]
    fn what_the_settings_let_through_is_found_by_its_exact_path_and_method() {
        let further = |method: Method, path: &str| Further { method, path: path.to_owned() };
        let further = [
            further(Method::POST, "/api/v1/search"),
            further(Method::POST, "/api/v1/both"),
            further(Method::GET, "/api/v1/both"),
            further(Method::GET, "/api/v1/pricing"),
        ];
        for (method, path, outcome) in [
            (Method::POST, "/api/v1/search", Ok(Endpoint::Buy)),
            (Method::GET, "/api/v1/pricing", Ok(Endpoint::Ask)),
            (Method::HEAD, "/api/v1/pricing", Ok(Endpoint::Ask)),
            (Method::POST, "/api/v1/both", Ok(Endpoint::Buy)),
            (Method::GET, "/api/v1/both", Ok(Endpoint::Ask)),
            (Method::GET, "/api/v1/search", Err("method_not_allowed")),
            (Method::POST, "/api/v1/pricing", Err("method_not_allowed")),
            (Method::POST, "/api/v1/search/", Err("unknown_endpoint")),
            (Method::POST, "/api/v1/searc%68", Err("unknown_endpoint")),
            (Method::POST, "/api/v1/images", Err("unknown_endpoint")),
            (Method::POST, "/api/v1/chat", Ok(Endpoint::Chat)),
        ] {
            let found = find(&method, path, &further);
            let found = found.map(|route| route.endpoint).map_err(|problem| problem.kind().code);
            assert_eq!(found, outcome, "{method} {path}");
        }
        assert!(further.iter().all(|one| one.row().is_some()));
    }
}
