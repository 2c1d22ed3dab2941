//! The endpoints of admins.

use http::Method;

use super::{Endpoint, READ};
use crate::downstream::route::{Auth, BodyKind, Route};
use crate::routes::admin;

const ADMIN: Route = Route { auth: Auth::Admin, ..READ };
const MEMBERS: Route = Route { path: "/bff/admin/members", ..ADMIN };
const MEMBER: Route = Route { path: "/bff/admin/members/*", ..ADMIN };

// Its texts are wider than rustfmt can lay out.
#[rustfmt::skip]
pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/bff/admin/usage", ..ADMIN },
        handler: |cx| Box::pin(admin::usage(cx)),
        operations: operations![operation("adminUsage", "admins", "Get the spending of all callers")
            .days("Days up to today: 1d to 366d; 7d by default.")
            .query("format", "json or csv.", one_of(["json", "csv"]))
            .ok("By caller, day and model.", JSON, "Anything")
            .problems(&[&[&INVALID_REQUEST]])],
    },
    Endpoint {
        route: MEMBERS,
        handler: |cx| Box::pin(async move { cx.handlers.reports.admin_members().await }),
        operations: operations![operation("adminMembers", "admins", "List members")
            .ok("Names, roles, budgets and spending.", JSON, "Anything")],
    },
    Endpoint {
        route: Route { path: "/bff/admin/jobs", ..ADMIN },
        handler: |cx| Box::pin(async move { cx.handlers.reports.admin_jobs().await }),
        operations: operations![operation("adminJobs", "admins", "List the latest jobs of all callers")
            .ok("The latest first.", JSON, "Anything")],
    },
    Endpoint {
        route: Route { path: "/bff/admin/audit", ..ADMIN },
        handler: |cx| Box::pin(admin::audit(cx)),
        operations: operations![operation("adminAudit", "admins", "List who changed members, groups and budgets")
            .query("before", "Only entries before the one with this id.", range(1, isize::MAX))
            .ok("The latest first, at most 100.", JSON, "Anything")
            .problems(&[&[&INVALID_REQUEST]])],
    },
    Endpoint {
        route: Route { path: "/bff/admin/billing", ..ADMIN },
        handler: |cx| Box::pin(async move { cx.report(cx.handlers.reports.admin_billing()).await }),
        operations: operations![operation("adminBilling", "admins", "Get the gateway account")
            .ok("Balances, keys by name, unknown outcomes.", JSON, "Anything")],
    },
    Endpoint {
        route: Route { method: Method::POST, body: BodyKind::AdminJson, ..MEMBERS },
        handler: |cx| Box::pin(admin::add_member(cx)),
        operations: operations![operation("addMember", "admins", "Add a member")
            .description("Only with access.mode = \"members\", as all changes of members.")
            .request_body("NewMember")
            .response(201, "The token, which is shown once, and the member.", &[(JSON, "Anything")])
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { method: Method::PATCH, body: BodyKind::AdminJson, ..MEMBER },
        handler: |cx| Box::pin(admin::update_member(cx)),
        operations: operations![operation("updateMember", "admins", "Change a member")
            .description("An omitted field stays as it is; null removes a budget, a group or a rule.")
            .request_body("MemberTerms")
            .ok("The member.", JSON, "Anything")
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { method: Method::DELETE, ..MEMBER },
        handler: |cx| Box::pin(admin::revoke_member(cx)),
        operations: operations![operation("revokeMember", "admins", "Revoke a member for good")
            .response(204, "Its token and sessions have ended.", &[])
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { method: Method::POST, path: "/bff/admin/members/*/token", ..ADMIN },
        handler: |cx| Box::pin(admin::rotate_token(cx)),
        operations: operations![operation("rotateToken", "admins", "Replace a member's token")
            .response(201, "The token, which is shown once. The old one and its sessions have ended.", &[(JSON, "Anything")])
            .problems(&[&[&NOT_FOUND, &INVALID_REQUEST]])],
    },
];
