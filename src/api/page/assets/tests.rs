use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use http::HeaderMap;

use super::*;
use crate::api::page::file::StaticFile;

#[test]
fn every_file_of_the_page_is_in_the_binary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("static");
    // Only other sites load the widgets.
    let not_served = |name: &String| name == "index.html" || name.starts_with("widgets/");
    let (mut there, mut folders) = (BTreeSet::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&root).expect("below it").to_str();
                there.insert(name.expect("a plain name").to_owned());
            }
        }
    }
    there.retain(|name| !not_served(name));
    let rows: BTreeSet<String> = page_files().map(|row| row.name.to_owned()).collect();
    assert_eq!(there, rows);
    assert_eq!(rows.len(), page_files().count(), "duplicate name");
    for name in PRELOADED.iter().chain(SHARED_FILES.iter().map(|(_, name)| name)) {
        assert!(STATIC.iter().any(|file| file.name == *name), "{name}");
    }
}

/// The modules that `name` imports, or those that it may import later, by their names below `static/`.
fn imports(name: &str, mark: &str) -> Vec<String> {
    let row = page_files().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name}"));
    let bytes = row.bytes();
    let text = std::str::from_utf8(&bytes).expect("text");
    let rest = text.split(mark).skip(1);
    let (folder, _) = name.rsplit_once('/').unwrap_or_default();
    rest.map(|rest| resolve(folder, rest.split('\'').next().expect("a name"))).collect()
}

/// `../core/dom.js` from `chat` is `core/dom.js`. No folder is nested deeper.
fn resolve(folder: &str, name: &str) -> String {
    match (name.strip_prefix("../"), name.strip_prefix("./")) {
        (Some(name), _) => name.to_owned(),
        (None, Some(name)) if folder.is_empty() => name.to_owned(),
        (None, Some(name)) => format!("{folder}/{name}"),
        _ => panic!("{name} is no relative name"),
    }
}

#[test]
fn preloaded_files_are_exactly_those_of_the_first_view() {
    let mut needed: BTreeSet<String> = BTreeSet::new();
    // The chat is the first view; shell.js loads views by name.
    let mut left = vec!["shell.js".to_owned(), "chat/chat.js".to_owned()];
    while let Some(name) = left.pop() {
        left.extend(imports(&name, " from '").into_iter().filter(|name| !needed.contains(name)));
        needed.insert(name);
    }
    needed.extend(["style.css", THEME_SCRIPT].map(str::to_owned));
    let early = PRELOADED.iter().map(|name| name.to_string()).collect();
    assert_eq!(needed, early);
    for name in imports("shell.js", "import('") {
        assert!(page_files().any(|row| row.name == name), "{name}");
    }
}

/// Whether it is a table of texts. Only the one of the chosen language is loaded.
fn is_table(row: &&Embedded) -> bool {
    row.name.starts_with("text/")
}

#[test]
fn first_view_takes_12_requests_and_40_kilobytes_and_the_whole_page_130() {
    let markup_language_catalog_and_caller = 4;
    assert!(PRELOADED.len() + markup_language_catalog_and_caller <= 12);
    let size = |ready: StaticFile, coding| ready.size(coding).expect("text shrinks");
    let file = |row: &'static Embedded| {
        size(StaticFile::embedded(row, "text/javascript", &HeaderMap::new()), "br")
    };
    let sum = |rows: &mut dyn Iterator<Item = &'static Embedded>| rows.map(file).sum::<usize>();
    // A language that needs more words than English counts against a limit of its own.
    let english = page_files().find(|row| row.name == "text/en.js").map(file).expect("English");
    for row in page_files().filter(is_table) {
        println!("{}: {} bytes", row.name, file(row));
        assert!(file(row) <= 14 * 1024, "{}: {} compressed bytes", row.name, file(row));
    }
    let index =
        StaticFile::rendered(Bytes::from_static(INDEX.as_bytes()), "text/html", &HeaderMap::new());
    let is_first = |row: &&Embedded| PRELOADED.contains(&row.name);
    let first = english + size(index, "gzip") + sum(&mut page_files().filter(is_first));
    let rest = |row: &&Embedded| !is_first(row) && !is_table(row);
    let all = first + sum(&mut page_files().filter(rest));
    println!("compressed: {first} bytes for the first view, {all} in all");
    assert!(first <= 40 * 1024, "{first} compressed bytes for the first view");
    assert!(all <= 130 * 1024, "{all} compressed bytes in all");
}

/// Views and panels with the style sheets that are loaded with them, and the part that is there before. What the
/// page's core has is counted elsewhere.
const PARTS: &[(Part, Part)] = &[
    (&[], &["usage/usage.js", "usage/usage.css"]),
    (&[], ADMIN),
    (ADMIN, &["admin/people.js"]),
    (ADMIN, &["admin/account.js"]),
    (&[], &["shell/sheets.js"]),
    (&[], &["sign-in.js"]),
    (&[], &["shell/tokens.js"]),
    (&[], TALK),
    (TALK, &["chat/conversations.js"]),
    (&[], VIDEO),
    (VIDEO, STUDIO),
    (VIDEO, &["video/pictures.js"]),
    (VIDEO, &["video/samples.js"]),
    (STUDIO, &["video/orders.js"]),
    (STUDIO, &["video/tools.js"]),
    (STUDIO, &["video/lightbox.js"]),
];
type Part = &'static [&'static str];
const ADMIN: Part = &["admin/admin.js", "usage/usage.css"];
const TALK: Part = &["chat/talk.js", "chat/talk.css"];
const VIDEO: Part = &["video/video.js", "video/video.css"];
const STUDIO: Part = &["video/studio.js"];

