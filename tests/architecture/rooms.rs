//! Holds each room of the house, a folder of `src`, to its budget of lines, and files to a length and to a name.

use std::collections::BTreeMap;
use std::fs;

use super::{all_files, none, production};

const NAMES_THAT_SAY_NOTHING: &[&str] =
    &["utils", "util", "helpers", "helper", "common", "types", "misc"];
/// A table of texts has a row for each text, and a language has one table.
const TABLES: &str = "static/text";
const MAX_FILE_LINES: usize = 500;

/// The number of lines outside tests that a room may have. Lower it when a room got smaller; raise it only with a
/// feature that its users asked for.
const ROOMS: &[(&str, usize)] = &[
    ("ledger", 12450),
    ("api", 10420),
    ("gateway", 5330),
    ("access", 4260),
    ("config", 4100),
    ("gate", 3340),
    ("edge", 3240),
    ("cli", 3230),
    ("video", 2900),
    ("account", 1830),
    ("app", 1770),
    ("purchase", 1450),
    ("log", 220),
    (".", 1150),
];
/// A budget that is further above its room's lines than this is lowered.
const SLACK: usize = 100;

#[test]
fn rooms_keep_their_budgets() {
    let mut lines = BTreeMap::<String, usize>::new();
    for file in production() {
        *lines.entry(room_of(&file.path)).or_default() += file.lines;
    }
    let budgets = BTreeMap::from_iter(ROOMS.iter().map(|(room, budget)| (*room, *budget)));
    none(lines.iter().filter_map(|(room, lines)| match budgets.get(room.as_str()) {
        None => Some(format!("src/{room} has no budget: it has {lines} lines")),
        Some(budget) if lines > budget => {
            Some(format!("src/{room} has {lines} lines, over its budget of {budget}"))
        }
        Some(budget) if lines + SLACK < *budget => {
            Some(format!("src/{room} has {lines} lines: lower its budget of {budget}"))
        }
        Some(_) => None,
    }));
}

/// The folder of a file. The files in none, and what belongs to `metrics.rs`, are the room `.`.
fn room_of(path: &str) -> String {
    let within = path.strip_prefix("src/").unwrap_or(path);
    let folder = within.split_once('/').map_or(".", |(folder, _)| folder);
    if folder == "metrics" { "." } else { folder }.to_owned()
}

#[test]
fn files_stay_short() {
    let long = all_files().filter(|path| !path.starts_with(TABLES)).filter_map(|path| {
        let lines = fs::read_to_string(&path).expect("utf-8").lines().count();
        (lines > MAX_FILE_LINES).then(|| format!("{}: {lines} lines", path.display()))
    });
    none(long);
}

#[test]
fn file_names_describe_their_contents() {
    none(all_files().filter_map(|path| {
        let vague = path.iter().any(|part| {
            let name = part.to_string_lossy();
            NAMES_THAT_SAY_NOTHING.contains(&name.split('.').next().unwrap_or_default())
        });
        vague.then(|| path.display().to_string())
    }));
}
