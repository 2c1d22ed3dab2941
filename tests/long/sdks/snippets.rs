//! What the documents show of each SDK works as it is written, but for the address.

use std::fs;

use tempfile::TempDir;

use super::sandbox;
use crate::long::sdks::program::Sdk;
use crate::markdown::{blocks, read, section};

/// Where the documents say that tollgate is.
const DOCUMENTED: &str = "127.0.0.1:8080";

/// What the blocks of this section print, one after another.
fn printed(sdk: Sdk, document: &str, heading: &str, folder: &TempDir) -> String {
    let sandbox = sandbox();
    let text = read(document);
    let language = if sdk == Sdk::Python { "python" } else { "js" };
    let shown = blocks(section(&text, heading), language).concat();
    assert!(shown.contains(DOCUMENTED), "{document}, {heading}: {shown}");
    sdk.run_script(&shown.replace(DOCUMENTED, &sandbox.address.to_string()), folder.path())
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn readme_python_snippet_buys_a_chat() {
    let printed = printed(Sdk::Python, "README.md", "Three ways in", &folder());
    assert!(printed.contains("Hello from the sandbox"), "{printed}");
}

#[test]
fn python_guide_snippet_streams_a_chat_and_saves_a_video() {
    let folder = folder();
    let printed = printed(Sdk::Python, "docs/guide/openai.md", "From Python", &folder);
    assert!(printed.contains("Hello from the sandbox"), "{printed}");
    let clip = fs::read(folder.path().join("lighthouse.mp4")).expect("a clip");
    assert_eq!(&clip[4..8], b"ftyp");
}

#[test]
fn node_guide_snippet_buys_a_chat_and_prints_its_cost() {
    let printed = printed(Sdk::Node, "docs/guide/openai.md", "From Node", &folder());
    assert!(printed.contains("Hello from the sandbox"), "{printed}");
    assert!(printed.trim_end().ends_with("0.003000"), "{printed}");
}

#[test]
fn vercel_sdk_snippet_buys_a_chat() {
    let printed = printed(Sdk::Vercel, "docs/guide/openai.md", "With Vercel's AI SDK", &folder());
    assert!(printed.contains("Hello from the sandbox"), "{printed}");
}
