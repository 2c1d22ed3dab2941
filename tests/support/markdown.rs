//! Reads the parts of a Markdown file that tests check: sections, tables, blocks, links.

use std::fs;
use std::path::{Path, PathBuf};

/// All documents except the change log.
pub(crate) fn documents() -> Vec<PathBuf> {
    let (mut all, mut folders) = (Vec::new(), vec![PathBuf::from("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("tests run in the package root") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                all.push(path);
            }
        }
    }
    all.extend(["README.md", "SECURITY.md", "CONTRIBUTING.md"].map(PathBuf::from));
    all.sort();
    all
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the second-level headings and their texts.
pub(crate) fn sections(text: &str) -> Vec<(&str, &str)> {
    let starts = outside_blocks(text).filter(|(_, line)| line.starts_with("## "));
    let starts: Vec<_> = starts.collect();
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([text.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|((at, line), end)| (&line[3..], &text[at + line.len()..end]))
        .collect()
}

pub(crate) fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let found = sections(text).into_iter().find(|(name, _)| *name == heading);
    found.unwrap_or_else(|| panic!("there is no section `{heading}`")).1
}

/// Returns the cells of all table rows, without heads.
pub(crate) fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<_> = outside_blocks(text).map(|(_, line)| line.trim()).collect();
    let mut rows = Vec::new();
    for (place, line) in lines.iter().enumerate() {
        let is_head = lines.get(place + 1).is_some_and(|next| next.starts_with("|-"));
        if line.starts_with('|') && !line.starts_with("|-") && !is_head {
            rows.push(line.trim_matches('|').split('|').map(str::trim).collect());
        }
    }
    rows
}

/// Returns the fenced blocks of this language, without indentation.
pub(crate) fn blocks(text: &str, language: &str) -> Vec<String> {
    let (mut blocks, mut open) = (Vec::new(), None::<(bool, usize, String)>);
    for line in text.lines() {
        let bare = line.trim_start();
        match (&mut open, bare.strip_prefix("```")) {
            (None, Some(found)) => {
                open = Some((found == language, line.len() - bare.len(), String::new()));
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, indent, block)), None) => {
                *block += line.get(*indent..).unwrap_or_default();
                *block += "\n";
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block that does not end");
    blocks.into_iter().filter(|(wanted, ..)| *wanted).map(|(.., block)| block).collect()
}

/// Returns inline code, outside blocks.
pub(crate) fn spans(text: &str) -> Vec<&str> {
    let lines = outside_blocks(text).map(|(_, line)| line);
    lines.flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// Returns the targets of links, outside code.
pub(crate) fn links(text: &str) -> Vec<&str> {
    let prose = outside_blocks(text).flat_map(|(_, line)| line.split('`').step_by(2));
    prose
        .flat_map(|part| part.split("](").skip(1).filter_map(|rest| rest.split(')').next()))
        .collect()
}

/// Returns all headings, of any level.
pub(crate) fn headings(text: &str) -> Vec<&str> {
    let lines = outside_blocks(text).map(|(_, line)| line);
    lines
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches(['#', ' ']))
        .collect()
}

/// Returns the fragment of a heading, as code hosts generate it.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Returns the lines of prose and tables, with their positions.
fn outside_blocks(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut at, mut inside) = (0, false);
    text.split_inclusive('\n').filter_map(move |line| {
        let start = at;
        at += line.len();
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        (!inside && !fence).then_some((start, line.trim_end_matches('\n')))
    })
}

#[test]
fn markdown_parts_are_found() {
    let text = "# T\n\n## A `b`\n\n| x | y |\n|---|---|\n| `1` | [2](a.md#c) |\n\n```sh\n## no\n| no |\n```\n\n## C\n1. x\n   ```toml\n   a = 1\n     b\n   ```\n";
    let names: Vec<_> = sections(text).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["A `b`", "C"]);
    assert_eq!(headings(text), ["T", "A `b`", "C"]);
    assert_eq!(rows(section(text, "A `b`")), [["`1`", "[2](a.md#c)"]]);
    assert_eq!(blocks(text, "sh"), ["## no\n| no |\n"]);
    assert_eq!(blocks(text, "toml"), ["a = 1\n  b\n"]);
    assert_eq!(spans(text), ["b", "1"]);
    assert_eq!(links(text), ["a.md#c"]);
    assert_eq!(anchor("Behind a TLS front-end"), "behind-a-tls-front-end");
}
