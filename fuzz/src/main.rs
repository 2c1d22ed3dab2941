//! Has libFuzzer choose the bytes for one target: the one that `FUZZ_TARGET` names.
#![no_main]

use std::env;
use std::sync::OnceLock;

#[path = "../../tests/corpus/targets/mod.rs"]
mod targets;

use targets::{TARGETS, Target};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (target().run)(data);
});

fn target() -> &'static Target {
    static TARGET: OnceLock<&'static Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = env::var("FUZZ_TARGET").unwrap_or_default();
        targets::named(&name).unwrap_or_else(|| {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            eprintln!("FUZZ_TARGET: expected one of {}", names.join(", "));
            std::process::exit(2)
        })
    })
}
