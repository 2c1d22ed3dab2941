//! Gathers what settings are read from: the environment, `.env`, `proxy.toml`, the key file. Nothing else reads them.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use zeroize::Zeroizing;

use super::secret;
use crate::config::{
    Environment, Location, SettingError, Settings, SettingsSource, StoreConfig, Target,
};

const DEFAULT_FILE: &str = "proxy.toml";
const ENV_FILE: &str = ".env";
/// Variables that are read besides `TOLLGATE_…`: where the key stands.
const KEY_VARIABLES: &[&str] = &["GATEWAY_API_KEY", "GATEWAY_API_KEY_FILE"];
const MAX_FILE_SIZE: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Settings,
    pub file: Option<PathBuf>,
    pub warnings: Vec<String>,
}

/// Reads the settings; the file of `--config` (`explicit`) must exist. The environment wins over `.env`, and both
/// over the file. A command that never `asks_gateway` needs no key. No fault repeats a value.
pub fn load(explicit: Option<&Path>, asks_gateway: bool) -> Result<Loaded, Vec<SettingError>> {
    load_from(explicit, asks_gateway, Path::new(""), std::env::vars_os())
}

pub fn load_from(
    explicit: Option<&Path>,
    asks_gateway: bool,
    folder: &Path,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Loaded, Vec<SettingError>> {
    let path = explicit.map_or_else(|| folder.join(DEFAULT_FILE), Path::to_path_buf);
    let name = path.display().to_string();
    let text = match read_file(&path) {
        Ok(text) => Some(text),
        Err(ReadError { kind: ErrorKind::NotFound, .. }) if explicit.is_none() => None,
        // What an unread file does not say means nothing: no further faults are drawn from it.
        Err(unread) => return Err(vec![unread.fault(&name)]),
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut faults = Vec::new();
    let mut environment = environment(variables, &mut faults);
    let has_key = KEY_VARIABLES.iter().any(|name| environment.contains_key(*name));
    add_env_file(&folder.join(ENV_FILE), &mut environment, &mut faults);
    let source = SettingsSource {
        file: text.as_ref().map(|text| (name.as_str(), text.as_str())),
        folder,
        environment: &environment,
        needs_gateway_key: asks_gateway,
        key_file: &key_file,
    };
    let file = text.as_ref().map(|_| path.clone());
    let config = match read_settings(&source, file.as_deref()) {
        Ok(config) if faults.is_empty() => config,
        judged => {
            faults.extend(judged.err().into_iter().flatten());
            return Err(faults);
        }
    };
    let mut warnings = config.warnings();
    warnings.extend(readable_file_warnings(folder, &environment));
    if has_key && explicit.is_none() {
        warnings.extend(discovered_file_warning(&config, &name, &environment));
    }
    Ok(Loaded { config, file, warnings })
}

/// Reads settings from text alone, without a file or a `.env`; `folder` is where relative paths count from.
pub fn read_text(
    toml: &str,
    folder: &Path,
    variables: &Environment,
) -> Result<Settings, Vec<SettingError>> {
    let ours = variables.iter().filter(|(name, _)| is_ours(name));
    let environment = ours.map(|(name, value)| (name.clone(), value.clone())).collect();
    let source = SettingsSource {
        file: Some((DEFAULT_FILE, toml)),
        folder,
        environment: &environment,
        needs_gateway_key: true,
        key_file: &key_file,
    };
    read_settings(&source, None)
}

fn key_file(path: &Path) -> Result<Zeroizing<String>, String> {
    read_file(path).map_err(|unread| unread.reason())
}

/// Reads the settings, and judges with a look at the disk what they name there.
fn read_settings(
    source: &SettingsSource<'_>,
    settings: Option<&Path>,
) -> Result<Settings, Vec<SettingError>> {
    let config = Settings::read(source)?;
    let fault = |(setting, expected): (&str, String)| {
        let variable = format!("TOLLGATE_{}", setting.replace('.', "__").to_uppercase());
        // The environment wins over the file, as it does for the value.
        let place = match source.file {
            _ if source.environment.contains_key(&variable) => Location::Variable(variable),
            Some((name, _)) => Location::File(name.to_owned()),
            None => Location::Unknown,
        };
        SettingError::new(place, format!("{setting}: expected {expected}"))
    };
    let found = missing_files(&config).into_iter().chain(exposed_files(&config, settings, source));
    let faults: Vec<_> = found.map(fault).collect();
    if faults.is_empty() { Ok(config) } else { Err(faults) }
}

/// Files and folders that the settings name and that do not exist.
fn missing_files(config: &Settings) -> Vec<(&'static str, String)> {
    let mut missing = Vec::new();
    let mut need = |setting, what: &str, path: &Path, is_there: bool| {
        if !is_there {
            missing.push((setting, format!("{what} that is there: {}", path.display())));
        }
    };
    let is_folder = |path: &Path| path.as_os_str().is_empty() || path.is_dir();
    if let Some(dir) = &config.page.dir {
        need("page.dir", "a folder", dir, is_folder(dir));
    }
    if let StoreConfig::Sqlite(path) = &config.store
        && let Some(folder) = path.parent()
    {
        need("store.url", "a folder", folder, is_folder(folder));
    }
    if let (Some(dir), Some(fallback)) = (&config.page.dir, &config.page.fallback) {
        let file = dir.join(fallback);
        need("page.fallback", "a file in page.dir", &file, !dir.is_dir() || file.is_file());
    }
    missing
}

/// Files with secrets that `page.dir` would serve.
fn exposed_files(
    config: &Settings,
    settings: Option<&Path>,
    source: &SettingsSource<'_>,
) -> Vec<(&'static str, String)> {
    let Some(site) = config.page.dir.as_deref().and_then(|dir| dir.canonicalize().ok()) else {
        return Vec::new();
    };
    let ledger = match &config.store {
        StoreConfig::Sqlite(path) => Some(path.clone()),
        StoreConfig::Memory => None,
    };
    let named = |name: &str| {
        let path = source.environment.get(name)?.trim();
        (!path.is_empty()).then(|| source.folder.join(path))
    };
    let files = [
        ("the ledger (store.url)", ledger),
        // It may lie elsewhere than a ledger that is a link, and it has no hidden name.
        ("the secret beside the ledger (tollgate.secret)", secret::path_of(config)),
        ("the settings file", settings.map(Path::to_owned)),
        ("GATEWAY_API_KEY_FILE", named("GATEWAY_API_KEY_FILE")),
        ("TOLLGATE_SECRET_FILE", named("TOLLGATE_SECRET_FILE")),
    ];
    let served = files
        .into_iter()
        .filter(|(_, file)| file.as_ref().is_some_and(|file| is_served(file, &site)));
    served.map(|(what, _)| ("page.dir", format!("a folder that does not hold {what}"))).collect()
}

/// Whether the site would give this file away: it lies in the folder, and not by a hidden name.
fn is_served(file: &Path, site: &Path) -> bool {
    let is_hidden = |part: Component<'_>| part.as_os_str().as_encoded_bytes().starts_with(b".");
    resolve(file)
        .and_then(|real| real.strip_prefix(site).map(Path::to_owned).ok())
        .is_some_and(|inner| !inner.components().any(is_hidden))
}

fn resolve(file: &Path) -> Option<PathBuf> {
    let made_later = || Some(secret::parent_dir(file).canonicalize().ok()?.join(file.file_name()?));
    file.canonicalize().ok().or_else(made_later)
}

fn environment(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    faults: &mut Vec<SettingError>,
) -> Environment {
    let mut environment = Environment::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| is_ours(name)) else { continue };
        match value.into_string() {
            Ok(value) => {
                environment.insert(name.to_owned(), Zeroizing::new(value));
            }
            Err(_) => {
                let place = Location::Variable(name.to_owned());
                faults.push(SettingError::new(place, "expected text in UTF-8"));
            }
        }
    }
    environment
}

