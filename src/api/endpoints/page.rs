//! The client and the widgets, which pages of other sites load. All other files of the page have no endpoint.

use std::future::ready;

use super::{Endpoint, SHARED};
use crate::api::page;
use crate::gate::route::Route;

pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/bff/client.js", ..SHARED },
        handler: |cx| Box::pin(ready(page::shared_file(&cx.call.head))),
    },
    Endpoint {
        route: Route { path: "/bff/client.d.ts", ..SHARED },
        handler: |cx| Box::pin(ready(page::shared_file(&cx.call.head))),
    },
    Endpoint {
        route: Route { path: "/bff/proof.js", ..SHARED },
        handler: |cx| Box::pin(ready(page::shared_file(&cx.call.head))),
    },
    Endpoint {
        route: Route { path: "/bff/widgets.js", ..SHARED },
        handler: |cx| Box::pin(ready(page::shared_file(&cx.call.head))),
    },
    Endpoint {
        route: Route { path: "/bff/widgets/", ..SHARED },
        handler: |cx| Box::pin(ready(page::shared_file(&cx.call.head))),
    },
];
