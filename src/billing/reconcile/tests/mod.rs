//! What can be told of unknown outcomes, and that nothing else is claimed.

pub(in crate::billing) mod world;

use super::*;
use crate::contract::catalog::UNSTATED_CHAT;
use crate::store::{JobState, PurchaseRecord};
use world::{Dice, World};

const START: Duration = Duration::from_secs(1_000_000);
/// When the gateway is asked again.
const LATER: u64 = 3_600;
/// The numbers of the checkpoint: settled, begun.
const SETTLED: u64 = 10;
const BEGUN: u64 = 20;

fn snapshot((chats, chat_cents, spent_cents): (u64, u64, u64), seconds: u64) -> Snapshot {
    let at = START + Duration::from_secs(seconds);
    Snapshot { at, balance_cents: 10_000_000 - spent_cents, chats, chat_cents, spent_cents }
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        snapshot: snapshot((10, 100, 1_000), 0),
        settled_through: SETTLED,
        last_number: BEGUN,
    }
}

fn moved(delta: (i64, i64, i64)) -> Snapshot {
    let by = |then: u64, delta| then.checked_add_signed(delta).unwrap();
    snapshot((by(10, delta.0), by(100, delta.1), by(1_000, delta.2)), LATER)
}

/// Purchases as a word each: a kind (`c` chat of $0.006, `e` chat without a stated price, `v` video of $3,
/// `V` of $5, `o` other of $1) and a state (`+` charged, `?` unknown, `-` released, `>` under way), then
/// any of: `u` sent to an unrecognised account, `!` young, `<` before the checkpoint, `~` under way or young at it, `a` assumed; for a charged
/// video, which is finished otherwise: `f` failed, `p` open, `n` without a job.
fn evidence(words: &str) -> Vec<Evidence> {
    let (mut settled, mut band, mut since) = (0, SETTLED, BEGUN);
    let each = words.split_whitespace().map(|word| {
        let (service, price) = match &word[..1] {
            "c" | "e" => (Service::Chat, Usd::mills(6)),
            "v" => (Service::Video, Usd::dollars(3)),
            "V" => (Service::Video, Usd::dollars(5)),
            "o" => (Service::Other, Usd::dollars(1)),
            other => panic!("{other}"),
        };
        let state = match &word[1..2] {
            "+" => PurchaseState::Charged,
            "?" => PurchaseState::Unknown,
            "-" => PurchaseState::Released,
            ">" => PurchaseState::Sent,
            other => panic!("{other}"),
        };
        let has = |mark| word[2..].contains(mark);
        let (number, at) = match (has('<'), has('~')) {
            (true, _) => (&mut settled, START - Duration::from_secs(900)),
            (_, true) => (&mut band, START - Duration::from_secs(1)),
            (false, false) => (&mut since, START),
        };
        *number += 1;
        let ended = if has('!') { START + Duration::from_secs(LATER - 1) } else { at };
        let job = match (service, state) {
            (Service::Video, PurchaseState::Charged) if has('f') => Some(JobState::Failed),
            (Service::Video, PurchaseState::Charged) if has('p') => Some(JobState::Open),
            (Service::Video, PurchaseState::Charged) if !has('n') => Some(JobState::Finished),
            _ => None,
        };
        let row = PurchaseRecord {
            id: PurchaseId::new(),
            at,
            ended_at: (state != PurchaseState::Sent).then_some(ended),
            caller: "192.0.2.1".to_owned(),
            service,
            model: if word.starts_with('e') { UNSTATED_CHAT } else { "model" }.to_owned(),
            price,
            state,
        };
        let (is_assumed, is_recognised) = (has('a'), !has('u'));
        Evidence {
            purchase: row,
            number: *number,
            is_assumed,
            is_account_confirmed: is_recognised,
            job,
        }
    });
    each.collect()
}

