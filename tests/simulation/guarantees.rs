//! The guarantees, checked after every step.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::clock;
use tollgate::gate::problem::Charged;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{self, BudgetScope, PurchaseId};

use crate::clients::{Answer, Asked, Client, Identity, Received, Wish, name};
use crate::disk::{Platter, finish};
use crate::gateway::Fate;
use crate::model_ledger::Entry;
use crate::run::replay;
use crate::tally::ENDINGS;
use crate::world::State;

/// The slowest store has recorded a settlement by then.
const BOOKED: Duration = Duration::from_secs(1);

pub(crate) fn look(state: &mut State, platter: &Platter, seen: &mut Vec<bool>) {
    let now = state.now();
    let (charged, window) = state.gateway.pass(now);
    match window {
        Ok(arrivals) => (0..arrivals).for_each(|_| state.tally.add("arrivals")),
        Err(why) => state.broken(why),
    }
    for (id, cost) in charged {
        state.note(|| format!("the gateway charged {cost} for {id}"));
        state.tally.add("charges");
        let once = is_the_only_charge_of_its_key(state, id);
        state.hold(once);
    }
    let guarantees = [
        money_adds_up(state, now),
        the_store_holds_what_it_acknowledged(state, platter),
        state.books.within_budgets(),
        what_was_answered_is_booked(state, now),
        every_answer_is_true(state, seen),
    ];
    guarantees.into_iter().for_each(|guarantee| state.hold(guarantee));
}

/// What the gateway charged is in the ledger as charged, in flight or unknown. A charged purchase
/// was charged once, and a released one never.
fn money_adds_up(state: &State, now: Duration) -> Result<(), String> {
    let mut charged: BTreeMap<PurchaseId, (u64, Usd)> = BTreeMap::new();
    for flight in &state.gateway.flights {
        let (Some(id), Some((at, cost))) = (flight.id, flight.charges) else { continue };
        match state.books.state(id) {
            Some(
                ledger::PurchaseState::Sent
                | ledger::PurchaseState::Charged
                | ledger::PurchaseState::Unknown,
            ) => {}
            other => return Err(format!("{id} costs {cost} at the gateway, and is {other:?}")),
        }
        if at <= now {
            let times = charged.entry(id).or_default();
            *times = (times.0 + 1, cost);
        }
    }
    let (mut booked, mut held) = (0, 0);
    for (id, entry) in &state.books.entries {
        let Entry { cost, .. } = entry;
        match (entry.state, charged.get(id)) {
            (_, Some((times, _))) if *times > 1 => {
                return Err(format!("{id} was charged {times} times"));
            }
            (ledger::PurchaseState::Charged, Some((_, charge))) if charge == cost => {
                booked += cost.as_micros();
            }
            (ledger::PurchaseState::Charged, other) => {
                return Err(format!("{id} is charged at {cost}, and was charged {other:?}"));
            }
            (
                ledger::PurchaseState::Held
                | ledger::PurchaseState::Sent
                | ledger::PurchaseState::Unknown,
                _,
            ) => {
                held += cost.as_micros();
            }
            (ledger::PurchaseState::Released, _) => {}
        }
    }
    let charged: u64 = charged.values().map(|(_, cost)| cost.as_micros()).sum();
    match booked <= charged && charged <= booked + held {
        true => Ok(()),
        false => Err(format!("charged {charged}, booked {booked}, held or unknown {held}")),
    }
}

/// A reply that reached a living process is in the ledger, even if its client disconnected.
fn what_was_answered_is_booked(state: &State, now: Duration) -> Result<(), String> {
    let timeout = state.setup.timeout;
    let answered = state.gateway.flights.iter().filter(|flight| {
        let is_reply = matches!(flight.fate, Fate::Served | Fate::Cheaper);
        let is_in_time = flight.replied - flight.arrives < timeout / 2;
        is_reply && is_in_time && flight.life == state.life && flight.replied + BOOKED <= now
    });
    for flight in answered {
        let Some((id, entry)) = flight.id.and_then(|id| Some((id, state.books.entries.get(&id)?)))
        else {
            continue;
        };
        if entry.state != ledger::PurchaseState::Charged && !entry.was_refused {
            return Err(format!("{id} was answered at {:?}: {entry:?}", flight.replied));
        }
    }
    Ok(())
}

/// No other purchase with the key was charged, unless it had expired when this one began.
fn is_the_only_charge_of_its_key(state: &State, id: PurchaseId) -> Result<(), String> {
    let identity = state.clients.wish(id).identity();
    let Identity::Key { .. } = identity else { return Ok(()) };
    let Some(entry) = state.books.entries.get(&id) else { return Ok(()) };
    let others = state.books.entries.iter().filter(|(other, _)| **other != id);
    for (other, earlier) in others.filter(|(_, other)| other.identity == identity) {
        let flights = &mut state.gateway.flights.iter();
        let was_charged =
            flights.any(|flight| flight.id == Some(*other) && flight.charges.is_some());
        let first = if earlier.set_aside <= entry.set_aside { earlier } else { entry };
        // A clock that is set back later does not count.
        let is_over = first.state == ledger::PurchaseState::Charged && first.was_over;
        if was_charged && !is_over {
            return Err(format!("{id} and {other} were charged for one key"));
        }
    }
    Ok(())
}

