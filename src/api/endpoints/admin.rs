//! The endpoints of admins.

use http::Method;

use super::{Endpoint, READ};
use crate::api::{admin, links};
use crate::gate::route::{Auth, BodyKind, CrossOrigin, Route};

const ADMIN: Route = Route { auth: Auth::Admin, cross_origin: CrossOrigin::Own, ..READ };
const MEMBERS: Route = Route { path: "/bff/admin/members", ..ADMIN };
const GROUPS: Route = Route { path: "/bff/admin/groups", ..ADMIN };
const GROUP: Route = Route { path: "/bff/admin/groups/*", ..ADMIN };
const MEMBER: Route = Route { path: "/bff/admin/members/*", ..ADMIN };

pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/bff/admin/usage", ..ADMIN },
        handler: |cx| Box::pin(admin::usage(cx)),
    },
    Endpoint {
        route: MEMBERS,
        handler: |cx| Box::pin(async move { cx.handlers.reports.admin_members().await }),
    },
    Endpoint {
        route: Route { path: "/bff/admin/jobs", ..ADMIN },
        handler: |cx| Box::pin(async move { cx.handlers.reports.admin_jobs().await }),
    },
    Endpoint {
        route: Route { path: "/bff/admin/audit", ..ADMIN },
        handler: |cx| Box::pin(admin::audit(cx)),
    },
    Endpoint {
        route: Route { path: "/bff/admin/billing", ..ADMIN },
        handler: |cx| Box::pin(async move { cx.report(cx.handlers.reports.admin_billing()).await }),
    },
    Endpoint {
        route: Route {
            method: Method::POST,
            body: BodyKind::AdminJson,
            path: "/bff/admin/purchases/*",
            ..ADMIN
        },
        handler: |cx| Box::pin(admin::settle_purchase(cx)),
    },
    Endpoint {
        route: Route { method: Method::POST, body: BodyKind::AdminJson, ..MEMBERS },
        handler: |cx| Box::pin(admin::add_member(cx)),
    },
    Endpoint {
        route: Route { method: Method::PATCH, body: BodyKind::AdminJson, ..MEMBER },
        handler: |cx| Box::pin(admin::update_member(cx)),
    },
    Endpoint {
        route: Route { method: Method::DELETE, ..MEMBER },
        handler: |cx| Box::pin(admin::revoke_member(cx)),
    },
    Endpoint {
        route: Route { method: Method::POST, path: "/bff/admin/members/*/token", ..ADMIN },
        handler: |cx| Box::pin(admin::rotate_token(cx)),
    },
    Endpoint {
        route: Route {
            method: Method::POST,
            body: BodyKind::AdminJson,
            path: "/bff/admin/members/*/extra",
            ..ADMIN
        },
        handler: |cx| Box::pin(admin::raise_member(cx)),
    },
    Endpoint {
        route: Route { method: Method::DELETE, path: "/bff/admin/users/*/logins", ..ADMIN },
        handler: |cx| Box::pin(admin::end_logins(cx)),
    },
    Endpoint {
        route: GROUPS,
        handler: |cx| Box::pin(async move { cx.handlers.reports.admin_groups().await }),
    },
    Endpoint {
        route: Route { method: Method::POST, body: BodyKind::AdminJson, ..GROUPS },
        handler: |cx| Box::pin(admin::add_group(cx)),
    },
    Endpoint {
        route: Route { method: Method::PATCH, body: BodyKind::AdminJson, ..GROUP },
        handler: |cx| Box::pin(admin::update_group(cx)),
    },
    Endpoint {
        route: Route { method: Method::DELETE, ..GROUP },
        handler: |cx| Box::pin(admin::remove_group(cx)),
    },
    Endpoint {
        route: Route { path: links::LINKS, ..ADMIN },
        handler: |cx| Box::pin(links::list(cx)),
    },
    Endpoint {
        route: Route {
            method: Method::POST,
            body: BodyKind::AdminJson,
            path: links::LINKS,
            ..ADMIN
        },
        handler: |cx| Box::pin(links::add(cx)),
    },
    Endpoint {
        route: Route { method: Method::DELETE, path: links::LINK, ..ADMIN },
        handler: |cx| Box::pin(links::revoke(cx)),
    },
    Endpoint {
        route: Route {
            auth: Auth::Caller,
            method: Method::POST,
            body: BodyKind::AdminJson,
            path: "/bff/budget-requests",
            ..ADMIN
        },
        handler: |cx| Box::pin(admin::ask_for_budget(cx)),
    },
    Endpoint {
        route: Route { path: "/bff/admin/budget-requests", ..ADMIN },
        handler: |cx| Box::pin(async move { cx.handlers.reports.admin_budget_requests().await }),
    },
    Endpoint {
        route: Route {
            method: Method::POST,
            body: BodyKind::AdminJson,
            path: "/bff/admin/budget-requests/*",
            ..ADMIN
        },
        handler: |cx| Box::pin(admin::answer_budget_request(cx)),
    },
];
