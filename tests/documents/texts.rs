//! The page says everything in the language of the person: each language has one table, and no text stands outside them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tollgate::gateway::contract::catalog::Catalog;
use tollgate::gateway::sandbox::SANDBOX_FAULTS;

use crate::markdown::read;

const LANGUAGES: [&str; 2] = ["en", "de"];
/// Texts that are the same in German and English.
const ALIKE: &[&str] = &[
    "''",
    "'Admin'",
    "'Chat'",
    "'Chats'",
    "'Code'",
    "'Details'",
    "'Deutsch'",
    "'English'",
    "'ID'",
    "'Live'",
    "'Name'",
    "'Prompt'",
    "'Prompts'",
    "'Sandbox'",
    "'Standard'",
    "'System'",
    "'Token'",
    "'UTC'",
    "'Video'",
    "'Videos'",
    "(code) => `Code ${code}`",
    "(count) => `Filter${count ? ` · ${count}` : ''}`",
    "(name) => `Token ${name}`",
    "(prompt) => `Details: ${prompt}`",
];

/// Files without a text for people: the client speaks to developers, the others hold names of CSS, of programming
/// languages, of characters and of formulas.
const WITHOUT_TEXT: &[&str] = &[
    "core/transport.js",
    "core/highlight.js",
    "core/inline.js",
    "core/math.js",
    "widgets/style.js",
];
/// Literals that look like a text.
const NO_TEXTS: &[(&str, &[&str])] = &[
    (
        "names for programs",
        &[
            "AbortError",
            "Files",
            "Notification",
            "not here",
            "this page",
            "tollgate people",
            "noopener noreferrer",
            "token-hint token-fault",
            "input:not([type=\"radio\"], [type=\"checkbox\"], [type=\"range\"]), textarea, select, [contenteditable]",
        ],
    ),
    (
        "keys, which sheets.js translates",
        &["Ctrl K", "Shift Enter", "Esc", "J K", "ArrowLeft K", "ArrowRight J"],
    ),
    ("a command", &["tollgate reconcile"]),
    (
        "errors for developers: people read the text of their code",
        &[
            "This browser does not keep what is bought",
            "The service may no longer know this purchase",
            "The page was closed before an answer came",
        ],
    ),
];
const KEYS: &[&str] = &[
    "Enter",
    "Escape",
    "ArrowUp",
    "ArrowDown",
    "ArrowLeft",
    "ArrowRight",
    "Home",
    "End",
    "Delete",
];
/// Texts of the markup itself: the name of the product, which the settings replace, what a browser without
/// scripts shows in both languages, and the beginning of an address.
const MARKUP: &[&str] = &[
    "tollgate",
    "This page needs JavaScript.",
    "POST /api/v1/chat",
    "works without it.",
    "Diese Seite braucht JavaScript.",
    "funktioniert ohne.",
    "https://…",
];
/// Texts that are found by the word of a fault.
const BY_WORD: &str = "sandbox.";

/// The rows of a table: key and value.
fn table(language: &str) -> Vec<(String, String)> {
    let text = read(format!("static/text/{language}.js"));
    let rows = text.lines().filter_map(|line| line.strip_prefix("  '")?.split_once("': "));
    rows.map(|(key, value)| (key.to_owned(), value.trim_end_matches(',').to_owned())).collect()
}

/// Paths below `static/`, without the tables.
fn scripts() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("static");
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path: PathBuf = entry.expect("an entry").path();
            let name = path.strip_prefix(&root).expect("below it").to_string_lossy().into_owned();
            if path.is_dir() && name != "text" {
                folders.push(path);
            } else if name.ends_with(".js") {
                found.push(name);
            }
        }
    }
    found
}

/// The lines of code of a script, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_comment = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let trimmed = line.trim();
        let begins = trimmed.starts_with("/*");
        let is_code = !is_comment && !begins && !trimmed.starts_with("//");
        is_comment = (is_comment || begins) && !trimmed.ends_with("*/");
        is_code.then_some((at + 1, line))
    })
}

/// Stands for a value in a template.
const VALUE: char = '\u{1}';

/// The literals of a line, each with what stands before it.
fn literals(line: &str) -> Vec<(String, String)> {
    let mut lexer = Lexer { line: line.chars().collect(), at: 0, found: Vec::new() };
    lexer.code(false);
    lexer.found
}

struct Lexer {
    line: Vec<char>,
    at: usize,
    found: Vec<(String, String)>,
}

