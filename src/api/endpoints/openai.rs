//! The endpoints of OpenAI's API.

use super::{Endpoint, PAID, READ};
use crate::api::openai;
use crate::gate::route::{Auth, BodyKind, DEFAULT_ROUTE, Route};

pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/v1/models", auth: Auth::Optional, ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(openai::models(cx)),
    },
    Endpoint {
        route: Route { path: "/v1/models/", auth: Auth::Optional, ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(openai::model(cx)),
    },
    Endpoint {
        route: Route { path: "/v1/chat/completions", body: BodyKind::ChatJson, ..PAID },
        handler: |cx| Box::pin(openai::chat::buy(cx)),
    },
    Endpoint {
        route: Route { path: "/v1/videos", body: BodyKind::VideoForm, ..PAID },
        handler: |cx| Box::pin(openai::videos::buy(cx)),
    },
    Endpoint {
        route: Route { path: "/v1/videos", ..READ },
        handler: |cx| Box::pin(openai::videos::list(cx)),
    },
    Endpoint {
        route: Route { path: "/v1/videos/", ..READ },
        handler: |cx| Box::pin(openai::videos::get(cx)),
    },
];
