//! What the balance covers, in every order in which things can happen.

use std::future::{pending, ready};

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::purchase::tests::{SOON, accepted, answered, context, purchase, purchases};
use crate::purchase::{Context, Terms};
use crate::upstream::{Error, Reply};

/// What happens to one account; sums are in dollars.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A question goes out.
    Ask,
    /// Its answer comes.
    Answer(u64),
    /// A purchase begins: this is covered, or not.
    Begin(u64, bool),
    /// One of this toll ends, at this cost.
    End(u64, u64),
    /// The video that began at the question's moment ends, and its reply says what is left.
    EndWith(u64, u64),
    /// So much is left.
    Left(Option<u64>),
}
use Step::{Answer, Ask, Begin, End, EndWith, Left as IsLeft};

#[test]
fn what_is_left_is_what_was_said_less_what_it_may_not_have_counted() {
    let rows: &[(&str, &[Step])] = &[
        ("nothing known: everything sells", &[Begin(100, true), IsLeft(None)]),
        ("exactly covered", &[Ask, Answer(3), Begin(3, true), IsLeft(Some(0))]),
        ("not covered", &[Ask, Answer(2), Begin(3, false), IsLeft(Some(2))]),
        ("two at once", &[Ask, Answer(5), Begin(3, true), Begin(3, false), Begin(2, true)]),
        ("given back", &[Ask, Answer(3), Begin(3, true), End(3, 0), Begin(3, true)]),
        ("spent", &[Ask, Answer(5), Begin(3, true), End(3, 3), IsLeft(Some(2)), Begin(3, false)]),
        ("dearer than its toll", &[Ask, Answer(9), Begin(3, true), End(3, 5), IsLeft(Some(4))]),
        ("counted", &[Begin(3, true), End(3, 3), Ask, Answer(5), IsLeft(Some(5))]),
        ("under way at the question", &[Begin(3, true), Ask, Answer(5), IsLeft(Some(2))]),
        ("ended before the answer", &[Begin(3, true), Ask, End(3, 3), Answer(5), IsLeft(Some(2))]),
        ("begun before the answer", &[Ask, Begin(3, true), Answer(5), IsLeft(Some(2))]),
        (
            "the next question mends it",
            &[
                Begin(3, true),
                Ask,
                Answer(5),
                End(3, 3),
                IsLeft(Some(2)),
                Ask,
                Answer(5),
                IsLeft(Some(5)),
            ],
        ),
        ("credit was added", &[Ask, Answer(1), Begin(3, false), Ask, Answer(9), Begin(3, true)]),
        ("a reply that says it", &[Ask, Begin(3, true), EndWith(3, 7), IsLeft(Some(7))]),
        (
            "a reply beside another purchase",
            &[
                Ask,
                Begin(3, true),
                Begin(2, true),
                EndWith(3, 7),
                IsLeft(Some(5)),
                End(2, 2),
                IsLeft(Some(5)),
            ],
        ),
        (
            "a reply after another one ended",
            &[Ask, Begin(3, true), Begin(2, true), End(2, 2), EndWith(3, 7), IsLeft(Some(5))],
        ),
    ];
    for (name, steps) in rows {
        let mut state = State::default();
        let mut mark = Mark(0);
        let at = Duration::ZERO;
        for (number, step) in steps.iter().enumerate() {
            let place = format!("{name}, step {number}");
            match *step {
                Ask => mark = Mark(state.spent),
                Answer(balance) => state.learnt(mark, Usd::dollars(balance), at),
                Begin(toll, covered) => {
                    let begun = state.set_aside(Usd::dollars(toll), Usd::ZERO);
                    assert_eq!(begun.is_ok(), covered, "{place}");
                }
                End(toll, cost) => state.settle(Usd::dollars(toll), Usd::dollars(cost)),
                EndWith(toll, left) => {
                    let toll = Usd::dollars(toll);
                    state.settle_with(toll, toll, mark, Usd::dollars(left), at);
                }
                IsLeft(dollars) => {
                    let left = state.left().map(|left| left.amount);
                    assert_eq!(left, dollars.map(Usd::dollars), "{place}");
                }
            }
        }
    }
}

