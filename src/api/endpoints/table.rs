//! The table of endpoints, without those of `gateway.passthrough` and the page.

use http::Method;

use super::{Endpoint, PAID, READ, SHARED};
use crate::api::{admin, bff, links, login, passthrough, pictures, proof, tokens};
use crate::gate::route::{Auth, BodyKind, Class, CrossOrigin, DEFAULT_ROUTE, Route};

const SIGN_IN: Route = Route { method: Method::POST, signs_in: true, ..DEFAULT_ROUTE };

/// The routes of admins.
const ADMIN: Route = Route { auth: Auth::Admin, cross_origin: CrossOrigin::Own, ..READ };
const CHANGE: Route = Route { method: Method::POST, body: BodyKind::AdminJson, ..ADMIN };
const MEMBERS: &str = "/bff/admin/members";
const MEMBER: &str = "/bff/admin/members/*";
const GROUPS: &str = "/bff/admin/groups";
const GROUP: &str = "/bff/admin/groups/*";
const REQUEST: &str = "/bff/admin/budget-requests/*";

/// The routes of people who sign in at a login service.
const OWN: Route = Route { cross_origin: CrossOrigin::Own, ..READ };
const OWN_CHANGE: Route =
    Route { auth: Auth::Caller, cross_origin: CrossOrigin::Own, ..DEFAULT_ROUTE };

