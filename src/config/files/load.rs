//! Loads the settings from the environment, `.env`, `proxy.toml` and the key file.

use std::cell::Cell;
use std::env;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::access::secret_file::{exposure, is_writable_by_others};
use crate::clock;
use crate::config::files::{
    KEY_VARIABLES, check_files, environment, is_known, key_file, read_file,
};
use crate::config::{
    Environment, Location, SettingError, Settings, SettingsSource, Target, TlsConfig,
};
use crate::edge::acme;
use crate::edge::tls::Certificate;

const DEFAULT_FILE: &str = "proxy.toml";
const ENV_FILE: &str = ".env";
#[cfg(feature = "postgres")]
const STORE_URL: &str = "TOLLGATE_STORE__URL";
const ADMIN_LISTEN: &str = "TOLLGATE_ADMIN__LISTEN";

#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub settings: Settings,
    pub file: Option<PathBuf>,
    pub warnings: Vec<String>,
}

/// Loads the settings. The environment overrides `.env`, and both override the file.
pub fn load(explicit: Option<&Path>, needs_gateway_key: bool) -> Result<Loaded, Vec<SettingError>> {
    let mut loaded = load_from(explicit, needs_gateway_key, Path::new(""), env::vars_os())?;
    loaded.settings.mark_folders = mark_folders();
    Ok(loaded)
}

/// Returns where the server may note how far its ledger has come: the folders that systemd gives it, or
/// one of the user's.
#[expect(clippy::disallowed_methods, reason = "these folders are no settings")]
fn mark_folders() -> Vec<PathBuf> {
    let given = ["STATE_DIRECTORY", "RUNTIME_DIRECTORY"].into_iter().filter_map(env::var_os);
    let given: Vec<_> =
        given.flat_map(|list| env::split_paths(&list).collect::<Vec<_>>()).collect();
    let home = || Some(Path::new(&env::var_os("HOME")?).join(".local/state"));
    let own = env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
    let own = own.map(|state| state.join("tollgate"));
    given.into_iter().chain(own).filter(|folder| folder.is_absolute()).collect()
}

/// Loads the settings for a ledger that the command line names in place of `store.url`.
#[cfg(feature = "postgres")]
pub fn load_with_ledger(explicit: Option<&Path>, url: &str) -> Result<Loaded, Vec<SettingError>> {
    let others = env::vars_os().filter(|(name, _)| name != STORE_URL);
    load_from(explicit, false, Path::new(""), others.chain([(STORE_URL.into(), url.into())]))
}

/// Returns the address of the ops listener of a running server. If its settings were edited since
/// and are invalid, only that address is read.
pub fn admin_listen(explicit: Option<&Path>) -> SocketAddr {
    if let Ok(loaded) = load(explicit, false) {
        return loaded.settings.ops_address();
    }
    let file = read_file(explicit.unwrap_or(Path::new(DEFAULT_FILE))).ok();
    let file = file.and_then(|text| toml::from_str::<toml::Table>(&text).ok());
    let in_file = file.as_ref().and_then(|file| file.get("admin")?.get("listen")?.as_str());
    let mut variables = env::vars_os();
    let variable = variables.find(|(name, _)| name == ADMIN_LISTEN);
    let variable = variable.and_then(|(_, value)| value.into_string().ok());
    let listen = variable.as_deref().or(in_file).and_then(|listen| listen.parse().ok());
    listen.unwrap_or_else(|| Settings::default().ops_address())
}

