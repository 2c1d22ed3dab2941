//! Simulates a day of a public page under attack, with and without proof of work: `cargo bench --bench proof`.
#![expect(clippy::print_stdout, reason = "it prints what it has simulated")]

mod model;

fn main() {
    print!("{}", model::table());
}
