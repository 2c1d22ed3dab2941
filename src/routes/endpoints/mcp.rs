//! The endpoints for agents.

use http::Method;

use super::{Endpoint, READ, SHARED};
use crate::downstream::route::{BodyKind, Class, MCP_PATH, RESOURCE_METADATA_PATH, Route};
use crate::routes::mcp;

pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        // Tools that buy count as purchases, too.
        route: Route {
            method: Method::POST,
            path: MCP_PATH,
            class: Class::Agent,
            body: BodyKind::ChatJson,
            ..READ
        },
        handler: |cx| Box::pin(mcp::post(cx)),
    },
    Endpoint {
        route: Route { path: RESOURCE_METADATA_PATH, ..SHARED },
        handler: |cx| Box::pin(mcp::resource_metadata(cx)),
    },
];
