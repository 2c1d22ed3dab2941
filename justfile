# The checks live in ./test; these are its sections, and what one does daily. `cargo install just` installs just.

# All that CI runs
test:
    ./test

# Format the code (CI only checks: ./test fmt)
fmt:
    cargo fmt

# Formatting and lints, as CI checks them
lint:
    ./test fmt build lint

# While one works: format, and lints, unit tests and the structure, built once
check:
    cargo fmt --check
    RUSTC_WORKSPACE_WRAPPER="$(rustc --print sysroot)/bin/clippy-driver" CLIPPY_ARGS="-Dwarnings__CLIPPY_HACKERY__" \
        cargo test --locked --quiet --lib --test checks -- --skip soak:: --skip corpus::

# The tests alone; further words pick some: just tests --test browser
tests *words:
    cargo test --locked {{ words }}

# The pictures that the README shows, retaken into docs/screenshots/
screenshots:
    cargo test --locked --test browser screenshots_of
    mkdir -p docs/screenshots
    cp "${CARGO_TARGET_DIR:-target}"/tmp/screenshots/*.png docs/screenshots/

# The server beside nginx on two cores, a quarter of an hour; some of it: just bench chat fixed --rounds 5; see benches/README.md
bench *words:
    cargo bench --locked --bench proxy -- {{ words }}

# The same beside the build of another commit: just bench-against HEAD~3 chat
bench-against commit *words:
    git worktree add --force --detach target/bench/tree {{ commit }}
    cd target/bench/tree && cargo build --release --locked --target-dir ../build
    git worktree remove --force target/bench/tree
    cargo bench --locked --bench proxy -- --other target/bench/build/release/tollgate {{ words }}

# What the page takes to paint, to sell and to render, on a processor that is slowed down four times
page-speed:
    cargo test --locked --quiet --test browser page_reports

# Coverage-guided fuzzing of one target, for so many seconds (needs: a C++ compiler); see fuzz/README.md
fuzz target seconds="600":
    fuzz/run {{ target }} {{ seconds }}

# Mixed good, bad and broken traffic for so many seconds, by the release build: leaks show over time
soak seconds="600":
    SOAK_SECONDS={{ seconds }} cargo test --release --locked --test checks soak:: -- --nocapture

# Whether tests fail when code that decides about money is changed (needs: cargo install --locked cargo-mutants);
# hours for all of it, so pick: just mutants --shard 1/10, just mutants --file src/purchase/budget.rs
mutants *words:
    cargo mutants {{ words }}

# Licences, bans and sources of the dependencies, and known weaknesses of theirs (needs: cargo install --locked cargo-deny;
# the last one fetches RustSec's database from GitHub)
deny:
    cargo deny --locked check bans licenses sources
    cargo deny --locked check advisories

# The proxy against its own sandbox
run *words:
    cargo run --release -- {{ words }}
