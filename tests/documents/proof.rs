//! The tables of the guide on proof of work.

#[path = "../../benches/proof/model.rs"]
mod model;

use tollgate::access::proof::STEPS;

use crate::markdown::{read, rows};

fn guide() -> String {
    read("docs/guide/proof.md")
}

#[test]
fn guide_shows_the_simulated_day() {
    let (text, table) = (guide(), model::table());
    assert!(text.contains(&table), "expected in docs/guide/proof.md:\n{table}");
}

#[test]
fn attacker_who_computes_nothing_gets_little() {
    let (limits, proof) = (model::day(0, false), model::day(0, true));
    assert!(proof.served > limits.served && proof.lost < limits.lost, "{limits:?} {proof:?}");
}

#[test]
fn guide_shows_the_work_of_each_share_of_the_budget() {
    let text = guide();
    let listed: Vec<_> = rows(&text)
        .into_iter()
        .filter(|row| row.len() == 3 && row[0].ends_with(" %"))
        .map(|row| (row[0].trim_end_matches(" %").parse(), row[1].parse()))
        .collect();
    assert_eq!(listed, STEPS.map(|(from, bits)| (Ok(from), Ok(bits))));
}

#[test]
fn guide_is_at_most_60_lines() {
    assert!(guide().lines().count() <= 60);
}