impl Lexer {
    fn peek(&self) -> Option<char> {
        self.line.get(self.at).copied()
    }

    /// Reads to the end of the line, or of the value of a template.
    fn code(&mut self, is_value: bool) {
        let (mut depth, mut last) = (0, '(');
        while let Some(letter) = self.peek() {
            self.at += 1;
            match letter {
                '\'' | '"' | '`' => self.literal(letter),
                '/' if !is_value && self.peek() == Some('/') => return,
                '/' if "(,=:[!&|?".contains(last) => self.expression(),
                '{' => depth += 1,
                '}' if is_value && depth == 0 => return,
                '}' => depth -= 1,
                _ => {}
            }
            last = if letter == ' ' { last } else { letter };
        }
    }

    /// Reads over a regular expression.
    fn expression(&mut self) {
        let mut is_set = false;
        while let Some(letter) = self.peek() {
            self.at += 1;
            match letter {
                '\\' => self.at += 1,
                '[' => is_set = true,
                ']' => is_set = false,
                '/' if !is_set => return,
                _ => {}
            }
        }
    }

    fn literal(&mut self, quote: char) {
        let before = self.line[..self.at - 1].iter().collect();
        let mut text = String::new();
        while let Some(letter) = self.peek() {
            self.at += 1;
            match letter {
                '\\' => self.at += 1,
                '$' if quote == '`' && self.peek() == Some('{') => {
                    self.at += 1;
                    self.code(true);
                    text.push(VALUE);
                }
                _ if letter == quote => break,
                _ => text.push(letter),
            }
        }
        self.found.push((before, text));
    }
}

/// Whether it has two words, or begins with a capital letter.
fn looks_like_a_text(literal: &str) -> bool {
    let letters: Vec<char> = literal.chars().collect();
    let has_words = letters.windows(3).enumerate().any(|(at, window)| {
        let is_word = window[0].is_alphabetic()
            || (",;:.!?".contains(window[0]) && at > 0 && letters[at - 1].is_alphabetic());
        is_word && window[1] == ' ' && window[2].is_alphabetic()
    });
    let is_capital = letters.first().is_some_and(|letter| letter.is_uppercase())
        && letters.iter().skip(1).take(2).filter(|letter| letter.is_lowercase()).count() == 2;
    has_words || (is_capital && !KEYS.contains(&literal))
}

/// The names of classes in all style sheets.
fn classes() -> BTreeSet<String> {
    let sheets =
        ["style.css", "chat/talk.css", "usage/usage.css", "video/video.css", "widgets/style.js"];
    let is_name = |letter: &char| letter.is_alphanumeric() || *letter == '-';
    let names = |text: String| -> Vec<String> {
        text.split('.').skip(1).map(|rest| rest.chars().take_while(is_name).collect()).collect()
    };
    sheets.iter().flat_map(|name| names(read(format!("static/{name}")))).collect()
}

#[test]
fn every_language_has_the_same_keys_and_values() {
    let shape = |language| -> Vec<(String, Option<String>)> {
        let of = |value: &str| Some(value.split_once(" => ")?.0.to_owned());
        table(language).into_iter().map(|(key, value)| (key, of(&value))).collect()
    };
    let [english, german] = LANGUAGES.map(shape);
    assert_eq!(english, german);
    assert!(english.len() > 500, "{}", english.len());
    let keys: BTreeSet<_> = english.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), english.len(), "a key is there twice");
}

#[test]
fn german_says_nothing_in_english() {
    let [english, german] = LANGUAGES.map(table);
    let same: BTreeSet<_> =
        english.iter().zip(&german).filter(|(one, other)| one.1 == other.1).collect();
    let same: BTreeSet<_> = same.iter().map(|(row, _)| row.1.as_str()).collect();
    assert_eq!(same, ALIKE.iter().copied().collect());
}

