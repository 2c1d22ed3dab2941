//! Gathers what settings are read from: the environment, `.env`, `proxy.toml`, the key file. Nothing else reads them.

use std::cell::Cell;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use zeroize::Zeroizing;

use super::secret;
use crate::config::{Config, Environment, Fault, Place, Source, Store, Target};

/// The settings file that is read when none is named.
const DEFAULT_FILE: &str = "proxy.toml";
/// The file beside it that adds to the environment.
const ENV_FILE: &str = ".env";
/// Variables that are read besides `TOLLGATE_…`.
const VARIABLES: &[&str] = &["GATEWAY_API_KEY", "GATEWAY_API_KEY_FILE"];
/// Of these, where the key stands.
const KEYS: &[&str] = &["GATEWAY_API_KEY", "GATEWAY_API_KEY_FILE"];
/// No settings or key file is larger than this.
const LARGEST_FILE: u64 = 1 << 20;

/// Settings that are right, and where they came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// The settings file, if there is one.
    pub file: Option<PathBuf>,
    /// What deserves a second look, a sentence each.
    pub warnings: Vec<String>,
}

/// Reads the settings: `explicit` is the file of `--config`, which must be there. The environment of
/// this process wins over `.env`, and both over the file.
///
/// # Errors
/// Every fault at once; none of them repeats a value.
pub fn load(explicit: Option<&Path>) -> Result<Loaded, Vec<Fault>> {
    load_for(true, explicit, Path::new(""), std::env::vars_os())
}

/// [`load`], for what never asks the gateway: it needs no key, and a faulty one does not stop it.
///
/// # Errors
/// As [`load`].
pub fn load_without_key(explicit: Option<&Path>) -> Result<Loaded, Vec<Fault>> {
    load_for(false, explicit, Path::new(""), std::env::vars_os())
}

/// [`load`], with the folder of the default file and the environment given.
///
/// # Errors
/// As [`load`].
pub fn load_from(
    explicit: Option<&Path>,
    folder: &Path,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Loaded, Vec<Fault>> {
    load_for(true, explicit, folder, variables)
}

fn load_for(
    asks_gateway: bool,
    explicit: Option<&Path>,
    folder: &Path,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Loaded, Vec<Fault>> {
    let mut faults = Vec::new();
    let path = explicit.map_or_else(|| folder.join(DEFAULT_FILE), Path::to_path_buf);
    let name = path.display().to_string();
    let text = match text_of(&path) {
        Ok(text) => Some(text),
        Err(Unread::Absent) if explicit.is_none() => None,
        // What an unread file does not say means nothing: no further faults are drawn from it.
        Err(unread) => return Err(vec![unread.into_fault(&name)]),
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut environment = environment(variables, &mut faults);
    let has_key = KEYS.iter().any(|name| environment.contains_key(*name));
    add_env_file(&folder.join(ENV_FILE), &mut environment, &mut faults);

    let source = Source {
        file: text.as_ref().map(|text| (name.as_str(), text.as_str())),
        folder,
        environment: &environment,
        asks_gateway,
        key_file: &|path| text_of(path).map_err(|unread| unread.reason()),
    };
    let config = match Config::read(&source) {
        Ok(config) if faults.is_empty() => config,
        Ok(_) => return Err(faults),
        Err(more) => {
            faults.extend(more);
            return Err(faults);
        }
    };
    let settings = text.as_ref().map(|_| path.as_path());
    let places = Places { file: settings.map(|_| name.as_str()), environment: &environment };
    let mut faults = missing_files(&config, &places);
    faults.extend(exposed(&config, settings, folder, &environment, &places.of("page.dir")));
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut warnings = config.warnings();
    warnings.extend(open_file_warnings(folder, &environment));
    if has_key && explicit.is_none() {
        warnings.extend(found_host_warning(&config, &name, &environment));
    }
    Ok(Loaded { config, file: text.map(|_| path), warnings })
}

/// The same from text alone, without a file or a `.env`; `folder` is where relative paths count from.
///
/// # Errors
/// As [`load`].
pub fn read_text(toml: &str, folder: &Path, variables: &Environment) -> Result<Config, Vec<Fault>> {
    let ours = variables.iter().filter(|(name, _)| is_ours(name));
    let environment = ours.map(|(name, value)| (name.clone(), value.clone())).collect();
    let source = Source {
        file: Some((DEFAULT_FILE, toml)),
        folder,
        environment: &environment,
        asks_gateway: true,
        key_file: &|path| text_of(path).map_err(|unread| unread.reason()),
    };
    let config = Config::read(&source)?;
    let places = Places { file: Some(DEFAULT_FILE), environment: &environment };
    let mut faults = missing_files(&config, &places);
    faults.extend(exposed(&config, None, folder, &environment, &places.of("page.dir")));
    if faults.is_empty() { Ok(config) } else { Err(faults) }
}

/// Where a setting was written that is judged with a look at the disk.
struct Places<'a> {
    /// The settings file, where there is one.
    file: Option<&'a str>,
    environment: &'a Environment,
}

impl Places<'_> {
    /// The environment wins over the file, as it does for the value.
    fn of(&self, setting: &str) -> Place {
        let variable = format!("TOLLGATE_{}", setting.replace('.', "__").to_uppercase());
        match self.file {
            _ if self.environment.contains_key(&variable) => Place::Variable(variable),
            Some(name) => Place::File(name.to_owned()),
            None => Place::Nowhere,
        }
    }
}

/// What the settings name and is not there: a site that was never built, a file of it, a folder for the
/// ledger.
fn missing_files(config: &Config, places: &Places<'_>) -> Vec<Fault> {
    let site = config.page.dir.as_deref().map(|dir| ("page.dir", dir));
    let store = match &config.store {
        Store::Sqlite(path) => path.parent().map(|folder| ("store.url", folder)),
        Store::Memory => None,
    };
    let named = site.into_iter().chain(store);
    let missing = named.filter(|(_, folder)| !folder.as_os_str().is_empty() && !folder.is_dir());
    let text = |name: &str, what: &str, path: &Path| {
        let expected = format!("{name}: expected {what} that is there: {}", path.display());
        Fault::new(places.of(name), expected)
    };
    let mut faults: Vec<_> = missing.map(|(name, path)| text(name, "a folder", path)).collect();
    if let (Some(dir), Some(fallback)) = (&config.page.dir, &config.page.fallback) {
        let file = dir.join(fallback);
        if dir.is_dir() && !file.is_file() {
            faults.push(text("page.fallback", "a file in page.dir", &file));
        }
    }
    faults
}

/// The files of tollgate's own that `page.dir` would serve: the settings, the ledger with the replies and
/// the secret beside it, files of keys. `folder` is where relative paths count from.
fn exposed(
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

/// The variables that are ours; their names and values are text.
fn environment(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    faults: &mut Vec<Fault>,
) -> Environment {
    let mut environment = Environment::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| is_ours(name)) else { continue };
        match value.into_string() {
            Ok(value) => {
                environment.insert(name.to_owned(), Zeroizing::new(value));
            }
            Err(_) => {
                let place = Place::Variable(name.to_owned());
                faults.push(Fault::new(place, "expected text in UTF-8"));
            }
        }
    }
    environment
}

