//! The page, and the pictures that it uploads, as the settings say.

use super::SharedState;
use crate::api::page::Page;
#[cfg(feature = "page")]
use crate::api::page::site::Site;
use crate::api::pictures::PictureHost;
use crate::config::{Settings, Target};

#[cfg(feature = "page")]
pub(super) fn page(settings: &Settings) -> Option<Page> {
    let page = &settings.page;
    page.enabled.then(|| match &page.dir {
        Some(dir) => Page::Site(Box::new(Site::new(dir.clone(), page.fallback.clone()))),
        None => Page::built_in(&page.title, &page.media_origins),
    })
}

#[cfg(not(feature = "page"))]
pub(super) fn page(_: &Settings) -> Option<Page> {
    None
}

/// The built-in sandbox fetches no picture, so that its address need not lead anywhere.
const SANDBOX_ORIGIN: &str = "https://sandbox.example.com";

pub(super) fn picture_host(settings: &Settings, shared: &SharedState) -> Option<PictureHost> {
    let pictures = shared.pictures.clone()?;
    let is_sandbox = matches!(settings.gateway.target, Target::Sandbox);
    let public_url = settings.server.public_url.as_deref();
    let origin = public_url.or(is_sandbox.then_some(SANDBOX_ORIGIN))?;
    let public_url = format!("{origin}{}", settings.server.prefix);
    settings.page.pictures.then_some(PictureHost { pictures, public_url })
}
