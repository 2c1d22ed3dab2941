//! The endpoints of admins.

use http::Method;

use super::{Endpoint, READ};
use crate::downstream::route::{Auth, BodyKind, CrossOrigin, Route};
use crate::routes::admin;

const ADMIN: Route = Route { auth: Auth::Admin, cross_origin: CrossOrigin::Own, ..READ };
const MEMBERS: Route = Route { path: "/bff/admin/members", ..ADMIN };
const GROUPS: Route = Route { path: "/bff/admin/groups", ..ADMIN };
const GROUP: Route = Route { path: "/bff/admin/groups/*", ..ADMIN };
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
        route: Route { method: Method::POST, body: BodyKind::AdminJson, path: "/bff/admin/purchases/*", ..ADMIN },
        handler: |cx| Box::pin(admin::settle_purchase(cx)),
        operations: operations![operation("settlePurchase", "admins", "Settle a purchase whose outcome is unknown")
            .request_body("PurchaseOutcome")
            .response(204, "It counts as charged, or the money is free again.", &[])
            .problems(&[&[&NOT_FOUND]])],
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
    Endpoint {
        route: Route { method: Method::POST, body: BodyKind::AdminJson, path: "/bff/admin/members/*/extra", ..ADMIN },
        handler: |cx| Box::pin(admin::raise_member(cx)),
        operations: operations![operation("raiseMember", "admins", "Raise a member's limits for a time")
            .description("The extra ends with the UTC day `until`, and changes no limit.")
            .request_body("Extra")
            .response(201, "The member.", &[(JSON, "Anything")])
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { method: Method::DELETE, path: "/bff/admin/users/*/logins", ..ADMIN },
        handler: |cx| Box::pin(admin::end_logins(cx)),
        operations: operations![operation("endLogins", "admins", "End the sessions and tokens of a login service's user")
            .description("With access.mode = \"oidc\". The user can sign in again.")
            .response(204, "They have ended.", &[])
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: GROUPS,
        handler: |cx| Box::pin(async move { cx.handlers.reports.admin_groups().await }),
        operations: operations![operation("adminGroups", "admins", "List groups")
            .ok("Names, members, budgets and spending.", JSON, "Anything")],
    },
    Endpoint {
        route: Route { method: Method::POST, body: BodyKind::AdminJson, ..GROUPS },
        handler: |cx| Box::pin(admin::add_group(cx)),
        operations: operations![operation("addGroup", "admins", "Add a group")
            .request_body("NewGroup")
            .response(201, "The group.", &[(JSON, "Anything")])],
    },
    Endpoint {
        route: Route { method: Method::PATCH, body: BodyKind::AdminJson, ..GROUP },
        handler: |cx| Box::pin(admin::update_group(cx)),
        operations: operations![operation("updateGroup", "admins", "Change a group's budget")
            .description("An omitted period stays as it is; null removes a period, or the whole budget.")
            .request_body("GroupTerms")
            .ok("The group.", JSON, "Anything")
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { method: Method::DELETE, ..GROUP },
        handler: |cx| Box::pin(admin::remove_group(cx)),
        operations: operations![operation("removeGroup", "admins", "Remove a group without members")
            .response(204, "It is gone.", &[])
            .problems(&[&[&NOT_FOUND, &INVALID_REQUEST]])],
    },
    Endpoint {
        route: Route { auth: Auth::Caller, method: Method::POST, body: BodyKind::AdminJson, path: "/bff/budget-requests", ..ADMIN },
        handler: |cx| Box::pin(admin::ask_for_budget(cx)),
        operations: operations![operation("askForBudget", "people", "Ask the admins for more budget")
            .description("Not in open mode. It replaces the caller's earlier request.")
            .request_body("BudgetRequest")
            .response(201, "The request.", &[(JSON, "Anything")])
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { path: "/bff/admin/budget-requests", ..ADMIN },
        handler: |cx| Box::pin(async move { cx.handlers.reports.admin_budget_requests().await }),
        operations: operations![operation("adminBudgetRequests", "admins", "List requests for more budget")
            .ok("The earliest first.", JSON, "Anything")],
    },
    Endpoint {
        route: Route { method: Method::POST, body: BodyKind::AdminJson, path: "/bff/admin/budget-requests/*", ..ADMIN },
        handler: |cx| Box::pin(admin::answer_budget_request(cx)),
        operations: operations![operation("answerBudgetRequest", "admins", "Grant or decline a request for more budget")
            .request_body("BudgetAnswer")
            .response(204, "The request is gone.", &[])
            .problems(&[&[&NOT_FOUND]])],
    },
];