fn is_ours(name: &str) -> bool {
    name.starts_with("TOLLGATE_") || VARIABLES.contains(&name)
}

/// Adds what `.env` says to an environment that it never overrides; of two lines for one variable
/// the first holds. The process environment stays as it is.
fn add_env_file(path: &Path, environment: &mut Environment, faults: &mut Vec<Fault>) {
    let name = path.display().to_string();
    let text = match text_of(path) {
        Ok(text) => text,
        Err(Unread::Absent | Unread::Folder) => return,
        Err(unread) => return faults.push(unread.into_fault(&name)),
    };
    let text = text.trim_start_matches('\u{feff}');
    let given = Cell::new(0);
    let mut entries = dotenvy::from_read_iter(OneLine { rest: text.as_bytes(), given: &given });
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
                let place = Place::Line { file: name.clone(), line: first_entry(text, before) };
                let expected =
                    "expected NAME=value, or NAME='value' if the value has blanks or quotes";
                faults.push(Fault::new(place, expected));
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
struct OneLine<'a> {
    rest: &'a [u8],
    given: &'a Cell<usize>,
}

impl io::Read for OneLine<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let line =
            self.rest.iter().position(|byte| *byte == b'\n').map_or(self.rest.len(), |at| at + 1);
        let (part, rest) = self.rest.split_at(line.min(buffer.len()));
        buffer[..part.len()].copy_from_slice(part);
        self.rest = rest;
        self.given.set(self.given.get() + usize::from(part.ends_with(b"\n")));
        Ok(part.len())
    }
}

/// Why a file gave no text.
enum Unread {
    Absent,
    Folder,
    Large,
    NotText(usize),
    Failed(io::ErrorKind),
}

fn text_of(path: &Path) -> Result<Zeroizing<String>, Unread> {
    let failed = |error: io::Error| {
        let absent = error.kind() == io::ErrorKind::NotFound;
        if absent { Unread::Absent } else { Unread::Failed(error.kind()) }
    };
    let about = fs::metadata(path).map_err(failed)?;
    if about.is_dir() {
        return Err(Unread::Folder);
    }
    if about.len() > LARGEST_FILE {
        return Err(Unread::Large);
    }
    let bytes = fs::read(path).map_err(failed)?;
    String::from_utf8(bytes).map(Zeroizing::new).map_err(|error| {
        let (bytes, upto) =
            (Zeroizing::new(error.as_bytes().to_vec()), error.utf8_error().valid_up_to());
        Unread::NotText(bytes[..upto].iter().filter(|byte| **byte == b'\n').count() + 1)
    })
}

impl Unread {
    fn into_fault(self, name: &str) -> Fault {
        let place = match self {
            Self::NotText(line) => Place::Line { file: name.to_owned(), line },
            Self::Absent | Self::Folder | Self::Large | Self::Failed(_) => {
                Place::File(name.to_owned())
            }
        };
        Fault::new(place, format!("expected a readable file: {}", self.reason()))
    }

    fn reason(&self) -> String {
        match self {
            Self::Absent => "there is none".to_owned(),
            Self::Folder => "this is a folder".to_owned(),
            Self::Large => "it is larger than 1 MiB".to_owned(),
            Self::NotText(line) => format!("line {line} is not UTF-8"),
            Self::Failed(kind) => kind.to_string(),
        }
    }
}

/// A file that happened to be in the current folder says where this user's key is sent.
fn found_host_warning(config: &Config, file: &str, environment: &Environment) -> Option<String> {
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
fn open_file_warnings(folder: &Path, environment: &Environment) -> Vec<String> {
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