/// Makes a table of lines `route => handler, if feature;`, where a handler is an
/// `async fn(HandlerContext)`, and endpoints of every build have no feature.
macro_rules! endpoints {
    ($($route:expr => $handler:path $(, if $feature:tt)?;)*) => {
        &[$(
            $(#[cfg(feature = $feature)])?
            Endpoint { route: $route, handler: |cx| Box::pin($handler(cx)) },
        )*]
    };
}

pub(super) static ENDPOINTS: &[Endpoint] = endpoints! {
    Route { path: "/api/v1/chat", body: BodyKind::ChatJson, ..PAID } => passthrough::chat;
    Route { path: "/api/v1/video", body: BodyKind::VideoJson, ..PAID } => passthrough::video;
    Route { path: "/api/v1/video/status", ..READ } => passthrough::video_status;
    Route { path: "/bff/video/content", ..READ } => passthrough::video_content;
    Route { method: Method::DELETE, path: "/bff/video", ..OWN } => bff::remove_video;
    Route { path: "/bff/events", ..READ } => bff::events;
    Route { path: "/bff/jobs", ..READ } => bff::jobs;
    Route { path: "/bff/pictures", class: Class::Upload, body: BodyKind::Picture, ..PAID }
        => pictures::upload;
    Route { path: pictures::PICTURES, ..DEFAULT_ROUTE } => pictures::download;
    Route { path: "/bff/catalog", auth: Auth::Optional, ..SHARED } => bff::catalog;
    Route { path: "/bff/me", ..READ } => bff::me;
    Route { path: "/bff/proof", ..READ } => proof::challenge;
    Route { path: "/bff/usage", ..READ } => bff::usage;
    Route { path: "/bff/login", body: BodyKind::LoginJson, ..SIGN_IN } => bff::log_in;
    Route { path: "/bff/logout", ..SIGN_IN } => bff::log_out;
    Route { path: "/healthz", ..DEFAULT_ROUTE } => bff::serve_healthz;
    Route { path: "/bff/openapi.json", ..SHARED } => crate::api::openapi::serve, if "openapi";
    Route { path: "/problems/", ..DEFAULT_ROUTE } => bff::problem_page;

    Route { path: "/bff/admin/usage", ..ADMIN } => admin::usage;
    Route { path: MEMBERS, ..ADMIN } => admin::members;
    Route { path: "/bff/admin/jobs", ..ADMIN } => admin::jobs;
    Route { path: "/bff/admin/audit", ..ADMIN } => admin::audit;
    Route { path: "/bff/admin/billing", ..ADMIN } => admin::billing;
    Route { path: "/bff/admin/purchases/*", ..CHANGE } => admin::settle_purchase;
    Route { path: MEMBERS, ..CHANGE } => admin::add_member;
    Route { method: Method::PATCH, path: MEMBER, ..CHANGE } => admin::update_member;
    Route { method: Method::DELETE, path: MEMBER, ..ADMIN } => admin::revoke_member;
    Route { method: Method::POST, path: "/bff/admin/members/*/token", ..ADMIN }
        => admin::rotate_token;
    Route { path: "/bff/admin/members/*/extra", ..CHANGE } => admin::raise_member;
    Route { method: Method::DELETE, path: "/bff/admin/users/*/logins", ..ADMIN }
        => admin::end_logins;
    Route { path: GROUPS, ..ADMIN } => admin::groups;
    Route { path: GROUPS, ..CHANGE } => admin::add_group;
    Route { method: Method::PATCH, path: GROUP, ..CHANGE } => admin::update_group;
    Route { method: Method::DELETE, path: GROUP, ..ADMIN } => admin::remove_group;
    Route { path: links::LINKS, ..ADMIN } => links::list;
    Route { path: links::LINKS, ..CHANGE } => links::add;
    Route { method: Method::DELETE, path: links::LINK, ..ADMIN } => links::revoke;
    Route { path: "/bff/budget-requests", auth: Auth::Caller, ..CHANGE } => admin::ask_for_budget;
    Route { path: "/bff/admin/budget-requests", ..ADMIN } => admin::budget_requests;
    Route { path: REQUEST, ..CHANGE } => admin::answer_budget_request;

    Route { path: login::LOGIN, ..DEFAULT_ROUTE } => login::begin;
    Route { path: login::CALLBACK, signs_in: true, ..DEFAULT_ROUTE } => login::finish;
    Route { path: tokens::TOKENS, ..OWN } => tokens::list;
    Route { method: Method::POST, path: tokens::TOKENS, body: BodyKind::LoginJson, ..OWN_CHANGE }
        => tokens::add;
    Route { method: Method::DELETE, path: tokens::TOKEN, ..OWN_CHANGE } => tokens::remove;

    // Tools that buy count as purchases, too.
    Route { path: super::MCP_PATH, class: Class::Agent, body: BodyKind::ChatJson, ..PAID }
        => crate::api::mcp::post, if "mcp";
    Route { path: super::RESOURCE_METADATA_PATH, ..SHARED }
        => crate::api::mcp::resource_metadata, if "mcp";

    Route { path: "/v1/models", auth: Auth::Optional, ..DEFAULT_ROUTE }
        => crate::api::openai::models, if "openai";
    Route { path: "/v1/models/", auth: Auth::Optional, ..DEFAULT_ROUTE }
        => crate::api::openai::model, if "openai";
    Route { path: "/v1/chat/completions", body: BodyKind::ChatJson, ..PAID }
        => crate::api::openai::chat::buy, if "openai";
    Route { path: "/v1/videos", body: BodyKind::VideoForm, ..PAID }
        => crate::api::openai::videos::buy, if "openai";
    Route { path: "/v1/videos", ..READ } => crate::api::openai::videos::list, if "openai";
    Route { path: "/v1/videos/", ..READ } => crate::api::openai::videos::get, if "openai";

    // Pages of other sites load these. The page's other files have no endpoint.
    Route { path: "/bff/client.js", ..SHARED } => crate::api::page::shared_file, if "page";
    Route { path: "/bff/client.d.ts", ..SHARED } => crate::api::page::shared_file, if "page";
    Route { path: "/bff/proof.js", ..SHARED } => crate::api::page::shared_file, if "page";
    Route { path: "/bff/widgets.js", ..SHARED } => crate::api::page::shared_file, if "page";
    Route { path: "/bff/widgets/", ..SHARED } => crate::api::page::shared_file, if "page";
    Route { path: "/bff/text/", ..SHARED } => crate::api::page::shared_file, if "page";
};
