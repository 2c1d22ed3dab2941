//! `[models]`: which models are sold, and which of them callers may buy.

use std::borrow::Cow;

use super::Settings;
use super::gateway::PassthroughConfig;
use super::read::Section;
use super::value::{self, Parsed};
use crate::api::validate::on_sale;
use crate::gateway::contract::catalog::{Catalog, ChatModel, Service, Tier};
use crate::gateway::contract::selection::Selection;

/// The changes to the published price list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelsConfig {
    pub added: Vec<ChatModel>,
    pub hide: Selection,
    /// If not empty, nothing else is sold.
    pub sell: Selection,
}

/// Returns the changes to the price list, and the models that are sold.
pub(super) fn models(section: &mut Section<'_>) -> (ModelsConfig, Catalog) {
    let mut catalog = Catalog::published();
    let added = added_models(section, &catalog);
    catalog.chat.extend_from_slice(&added);
    let services = [Service::Chat, Service::Video].map(Service::name);
    let known: Vec<_> = services.into_iter().chain(catalog.ids()).collect();
    let [hide, sell] = ["hide", "sell"].map(|name| {
        Selection::new(section.list(name, |text| known_name(text, &known), Vec::new()))
    });
    let are_both_set = hide.names().len() > 0 && sell.names().len() > 0;
    if are_both_set {
        section.error("sell", "expected no models.hide with it");
    }
    let is_sold = |service, id: &str| {
        !hide.contains(service, id) && (sell.names().len() == 0 || sell.contains(service, id))
    };
    let sold = catalog.filter(is_sold);
    if sold.ids().next().is_none() && !are_both_set {
        section.error("hide", "expected at least one model that is still sold");
    }
    (ModelsConfig { added, hide, sell }, sold)
}

fn added_models(section: &mut Section<'_>, published: &Catalog) -> Vec<ChatModel> {
    let mut added: Vec<ChatModel> = Vec::new();
    section.tables("chat", |row| {
        let (id, price) = (row.required("id", value::name), row.required("price", value::money));
        let id = id?;
        let is_service = Service::ALL.iter().any(|service| service.name() == id);
        let is_known =
            published.ids().any(|known| known == id) || added.iter().any(|model| model.id == id);
        if is_service {
            row.section_error("expected an id other than chat, video and other");
        } else if is_known {
            row.section_error("expected a new model, this id is already in the catalog");
        } else {
            let (id, tier) = (Cow::Owned(id), Tier::Added(price?));
            added.push(ChatModel { id, tier, best_for: "" });
        }
        Some(())
    });
    added
}

pub(super) fn may_buy(
    section: &mut Section<'_>,
    catalog: &Catalog,
    passthrough: &[PassthroughConfig],
) -> Selection {
    let known = names_on_sale(catalog, passthrough);
    let all = Selection::everything();
    let default = all.names().map(Box::from).collect();
    Selection::new(section.list("may_buy", |text| known_name(text, &known), default))
}

impl Settings {
    /// Fails if a name is neither a service nor sold; the error says what was expected.
    pub fn check_selection(&self, selection: &Selection) -> Result<(), Cow<'static, str>> {
        let known = self.names_on_sale();
        selection.names().try_for_each(|name| known_name(name, &known).map(|_| ()))
    }

    /// Returns the names that a [`Selection`] may have: services, models that are sold, paths.
    pub fn names_on_sale(&self) -> Vec<&str> {
        names_on_sale(&self.catalog, &self.gateway.passthrough)
    }
}

fn names_on_sale<'a>(catalog: &'a Catalog, passthrough: &'a [PassthroughConfig]) -> Vec<&'a str> {
    let bought = passthrough.iter().filter(|endpoint| endpoint.method == http::Method::POST);
    let paths = bought.map(|endpoint| &*endpoint.path);
    Service::ALL.map(Service::name).into_iter().chain(catalog.ids()).chain(paths).collect()
}

fn known_name(text: &str, known: &[&str]) -> Parsed<Box<str>> {
    on_sale(text, known).map(|()| text.into()).map_err(Cow::from)
}
