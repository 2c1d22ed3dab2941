//! Loads the settings from the environment, `.env`, `proxy.toml` and the key file.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use zeroize::Zeroizing;

use super::secret;
use crate::config::{
    AccessMode, Environment, JwksSource, JwtConfig, Location, SettingError, Settings,
    SettingsSource, Target,
};

const DEFAULT_FILE: &str = "proxy.toml";
const ENV_FILE: &str = ".env";
/// Variables that are read in addition to `TOLLGATE_…`.
const KEY_VARIABLES: &[&str] = &["GATEWAY_API_KEY", "GATEWAY_API_KEY_FILE"];
const MAX_FILE_SIZE: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub struct Loaded {
    pub settings: Settings,
    pub file: Option<PathBuf>,
    pub warnings: Vec<String>,
}

/// Loads the settings. The environment overrides `.env`, and both override the file.
pub(super) fn load(
    explicit: Option<&Path>,
    needs_gateway_key: bool,
) -> Result<Loaded, Vec<SettingError>> {
    load_from(explicit, needs_gateway_key, Path::new(""), std::env::vars_os())
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
        check_files: &|settings| check_files(settings, (&environment, folder), file.as_deref()),
    };
    let settings = Settings::read(&source).map_err(|more| errors.extend(more));
    let Some(settings) = settings.ok().filter(|_| errors.is_empty()) else { return Err(errors) };
    let mut warnings = settings.warnings();
    warnings.extend(readable_file_warnings(folder, &environment));
    if has_key && explicit.is_none() {
        warnings.extend(discovered_file_warning(&settings, &name, &environment));
    }
    Ok(Loaded { settings, file, warnings })
}

/// Reads settings from text, without a file or a `.env`; relative paths start at `folder`.
pub(crate) fn read_text(
    toml: &str,
    folder: &Path,
    variables: &Environment,
) -> Result<Settings, Vec<SettingError>> {
    Settings::read(&SettingsSource {
        file: Some((DEFAULT_FILE, toml)),
        folder,
        environment: variables,
        needs_gateway_key: true,
        key_file: &key_file,
        check_files: &|settings| check_files(settings, (variables, folder), None),
    })
}

fn key_file(path: &Path) -> Result<Zeroizing<String>, String> {
    read_file(path).map_err(|error| error.to_string())
}

/// Returns an error for each missing file, for each secret file that `page.dir` would serve, and
/// for members without a ledger on disk.
fn check_files(
    settings: &Settings,
    (environment, folder): (&Environment, &Path),
    settings_file: Option<&Path>,
) -> Vec<(&'static str, String)> {
    let mut missing = Vec::new();
    let mut need = |setting, what: &str, path: &Path, exists: bool| {
        if !exists {
            missing.push((setting, format!("{what} that exists: {}", path.display())));
        }
    };
    let is_folder = |path: &Path| path.as_os_str().is_empty() || path.is_dir();
    if let Some(dir) = &settings.page.dir {
        need("page.dir", "a folder", dir, is_folder(dir));
    }
    if let Some(folder) = settings.store.as_deref().and_then(Path::parent) {
        need("store.url", "a folder", folder, is_folder(folder));
    }
    if let (Some(dir), Some(fallback)) = (&settings.page.dir, &settings.page.fallback) {
        let file = dir.join(fallback);
        need("page.fallback", "a file in page.dir", &file, !dir.is_dir() || file.is_file());
    }
    if let AccessMode::Jwt(JwtConfig { jwks: JwksSource::File(file), .. }) = &settings.access.mode {
        need("access.jwt.jwks", "a file", file, file.is_file());
    }
    if settings.access.mode == AccessMode::Members && settings.store.is_none() {
        let expected = "store.url with it, such as \"sqlite:tollgate.db\", to keep the members";
        missing.push(("access.mode", expected.to_owned()));
    }
    let Some(site) = settings.page.dir.as_deref().and_then(|dir| dir.canonicalize().ok()) else {
        return missing;
    };
    let named = |name: &str| {
        let path = environment.get(name)?.trim();
        (!path.is_empty()).then(|| folder.join(path))
    };
    let files = [
        ("the ledger (store.url)", settings.store.clone()),
        // If the ledger is a link, this file may be in another folder.
        ("the secret beside the ledger (tollgate.secret)", secret::path_of(settings)),
        ("the settings file", settings_file.map(Path::to_owned)),
        ("GATEWAY_API_KEY_FILE", named("GATEWAY_API_KEY_FILE")),
        ("TOLLGATE_SECRET_FILE", named("TOLLGATE_SECRET_FILE")),
    ];
    let served = files
        .into_iter()
        .filter(|(_, file)| file.as_ref().is_some_and(|file| is_served(file, &site)));
    let expected = |what| format!("a folder that does not contain {what}");
    missing.extend(served.map(|(what, _)| ("page.dir", expected(what))));
    missing
}

/// Returns whether the site would serve this file: it is in the folder and not hidden.
fn is_served(file: &Path, site: &Path) -> bool {
    let is_hidden = |part: Component<'_>| part.as_os_str().as_encoded_bytes().starts_with(b".");
    resolve(file)
        .and_then(|real| real.strip_prefix(site).map(Path::to_owned).ok())
        .is_some_and(|inner| !inner.components().any(is_hidden))
}

fn resolve(file: &Path) -> Option<PathBuf> {
    let not_created_yet =
        || Some(secret::parent_dir(file).canonicalize().ok()?.join(file.file_name()?));
    file.canonicalize().ok().or_else(not_created_yet)
}

/// Keeps the variables that tollgate reads.
pub(crate) fn environment(
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

fn is_known(name: &str) -> bool {
    name.starts_with("TOLLGATE_") || KEY_VARIABLES.contains(&name)
}

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
    let text = text.trim_start_matches('\u{feff}');
    let lines_read = Cell::new(0);
    let mut entries =
        dotenvy::from_read_iter(LineReader { rest: text.as_bytes(), lines_read: &lines_read });
    loop {
        let before = lines_read.get();
        match entries.next() {
            None => return,
            Some(Ok((variable, value))) => {
                let value = Zeroizing::new(value);
                if is_known(&variable) {
                    environment.entry(variable).or_insert(value);
                }
            }
            // The library's error repeats the line, which may hold a key.
            Some(Err(_)) => {
                let location = Location::File(format!("{name}:{}", first_entry(text, before)));
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

fn read_file(path: &Path) -> io::Result<Zeroizing<String>> {
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

fn readable_file_warnings(folder: &Path, environment: &Environment) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt;
    let is_open = |variable: &&str| {
        let name = environment.get(*variable).map(|name| name.trim()).unwrap_or_default();
        // Container engines mount secrets there with mode 0444. Only the container sees them.
        if name.starts_with("/run/secrets/") {
            return false;
        }
        let about = fs::metadata(folder.join(name));
        !name.is_empty() && about.is_ok_and(|about| about.permissions().mode() & 0o004 != 0)
    };
    let open = ["GATEWAY_API_KEY_FILE", "TOLLGATE_SECRET_FILE"].into_iter().filter(is_open);
    let text = "any user of this machine can read the file; chmod 600 it";
    open.map(|variable| format!("{variable}: {text}")).collect()
}