#[test]
fn an_answer_that_is_older_than_what_is_known_is_not_taken() {
    let mut state = State::default();
    let early = Mark(state.spent);
    state.set_aside(Usd::dollars(3), Usd::ZERO).unwrap();
    state.settle(Usd::dollars(3), Usd::dollars(3));
    state.learnt(Mark(state.spent), Usd::dollars(4), Duration::ZERO);
    // Somebody else spent two dollars in between.
    state.learnt(early, Usd::dollars(9), Duration::ZERO);
    assert_eq!(state.left().map(|left| left.amount), Some(Usd::dollars(4)));
}

#[test]
fn the_floor_is_never_sold() {
    let credit = Credit::default();
    credit.learnt(credit.mark(), Usd::dollars(5));
    for (toll, floor, covered) in [(3, 2, true), (3, 3, false), (5, 0, true), (0, 6, false)] {
        let cover = credit.cover(Usd::dollars(toll), Usd::dollars(floor));
        assert_eq!(cover.is_ok(), covered, "{toll} above {floor}");
        if let Ok(cover) = cover {
            cover.settle(Charge::Free, None);
        }
    }
    assert!(credit.cover(Usd::dollars(1), Usd::micros(u64::MAX)).is_err());
}

/// A gateway that charges at some moment between a purchase's beginning and its end, and answers
/// questions at some moment between these and their answers.
#[derive(Clone, Copy, Debug)]
enum Event {
    Begin,
    Charge,
    End,
    /// The same, with a reply that says what was left right after the charge.
    EndWith,
    Ask,
    Look,
    Answer,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => Just(Event::Begin),
        3 => Just(Event::Charge),
        2 => Just(Event::End),
        2 => Just(Event::EndWith),
        1 => Just(Event::Ask),
        2 => Just(Event::Look),
        2 => Just(Event::Answer),
    ];
    prop::collection::vec(event, 0..200)
}

proptest! {
    #[test]
    fn nothing_is_ever_sold_that_the_gateway_cannot_charge(events in events()) {
        let (mut state, toll) = (State::default(), Usd::dollars(3));
        let mut balance = 20_u64;
        state.learnt(Mark(0), Usd::dollars(balance), Duration::ZERO);
        // When each purchase began, and what its charge left; the question that is under way.
        let mut under_way: Vec<(Mark, Option<u64>)> = Vec::new();
        let mut asked: Option<(Mark, Option<u64>)> = None;
        for event in events {
            match event {
                Event::Begin => {
                    if state.set_aside(toll, Usd::ZERO).is_ok() {
                        under_way.push((Mark(state.spent), None));
                    }
                }
                Event::Charge => {
                    if let Some((_, left @ None)) = under_way.iter_mut().find(|one| one.1.is_none()) {
                        prop_assert!(balance >= 3, "sold without cover");
                        balance -= 3;
                        *left = Some(balance);
                    }
                }
                Event::End => {
                    if let Some(place) = under_way.iter().position(|one| one.1.is_some()) {
                        under_way.remove(place);
                        state.settle(toll, toll);
                    }
                }
                Event::EndWith => {
                    // The last one: its reply may have been overtaken.
                    if let Some(place) = under_way.iter().rposition(|one| one.1.is_some()) {
                        let (mark, left) = under_way.remove(place);
                        let left = Usd::dollars(left.unwrap_or_default());
                        state.settle_with(toll, toll, mark, left, Duration::ZERO);
                    }
                }
                Event::Ask => asked = asked.or(Some((Mark(state.spent), None))),
                Event::Look => {
                    if let Some((_, seen @ None)) = &mut asked {
                        *seen = Some(balance);
                    }
                }
                Event::Answer => {
                    if let Some((mark, Some(seen))) = asked {
                        state.learnt(mark, Usd::dollars(seen), Duration::ZERO);
                        asked = None;
                    }
                }
            }
            if let Some(left) = state.left() {
                let uncharged = 3 * under_way.iter().filter(|one| one.1.is_none()).count() as u64;
                prop_assert!(left.amount <= Usd::dollars(balance - uncharged));
            }
        }
    }
}

