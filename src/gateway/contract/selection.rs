//! A choice among all that is sold.

use std::fmt;
use std::sync::Arc;

use super::catalog::{Catalog, Service};

/// A choice of services by name and of models by id, such as those that a caller may buy.
///
/// `other` stands for all endpoints of `gateway.passthrough`; a single one is named by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Arc<[Box<str>]>);

impl Selection {
    pub fn new<T: Into<Box<str>>>(names: impl IntoIterator<Item = T>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }

    pub fn everything() -> Self {
        Self::new(Service::ALL.map(Service::name))
    }

    /// Reads names that are separated by spaces or commas.
    pub fn parse(text: &str) -> Self {
        let is_separator = |letter: char| letter == ',' || letter.is_whitespace();
        Self::new(text.split(is_separator).filter(|name| !name.is_empty()))
    }

    pub fn contains(&self, service: Service, model: &str) -> bool {
        self.0.iter().any(|name| **name == *service.name() || **name == *model)
    }

    /// Returns the models of the catalog that it has.
    pub fn filter(&self, catalog: &Catalog) -> Catalog {
        catalog.clone().filter(|service, id| self.contains(service, id))
    }

    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }
}

/// Writes the names with spaces between them, as the ledger keeps them.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_has_whole_services_and_single_models() {
        let some = Selection::parse("chat, video-b\n/api/v1/search");
        for (service, model, is_in) in [
            (Service::Chat, "eta-5", true),
            (Service::Video, "video-b", true),
            (Service::Video, "video-a-2", false),
            (Service::Other, "/api/v1/search", true),
            (Service::Other, "/api/v1/images", false),
        ] {
            assert_eq!(some.contains(service, model), is_in, "{model}");
            assert!(Selection::everything().contains(service, model), "{model}");
            assert!(!Selection::parse(" ,").contains(service, model), "{model}");
        }
        assert_eq!(some.to_string(), "chat video-b /api/v1/search");
        assert_eq!(Selection::parse(&some.to_string()), some);
    }
}