fn is_ours(name: &str) -> bool {
    name.starts_with("TOLLGATE_") || KEY_VARIABLES.contains(&name)
}

/// Adds the variables of `.env` that are not set yet; the first of two lines for one variable wins.
fn add_env_file(path: &Path, environment: &mut Environment, faults: &mut Vec<SettingError>) {
    let name = path.display().to_string();
    let text = match read_file(path) {
        Ok(text) => text,
        Err(ReadError { kind: ErrorKind::NotFound | ErrorKind::IsADirectory, .. }) => return,
        Err(unread) => return faults.push(unread.fault(&name)),
    };
    let text = text.trim_start_matches('\u{feff}');
    let given = Cell::new(0);
    let mut entries =
        dotenvy::from_read_iter(LineReader { rest: text.as_bytes(), lines_read: &given });
    loop {
        let before = given.get();
        match entries.next() {
            None => return,
            Some(Ok((variable, value))) => {
                let value = Zeroizing::new(value);
                if is_ours(&variable) {
                    environment.entry(variable).or_insert(value);
                }
            }
            // The library's own words repeat the line, which may hold a key.
            Some(Err(_)) => {
                let place = Location::Line { file: name.clone(), line: first_entry(text, before) };
                let expected =
                    "expected NAME=value, or NAME='value' if the value has blanks or quotes";
                faults.push(SettingError::new(place, expected));
            }
        }
    }
}

