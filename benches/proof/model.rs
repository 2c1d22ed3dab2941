//! A simulated day of a public page: visitors, an attacker with many addresses, and one budget for all.
//!
//! It uses no clock and no chance: a proof takes exactly the average number of nonces.

use std::fmt::Write as _;

use tollgate::access::proof::bits;
use tollgate::gateway::contract::money::Usd;

const DAY: u64 = 86_400;
const BUDGET: u64 = 20_000_000;
const PRICE: u64 = 6_000;
/// Each visitor has a conversation. They come evenly over the day.
const VISITORS: u64 = 200;
const CHATS: u64 = 10;
const CHAT_SECONDS: u64 = 30;
/// The attack begins at eight in the morning and does not end.
const ATTACK: u64 = 8 * 3_600;
const ADDRESSES: u64 = 1_000;
/// The default `[limits]`: 10 at once, then one in two seconds. `budget.caller` is $0.50 a day.
const BURST: u64 = 10;
const SECONDS_PER_CHAT: u64 = 2;
const CALLER_BUDGET: u64 = 500_000;

/// Kinds of attackers, with the number of hashes that each computes in a second.
pub(crate) const ATTACKERS: [(&str, u64); 5] = [
    ("a script that computes nothing", 0),
    ("one phone", 300_000),
    ("one laptop, in its browser", 4_000_000),
    ("one server, 16 cores", 160_000_000),
    ("one graphics card", 2_000_000_000),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Micro-dollars that the attacker has spent.
    pub(crate) lost: u64,
    /// The visitors who got their last reply.
    pub(crate) served: u64,
    /// The seconds from the beginning of the attack to the end of the budget.
    pub(crate) drained_after: Option<u64>,
}

/// Simulates the day of an attacker with so many hashes a second.
pub(crate) fn day(hashes: u64, has_proof: bool) -> Outcome {
    let (mut left, mut outcome) = (BUDGET, Outcome::default());
    let (mut credit, mut tokens) = (0, ADDRESSES * BURST);
    for second in 0..DAY {
        let mut computed = if second < ATTACK { 0 } else { hashes + credit };
        while second >= ATTACK && tokens > 0 && outcome.lost + PRICE <= ADDRESSES * CALLER_BUDGET {
            let work = work(left, has_proof);
            if left < PRICE || work > computed {
                break;
            }
            computed -= work;
            tokens -= 1;
            left -= PRICE;
            outcome.lost += PRICE;
        }
        // No more than one proof is begun before it can be used.
        credit = computed.min(work(left, has_proof));
        tokens = (tokens + ADDRESSES / SECONDS_PER_CHAT).min(ADDRESSES * BURST);
        // A visitor has all replies before the next one comes.
        let since = second % (DAY / VISITORS);
        if since.is_multiple_of(CHAT_SECONDS) && since / CHAT_SECONDS < CHATS && left >= PRICE {
            left -= PRICE;
            outcome.served += u64::from(since / CHAT_SECONDS == CHATS - 1);
        }
        if left < PRICE && second >= ATTACK && outcome.drained_after.is_none() {
            outcome.drained_after = Some(second - ATTACK + 1);
        }
    }
    outcome
}

/// The nonces that a purchase takes on average.
fn work(left: u64, has_proof: bool) -> u64 {
    match bits(Usd::micros(left), Usd::micros(BUDGET)) {
        bits if bits > 0 && has_proof => 1 << bits,
        _ => 0,
    }
}

/// The table of the guide.
pub(crate) fn table() -> String {
    let mut table = "| The attacker has | Limits alone: lost, served, drained after | With proof of work |\n|---|---|---|\n".to_owned();
    for (name, hashes) in ATTACKERS {
        let cells = [false, true].map(|has_proof| {
            let Outcome { lost, served, drained_after } = day(hashes, has_proof);
            let (dollars, cents) = (lost / 1_000_000, lost / 10_000 % 100);
            let drained = drained_after.map_or("never".to_owned(), span);
            format!("${dollars}.{cents:02}, {served} of {VISITORS}, {drained}")
        });
        // Writing to a string cannot fail.
        writeln!(table, "| {name} | {} | {} |", cells[0], cells[1]).ok();
    }
    table
}

fn span(seconds: u64) -> String {
    match seconds {
        0..=99 => format!("{seconds} s"),
        100..=5_999 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{} h", (seconds + 1_800) / 3_600),
    }
}