#[test]
fn scripts_have_no_text_outside_the_tables() {
    let classes = classes();
    let known: Vec<&str> = NO_TEXTS.iter().flat_map(|(_, texts)| *texts).copied().collect();
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    for name in scripts().iter().filter(|name| !WITHOUT_TEXT.contains(&name.as_str())) {
        let text = read(format!("static/{name}"));
        for (at, line) in code(&text).filter(|(_, line)| !line.starts_with("import ")) {
            for (before, literal) in literals(line) {
                let takes_selector =
                    ["closest(", "querySelector(", "querySelectorAll(", "matches(", "matchMedia("];
                let is_selector = takes_selector.iter().any(|call| before.ends_with(call));
                let is_class = |word: &str| word.contains(VALUE) || classes.contains(word);
                let is_class_list = literal.split(' ').all(is_class);
                if is_selector || is_class_list || !looks_like_a_text(&literal) {
                    continue;
                }
                match known.iter().find(|text| **text == literal) {
                    Some(text) => drop(seen.insert(*text)),
                    None => faults.push(format!("{name}:{at}: {literal:?}")),
                }
            }
        }
    }
    assert_eq!(faults, Vec::<String>::new(), "move them to static/text/");
    assert_eq!(seen, known.into_iter().collect(), "exceptions that nothing needs");
}

#[test]
fn markup_has_no_text_outside_the_tables() {
    let markup = read("static/index.html");
    let body = markup.split_once("<body>").expect("a body").1;
    let mut texts: Vec<&str> = body.split('>').filter_map(|part| part.split('<').next()).collect();
    for attribute in ["aria-label=\"", "title=\"", "placeholder=\"", "alt=\"", "content=\"Chat"] {
        texts.extend(markup.split(attribute).skip(1).filter_map(|rest| rest.split('"').next()));
    }
    let has_word = |text: &&str| text.chars().any(char::is_alphabetic);
    let found: BTreeSet<_> = texts.into_iter().map(str::trim).filter(has_word).collect();
    assert_eq!(found, MARKUP.iter().copied().collect());
}

#[test]
fn every_text_is_used_and_every_used_text_exists() {
    let keys: BTreeSet<String> = table("en").into_iter().map(|(key, _)| key).collect();
    let mut used = BTreeSet::new();
    let mut use_of = |place: &str, literal: &str, must_exist: bool| {
        let start = literal.split(VALUE).next().unwrap_or_default();
        let end = literal.rsplit(VALUE).next().unwrap_or_default();
        let is_pattern = start != literal && start.contains('.');
        let matches = |key: &&String| {
            *key == literal || (is_pattern && key.starts_with(start) && key.ends_with(end))
        };
        let found: Vec<_> = keys.iter().filter(matches).cloned().collect();
        assert!(!must_exist || !found.is_empty(), "{place}: no text {literal:?}");
        used.extend(found);
    };
    for name in scripts() {
        let text = read(format!("static/{name}"));
        for (_, line) in code(&text) {
            for (before, literal) in literals(line) {
                let call = before.strip_suffix("t(");
                let is_key = call.is_some_and(|rest| !rest.ends_with(char::is_alphanumeric));
                use_of(&name, &literal, is_key);
            }
        }
    }
    let markup = read("static/index.html");
    for entries in markup.split("data-t=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        for entry in entries.split(' ') {
            use_of("index.html", entry.split('@').next().unwrap_or_default(), true);
        }
    }
    let unused: Vec<_> = keys.difference(&used).filter(|key| !key.starts_with(BY_WORD)).collect();
    assert_eq!(unused, Vec::<&String>::new());
}

#[test]
fn page_offers_each_language_that_has_a_table() {
    let list = "const LANGUAGES = ['en', 'de'];";
    for script in ["static/theme.js", "static/core/format.js"] {
        assert!(read(script).contains(list), "{script}");
    }
    let markup = read("static/index.html");
    for language in LANGUAGES {
        assert!(markup.contains(&format!("<option value=\"{language}\" lang=\"{language}\"")));
    }
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("static/text"));
    assert_eq!(files.expect("the tables").count(), LANGUAGES.len());
}

#[test]
fn page_translates_what_the_server_says_of_models_and_faults() {
    let english = table("en");
    let text_of = |key: &str| {
        let row = english.iter().find(|(known, _)| known == key);
        row.unwrap_or_else(|| panic!("no text {key}")).1.trim_matches('\'').to_owned()
    };
    let catalog = Catalog::published();
    let chats = catalog.chat.iter().map(|model| model.best_for);
    for said in chats.chain(catalog.video.iter().map(|model| model.remarks)) {
        let parts = said.split([',', ';']).map(str::trim).filter(|part| !part.is_empty());
        parts.for_each(|part| drop(text_of(&format!("remark.{part}"))));
    }
    for (word, does) in SANDBOX_FAULTS {
        assert_eq!(text_of(&word.replace(':', ".")), *does);
    }
}