/// The number of the first line after `before` that is neither blank nor a comment.
fn first_entry(text: &str, before: usize) -> usize {
    let is_entry = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    before + 1 + text.lines().skip(before).position(is_entry).unwrap_or_default()
}

/// Hands out a line at a time and counts them, as the library's errors do not say where they are.
struct LineReader<'a> {
    rest: &'a [u8],
    lines_read: &'a Cell<usize>,
}

impl io::Read for LineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let line =
            self.rest.iter().position(|byte| *byte == b'\n').map_or(self.rest.len(), |at| at + 1);
        let (part, rest) = self.rest.split_at(line.min(buffer.len()));
        buffer[..part.len()].copy_from_slice(part);
        self.rest = rest;
        self.lines_read.set(self.lines_read.get() + usize::from(part.ends_with(b"\n")));
        Ok(part.len())
    }
}

struct ReadError {
    kind: ErrorKind,
    /// The first one that is not UTF-8.
    line: Option<usize>,
}

impl From<ErrorKind> for ReadError {
    fn from(kind: ErrorKind) -> Self {
        Self { kind, line: None }
    }
}

fn read_file(path: &Path) -> Result<Zeroizing<String>, ReadError> {
    let about = fs::metadata(path).map_err(|error| error.kind())?;
    if about.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if about.len() > MAX_FILE_SIZE {
        return Err(ErrorKind::FileTooLarge.into());
    }
    let bytes = fs::read(path).map_err(|error| error.kind())?;
    String::from_utf8(bytes).map(Zeroizing::new).map_err(|error| {
        let upto = error.utf8_error().valid_up_to();
        let bytes = Zeroizing::new(error.into_bytes());
        let line = bytes[..upto].iter().filter(|byte| **byte == b'\n').count() + 1;
        ReadError { kind: ErrorKind::InvalidData, line: Some(line) }
    })
}

impl ReadError {
    fn fault(self, name: &str) -> SettingError {
        let file = name.to_owned();
        let place = match self.line {
            Some(line) => Location::Line { file, line },
            None => Location::File(file),
        };
        SettingError::new(place, format!("expected a readable file: {}", self.reason()))
    }

    fn reason(&self) -> String {
        match (self.line, self.kind) {
            (Some(line), _) => format!("line {line} is not UTF-8"),
            (None, ErrorKind::NotFound) => "there is none".to_owned(),
            (None, ErrorKind::IsADirectory) => "this is a folder".to_owned(),
            (None, ErrorKind::FileTooLarge) => "it is larger than 1 MiB".to_owned(),
            (None, kind) => kind.to_string(),
        }
    }
}

/// A file that happened to be in the current folder says where this user's key is sent.
fn discovered_file_warning(
    config: &Settings,
    file: &str,
    environment: &Environment,
) -> Option<String> {
    let Target::Live { base_url, .. } = &config.gateway.target else { return None };
    let host = base_url.host_str().unwrap_or_default();
    // Over plain http, which is for loopback alone, the key stays on this machine.
    let leaves = base_url.scheme() == "https";
    (leaves && !environment.contains_key("TOLLGATE_GATEWAY__BASE_URL")).then(|| {
        format!(
            "gateway.base_url: the key of the environment is sent to {host}, as {file} in the \
             current folder says; if you mean that file, name it with --config"
        )
    })
}

/// A key that every user of the machine can read is not secret.
fn readable_file_warnings(folder: &Path, environment: &Environment) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt;
    let is_open = |variable: &&str| {
        let name = environment.get(*variable).map(|name| name.trim()).unwrap_or_default();
        let about = fs::metadata(folder.join(name));
        !name.is_empty() && about.is_ok_and(|about| about.permissions().mode() & 0o004 != 0)
    };
    let open = ["GATEWAY_API_KEY_FILE", "TOLLGATE_SECRET_FILE"].into_iter().filter(is_open);
    let text = "every user of this machine can read the file; chmod 600 it";
    open.map(|variable| format!("{variable}: {text}")).collect()
}
