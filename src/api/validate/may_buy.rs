//! Whether a caller may buy an order.

use super::rule::{join_list, nearest};
use super::{Checked, Order};
use crate::gate::problem::{FieldError, MODEL_NOT_ALLOWED, Problem};
use crate::gateway::contract::catalog::{Catalog, Service};
use crate::gateway::contract::selection::Selection;

/// Fails unless `allowed` has the order's model. The error names the models that it has.
pub fn may_buy(
    order: &Checked<Order>,
    catalog: &Catalog,
    allowed: &Selection,
) -> Result<(), Problem> {
    let Order { service, model, .. } = order.get();
    if allowed.contains(*service, model) {
        return Ok(());
    }
    let catalog = allowed.filter(catalog);
    let ids: Vec<_> = match service {
        Service::Chat => catalog.chat.into_iter().map(|model| model.id).collect(),
        Service::Video => catalog.video.into_iter().map(|model| model.id).collect(),
        Service::Other => {
            let detail = format!("you may not buy from {model}");
            return Err(Problem::new(&MODEL_NOT_ALLOWED).detail(detail));
        }
    };
    let detail = if ids.is_empty() {
        format!("you may not buy from any {} model", service.name())
    } else {
        let ids = join_list(ids.iter().map(AsRef::as_ref), "or");
        format!("you may buy from {ids}, not from {model}")
    };
    let error = FieldError {
        pointer: "/model".to_owned(),
        code: MODEL_NOT_ALLOWED.code,
        detail: detail.clone(),
    };
    Err(Problem::new(&MODEL_NOT_ALLOWED).detail(detail).with_errors(vec![error]))
}

/// Fails if a name is neither a service nor sold; the error says what is expected. In `sold`, the
/// names of services come first.
pub fn on_sale(name: &str, sold: &[&str]) -> Result<(), String> {
    if sold.contains(&name) {
        return Ok(());
    }
    let services = sold.iter().filter(|name| Service::ALL.map(Service::name).contains(name));
    let services: String = services.map(|name| format!("\"{name}\", ")).collect();
    let hint = nearest(name, sold.iter().copied());
    let hint = hint.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
    Err(format!("expected {services}or the id of a model that is sold{hint}"))
}
