//! Holds each room of the house, a folder of `src`, to its budget of lines.

use std::collections::BTreeMap;

use super::{none, production};

/// The number of lines outside tests that a room may have. Lower it when a room got smaller; raise it only with a
/// feature that its users asked for.
const ROOMS: &[(&str, usize)] = &[
    ("ledger", 12000),
    ("api", 9750),
    ("gateway", 5020),
    ("cli", 4560),
    ("access", 3580),
    ("gate", 3250),
    ("config", 3230),
    ("app", 3060),
    ("edge", 2470),
    ("video", 1940),
    ("account", 1610),
    ("purchase", 1430),
    (".", 960),
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