#[tokio::test]
async fn an_outcome_changes_what_is_left_by_what_is_known_of_its_charge() {
    const SAID: &str = r#"{"request_id":"r","balance":"$41.50"}"#;
    type Answer = fn() -> Result<Reply, Error>;
    let outcomes: [(Answer, u64); 5] = [
        (|| Ok(accepted()), 47_000_000),
        (|| Ok(answered(200, SAID)), 41_500_000),
        (|| Ok(answered(402, SAID)), 50_000_000),
        (|| Err(Error::NotTaken), 50_000_000),
        (|| Err(Error::Late(SOON)), 47_000_000),
    ];
    for (outcome, left) in outcomes {
        let context = context(SOON);
        let credit = &context.credit;
        credit.learnt(credit.mark(), Usd::dollars(50));
        let _ = purchases(&context, move |_| ready(outcome())).complete(&purchase()).await;
        let amount = credit.left().map(|left| left.amount);
        assert_eq!(amount, Some(Usd::micros(left)), "{:?}", outcome());
    }
}

#[tokio::test]
async fn a_purchase_that_is_dropped_half_way_counts_as_spent() {
    let context = context(SOON);
    let (credit, purchase) = (&context.credit, purchase());
    credit.learnt(credit.mark(), Usd::dollars(50));
    let purchases = purchases(&context, |_| pending());
    drop(purchases.complete(&purchase));
    assert_eq!(credit.left().map(|left| left.amount), Some(Usd::dollars(50)));
    assert!(purchases.complete(&purchase).now_or_never().is_none());
    assert_eq!(credit.left().map(|left| left.amount), Some(Usd::dollars(47)));
}

#[tokio::test]
async fn a_balance_that_nobody_has_told_for_a_quarter_of_an_hour_refuses_nothing() {
    let minute = Duration::from_secs(60);
    for (ago, floor, sells) in [
        (STALE - minute, Usd::ZERO, false),
        (STALE - minute, Usd::dollars(10), false),
        (STALE + minute, Usd::ZERO, true),
        (STALE + minute, Usd::dollars(10), true),
    ] {
        let credit = Credit::default();
        let mark = credit.mark();
        credit.lock().learnt(mark, Usd::dollars(2), clock::wall() - ago);
        let sold = credit.cover(Usd::dollars(3), floor);
        assert_eq!(sold.is_ok(), sells, "told {ago:?} ago, {floor}");
        // A newer word holds at once, and counts what was sold on the old one.
        credit.learnt(mark, Usd::dollars(5));
        let more = credit.cover(Usd::dollars(3), Usd::ZERO);
        assert_eq!(more.is_ok(), !sells, "{ago:?}");
    }
}

#[tokio::test]
async fn a_refusal_says_who_can_help_and_nothing_of_the_account() {
    let context = context(SOON);
    let terms = Terms { balance_floor: Usd::dollars(1), ..context.terms };
    context.credit.learnt(context.credit.mark(), Usd::micros(2_109_999));
    let purchases =
        purchases(&Context { terms, ..context }, |_| async { panic!("it is not sent") });
    let problem = purchases.complete(&purchase()).await.expect_err("not covered");
    assert_eq!(problem.kind().code, "insufficient_credit");
    let answer = problem.into_response("");
    let body = answer.into_body();
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("costs $3.00, which the account"), "{text}");
    assert!(!text.contains("2.1") && !text.contains("1.00"), "{text}");
    assert!(text.contains("who runs this service has to add credit"), "{text}");
}

#[test]
fn whoever_follows_the_balance_hears_once_that_something_was_sold() {
    let credit = Credit::default();
    assert!(!credit.was_used());
    let cover = credit.cover(Usd::dollars(1), Usd::ZERO).expect("nothing is known");
    cover.settle(Charge::Free, None);
    assert!(credit.was_used());
    assert!(!credit.was_used());
}
