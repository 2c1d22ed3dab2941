# The checks live in ./test, which needs nothing but bash and cargo; these are its sections, and what one does daily.

# All that CI runs
test:
    ./test

# Format the code (CI only checks: ./test fmt)
fmt:
    cargo fmt

# Formatting and lints, as CI checks them
lint:
    ./test fmt lint

# The tests alone; further words pick some: just tests --test browser
tests *words:
    cargo test --locked {{ words }}

# Licences, bans and sources of the dependencies (needs: cargo install --locked cargo-deny)
deny:
    cargo deny --locked check bans licenses sources

# The proxy against its own sandbox
run *words:
    cargo run --release -- {{ words }}
