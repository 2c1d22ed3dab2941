//! What is tried with bytes that attackers choose: each target is a plain function with an invariant,
//! which panics where it does not hold, and says whether the bytes were taken. `tests/corpus` calls
//! them with files and mutations of these; `fuzz/` has libFuzzer choose the bytes.

mod decode;
mod events;
mod forwarded;
mod image_url;
mod json;
mod ledger;
mod oracle;
mod redact;
mod settings;
mod upstream;

/// One target.
pub(crate) struct Target {
    /// Its name, and that of its folder in `fuzz/corpus`.
    pub(crate) name: &'static str,
    /// Panics if its invariant does not hold; answers whether the input was accepted.
    pub(crate) run: fn(&[u8]) -> bool,
    /// How many mutations a test tries, and a tenth of those of the long run.
    pub(crate) tries: u32,
    /// What is worth inserting.
    pub(crate) words: &'static [&'static str],
}

#[rustfmt::skip]
pub(crate) const TARGETS: &[Target] = &[
    Target { name: "chat",      run: json::chat,           tries: 12_000, words: json::WORDS },
    Target { name: "dialect",   run: json::dialect,        tries: 12_000, words: json::WORDS },
    Target { name: "events",    run: events::events,       tries: 12_000, words: events::WORDS },
    Target { name: "forwarded", run: forwarded::forwarded, tries: 12_000, words: forwarded::WORDS },
    Target { name: "image_url", run: image_url::image_url, tries: 20_000, words: image_url::WORDS },
    Target { name: "ledger",    run: ledger::ledger,       tries: 400,    words: ledger::WORDS },
    Target { name: "redact",    run: redact::redact,       tries: 12_000, words: redact::WORDS },
    Target { name: "settings",  run: settings::settings,   tries: 3_000,  words: settings::WORDS },
    Target { name: "upstream",  run: upstream::upstream,   tries: 150,    words: upstream::WORDS },
    Target { name: "video",     run: json::video,          tries: 12_000, words: json::WORDS },
];

/// The target of this name.
pub(crate) fn named(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