/// Compares the ledger's rows and counters.
fn the_store_holds_what_it_acknowledged(state: &State, platter: &Platter) -> Result<(), String> {
    let rows: BTreeMap<_, _> =
        platter.rows().into_iter().map(|row| (row.id, (row.state, row.price))).collect();
    let books: BTreeMap<_, _> =
        state.books.entries.iter().map(|(id, entry)| (*id, (entry.state, entry.cost))).collect();
    if rows != books {
        return Err(format!("the store has {rows:?}, and acknowledged {books:?}"));
    }
    let wall = clock::wall();
    platter.wind(wall);
    let spent = finish(platter.store().current_spend(BudgetScope::Total)).expect("counted");
    let today = state.books.today(wall);
    let own = (state.books.spent(None, today, false), state.books.spent(None, today, true));
    match (spent.day, spent.month) == own {
        true => Ok(()),
        false => Err(format!("the store counts {spent:?}, its rows are {own:?}")),
    }
}

fn every_answer_is_true(state: &mut State, seen: &mut Vec<bool>) -> Result<(), String> {
    seen.resize(state.clients.all().len(), false);
    let received = state.clients.all().iter().enumerate().filter(|(number, _)| !seen[*number]);
    let mut received: Vec<(usize, Wish, Received)> = received
        .filter_map(|(number, Client { wish, received, .. })| {
            Some((number, *wish, received.clone()?))
        })
        .collect();
    // The runtime decides which waiter of a purchase wakes first.
    received.sort_by_key(|(number, _, received)| (received.at, *number));
    for (number, wish, received) in received {
        seen[number] = true;
        state.note(|| {
            format!("client {number} received at {:?}: {:?}", received.at, received.answer)
        });
        is_true(state, number, wish, &received)
            .map_err(|why| format!("client {number} received {:?}: {why}", received.answer))?;
    }
    Ok(())
}

fn is_true(
    state: &mut State,
    client: usize,
    wish: Wish,
    received: &Received,
) -> Result<(), String> {
    let own = name(client);
    match &received.answer {
        Answer::Receipt { status: 200, body, micros, is_replay } => {
            state.tally.add(if *is_replay { "joined or replayed" } else { "receipt" });
            let flight = state.gateway.flight_of(body).ok_or("nobody sent that")?;
            let id = flight.id.ok_or("it is of no purchase")?;
            let (at, cost) = flight.charges.ok_or("it was not charged")?;
            if at > received.at || cost.as_micros() != *micros {
                return Err(format!("it was charged {cost} at {at:?}"));
            }
            let bought = state.clients.wish(id);
            let is_same = bought.identity() == wish.identity() && bought.order == wish.order;
            if !is_same || (id == own) == *is_replay {
                return Err(format!("it is the reply to {id}, {bought:?}"));
            }
            let entry = state.books.entries.get(&id).ok_or("it is not in the books")?;
            let is_kept =
                entry.state == ledger::PurchaseState::Charged && entry.reply.as_ref() == Some(body);
            match is_kept || entry.was_refused {
                true => Ok(()),
                false => Err(format!("it is kept as {entry:?}")),
            }
        }
        Answer::Receipt { .. } => {
            state.tally.add("refusal passed on");
            is_free(state, own).and_then(|()| is_given_back(state, own))
        }
        Answer::Problem { code, charged } => {
            if !ENDINGS.contains(code) {
                return Err("nobody should hear that".to_owned());
            }
            state.tally.add(code);
            let mut same = state.books.entries.iter().filter(|(_, entry)| {
                entry.identity == wish.identity() && entry.order == wish.order
            });
            match charged {
                Charged::No => is_free(state, own).and_then(|()| is_given_back(state, own)),
                Charged::Yes if same.any(|(id, _)| is_free(state, *id).is_err()) => Ok(()),
                Charged::Unknown if *code == "still_running" => Ok(()),
                // It may have become known right after this answer.
                Charged::Unknown
                    if same.any(|(_, entry)| entry.was_unknown || entry.was_refused) =>
                {
                    Ok(())
                }
                Charged::Yes | Charged::Unknown => Err("it is known".to_owned()),
            }
        }
    }
}

/// The price is released before the client learns that nothing was charged.
fn is_given_back(state: &State, own: PurchaseId) -> Result<(), String> {
    match state.books.entries.get(&own) {
        Some(entry) if entry.state != ledger::PurchaseState::Released && !entry.was_refused => {
            Err(format!("its price is still set aside: {entry:?}"))
        }
        Some(_) | None => Ok(()),
    }
}

/// A purchase is never charged.
fn is_free(state: &State, id: PurchaseId) -> Result<(), String> {
    let mut flights = state.gateway.flights.iter();
    match flights.any(|flight| flight.id == Some(id) && flight.charges.is_some()) {
        true => Err("it was charged".to_owned()),
        false => Ok(()),
    }
}

/// Returns every key that may buy nothing now, with the expected answer.
pub(crate) fn replayable(state: &State, wall: Duration) -> Vec<(Wish, Answer)> {
    let mut wishes = Vec::new();
    for (id, entry) in &state.books.entries {
        let wish = state.clients.wish(*id);
        let Asked::Key(_) = wish.claim else { continue };
        let unknown = |charged| Answer::Problem { code: "outcome_unknown", charged };
        let expected = match (entry.state, &entry.reply) {
            (ledger::PurchaseState::Released, _) => continue,
            _ if entry.is_replaced => continue,
            (ledger::PurchaseState::Charged, _)
                if entry.keep_until <= wall + Duration::from_secs(60) =>
            {
                continue;
            }
            (ledger::PurchaseState::Charged, Some(reply)) => replay(reply, entry.cost),
            (ledger::PurchaseState::Charged, None) => unknown(Charged::Yes),
            (
                ledger::PurchaseState::Held
                | ledger::PurchaseState::Sent
                | ledger::PurchaseState::Unknown,
                _,
            ) => unknown(Charged::Unknown),
        };
        wishes.push((wish, expected));
    }
    wishes
}
