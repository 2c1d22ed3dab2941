//! `client.d.ts` compiles, says what `client.js` exports, and refuses what is wrong.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::long::sdks::program::{ADVICE, home, said};

/// As strict as the compiler can be, declarations included.
const FLAGS: &str = "--noEmit --strict --exactOptionalPropertyTypes --noUncheckedIndexedAccess --noImplicitReturns \
    --skipLibCheck false --target es2022 --lib es2022,dom,dom.iterable,dom.asynciterable --module esnext \
    --moduleResolution bundler";

#[test]
fn client_types_compile_with_a_program_that_uses_them_all() {
    let folder = tempfile::tempdir().expect("a folder");
    for (file, name) in [
        ("static/widgets/client.d.ts", "client.d.ts"),
        ("tests/long/sdks/typescript.ts", "typescript.ts"),
    ] {
        fs::copy(file, folder.path().join(name)).expect("it is there");
    }
    let compiler = home().join("types/node_modules/typescript/bin/tsc");
    assert!(compiler.exists(), "TypeScript is not installed: {ADVICE}");
    let flags = FLAGS.split_whitespace().chain(["typescript.ts"]);
    said(Command::new("node").arg(compiler).args(flags).current_dir(folder.path()));
}

#[test]
fn client_exports_match_its_types() {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("static/core/transport.js");
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("client.mjs");
    fs::copy(client, &module).expect("it is there");
    let script = format!("console.log(Object.keys(await import({module:?})).sort().join())");
    let exported = said(Command::new("node").args(["--input-type=module", "--eval", &script]));
    let program = fs::read_to_string("tests/long/sdks/typescript.ts").expect("it is there");
    let listed = program.lines().find(|line| line.starts_with("export const EXPORTS"));
    let listed = listed.and_then(|line| line.split(['{', '}']).nth(1)).expect("a list");
    let listed: Vec<_> =
        listed.split(',').filter_map(|one| one.split(':').next()).map(str::trim).collect();
    assert_eq!(exported.trim(), listed.join(","));
}