fn told(evidence: &[Evidence], now: &Snapshot) -> (String, bool) {
    let read_at = START + Duration::from_secs(LATER + 5);
    let Verdict { settled, undecided, is_final, .. } =
        decide(&checkpoint(), now, evidence, read_at);
    let of = |id: PurchaseId| {
        let settled = settled.iter().find(|settled| settled.id == id).map(|settled| {
            let charged = if settled.charged.is_some() { "+" } else { "-" };
            let proof = match settled.proof {
                Proof::Count(_) => "count",
                Proof::Spending(_) => "spending",
            };
            format!("{charged}{proof}")
        });
        let doubt =
            undecided.iter().find(|(other, _)| *other == id).map(|(_, doubt)| match doubt {
                Undecided::BeforeCheckpoint(_) => "older".to_owned(),
                Undecided::TooRecent => "young".to_owned(),
                Undecided::CounterDecreased => "back".to_owned(),
                Undecided::Miscounted(_) => "miscounted".to_owned(),
                Undecided::Ambiguous { charged, of } => format!("{charged}/{of}"),
                Undecided::NoCombination => "none".to_owned(),
                Undecided::ManyCombinations => "many".to_owned(),
                Undecided::ProbablyFree => "hidden".to_owned(),
                Undecided::Uncounted => "uncounted".to_owned(),
                Undecided::Contradiction => "contradiction".to_owned(),
                Undecided::BalanceChange(_) => "balance".to_owned(),
                Undecided::ClockSetBack => "clock".to_owned(),
                Undecided::UnconfirmedAccount => "whose".to_owned(),
            });
        assert!(settled.is_none() || doubt.is_none(), "both settled and not");
        settled.or(doubt)
    };
    let unknown = evidence.iter().filter(|entry| entry.purchase.state == PurchaseState::Unknown);
    let told: Vec<_> =
        unknown.map(|entry| of(entry.purchase.id).expect("each has a verdict")).collect();
    assert_eq!(told.len(), settled.len() + undecided.len(), "nothing else is told");
    (told.join(" "), is_final)
}

#[rustfmt::skip]
#[test]
fn counters_decide_what_every_explanation_shares() {
    for (words, delta, expected) in [
        // Chats, by the count.
        ("c?",                (1, 1, 1),      "+count"),
        ("c?",                (0, 0, 0),      "-count"),
        ("c+ c+ c?",          (3, 2, 2),      "+count"),
        ("c+ c- c+ c?",       (2, 1, 1),      "-count"),
        ("c? c? c?",          (3, 2, 2),      "+count +count +count"),
        ("c? c? c?",          (0, 0, 0),      "-count -count -count"),
        ("c? c? c?",          (2, 1, 1),      "2/3 2/3 2/3"),
        // A charge that is not certain counts as nothing or as its price.
        ("c+! c?",            (1, 1, 1),      "1/2"),
        ("c+! c?",            (2, 1, 1),      "+count"),
        ("c+! c?",            (0, 0, 0),      "-count"),
        ("c+a c?",            (1, 1, 1),      "1/2"),
        ("c+~ c?",            (1, 1, 1),      "1/2"),
        ("c+~ c?",            (0, 0, 0),      "-count"),
        ("c> c?",             (1, 1, 1),      "1/2"),
        ("c> c?",             (0, 0, 0),      "-count"),
        ("c?~ c?",            (0, 0, 0),      "older -count"),
        ("c?~ c?",            (1, 1, 1),      "older 1/2"),
        // Somebody else, or counters that contradict what is surely charged.
        ("c+ c?",             (3, 2, 2),      "miscounted"),
        ("c+ c+ c?",          (1, 1, 1),      "miscounted"),
        ("c+ c+ v?",          (1, 1, 1),      "contradiction"),
        ("v? c?",             (0, 0, 0),      "-spending -count"),
        ("v? c?",             (0, 50, 50),    "contradiction contradiction"),
        ("v+ c?",             (0, 0, 0),      "contradiction"),
        ("e+ c?",             (1, 0, 0),      "-count"),
        // Videos, by what was spent beyond what is surely charged.
        ("v?",                (0, 0, 300),    "+spending"),
        ("v?",                (0, 0, 0),      "-spending"),
        ("v?",                (0, 0, 301),    "+spending"),
        ("v?",                (0, 0, 299),    "+spending"),
        ("v?",                (0, 0, 150),    "-spending"),
        ("v?",                (0, 0, 303),    "none"),
        ("v?",                (0, 0, 500),    "none"),
        // The $5 may be somebody else's $2 and the $3 of ours.
        ("v? V?",             (0, 0, 500),    "hidden +spending"),
        ("v? V?",             (0, 0, 300),    "+spending -spending"),
        ("v? V?",             (0, 0, 800),    "+spending +spending"),
        ("v? V?",             (0, 0, 0),      "-spending -spending"),
        ("v? v?",             (0, 0, 600),    "+spending +spending"),
        ("v? v?",             (0, 0, 300),    "1/2 1/2"),
        ("v? v? v? v? v? V? V? V?", (0, 0, 1_500), "many many many many many many many many"),
        ("v+ V+ v?",          (0, 0, 800),    "-spending"),
        ("v+ V+ v?",          (0, 0, 1_100),  "+spending"),
        // What was inferred makes no room for a release.
        ("v? V+a",            (0, 0, 500),    "hidden"),
        // A video that failed may be refunded, whether it was charged before the checkpoint or since.
        ("v+f v?",            (0, 0, 300),    "1/2"),
        ("v+f v?",            (0, 0, 600),    "+spending"),
        ("v+f v?",            (0, 0, 0),      "-spending"),
        ("v+p v?",            (0, 0, 300),    "1/2"),
        ("v+n v?",            (0, 0, 300),    "1/2"),
        ("v+<f v?",           (0, 0, 0),      "1/2"),
        ("v+<f v?",           (0, 0, 300),    "+spending"),
        ("v+<f v?",           (0, 0, -300),   "-spending"),
        ("v+<f V?",           (0, 0, 0),      "-spending"),
        ("v+< v?",            (0, 0, 0),      "-spending"),
        ("v?< v?",            (0, 0, 0),      "older 1/2"),
        ("v+~f v?",           (0, 0, 0),      "1/3"),
        ("v+~ v?",            (0, 0, 0),      "-spending"),
        ("v+~ v?",            (0, 0, 300),    "1/2"),
        // Both at once.
        ("c+ c? v?",          (2, 1, 301),    "+count +spending"),
        ("c+ c? v?",          (1, 1, 301),    "-count +spending"),
        ("c+ c? v?",          (1, 1, 1),      "-count -spending"),
        // Nobody knows what a passed-through endpoint costs.
        ("o+ v?",             (0, 0, 400),    "+spending"),
        ("o+ v?",             (0, 0, 100),    "-spending"),
        ("v? o?",             (0, 0, 400),    "+spending uncounted"),
        ("v? o? o? o?",       (0, 0, 300),    "many uncounted uncounted uncounted"),
        // What is young may still be charged; what was charged is charged.
        ("c?!",               (0, 0, 0),      "young"),
        ("c?!",               (1, 1, 1),      "+count"),
        ("c? c?!",            (0, 0, 0),      "-count young"),
        ("v?!",               (0, 0, 0),      "young"),
        // Before the checkpoint, nothing is known.
        ("c?< c?",            (1, 1, 1),      "older +count"),
        // What may be another account's is never settled, and proves nothing of the others.
        ("c?u",               (0, 0, 0),      "whose"),
        ("c?u",               (1, 1, 1),      "whose"),
        ("v?u",               (0, 0, 0),      "whose"),
        ("v?u",               (0, 0, 300),    "whose"),
        ("c?<u c?",           (1, 1, 1),      "whose +count"),
        ("c?~u c?",           (1, 1, 1),      "whose 1/2"),
        ("c?u c?",            (0, 0, 0),      "whose -count"),
        ("c?u c?",            (1, 1, 1),      "whose 1/2"),
        ("c+u c?",            (1, 1, 1),      "1/2"),
        ("c+u c?",            (0, 0, 0),      "-count"),
        ("v+u v?",            (0, 0, 300),    "1/2"),
        ("v+u v?",            (0, 0, 0),      "-spending"),
        ("o?u c?u",           (-1, 0, 0),     "whose whose"),
        ("c?",                (-1, 0, 0),     "back"),
        ("c? v?",             (0, -1, 0),     "back back"),
        ("",                  (0, 0, 0),      ""),
    ] {
        assert_eq!(told(&evidence(words), &moved(delta)).0, expected, "{words:?} with {delta:?}");
    }
}

