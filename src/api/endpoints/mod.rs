//! All endpoints, one line each in `table`. The layers and the dispatch use the lines;
//! `docs/openapi.json` and `docs/reference/http.md` describe each.

mod table;

use std::pin::Pin;

use http::Method;

use super::{HandlerContext, Handlers, login, passthrough, tokens};
use crate::api;
use crate::gate::response::HandlerResult;
use crate::gate::route::{
    Auth, BodyKind, Class, CrossOrigin, DEFAULT_ROUTE, MCP_PATH, RESOURCE_METADATA_PATH, Route,
    RouteTable,
};

const PAID: Route =
    Route { method: Method::POST, class: Class::Paid, auth: Auth::Caller, ..DEFAULT_ROUTE };
const READ: Route = Route { class: Class::Read, auth: Auth::Caller, ..DEFAULT_ROUTE };
const SHARED: Route = Route { cross_origin: CrossOrigin::Any, ..DEFAULT_ROUTE };

/// The endpoints of `gateway.passthrough`: one row for paid and one for free.
pub static PASSTHROUGH: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/api/v1/", body: BodyKind::ChatJson, ..PAID },
        handler: |cx| Box::pin(passthrough::passthrough_buy(cx)),
    },
    Endpoint {
        route: Route { path: "/api/v1/", cross_origin: CrossOrigin::Scripts, ..READ },
        handler: |cx| Box::pin(passthrough::passthrough_read(cx)),
    },
];

pub static PAGE: Endpoint = Endpoint {
    route: DEFAULT_ROUTE,
    handler: |cx| {
        Box::pin(async move {
            let Handlers { page, prefix, .. } = &*cx.handlers;
            api::page::answer(page.as_ref(), &cx.call.head, prefix).await
        })
    },
};

pub struct Endpoint {
    pub route: Route,
    pub(super) handler: Handler,
}

pub(super) type Handler = fn(HandlerContext) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

impl Endpoint {
    pub fn is_page(&self) -> bool {
        self.route == PAGE.route
    }

    /// Whether it is an admin's write, which takes an `Idempotency-Key`.
    pub fn is_change(&self) -> bool {
        self.route.auth == Auth::Admin && !self.route.method.is_safe()
    }
}

/// The endpoints that the settings switch on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The endpoint for agents.
    pub mcp: bool,
    /// The address of the login whose tokens agents bring.
    pub login_metadata: bool,
    /// Sign-in by redirects.
    pub oidc: bool,
    /// Whether users who sign in so make tokens for programs.
    pub own_tokens: bool,
}

/// Builds the table for the layers. All passthrough paths share two rows, so that labels and logs
/// do not grow with the settings.
///
/// Endpoints that the settings do not ask for do not exist.
pub fn route_table(
    passthrough: impl IntoIterator<Item = (Method, String)>,
    served: Served,
) -> RouteTable {
    let row = |method| PASSTHROUGH.iter().find(|endpoint| endpoint.route.method == method);
    let added = passthrough
        .into_iter()
        .filter_map(|(method, path)| row(method).map(|endpoint| (path, &endpoint.route)));
    let is_served = |route: &&Route| match route.path {
        MCP_PATH => served.mcp,
        RESOURCE_METADATA_PATH => served.mcp && served.login_metadata,
        login::LOGIN if route.method == Method::GET => served.oidc,
        login::CALLBACK => served.oidc,
        tokens::TOKENS | tokens::TOKEN => served.own_tokens,
        _ => true,
    };
    let rows = all().map(|endpoint| &endpoint.route).filter(is_served).collect();
    RouteTable { rows, passthrough: added.collect(), page: &PAGE.route }
}

/// Returns all endpoints but those of `gateway.passthrough` and the page.
pub fn all() -> impl Iterator<Item = &'static Endpoint> {
    table::ENDPOINTS.iter()
}

pub(super) fn find(route: &Route) -> &'static Endpoint {
    all().chain(PASSTHROUGH).find(|endpoint| endpoint.route == *route).unwrap_or(&PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: Served =
        Served { mcp: true, login_metadata: true, oidc: true, own_tokens: true };

    fn code(method: Method, path: &str) -> &'static str {
        route_table([], EVERYTHING)
            .find(&method, path)
            .map_or_else(|problem| problem.kind().code, |_| "found")
    }

    #[test]
    fn route_matches_its_exact_path_only() {
        let table = route_table([], EVERYTHING);
        for Endpoint { route, .. } in all() {
            assert_eq!(table.find(&route.method, route.path).unwrap(), route);
            assert_eq!(find(route).route, *route);
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
            let outcome = table.find(&Method::POST, path);
            assert!(outcome.is_err(), "{path}");
        }
        assert_eq!(code(Method::GET, "/api/api-keys"), "unknown_endpoint");
        assert_eq!(code(Method::GET, "/api/v1/../api-keys"), "unknown_endpoint");
    }

    #[test]
    fn wrong_method_is_refused_and_head_follows_get() {
        assert_eq!(code(Method::GET, "/api/v1/chat"), "method_not_allowed");
        assert_eq!(code(Method::POST, "/bff/catalog"), "method_not_allowed");
        assert_eq!(code(Method::POST, "/"), "method_not_allowed");
        assert_eq!(code(Method::HEAD, "/bff/catalog"), "found");
        assert_eq!(code(Method::GET, "/anything.css"), "found");
    }

    #[test]
    fn passthrough_matches_exact_path_and_method() {
        let table = route_table(
            [
                (Method::POST, "/api/v1/search"),
                (Method::POST, "/api/v1/both"),
                (Method::GET, "/api/v1/both"),
                (Method::GET, "/api/v1/pricing"),
            ]
            .map(|(method, path)| (method, path.to_owned())),
            Served::default(),
        );
        let [buy, read] = PASSTHROUGH else { panic!("two rows") };
        for (method, path, outcome) in [
            (Method::POST, "/api/v1/search", Ok(buy)),
            (Method::GET, "/api/v1/pricing", Ok(read)),
            (Method::HEAD, "/api/v1/pricing", Ok(read)),
            (Method::POST, "/api/v1/both", Ok(buy)),
            (Method::GET, "/api/v1/both", Ok(read)),
            (Method::GET, "/api/v1/search", Err("method_not_allowed")),
            (Method::POST, "/api/v1/pricing", Err("method_not_allowed")),
            (Method::POST, "/api/v1/search/", Err("unknown_endpoint")),
            (Method::POST, "/api/v1/searc%68", Err("unknown_endpoint")),
            (Method::POST, "/api/v1/images", Err("unknown_endpoint")),
            (Method::POST, "/api/v1/chat", Ok(&table::ENDPOINTS[0])),
        ] {
            let found = table.find(&method, path).map_err(|problem| problem.kind().code);
            assert_eq!(found, outcome.map(|endpoint| &endpoint.route), "{method} {path}");
        }
    }
}
