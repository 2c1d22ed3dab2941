//! The gateway as a state machine. What was sent to it arrives and is charged, even if the process
//! that sent it dies.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tollgate::gateway::contract::money::Usd;
use tollgate::gateway::{Attempt, GatewayCall};
use tollgate::ledger::PurchaseId;

use crate::dice::Dice;
use crate::setup::{FIRST_VIDEO, ORDERS, Setup};

/// What happens to a request. Charges are made on arrival, except for `ChargedTooLate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Served,
    /// A video that costs less than its list price.
    Cheaper,
    NoConnection,
    NotTaken,
    LostBefore,
    LostAfter,
    Cut,
    Late,
    ChargedTooLate,
    Garbled,
    Encoded,
    TooLarge,
    BrokeBefore,
    BrokeAfter,
    Refused,
    NoCredit,
    Throttled {
        seconds: Option<u64>,
    },
    KeyRefused,
}

impl Fate {
    /// Returns its name in the tally.
    pub(crate) fn fault(self) -> Option<&'static str> {
        Some(match self {
            Self::Served | Self::Cheaper => return None,
            Self::NoConnection => "no connection",
            Self::NotTaken => "connection took nothing",
            Self::LostBefore => "reply lost, free",
            Self::LostAfter => "reply lost, charged",
            Self::Cut => "reply cut in the middle",
            Self::Late => "reply late",
            Self::ChargedTooLate => "charged after we gave up",
            Self::Garbled => "reply garbled",
            Self::Encoded => "reply encoded",
            Self::TooLarge => "reply too large",
            Self::BrokeBefore => "500, free",
            Self::BrokeAfter => "500, charged",
            Self::Refused => "gateway refuses (4xx)",
            Self::NoCredit => "gateway has no credit (402)",
            Self::Throttled { seconds: Some(_) } => "429 with a time",
            Self::Throttled { seconds: None } => "429 without",
            Self::KeyRefused => "401",
        })
    }

    fn is_charged(self) -> bool {
        match self {
            Self::Served
            | Self::Cheaper
            | Self::LostAfter
            | Self::Cut
            | Self::Late
            | Self::ChargedTooLate
            | Self::Garbled
            | Self::Encoded
            | Self::TooLarge
            | Self::BrokeAfter => true,
            Self::NoConnection
            | Self::NotTaken
            | Self::LostBefore
            | Self::BrokeBefore
            | Self::Refused
            | Self::NoCredit
            | Self::Throttled { .. }
            | Self::KeyRefused => false,
        }
    }

    /// Returns whether the purchase may be sent again, because it was provably not accepted.
    fn may_be_sent_again(self) -> bool {
        matches!(self, Self::NotTaken | Self::Throttled { .. } | Self::KeyRefused)
    }
}

/// What will happen to a request, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    pub(crate) fate: Fate,
    pub(crate) connect: Duration,
    pub(crate) way: Duration,
    pub(crate) work: Duration,
}

/// A request that is or was in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    /// `None` if it is free.
    pub(crate) id: Option<PurchaseId>,
    pub(crate) fate: Fate,
    pub(crate) arrives: Duration,
    pub(crate) charges: Option<(Duration, Usd)>,
    /// When its reply arrives at the process that sent it.
    pub(crate) replied: Duration,
    pub(crate) life: u64,
    /// The account's balance after it.
    left: Usd,
    has_arrived: bool,
    is_charged: bool,
}

pub(crate) struct Gateway {
    dice: Dice,
    trouble: u64,
    timeout: Duration,
    requests: usize,
    period: Duration,
    pub(crate) is_healed: bool,
    pub(crate) revoked: BTreeSet<usize>,
    pub(crate) credit: Usd,
    pub(crate) flights: Vec<Flight>,
    /// When the requests of the last rate-limit window arrived.
    arrived: VecDeque<Duration>,
}

impl Gateway {
    pub(crate) fn new(setup: &Setup, dice: Dice) -> Self {
        Self {
            dice,
            trouble: setup.trouble,
            timeout: setup.timeout,
            requests: setup.requests as usize,
            period: setup.period,
            is_healed: false,
            revoked: BTreeSet::new(),
            credit: setup.credit,
            flights: Vec::new(),
            arrived: VecDeque::new(),
        }
    }

    /// Draws what will happen to an attempt.
    pub(crate) fn course(&mut self, attempt: &Attempt) -> Course {
        let dice = &mut self.dice;
        let (connect, way) = (dice.millis(0, 8), dice.millis(0, 30));
        let work = match dice.chance(80) {
            true => dice.millis(0, 2_000),
            false => dice.millis(2_000, 20_000),
        };
        let troubled = dice.chance(self.trouble) && !self.is_healed;
        let wait = dice.between(0, 40);
        let trouble = dice.weighed(&[
            (2, Fate::NoConnection),
            (2, Fate::NotTaken),
            (2, Fate::LostBefore),
            (2, Fate::LostAfter),
            (2, Fate::Cut),
            (2, Fate::Late),
            (1, Fate::ChargedTooLate),
            (2, Fate::Garbled),
            (1, Fate::Encoded),
            (1, Fate::TooLarge),
            (1, Fate::BrokeBefore),
            (1, Fate::BrokeAfter),
            (2, Fate::Refused),
            (2, Fate::Throttled { seconds: Some(wait) }),
            (2, Fate::Throttled { seconds: None }),
            (1, Fate::Cheaper),
        ]);
        let order = order(&attempt.request.call);
        let fate = match troubled {
            true => trouble,
            false => Fate::Served,
        };
        let never_there = matches!(fate, Fate::NoConnection | Fate::NotTaken);
        let fate = if self.revoked.contains(&attempt.key) && !never_there {
            Fate::KeyRefused
        } else if fate.is_charged() && order.is_some_and(|order| self.credit < price(order)) {
            Fate::NoCredit
        } else if fate == Fate::Cheaper && order.is_none_or(|order| order < FIRST_VIDEO) {
            Fate::Served
        } else {
            fate
        };
        Course { fate, connect, way, work }
    }