#[test]
fn unexplained_balance_blocks_release() {
    for (by, expected) in [
        (-2_i64, "balance balance"),
        (-1, "-count -spending"),
        (0, "-count -spending"),
        (1, "-count -spending"),
        (2, "balance balance"),
        (1_000, "balance balance"),
    ] {
        let mut now = moved((0, 0, 0));
        now.balance_cents = now.balance_cents.checked_add_signed(by).unwrap();
        assert_eq!(told(&evidence("c? v?"), &now).0, expected, "{by}");
    }
    let mut now = moved((1, 1, 1));
    now.balance_cents += 1_000;
    assert_eq!(told(&evidence("c?"), &now).0, "+count", "what stays spent needs no balance");
}

#[test]
fn clock_that_went_back_blocks_release() {
    let now = moved((0, 0, 0));
    let second = Duration::from_secs(1);
    let mut sooner = now;
    sooner.at = START - second;
    assert_eq!(told(&evidence("c?"), &sooner).0, "clock");
    let mut rows = evidence("c- c?");
    rows[1].purchase.at = START - second;
    assert_eq!(told(&rows, &now).0, "clock", "it began before the checkpoint, by the clock");
    let mut rows = evidence("c- c?");
    rows[0].purchase.at = START + second;
    assert_eq!(told(&rows, &now).0, "clock", "the later one began sooner, by the clock");
    let mut rows = evidence("c-< c?");
    rows[0].purchase.ended_at = Some(START + Duration::from_secs(LATER + 6));
    assert_eq!(told(&rows, &now).0, "clock", "one ended later than now");
}

