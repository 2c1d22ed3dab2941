//! What attackers can send, tried byte by byte: every input in `fuzz/corpus`, and some thousands of
//! mutations of them. See docs/dev/testing.md.

mod mutate;
mod targets;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, panic};

use mutate::Mutator;
use targets::{TARGETS, Target};

#[test]
fn accepted_chat_is_sent_as_written() {
    holds("chat");
}

#[test]
fn accepted_video_is_sent_as_written() {
    holds("video");
}

#[test]
fn openai_requests_map_to_valid_orders() {
    holds("dialect");
}

#[test]
fn image_url_never_names_a_private_host() {
    holds("image_url");
}

#[test]
fn forwarded_headers_cannot_forge_an_address() {
    holds("forwarded");
}

#[test]
fn gateway_replies_are_not_confused_and_hold_no_key() {
    holds("upstream");
}

#[test]
fn redacted_text_decodes_to_no_key() {
    holds("redact");
}

#[test]
fn changed_ledger_is_refused_or_adds_up() {
    holds("ledger");
}

#[test]
fn event_streams_parse_as_written() {
    holds("events");
}

#[test]
fn settings_are_read_or_refused_without_repeating_a_key() {
    holds("settings");
}

#[test]
fn every_fuzz_target_has_inputs_and_every_input_a_target() {
    let folders = fs::read_dir(corpus()).expect("fuzz/corpus");
    let folders: BTreeSet<_> =
        folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
    let targets: BTreeSet<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(folders, targets);
}

/// Tries the inputs, and what a seed makes of them.
fn holds(name: &str) {
    let target = targets::named(name).expect("a target");
    let mut inputs: Vec<_> = fs::read_dir(corpus().join(name))
        .expect("its folder")
        .map(|file| file.unwrap().path())
        .collect();
    inputs.sort();
    let (mut corpus, mut accepted) = (Vec::new(), 0);
    for path in &inputs {
        let input = fs::read(path).unwrap();
        accepted += usize::from(one(target, &input, &format!("{}", path.display())));
        corpus.push(input);
    }
    assert!(accepted > 0 && accepted < inputs.len(), "{accepted} of {} accepted", inputs.len());
    let (seed, tries) = asked(target);
    let mut mutator = Mutator::new(seed);
    accepted = 0;
    for turn in 0..tries {
        let input = mutator.mutated(&corpus, target.words);
        accepted += usize::from(one(target, &input, &format!("mutation {turn} of seed {seed}")));
    }
    println!("{name}: {} inputs, {tries} mutations, {accepted} accepted", inputs.len());
}

/// Tries one input; where it breaks the invariant, keeps it.
fn one(target: &Target, input: &[u8], which: &str) -> bool {
    match panic::catch_unwind(|| (target.run)(input)) {
        Ok(is_accepted) => is_accepted,
        Err(broken) => {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("corpus").join(target.name);
            fs::create_dir_all(&folder).unwrap();
            let kept = folder.join(&blake3::hash(input).to_hex()[..12]);
            fs::write(&kept, input).unwrap();
            eprintln!(
                "{}: {which} breaks it: {:?}\nkept as {}; copied to fuzz/corpus/{0}, it is tried \
                 each time",
                target.name,
                String::from_utf8_lossy(input),
                kept.display(),
            );
            panic::resume_unwind(broken)
        }
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

/// The seed and the number of mutations, unless a person asks for others.
#[expect(clippy::disallowed_methods, reason = "a person asks for another seed, or for more")]
fn asked(target: &Target) -> (u64, u32) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let tries = number("CORPUS_TRIES").map_or(target.tries, |tries: u64| tries as u32);
    (number("CORPUS_SEED").unwrap_or_default(), tries)
}
