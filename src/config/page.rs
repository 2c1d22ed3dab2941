//! `[page]`: the page for users.

use std::path::{Path, PathBuf};

use super::read::{Section, section};
use super::value::{file_name, line, name, prose, web_origin};

section! {
    pub struct PageConfig {
        /// If not set, only the API is served.
        pub enabled: bool = switch("enabled", true),
        /// The folder of a static site; `None` is the built-in page.
        pub dir: Option<PathBuf> = nullable("dir", |text| Ok(text.into())),
        /// The file in `dir` that answers unknown paths.
        pub fallback: Option<String> = nullable("fallback", file_name),
        /// The title of the built-in page.
        pub title: String = text("title", line, "tollgate".to_owned()),
        /// Web origins of finished videos. With a gateway, no video is played while this is empty.
        pub media_origins: Vec<String> = list("media_origins", web_origin, Vec::new()),
        /// The chat model that the page preselects; the cheapest if `None`.
        pub default_model: Option<String> = nullable("default_model", name),
        /// The person to ask for a token, as the sign-in form names them.
        pub contact: Option<String> = nullable("contact", line),
        /// System messages that the page offers.
        pub presets: Vec<PresetConfig> = with(presets),
        /// Whether callers may upload pictures, which takes `server.public_url` and a ledger on disk. The
        /// sandbox's default is `true`: it fetches none, and needs neither.
        pub pictures: bool = flag("pictures"),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresetConfig {
    pub name: String,
    pub system: String,
}

pub(super) fn page(section: &mut Section<'_>, folder: &Path, is_sandbox: bool) -> PageConfig {
    let mut page = PageConfig::read(section);
    if page.dir.is_none() && page.fallback.is_some() {
        section.error("fallback", "expected page.dir with it, the folder of this file");
    }
    page.dir = page.dir.map(|dir| folder.join(dir));
    // A setting in error counts as off, so that it is reported once.
    page.pictures |= is_sandbox && !section.has("pictures");
    page
}

fn presets(section: &mut Section<'_>) -> Vec<PresetConfig> {
    let mut presets = Vec::new();
    section.tables("presets", |row| {
        let (name, system) = (row.required("name", line), row.required("system", prose));
        presets.push(PresetConfig { name: name?, system: system? });
        Some(())
    });
    presets
}