pub fn load_from(
    explicit: Option<&Path>,
    needs_gateway_key: bool,
    folder: &Path,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Loaded, Vec<SettingError>> {
    let path = explicit.map_or_else(|| folder.join(DEFAULT_FILE), Path::to_path_buf);
    let name = path.display().to_string();
    let text = match read_file(&path) {
        Ok(text) => Some(text),
        Err(error) if explicit.is_none() && error.kind() == ErrorKind::NotFound => None,
        // Other errors could follow from settings that are missing.
        Err(error) => return Err(vec![read_error(&name, &error)]),
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut errors = Vec::new();
    let mut environment = environment(variables, &mut errors);
    let has_key = KEY_VARIABLES.iter().any(|name| environment.contains_key(*name));
    add_env_file(&folder.join(ENV_FILE), &mut environment, &mut errors);
    let file = text.as_ref().map(|_| path.clone());
    let source = SettingsSource {
        file: text.as_ref().map(|text| (name.as_str(), text.as_str())),
        folder,
        environment: &environment,
        needs_gateway_key,
        key_file: &key_file,
        check_files: &|settings| {
            let mut unusable = check_files(settings, (&environment, folder), file.as_deref());
            // A file that is missing is one error.
            let is_missing = unusable.iter().any(|(name, _)| *name == "server.tls");
            let certificate = certificate(settings).filter(|_| needs_gateway_key && !is_missing);
            let error = certificate.and_then(Result::err);
            unusable.extend(error.map(|expected| ("server.tls", expected)));
            unusable
        },
    };
    let settings = Settings::read(&source).map_err(|more| errors.extend(more));
    let Some(settings) = settings.ok().filter(|_| errors.is_empty()) else { return Err(errors) };
    let mut warnings = settings.warnings();
    let place = (source.file.map(|_| path.as_path()), folder);
    warnings.extend(exposed_file_warnings(&settings, place, &environment));
    if let Some(Ok(certificate)) = certificate(&settings).filter(|_| needs_gateway_key)
        && settings.server.tls_files().is_some()
    {
        warnings.extend(certificate.warnings(&settings.server.hosts, clock::wall()));
    }
    if has_key && explicit.is_none() {
        warnings.extend(discovered_file_warning(&settings, &name, &environment));
    }
    Ok(Loaded { settings, file, warnings })
}

/// Loads the certificate of `server.tls`. One that an authority issues may be missing.
pub fn certificate(settings: &Settings) -> Option<Result<Certificate, String>> {
    match settings.server.tls.as_ref()? {
        TlsConfig::Files(files) => Some(Certificate::load(files)),
        TlsConfig::Acme(config) => Certificate::load(&acme::certificate_files(config)).ok().map(Ok),
    }
}

/// Stands for `$` while the library reads a file: it would expand variables in a secret.
const DOLLAR: &str = "\u{ffff}";

/// Adds the variables of `.env` that are not set yet; the first line of a variable wins.
fn add_env_file(path: &Path, environment: &mut Environment, errors: &mut Vec<SettingError>) {
    let name = path.display().to_string();
    let text = match read_file(path) {
        Ok(text) => text,
        Err(error) if [ErrorKind::NotFound, ErrorKind::IsADirectory].contains(&error.kind()) => {
            return;
        }
        Err(error) => return errors.push(read_error(&name, &error)),
    };
    let text = text.trim_start_matches('\u{feff}').replace('$', DOLLAR);
    let text = Zeroizing::new(text);
    let lines_read = Cell::new(0);
    let mut entries =
        dotenvy::from_read_iter(LineReader { rest: text.as_bytes(), lines_read: &lines_read });
    loop {
        let before = lines_read.get();
        match entries.next() {
            None => return,
            Some(Ok((variable, value))) => {
                let value = Zeroizing::new(Zeroizing::new(value).replace(DOLLAR, "$"));
                if is_known(&variable) {
                    environment.entry(variable).or_insert(value);
                }
            }
            // The library's error repeats the line, which may hold a key.
            Some(Err(_)) => {
                let location = Location::File(format!("{name}:{}", first_entry(&text, before)));
                let expected =
                    "expected NAME=value, or NAME='value' if the value has blanks or quotes";
                errors.push(SettingError::new(location, expected));
            }
        }
    }
}

fn first_entry(text: &str, before: usize) -> usize {
    let is_entry = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    before + 1 + text.lines().skip(before).position(is_entry).unwrap_or_default()
}

/// Reads one line at a time and counts them, because the library's errors have no line number.
struct LineReader<'a> {
    rest: &'a [u8],
    lines_read: &'a Cell<usize>,
}

impl io::Read for LineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut line = self.rest.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
        let count = line.read(buffer)?;
        let (part, rest) = self.rest.split_at(count);
        self.rest = rest;
        self.lines_read.set(self.lines_read.get() + usize::from(part.ends_with(b"\n")));
        Ok(count)
    }
}

fn read_error(name: &str, error: &io::Error) -> SettingError {
    let text = format!("expected a readable file: {error}");
    SettingError::new(Location::File(name.to_owned()), text)
}

/// Warns if a file in the current folder, not named by the user, decides where the key is sent.
fn discovered_file_warning(
    settings: &Settings,
    file: &str,
    environment: &Environment,
) -> Option<String> {
    let Target::Live { base_url, .. } = &settings.gateway.target else { return None };
    let host = base_url.host_str().unwrap_or_default();
    // Over http, which needs a loopback host, the key stays on this machine.
    let leaves = base_url.scheme() == "https";
    (leaves && !environment.contains_key("TOLLGATE_GATEWAY__BASE_URL")).then(|| {
        format!(
            "gateway.base_url: {file} in the current folder sends the environment's key to {host}; \
             if that is intended, name the file with --config"
        )
    })
}

/// Warns about files with secrets, and about the ledger, that others can read or change, and about
/// settings that others can change.
fn exposed_file_warnings(
    settings: &Settings,
    (file, folder): (Option<&Path>, &Path),
    environment: &Environment,
) -> Vec<String> {
    const SECRETS: [&str; 5] = [
        "GATEWAY_API_KEY_FILE",
        "TOLLGATE_SECRET_FILE",
        "TOLLGATE_WEBHOOK_SECRET_FILE",
        "DATABASE_URL_FILE",
        "OIDC_CLIENT_SECRET_FILE",
    ];
    let named = SECRETS.into_iter().filter_map(|variable| {
        let name = environment.get(variable)?.trim();
        // Container engines and systemd mount secrets there for one service, whatever the mode says.
        let is_mounted =
            ["/run/secrets/", "/run/credentials/"].iter().any(|at| name.starts_with(at));
        (!name.is_empty() && !is_mounted).then(|| (variable.to_owned(), folder.join(name)))
    });
    let env_file = folder.join(ENV_FILE);
    let env_file = (env_file.display().to_string(), env_file);
    let ledger = settings.store.path().map(|path| ("store.url".to_owned(), path.to_owned()));
    let tls = settings.server.tls_files();
    let tls = tls.map(|files| ("server.tls.key".to_owned(), files.key.clone()));
    let private = named.chain([env_file]).chain(ledger).chain(tls);
    let private = private.filter_map(|(name, path)| {
        Some(format!("{name}: other users can {}; chmod 600 it", exposure(&path)?))
    });
    let changed = file
        .filter(|file| is_writable_by_others(file))
        .map(|file| format!("{}: other users can change the file; chmod 644 it", file.display()));
    private.chain(changed).collect()
}
