use proptest::prelude::*;

use super::*;

#[test]
fn last_second_of_month_belongs_to_it() {
    let new_year = Duration::from_secs(1_735_689_600);
    let before = Today::at(new_year - Duration::from_nanos(1), None);
    let after = Today::at(new_year, None);
    assert_eq!((after.day, after.month), (before.day + 1, before.month + 1));
    let of = |today: Today| today.spend(|_| Ok::<_, ()>(Usd::ZERO)).unwrap();
    let (before, after) = (of(before), of(after));
    assert_eq!((before.day_renews_at, before.month_renews_at), (new_year, new_year));
    assert_eq!(after.day_renews_at, new_year + Duration::from_secs(86_400));
    assert_eq!(after.month_renews_at, new_year + Duration::from_secs(31 * 86_400));
}

#[test]
fn clock_that_jumps_back_reopens_no_earlier_day() {
    let wall = Duration::from_secs(1_735_689_600);
    let today = Today::at(wall, None);
    for later in [today.day + 1, today.day + 2] {
        assert_eq!(Today::at(wall, Some(later)), Today::on(later));
    }
    for later in [today.day + 3, today.day + 4_000] {
        assert_eq!(Today::at(wall, Some(later)), today, "{later}");
    }
    assert_eq!(Today::at(wall, Some(3)), Today::at(wall, None));
}

/// An event of one account; sums are in dollars.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A question goes out.
    Ask,
    /// Its answer comes.
    Answer(u64),
    /// A purchase begins: this is covered, or not.
    Begin(u64, bool),
    /// One of this price ends, at this cost.
    End(u64, u64),
    /// The video that began at the question's moment ends, and its reply says what is left.
    EndWith(u64, u64),
    /// The sum that is left.
    Left(Option<u64>),
}
use Step::{Answer, Ask, Begin, End, EndWith, Left as IsLeft};

