//! The endpoints for agents.

use http::Method;

use super::{Endpoint, READ, SHARED};
use crate::downstream::route::{BodyKind, Class, MCP_PATH, RESOURCE_METADATA_PATH, Route};
use crate::routes::mcp;

// Its texts are wider than rustfmt can lay out.
#[rustfmt::skip]
pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        // Tools that buy count as purchases, too.
        route: Route { method: Method::POST, path: MCP_PATH, class: Class::Agent, body: BodyKind::ChatJson, ..READ },
        handler: |cx| Box::pin(mcp::post(cx)),
        operations: operations![operation("mcp", "agents", "Send one message of the Model Context Protocol")
            .description("Only with mcp.enabled. Tools list models, quote prices, buy, and follow videos.")
            .request_body("Anything")
            .ok("The JSON-RPC response, or events that end with it.", JSON, "Anything")
            .response(202, "A notification was accepted.", &[])
            .problems(&[&[&crate::problem::UNKNOWN_ENDPOINT]])],
    },
    Endpoint {
        route: Route { path: RESOURCE_METADATA_PATH, ..SHARED },
        handler: |cx| Box::pin(mcp::resource_metadata(cx)),
        operations: operations![operation("resourceMetadata", "agents", "Get the address of the login (RFC 9728)")
            .description("Only with mcp.enabled and access.mode = \"jwt\".")
            .ok("The resource and its authorization server.", JSON, "Anything")
            .problems(&[&[&NOT_FOUND]])],
    },
];