#[test]
fn checkpoint_is_kept_while_a_later_run_may_decide_more() {
    for (words, delta, is_final) in [
        ("", (0, 0, 0), true),
        ("c?!", (1, 1, 1), true),
        ("c?!", (0, 0, 0), false),
        ("c?! c?", (1, 1, 1), false),
        ("c? c?", (1, 1, 1), true),
        ("c? c+!", (1, 1, 1), false),
        ("c? c>", (1, 1, 1), false),
        ("c+! c>", (1, 1, 1), true),
        ("v? v+p", (0, 0, 300), false),
        ("v? v+f", (0, 0, 300), true),
        ("c?<", (0, 0, 0), true),
        ("c?u", (0, 0, 0), true),
    ] {
        let told = told(&evidence(words), &moved(delta)).1;
        assert_eq!(told, is_final, "{words:?} with {delta:?}");
    }
}

#[test]
fn drift_is_what_neither_side_explains() {
    for (words, spent_cents, chats, difference) in [
        ("v+", 300, 0, Difference::None),
        ("v+ c+", 300, 1, Difference::None),
        ("v+", 301, 0, Difference::More(Usd::mills(10))),
        ("v+", 1_000, 0, Difference::More(Usd::dollars(7))),
        ("v+ V+", 300, 0, Difference::Less(Usd::dollars(5))),
        ("v?", 300, 0, Difference::None),
        ("v? v?", 300, 0, Difference::Unknown),
        ("v? v?", 900, 0, Difference::More(Usd::dollars(3))),
        ("v? v+<", 0, 0, Difference::None),
        ("v>", 300, 0, Difference::Unknown),
    ] {
        let now = moved((chats, chats, spent_cents));
        let Verdict { drift, .. } = decide(&checkpoint(), &now, &evidence(words), now.at);
        assert_eq!(drift.difference(), Some(difference), "{words:?} {spent_cents}: {drift:?}");
    }
}

#[test]
fn thousand_identical_purchases_are_decided_quickly() {
    let many = format!("{} {}", "v? ".repeat(1_000), "V? ".repeat(1_000));
    let (told, _) = told(&evidence(&many), &moved((0, 0, 800_000)));
    assert!(told.split(' ').all(|told| told == "+spending"));
}

/// What was decided in so many worlds.
#[derive(Debug, Default)]
struct Tally {
    unknown: usize,
    released: usize,
    charged: usize,
}

/// Reconciles once in each of so many random worlds.
fn reconcile(worlds: u64, is_plain: bool) -> Tally {
    let mut tally = Tally::default();
    for seed in 0..worlds {
        let mut dice = Dice::new(seed);
        let world = World::random(&mut dice, 7, is_plain);
        let first = if is_plain { 0 } else { dice.below(4_500) };
        let asked = first + if is_plain { 100_000 } else { dice.below(5_000) };
        let delay = |dice: &mut Dice| if is_plain { 0 } else { dice.below(4) };
        let answered = first + delay(&mut dice);
        let noted = answered + delay(&mut dice);
        let before = match is_plain {
            true => Checkpoint { settled_through: 0, last_number: 0, ..world.checkpoint(0, 0, 0) },
            false => world.checkpoint(first, answered, noted),
        };
        let shown = asked.max(noted) + delay(&mut dice);
        let read = shown + delay(&mut dice);
        let now = world.snapshot(asked.max(noted), shown);
        let evidence = world.evidence(&before, read);
        let verdict = decide(&before, &now, &evidence, world.wall(read));
        tally.unknown += verdict.settled.len() + verdict.undecided.len();
        for settled in &verdict.settled {
            let has_paid = world.has_paid(settled.id, shown);
            match settled.charged {
                None => {
                    tally.released += 1;
                    assert!(
                        !has_paid,
                        "seed {seed}: released {settled:?}\n{before:?}\n{now:?}\n{world:#?}"
                    );
                }
                Some(_) => {
                    tally.charged += 1;
                    let is_ours = !world.has_strangers;
                    assert!(
                        !is_ours || world.is_charged(settled.id),
                        "seed {seed}: charged {settled:?}\n{before:?}\n{now:?}\n{world:#?}"
                    );
                }
            }
        }
    }
    tally
}

#[test]
fn charged_purchase_is_never_released() {
    let Tally { unknown, released, charged } = reconcile(100_000, false);
    // Most worlds hide something; enough of them do not.
    assert!(unknown > 50_000, "{unknown}");
    assert!(released > 5_000 && charged > 1_000, "{released} and {charged} of {unknown}");
}

#[test]
fn plain_counters_decide_most_outcomes() {
    let Tally { unknown, released, charged } = reconcile(2_000, true);
    assert!((released + charged) * 2 > unknown, "{released} and {charged} of {unknown}");
    assert!(released * 5 > unknown && charged * 10 > unknown, "{released}, {charged}, {unknown}");
}
