//! Stands in for the page in a build without the feature `page`.

/// There is none.
pub use std::convert::Infallible as Page;

use http::request::Parts;

use crate::gate::problem::{NOT_FOUND, Problem};
use crate::gate::response::HandlerResult;

pub(super) async fn answer(_: Option<&Page>, _: &Parts, _: &str) -> HandlerResult {
    Err(Problem::new(&NOT_FOUND))
}
