//! The gateway, which counts for itself: what arrives when, and what it charges.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{KeptReply, PurchaseId, Settlement};

use super::run::Wish;
use crate::dice::Dice;

const KEEP: Duration = Duration::from_secs(86_400);

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Served,
    Cheaper,
    Refused,
    /// No reply arrives.
    LostAndCharged,
    LostAndFree,
}

#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) id: PurchaseId,
    pub(super) arrives: Duration,
    /// When the process has the reply, or gives up.
    pub(super) replied: Duration,
    pub(super) charge: Option<Usd>,
    fate: Fate,
}

impl Flight {
    /// What its process has to record.
    pub(super) fn settlement(&self) -> Settlement {
        let reply = KeptReply { status: 200, is_json: true, body: self.id.to_string().into() };
        match (self.fate, self.charge) {
            (Fate::Served | Fate::Cheaper, Some(cost)) => {
                Settlement::Charged { cost, reply: Some(reply), keep: KEEP, job: None }
            }
            (Fate::Refused, _) => Settlement::Released,
            _ => Settlement::Unknown,
        }
    }
}

#[derive(Default)]
pub(super) struct Gateway {
    flights: Vec<Flight>,
}

impl Gateway {
    /// Takes a request that is written now. Its bytes arrive within the time that a socket has.
    pub(super) fn take(&mut self, dice: &mut Dice, id: PurchaseId, wish: &Wish, now: Duration) {
        let fate = dice.weighed(&[
            (70, Fate::Served),
            (10, Fate::Cheaper),
            (8, Fate::Refused),
            (7, Fate::LostAndCharged),
            (5, Fate::LostAndFree),
        ]);
        let charge = match fate {
            Fate::Served | Fate::LostAndCharged => Some(wish.price),
            Fate::Cheaper => Some(Usd::micros(wish.price.as_micros() / 2)),
            Fate::Refused | Fate::LostAndFree => None,
        };
        let arrives =
            now + if dice.chance(85) { dice.millis(0, 800) } else { dice.millis(1_000, 9_000) };
        let replied = arrives
            + if dice.chance(90) { dice.millis(50, 3_000) } else { dice.millis(15_000, 45_000) };
        self.flights.push(Flight { id, arrives, replied, charge, fate });
    }

    pub(super) fn flight(&self, id: PurchaseId) -> Option<&Flight> {
        self.flights.iter().find(|flight| flight.id == id)
    }

    /// Returns what each purchase was charged, and for how many the bytes may still arrive.
    pub(super) fn charges(&self, now: Duration) -> BTreeMap<PurchaseId, Vec<Usd>> {
        let mut charges: BTreeMap<PurchaseId, Vec<Usd>> = BTreeMap::new();
        for flight in self.flights.iter().filter(|flight| flight.arrives <= now) {
            charges.entry(flight.id).or_default().extend(flight.charge);
        }
        charges
    }

    /// Fails if more requests arrived within a period than the limit allows.
    pub(super) fn check_window(&self, limit: usize, period: Duration) -> Result<(), String> {
        let mut arrivals: Vec<_> = self.flights.iter().map(|flight| flight.arrives).collect();
        arrivals.sort_unstable();
        let over = arrivals.iter().zip(arrivals.iter().skip(limit));
        match over.into_iter().find(|(first, last)| **last - **first < period) {
            None => Ok(()),
            Some((first, last)) => {
                Err(format!("window: {} requests between {first:?} and {last:?}", limit + 1))
            }
        }
    }
}
