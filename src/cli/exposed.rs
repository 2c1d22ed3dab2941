//! Finds what must stay private and lies in the folder that everybody is served from.

use std::path::{Component, Path, PathBuf};

use super::secret;
use crate::config::{Config, Environment, Fault, Place, Store};

/// The files of tollgate's own that `page.dir` would serve: the settings, the ledger with the replies and
/// the secret beside it, files of keys. `folder` is where relative paths count from.
pub(super) fn exposed(
    config: &Config,
    settings: Option<&Path>,
    folder: &Path,
    environment: &Environment,
    place: &Place,
) -> Vec<Fault> {
    let Some(site) = config.page.dir.as_deref().and_then(|dir| dir.canonicalize().ok()) else {
        return Vec::new();
    };
    let ledger = match &config.store {
        Store::Sqlite(path) => Some(("the ledger (store.url)", path.clone())),
        Store::Memory => None,
    };
    // It may lie elsewhere than a ledger that is a link, and it has no hidden name.
    let secret =
        secret::file(config).map(|path| ("the secret beside the ledger (tollgate.secret)", path));
    let settings = settings.map(|path| ("the settings file", path.to_owned()));
    let named = |name: &'static str| {
        let path = environment.get(name)?.trim();
        (!path.is_empty()).then(|| (name, folder.join(path)))
    };
    let keys = [named("GATEWAY_API_KEY_FILE"), named("TOLLGATE_SECRET_FILE")];
    let files = ledger.into_iter().chain(secret).chain(settings).chain(keys.into_iter().flatten());
    let served = files.filter(|(_, file)| is_served(file, &site));
    let text = |what| format!("page.dir: expected a folder that does not hold {what}");
    served.map(|(what, _)| Fault::new(place.clone(), text(what))).collect()
}

/// Whether the site would give this file away: it lies in the folder, and not by a hidden name.
fn is_served(file: &Path, site: &Path) -> bool {
    let is_hidden = |part: Component<'_>| part.as_os_str().as_encoded_bytes().starts_with(b".");
    real(file)
        .and_then(|real| real.strip_prefix(site).map(Path::to_owned).ok())
        .is_some_and(|inner| !inner.components().any(is_hidden))
}

/// Where a file really is, or will be once it is made.
fn real(file: &Path) -> Option<PathBuf> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let made_later = || Some(folder.canonicalize().ok()?.join(file.file_name()?));
    file.canonicalize().ok().or_else(made_later)
}
