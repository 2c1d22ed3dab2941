//! The guarantees of the fleet, checked after every step. Each message begins with what it is about.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{PurchaseId, Settlement};

use super::ledger::Row;
use super::process::Done;
use super::run::Run;

/// How often a process looks for what is overdue.
const SWEEP: Duration = Duration::from_secs(1);

pub(super) fn look(run: &Run<'_>) -> Result<(), String> {
    let rows = run.ledger.purchases();
    nothing_is_overdue(run, &rows)?;
    money_adds_up(run, &rows)?;
    what_was_recorded_stays(run, &rows)?;
    no_key_is_charged_twice(run)?;
    run.gateway.check_window(run.setup.limit, run.setup.period)?;
    let counted = rows.iter().filter(|row| row.state != "released");
    let spent: u64 = counted.map(|row| row.micros.as_micros()).sum();
    if run.setup.budget.is_some_and(|budget| spent > budget.as_micros()) {
        return Err(format!("budget: {spent} of {:?}", run.setup.budget));
    }
    match run.ledger.wrong_counters() {
        0 => Ok(()),
        wrong => Err(format!("counters: {wrong} differ from their purchases")),
    }
}

/// At the first byte, the ledger counts the purchase as sent, and no other process may end it.
pub(super) fn may_be_sent(run: &Run<'_>, id: PurchaseId) -> Result<(), String> {
    let (state, until) = (run.ledger.state(id), run.wishes[&id].until);
    if state == "sent" && run.now < until {
        return Ok(());
    }
    Err(format!("sent: {id} is sent, and the ledger has it as {state} until {until:?}"))
}

/// Checks that the ledger agrees with the answers that a process got.
pub(super) fn answer_is_true(run: &Run<'_>, done: &Done) -> Result<(), String> {
    let (id, expected) = match done {
        Done::Reserved(id, Ok(held)) => (id, if held.is_sent { "sent" } else { "held" }),
        Done::Reserved(id, Err(_)) => (id, "missing"),
        Done::Marked(id, true) if run.now <= run.wishes[id].until => (id, "sent"),
        Done::Marked(id, true) => return Err(format!("late: {id} was held for too long")),
        Done::Granted(_) | Done::Marked(_, false) | Done::Settled(..) => return Ok(()),
    };
    match run.ledger.state(*id) {
        state if state == expected => Ok(()),
        state => Err(format!("answer: {id} is {state} after {done:?}")),
    }
}

/// A process that reaches the ledger ends what others have left.
fn nothing_is_overdue(run: &Run<'_>, rows: &[Row]) -> Result<(), String> {
    if !run.processes.iter().any(|process| process.reached == run.now) {
        return Ok(());
    }
    let is_overdue = |row: &&Row| {
        matches!(&*row.state, "held" | "sent") && run.wishes[&row.id].until + SWEEP < run.now
    };
    match rows.iter().find(is_overdue) {
        Some(row) => Err(format!("overdue: {} is {}", row.id, row.state)),
        None => Ok(()),
    }
}

/// Charged here ≤ charged by the gateway ≤ charged, sent and unknown here; and so for each purchase.
fn money_adds_up(run: &Run<'_>, rows: &[Row]) -> Result<(), String> {
    let charges = run.gateway.charges(run.now);
    let rows: BTreeMap<PurchaseId, &Row> = rows.iter().map(|row| (row.id, row)).collect();
    for (id, costs) in &charges {
        let state = rows.get(id).map_or("missing", |row| &*row.state);
        let is_possible = match costs[..] {
            [] => state != "charged",
            [cost] if state == "charged" => rows[id].micros == cost,
            [_] => matches!(state, "sent" | "unknown"),
            _ => false,
        };
        if !is_possible {
            return Err(format!("money: {id} was charged {costs:?}, and is {state}"));
        }
    }
    let sum = |states: &[&str]| -> u64 {
        let counted = rows.values().filter(|row| states.contains(&&*row.state));
        counted.map(|row| row.micros.as_micros()).sum()
    };
    let by_gateway: u64 = charges.values().flatten().map(|cost: &Usd| cost.as_micros()).sum();
    let (charged, at_most) = (sum(&["charged"]), sum(&["charged", "sent", "unknown"]));
    if charged <= by_gateway && by_gateway <= at_most {
        return Ok(());
    }
    Err(format!("money: charged {charged}, by the gateway {by_gateway}, at most {at_most}"))
}

/// Checks that the ledger has each outcome that a process saw, also if others had ended the purchase.
fn what_was_recorded_stays(run: &Run<'_>, rows: &[Row]) -> Result<(), String> {
    for row in rows {
        let is_kept = match run.recorded.get(&row.id) {
            None | Some(Settlement::Unknown) => true,
            Some(Settlement::Released) => row.state == "released",
            Some(Settlement::Charged { cost, .. }) => row.state == "charged" && row.micros == *cost,
        };
        if !is_kept {
            let recorded = &run.recorded[&row.id];
            return Err(format!("testimony: {} is {} after {recorded:?}", row.id, row.state));
        }
    }
    Ok(())
}

fn no_key_is_charged_twice(run: &Run<'_>) -> Result<(), String> {
    let mut charged: BTreeMap<u64, PurchaseId> = BTreeMap::new();
    for (id, costs) in run.gateway.charges(run.now) {
        if costs.is_empty() {
            continue;
        }
        if let Some(other) = charged.insert(run.wishes[&id].key, id) {
            return Err(format!("key: {id} and {other} were charged for one key"));
        }
    }
    Ok(())
}
