//! Reads settings from text and variables, and checks the files that they name.

#[cfg(feature = "cli")]
pub mod load;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::access::secret_file;
use crate::config::{
    AccessMode, Environment, JwksSource, Location, SettingError, Settings, SettingsSource,
    StoreConfig, TlsFiles,
};
use crate::ledger::configured;

/// Variables that are read in addition to `TOLLGATE_…`.
pub const KEY_VARIABLES: &[&str] = &["GATEWAY_API_KEY", "GATEWAY_API_KEY_FILE"];
/// Read if `store.url` is `postgres`.
const DATABASE_VARIABLES: &[&str] = &["DATABASE_URL", "DATABASE_URL_FILE"];
/// Read if `access.mode` is `oidc`.
const LOGIN_VARIABLES: &[&str] = &["OIDC_CLIENT_SECRET", "OIDC_CLIENT_SECRET_FILE"];
const MAX_FILE_SIZE: u64 = 1 << 20;

/// Reads settings from text, without a file or a `.env`; relative paths start at `folder`. Errors name the text
/// `settings`.
pub fn read_text(
    toml: &str,
    folder: &Path,
    variables: &Environment,
) -> Result<Settings, Vec<SettingError>> {
    Settings::read(&SettingsSource {
        file: Some(("settings", toml)),
        folder,
        environment: variables,
        needs_gateway_key: true,
        key_file: &key_file,
        check_files: &|settings| check_files(settings, (variables, folder), None),
    })
}

pub fn key_file(path: &Path) -> Result<Zeroizing<String>, String> {
    read_file(path).map_err(|error| error.to_string())
}

/// Returns an error for each missing file, for each secret file that `page.dir` would serve, and
/// for members without a ledger on disk.
pub fn check_files(
    settings: &Settings,
    (environment, folder): (&Environment, &Path),
    settings_file: Option<&Path>,
) -> Vec<(&'static str, String)> {
    let mut missing = Vec::new();
    if cfg!(not(feature = "page")) && settings.page.dir.is_some() {
        missing.push(("page.dir", "a build with the feature `page`".to_owned()));
    }
    let mut need = |setting, what: &str, path: &Path, exists: bool| {
        if !exists {
            missing.push((setting, format!("{what} that exists: {}", path.display())));
        }
    };
    let is_folder = |path: &Path| path.as_os_str().is_empty() || path.is_dir();
    if let Some(dir) = &settings.page.dir {
        need("page.dir", "a folder", dir, is_folder(dir));
    }
    if let Some(folder) = settings.store.path().and_then(Path::parent) {
        need("store.url", "a folder", folder, is_folder(folder));
    }
    if let (Some(dir), Some(fallback)) = (&settings.page.dir, &settings.page.fallback) {
        let file = dir.join(fallback);
        need("page.fallback", "a file in page.dir", &file, !dir.is_dir() || file.is_file());
    }
    if let Some(TlsFiles { cert, key }) = settings.server.tls_files() {
        need("server.tls", "`cert` to name a file", cert, cert.is_file());
        need("server.tls", "`key` to name a file", key, key.is_file());
    }
    let acme = settings.server.acme();
    if let Some(roots) = acme.and_then(|acme| acme.roots.as_deref()) {
        need("server.tls", "`roots` to name a file", roots, roots.is_file());
    }
    if let Some(folder) = acme.and_then(|acme| acme.dir.parent()) {
        need("server.tls", "`dir` to be in a folder", folder, is_folder(folder));
    }
    if let AccessMode::Jwt(jwt) = &settings.access.mode
        && let JwksSource::File(file) = &jwt.jwks
    {
        need("access.jwt.jwks", "a file", file, file.is_file());
    }
    if settings.access.mode == AccessMode::Members && settings.store == StoreConfig::Memory {
        let expected = "store.url with it, such as \"sqlite:tollgate.db\", to keep the members";
        missing.push(("access.mode", expected.to_owned()));
    }
    if let StoreConfig::Postgres(config) = &settings.store {
        missing.extend(configured::check_settings(settings, config).err());
    }
    missing.extend(served_secrets(settings, environment, (folder, settings_file)));
    missing
}

