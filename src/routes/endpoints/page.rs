//! The client and the widgets, which pages of other sites load. All other files of the page have no endpoint.

use std::future::ready;

use super::{Endpoint, SHARED};
use crate::downstream::route::Route;
use crate::routes::page;

// Its texts are wider than rustfmt can lay out.
#[rustfmt::skip]
pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/bff/client.js", ..SHARED },
        handler: |cx| Box::pin(ready(page::shared_file(&cx.call.head))),
        operations: operations![operation("client", "embedding", "Get the browser client")
            .ok("The module.", "text/javascript", "Text")],
    },
    Endpoint {
        route: Route { path: "/bff/client.d.ts", ..SHARED },
        handler: |cx| Box::pin(ready(page::shared_file(&cx.call.head))),
        operations: operations![operation("clientTypes", "embedding", "Get the client's TypeScript types")
            .ok("The types.", TEXT, "Text")],
    },
    Endpoint {
        route: Route { path: "/bff/widgets.js", ..SHARED },
        handler: |cx| Box::pin(ready(page::shared_file(&cx.call.head))),
        operations: operations![operation("widgets", "embedding", "Get the widgets")
            .ok("The module.", "text/javascript", "Text")],
    },
    Endpoint {
        route: Route { path: "/bff/widgets/", ..SHARED },
        handler: |cx| Box::pin(ready(page::shared_file(&cx.call.head))),
        operations: operations![operation("widgetModule", "embedding", "Get a module of the widgets")
            .path_suffix("{name}")
            .ok("The module.", "text/javascript", "Text")
            .problems(&[&[&NOT_FOUND]])],
    },
];
