use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use http::HeaderMap;

use super::*;
use crate::routes::file::Ready;

#[test]
fn every_file_of_the_page_is_in_the_binary() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("static");
    let there: BTreeSet<String> = std::fs::read_dir(folder)
        .expect("static/")
        .map(|entry| entry.expect("an entry"))
        // What other sites embed is no part of the page: `embed/`.
        .filter(|entry| entry.path().is_file())
        .map(|entry| entry.file_name().into_string().expect("a plain name"))
        .filter(|name| name != "index.html")
        .collect();
    let rows: BTreeSet<String> = ROWS.iter().map(|row| row.name.to_owned()).collect();
    assert_eq!(there, rows);
    assert_eq!(rows.len(), ROWS.len(), "a name stands twice");
}

/// The modules that `name` imports, or those that it may import later.
fn imports(name: &str, mark: &str) -> Vec<String> {
    let row = ROWS.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name}"));
    let text = std::str::from_utf8(row.file.bytes).expect("text");
    let rest = text.split(mark).skip(1);
    rest.map(|rest| rest.split('\'').next().expect("a name").to_owned()).collect()
}

#[test]
fn what_is_preloaded_is_exactly_what_the_first_view_needs() {
    let mut needed: BTreeSet<String> = BTreeSet::new();
    // The chat is the first view; app.js loads views by name.
    let mut left = vec!["app.js".to_owned(), "chat.js".to_owned()];
    while let Some(name) = left.pop() {
        left.extend(imports(&name, "from './").into_iter().filter(|name| !needed.contains(name)));
        needed.insert(name);
    }
    needed.extend(["style.css", BEFORE_PAINT].map(str::to_owned));
    let early = ROWS.iter().filter(|row| row.at_start).map(|row| row.name.to_owned()).collect();
    assert_eq!(needed, early);
    for name in imports("app.js", "import('./") {
        assert!(ROWS.iter().any(|row| row.name == name), "{name}");
    }
}

#[test]
fn first_view_takes_12_requests_and_40_kilobytes_and_the_whole_page_120() {
    let markup_catalog_and_caller = 3;
    assert!(ROWS.iter().filter(|row| row.at_start).count() + markup_catalog_and_caller <= 12);
    let size = |ready: Ready| ready.size("br").expect("text shrinks");
    let file = |row: &Row| size(Ready::embedded(&row.file, SCRIPT, "", HeaderMap::new()));
    let sum = |rows: &mut dyn Iterator<Item = &Row>| rows.map(file).sum::<usize>();
    let index = Ready::new(Bytes::from_static(INDEX.as_bytes()), SCRIPT, "", HeaderMap::new());
    let first = size(index) + sum(&mut ROWS.iter().filter(|row| row.at_start));
    let all = first + sum(&mut ROWS.iter().filter(|row| !row.at_start));
    println!("brotli: {first} bytes for the first view, {all} in all");
    assert!(first <= 40 * 1024, "{first} bytes of brotli for the first view");
    assert!(all <= 120 * 1024, "{all} bytes of brotli in all");
}

#[test]
fn nothing_in_the_page_makes_markup_runs_text_as_code_or_names_another_host() {
    for row in ROWS {
        let text = std::str::from_utf8(row.file.bytes).expect("text");
        for banned in [
            "innerHTML =",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
            "srcdoc",
            "confirm(",
            "@import",
            "url(http",
        ] {
            assert!(!text.contains(banned), "{}: {banned}", row.name);
        }
        assert!(!text.contains("from 'http") && !text.contains("import('http"), "{}", row.name);
    }
    for banned in ["<script", "<style", " style=", " onclick", "http://127", "https://www"] {
        assert!(!INDEX.contains(banned), "index.html: {banned}");
    }
}

#[test]
fn no_price_stands_in_the_page() {
    for row in ROWS.iter().filter(|row| row.name.ends_with(".js")) {
        let text = std::str::from_utf8(row.file.bytes).expect("text");
        for price in ["6000", "3000", "3_000_000", "5_000_000", "alpha-", "video-a-"] {
            let code = text.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
            assert!(!code.into_iter().any(|line| line.contains(price)), "{}: {price}", row.name);
        }
    }
}

#[test]
fn the_page_has_words_for_every_problem() {
    let row = ROWS.iter().find(|row| row.name == "problems.js").expect("problems.js");
    let text = std::str::from_utf8(row.file.bytes).expect("text");
    for kind in crate::problem::ALL {
        assert!(text.contains(&format!("\n  {}: ['", kind.code)), "{}", kind.code);
    }
}