/// Returns the files that the site would serve, and must not.
fn served_secrets(
    settings: &Settings,
    environment: &Environment,
    (folder, settings_file): (&Path, Option<&Path>),
) -> Vec<(&'static str, String)> {
    let Some(site) = settings.page.dir.as_deref().and_then(|dir| dir.canonicalize().ok()) else {
        return Vec::new();
    };
    let named = |name: &str| {
        let path = environment.get(name)?.trim();
        (!path.is_empty()).then(|| folder.join(path))
    };
    let files = [
        ("the ledger (store.url)", settings.store.path().map(Path::to_owned)),
        // If the ledger is a link, this file may be in another folder.
        ("the secret beside the ledger (tollgate.secret)", secret_file::path_of(settings)),
        ("the key of server.tls", settings.server.tls_files().map(|files| files.key.clone())),
        ("the keys of server.tls.acme", settings.server.acme().map(|acme| acme.dir.clone())),
        ("the settings file", settings_file.map(Path::to_owned)),
        ("GATEWAY_API_KEY_FILE", named("GATEWAY_API_KEY_FILE")),
        ("TOLLGATE_SECRET_FILE", named("TOLLGATE_SECRET_FILE")),
        ("TOLLGATE_WEBHOOK_SECRET_FILE", named("TOLLGATE_WEBHOOK_SECRET_FILE")),
        ("DATABASE_URL_FILE", named("DATABASE_URL_FILE")),
        ("OIDC_CLIENT_SECRET_FILE", named("OIDC_CLIENT_SECRET_FILE")),
    ];
    let served = files
        .into_iter()
        .filter(|(_, file)| file.as_ref().is_some_and(|file| is_served(file, &site)));
    let expected = |what| format!("a folder that does not contain {what}");
    served.map(|(what, _)| ("page.dir", expected(what))).collect()
}

/// Returns whether the site may serve this file: it is in the folder and its own name is not hidden. A link may
/// lead through hidden folders.
fn is_served(file: &Path, site: &Path) -> bool {
    let is_hidden = |name: &OsStr| name.as_encoded_bytes().starts_with(b".");
    resolve(file)
        .is_some_and(|real| real.starts_with(site) && !real.file_name().is_some_and(is_hidden))
}

fn resolve(file: &Path) -> Option<PathBuf> {
    let not_created_yet =
        || Some(secret_file::parent_dir(file).canonicalize().ok()?.join(file.file_name()?));
    file.canonicalize().ok().or_else(not_created_yet)
}

/// Keeps the variables that tollgate reads.
pub fn environment(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    errors: &mut Vec<SettingError>,
) -> Environment {
    let mut environment = Environment::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| is_known(name)) else { continue };
        if let Ok(value) = value.into_string() {
            environment.insert(name.to_owned(), Zeroizing::new(value));
        } else {
            let location = Location::Variable(name.to_owned());
            errors.push(SettingError::new(location, "expected text in UTF-8"));
        }
    }
    environment
}

pub fn is_known(name: &str) -> bool {
    name.starts_with("TOLLGATE_")
        || KEY_VARIABLES.contains(&name)
        || DATABASE_VARIABLES.contains(&name)
        || LOGIN_VARIABLES.contains(&name)
}

pub fn read_file(path: &Path) -> io::Result<Zeroizing<String>> {
    if fs::metadata(path)?.len() > MAX_FILE_SIZE {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
    }
    String::from_utf8(fs::read(path)?).map(Zeroizing::new).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bytes = Zeroizing::new(error.into_bytes());
        let line = bytes[..valid].iter().filter(|byte| **byte == b'\n').count() + 1;
        io::Error::new(ErrorKind::InvalidData, format!("line {line} is not UTF-8"))
    })
}