#[test]
fn remaining_credit_is_balance_minus_uncounted_spending() {
    let rows: &[(&str, &[Step])] = &[
        ("nothing known: everything sells", &[Begin(100, true), IsLeft(None)]),
        ("exactly covered", &[Ask, Answer(3), Begin(3, true), IsLeft(Some(0))]),
        ("not covered", &[Ask, Answer(2), Begin(3, false), IsLeft(Some(2))]),
        ("two at once", &[Ask, Answer(5), Begin(3, true), Begin(3, false), Begin(2, true)]),
        ("given back", &[Ask, Answer(3), Begin(3, true), End(3, 0), Begin(3, true)]),
        ("spent", &[Ask, Answer(5), Begin(3, true), End(3, 3), IsLeft(Some(2)), Begin(3, false)]),
        ("cost above the price", &[Ask, Answer(9), Begin(3, true), End(3, 5), IsLeft(Some(4))]),
        ("counted", &[Begin(3, true), End(3, 3), Ask, Answer(5), IsLeft(Some(5))]),
        ("in flight at the request", &[Begin(3, true), Ask, Answer(5), IsLeft(Some(2))]),
        ("ended before the answer", &[Begin(3, true), Ask, End(3, 3), Answer(5), IsLeft(Some(2))]),
        ("started before the answer", &[Ask, Begin(3, true), Answer(5), IsLeft(Some(2))]),
        (
            "corrected by the next request",
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
        let mut credit = Credit::default();
        let mut mark = CreditWatermark(0);
        let at = Duration::ZERO;
        for (number, step) in steps.iter().enumerate() {
            let place = format!("{name}, step {number}");
            match *step {
                Ask => mark = CreditWatermark(credit.spent),
                Answer(balance) => credit.record_balance(mark, Usd::dollars(balance), at),
                Begin(price, covered) => {
                    let begun = credit.hold(Usd::dollars(price), Usd::ZERO, at);
                    assert_eq!(begun.is_ok(), covered, "{place}");
                }
                End(price, cost) => credit.settle(Usd::dollars(price), Usd::dollars(cost)),
                EndWith(price, left) => {
                    let price = Usd::dollars(price);
                    credit.settle(price, price);
                    credit.record_balance(mark.including(price), Usd::dollars(left), at);
                }
                IsLeft(dollars) => {
                    let left = credit.remaining().map(|left| left.amount);
                    assert_eq!(left, dollars.map(Usd::dollars), "{place}");
                }
            }
        }
    }
}

#[test]
fn older_balance_is_ignored() {
    let mut credit = Credit::default();
    let early = CreditWatermark(credit.spent);
    credit.hold(Usd::dollars(3), Usd::ZERO, Duration::ZERO).unwrap();
    credit.settle(Usd::dollars(3), Usd::dollars(3));
    credit.record_balance(CreditWatermark(credit.spent), Usd::dollars(4), Duration::ZERO);
    // Another program spent two dollars in between.
    credit.record_balance(early, Usd::dollars(9), Duration::ZERO);
    assert_eq!(credit.remaining().map(|left| left.amount), Some(Usd::dollars(4)));
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
    fn sales_never_exceed_the_balance(events in events()) {
        let (mut credit, price) = (Credit::default(), Usd::dollars(3));
        let mut balance = 20_u64;
        credit.record_balance(CreditWatermark(0), Usd::dollars(balance), Duration::ZERO);
        // When each purchase began, and what its charge left; the pending request.
        let mut under_way: Vec<(CreditWatermark, Option<u64>)> = Vec::new();
        let mut asked: Option<(CreditWatermark, Option<u64>)> = None;
        for event in events {
            match event {
                Event::Begin => {
                    if credit.hold(price, Usd::ZERO, Duration::ZERO).is_ok() {
                        under_way.push((CreditWatermark(credit.spent), None));
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
                        credit.settle(price, price);
                    }
                }
                Event::EndWith => {
                    // The last one: its reply may have been overtaken.
                    if let Some(place) = under_way.iter().rposition(|one| one.1.is_some()) {
                        let (mark, left) = under_way.remove(place);
                        let left = Usd::dollars(left.unwrap_or_default());
                        credit.settle(price, price);
                        credit.record_balance(mark.including(price), left, Duration::ZERO);
                    }
                }
                Event::Ask => asked = asked.or(Some((CreditWatermark(credit.spent), None))),
                Event::Look => {
                    if let Some((_, seen @ None)) = &mut asked {
                        *seen = Some(balance);
                    }
                }
                Event::Answer => {
                    if let Some((mark, Some(seen))) = asked {
                        credit.record_balance(mark, Usd::dollars(seen), Duration::ZERO);
                        asked = None;
                    }
                }
            }
            if let Some(left) = credit.remaining() {
                let uncharged = 3 * under_way.iter().filter(|one| one.1.is_none()).count() as u64;
                prop_assert!(left.amount <= Usd::dollars(balance - uncharged));
            }
        }
    }
}

#[test]
fn balance_floor_is_never_sold() {
    let mut credit = Credit::default();
    let now = Duration::ZERO;
    credit.record_balance(credit.watermark(), Usd::dollars(5), now);
    for (price, floor, covered) in [(3, 2, true), (3, 3, false), (5, 0, true), (0, 6, false)] {
        let held = { credit }.hold(Usd::dollars(price), Usd::dollars(floor), now);
        assert_eq!(held.is_ok(), covered, "{price} above {floor}");
    }
    assert!(credit.hold(Usd::dollars(1), Usd::micros(u64::MAX), now).is_err());
}

#[test]
fn balance_older_than_fifteen_minutes_refuses_nothing() {
    let (minute, now) = (Duration::from_secs(60), 10 * MAX_BALANCE_AGE);
    for (ago, floor, sells) in [
        (MAX_BALANCE_AGE - minute, Usd::ZERO, false),
        (MAX_BALANCE_AGE - minute, Usd::dollars(10), false),
        (MAX_BALANCE_AGE + minute, Usd::ZERO, true),
        (MAX_BALANCE_AGE + minute, Usd::dollars(10), true),
    ] {
        let mut credit = Credit::default();
        let mark = credit.watermark();
        credit.record_balance(mark, Usd::dollars(2), now - ago);
        let sold = credit.hold(Usd::dollars(3), floor, now);
        assert_eq!(sold.is_ok(), sells, "reported {ago:?} ago, {floor}");
        // A newer balance applies at once, and counts what was sold on the old one.
        credit.record_balance(mark, Usd::dollars(5), now);
        let more = credit.hold(Usd::dollars(3), Usd::ZERO, now);
        assert_eq!(more.is_ok(), !sells, "{ago:?}");
    }
}
