//! No type name is used twice.

use std::collections::BTreeMap;

use crate::{Source, is_name, none, production};

/// Names that may be defined more than once, because each is clear within its module.
const SHARED_TYPE_NAMES: &[&str] = &["Admission"];
const KINDS_OF_TYPES: &[&str] = &["struct", "enum", "union", "trait", "type"];

#[test]
fn public_type_names_are_unique() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Source { path, code, .. } in production() {
        for name in public_types(&code) {
            places.entry(name).or_default().push(path.clone());
        }
    }
    places.retain(|name, paths| paths.len() > 1 && !SHARED_TYPE_NAMES.contains(&name.as_str()));
    none(places.into_iter().map(|(name, paths)| format!("`{name}` in {}", paths.join(", "))));
}

#[test]
fn public_types_are_found() {
    let code = "pub struct A;\npub(super) enum B {}\nstruct C;\nimpl X {\n    pub type D = E;\n}\n";
    assert_eq!(public_types(code), ["A", "B"]);
}

/// The names of a file's types that others may use.
fn public_types(code: &str) -> Vec<String> {
    let names = code.lines().filter_map(|line| {
        let visibility = ["pub ", "pub(crate) ", "pub(super) "];
        let item = visibility.iter().find_map(|pub_in| line.strip_prefix(pub_in))?;
        let (kind, rest) = item.trim_start_matches("unsafe ").split_once(' ')?;
        let name = rest.chars().take_while(|c| is_name(*c)).collect();
        KINDS_OF_TYPES.contains(&kind).then_some(name)
    });
    names.collect()
}
