//! The endpoints for agents.

use http::Method;

use super::{Endpoint, READ, SHARED};
use crate::api::mcp;
use crate::gate::route::{BodyKind, Class, MCP_PATH, RESOURCE_METADATA_PATH, Route};

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