/// All files that these need, besides those of the core and of the first view.
fn needed(part: Part) -> BTreeSet<String> {
    let mut needed = BTreeSet::new();
    let mut left: Vec<_> = part.iter().map(|name| name.to_string()).collect();
    while let Some(name) = left.pop() {
        let is_part = !name.starts_with("core/") && !PRELOADED.contains(&name.as_str());
        if is_part && needed.insert(name.clone()) {
            left.extend(imports(&name, " from '"));
        }
    }
    needed
}

#[test]
fn part_loaded_at_first_need_takes_12_kilobytes_at_most() {
    for (before, part) in PARTS {
        let mut files = needed(part);
        let loaded = needed(before);
        files.retain(|name| !loaded.contains(name));
        let size: usize = page_files()
            .filter(|row| files.contains(row.name))
            .map(|row| StaticFile::embedded(row, "text/javascript", &HeaderMap::new()))
            .map(|ready| ready.size("br").expect("text shrinks"))
            .sum();
        println!("{part:?}: {size} bytes of brotli");
        assert!(size <= 12 * 1024, "{part:?}: {size} bytes of brotli in {files:?}");
    }
}

/// Every module that is imported later stands in a row above.
#[test]
fn every_part_of_the_video_view_has_a_size_limit() {
    let parts: Vec<_> = PARTS.iter().flat_map(|(_, part)| part.iter().copied()).collect();
    for row in
        page_files().filter(|row| row.name.starts_with("video/") && row.name.ends_with(".js"))
    {
        for name in imports(row.name, "import('") {
            let is_known = parts.contains(&name.as_str()) || name.starts_with("core/");
            assert!(is_known, "{}: {name}", row.name);
        }
    }
}

#[test]
fn served_scripts_and_styles_are_the_files_without_comments_and_indentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("static");
    for row in STATIC.iter().filter(|row| row.name.ends_with(".js") || row.name.ends_with(".css")) {
        let served = String::from_utf8(row.bytes().to_vec()).expect("text");
        let source = std::fs::read_to_string(root.join(row.name)).expect("the file");
        assert_eq!(served.lines().count(), source.lines().count(), "{}", row.name);
        for (at, (line, whole)) in served.lines().zip(source.lines()).enumerate() {
            let whole = whole.trim_start();
            let is_comment = whole.starts_with(['/', '*']);
            let place = format!("{}:{}", row.name, at + 1);
            assert!(line == whole || (line.is_empty() && is_comment), "{place}: {line}");
            assert!(!line.starts_with("//") && !line.starts_with("/**"), "{place}: {line}");
        }
    }
}

#[test]
fn page_files_have_no_markup_injection_eval_or_foreign_host() {
    for row in page_files() {
        let bytes = row.bytes();
        let text = std::str::from_utf8(&bytes).expect("text");
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
fn page_scripts_contain_no_prices() {
    for row in page_files().filter(|row| row.name.ends_with(".js")) {
        let bytes = row.bytes();
        let text = std::str::from_utf8(&bytes).expect("text");
        for price in ["6000", "3000", "3_000_000", "5_000_000", "alpha-", "video-a-"] {
            let code = text.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
            assert!(!code.into_iter().any(|line| line.contains(price)), "{}: {price}", row.name);
        }
    }
}

#[test]
fn page_has_a_text_for_every_problem() {
    let row = page_files().find(|row| row.name == "text/en.js").expect("en.js");
    let bytes = row.bytes();
    let text = std::str::from_utf8(&bytes).expect("text");
    for kind in crate::gate::problem::ALL {
        assert!(text.contains(&format!("\n'problem.{}': ", kind.code)), "{}", kind.code);
    }
}

/// The classes at which selectors begin.
fn styled_classes(name: &str) -> BTreeSet<String> {
    let row = page_files().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name}"));
    let text = String::from_utf8(row.bytes().to_vec()).expect("text");
    let selectors =
        text.split(['}', '{', ',']).map(|part| part.rsplit("*/").next().unwrap_or(part));
    let starts = selectors.filter_map(|selector| selector.trim().strip_prefix('.'));
    let is_name = |letter: &char| letter.is_alphanumeric() || *letter == '-';
    starts.map(|rest| rest.chars().take_while(is_name).collect()).collect()
}

/// A view's sheet stays when another view is shown.
#[test]
fn style_sheets_of_views_share_no_class() {
    let sheets = ["chat/talk.css", "usage/usage.css", "video/video.css"].map(styled_classes);
    for (place, sheet) in sheets.iter().enumerate() {
        assert!(sheet.len() > 5, "{sheet:?}");
        for other in &sheets[..place] {
            assert_eq!(sheet.intersection(other).collect::<Vec<_>>(), Vec::<&String>::new());
        }
    }
}