    /// Records that it was authorized.
    pub(crate) fn take(
        &mut self,
        attempt: &Attempt,
        course: Course,
        (now, life): (Duration, u64),
    ) -> Result<usize, String> {
        let order = order(&attempt.request.call);
        let id = attempt.request.before_send.as_ref().and_then(|purchase| purchase.purchase());
        if order.is_some() && id.is_none() {
            return Err("something was sent that is not marked in the ledger".to_owned());
        }
        let before = self.flights.iter().filter(|flight| id.is_some() && flight.id == id);
        if let Some(flight) = before.into_iter().find(|flight| !flight.fate.may_be_sent_again()) {
            return Err(format!("{id:?} was sent again after {:?}", flight.fate));
        }
        let arrives = now + course.way;
        let charges = order.filter(|_| course.fate.is_charged()).map(|order| {
            let at = match course.fate == Fate::ChargedTooLate {
                true => now + self.timeout + course.work,
                false => arrives,
            };
            let price = price(order);
            let cost = match course.fate == Fate::Cheaper {
                true => price.saturating_sub(Usd::dollars(1)),
                false => price,
            };
            self.credit = self.credit.saturating_sub(cost);
            (at, cost)
        });
        let flight = Flight {
            id,
            fate: course.fate,
            arrives,
            charges,
            replied: now + course.way + course.work,
            life,
            left: self.credit,
            has_arrived: course.fate == Fate::NotTaken,
            is_charged: false,
        };
        self.flights.push(flight);
        Ok(self.flights.len() - 1)
    }

    /// Returns an error if the released purchase may have been charged.
    pub(crate) fn is_provably_free(&self, id: PurchaseId) -> Result<(), String> {
        let free =
            |fate: Fate| fate.may_be_sent_again() || matches!(fate, Fate::Refused | Fate::NoCredit);
        let flight = self.flights.iter().find(|flight| flight.id == Some(id) && !free(flight.fate));
        match flight {
            None => Ok(()),
            Some(flight) => Err(format!("{id} is released after {:?}", flight.fate)),
        }
    }

    /// Returns the reply to a request.
    pub(crate) fn body(&self, flight: usize, what: &GatewayCall) -> Bytes {
        let cost = self.flights[flight].charges.map_or(Usd::ZERO, |(_, cost)| cost);
        match what {
            GatewayCall::Video(_) => {
                let (cost, left) = (cost.short(), self.flights[flight].left.short());
                format!(
                    r#"{{"request_id":"job-{flight}","cost":{{"this_request":"{cost}"}},"balance":"{left}"}}"#
                )
            }
            GatewayCall::Chat(_) => format!(r#"{{"message":{{"content":"flight {flight}"}}}}"#),
            GatewayCall::VideoStatus { .. } | GatewayCall::Billing | GatewayCall::Passthrough { .. } => "{}".to_owned(),
        }
        .into()
    }

    /// Returns the purchase that a reply body belongs to.
    pub(crate) fn flight_of(&self, body: &[u8]) -> Option<&Flight> {
        let digits: String =
            String::from_utf8_lossy(body).chars().filter(char::is_ascii_digit).collect();
        let text = String::from_utf8_lossy(body);
        let number = match text.strip_prefix(r#"{"request_id":"job-"#) {
            Some(rest) => rest.split('"').next()?.parse().ok()?,
            None => digits.parse::<usize>().ok()?,
        };
        self.flights.get(number)
    }

    /// Runs what is due. Returns the charges, and whether the rate limit held.
    pub(crate) fn pass(&mut self, now: Duration) -> (Vec<(PurchaseId, Usd)>, Result<u64, String>) {
        let (mut charged, mut arrivals) = (Vec::new(), Vec::new());
        for flight in &mut self.flights {
            if !flight.has_arrived && flight.arrives <= now {
                flight.has_arrived = true;
                arrivals.push(flight.arrives);
            }
            if let (Some((at, cost)), Some(id)) = (flight.charges, flight.id)
                && !flight.is_charged
                && at <= now
            {
                flight.is_charged = true;
                charged.push((id, cost));
            }
        }
        arrivals.sort();
        let count = arrivals.len() as u64;
        for at in arrivals {
            self.arrived.retain(|earlier| *earlier + self.period > at);
            self.arrived.push_back(at);
            if self.arrived.len() > self.requests {
                let within = (self.arrived.len(), self.requests, self.period);
                return (charged, Err(format!("{within:?} requests in a window at {at:?}")));
            }
        }
        (charged, Ok(count))
    }

    /// Forgets arrivals before a restart that the gate cannot know, because the wall clock was set.
    pub(crate) fn forgive_window(&mut self) {
        self.arrived.clear();
    }
}

/// Returns what is bought, by its index in the list; `None` if it is free.
fn order(what: &GatewayCall) -> Option<usize> {
    match what {
        GatewayCall::Chat(body) | GatewayCall::Video(body) => {
            ORDERS.iter().position(|order| order.get().body == *body)
        }
        GatewayCall::VideoStatus { .. }
        | GatewayCall::Billing
        | GatewayCall::Passthrough { .. } => None,
    }
}

fn price(order: usize) -> Usd {
    ORDERS[order].get().price
}
