//! What can be told of unknown outcomes, and that nothing else is claimed.

use proptest::prelude::*;

use super::*;

const START: Duration = Duration::from_secs(1_000_000);
const LONG_AGO: Duration = START.saturating_sub(Duration::from_secs(1));
/// All rows of the table began and ended right after the checkpoint, so many seconds ago.
const LATER: u64 = 3_600;

fn books(chats: u64, chat_cents: u64, spent_cents: u64, seconds: u64) -> Checkpoint {
    let at = START + Duration::from_secs(seconds);
    Checkpoint { at, balance_cents: 10_000_000 - spent_cents, chats, chat_cents, spent_cents }
}

fn row(service: Service, toll: Usd, state: State, at: Duration) -> Row {
    let (caller, model) = ("192.0.2.1".to_owned(), "model".to_owned());
    Row { id: PurchaseId::new(), at, ended: Some(at), caller, service, model, toll, state }
}

/// Rows as a word each: a kind (`c` chat of $0.006, `v` video of $3, `V` of $5, `o` other of $1) and
/// a state (`+` posted, `?` unknown, `-` voided); with `!` it is young, with `<` before the checkpoint.
fn rows(words: &str) -> Vec<Row> {
    let each = words.split_whitespace().map(|word| {
        let (service, toll) = match &word[..1] {
            "c" => (Service::Chat, Usd::mills(6)),
            "v" => (Service::Video, Usd::dollars(3)),
            "V" => (Service::Video, Usd::dollars(5)),
            "o" => (Service::Other, Usd::dollars(1)),
            other => panic!("{other}"),
        };
        let state = match &word[1..2] {
            "+" => State::Posted,
            "?" => State::Unknown,
            "-" => State::Voided,
            other => panic!("{other}"),
        };
        let at = match &word[2..] {
            "" => START,
            "!" => START + Duration::from_secs(LATER - 1),
            "<" => LONG_AGO,
            other => panic!("{other}"),
        };
        row(service, toll, state, at)
    });
    each.collect()
}

/// The verdict on the unknown rows in their order: `+`, `-`, or why not.
fn verdict(words: &str, (chats, chat_cents, spent_cents): (u64, u64, u64)) -> (String, bool) {
    let rows = rows(words);
    let before = books(10, 100, 1_000, 0);
    let now = books(10 + chats, 100 + chat_cents, 1_000 + spent_cents, LATER);
    let Verdict { settled, undecided, is_final, .. } = decide(&before, &now, &rows);
    let of = |row: &Row| {
        let settled = settled.iter().find(|settled| settled.id == row.id).map(|settled| {
            assert!(settled.charged.is_none_or(|cost| cost == row.toll));
            let charged = if settled.charged.is_some() { "+" } else { "-" };
            let proof = match settled.proof {
                Proof::Count(_) => "count",
                Proof::Spending(_) => "spending",
            };
            format!("{charged}{proof}")
        });
        let doubt = undecided.iter().find(|(id, _)| *id == row.id).map(|(_, doubt)| match doubt {
            Doubt::Older(_) => "older".to_owned(),
            Doubt::Young => "young".to_owned(),
            Doubt::WentBack => "back".to_owned(),
            Doubt::Miscounted(_) => "miscounted".to_owned(),
            Doubt::WhichOne { charged, of } => format!("{charged}/{of}"),
            Doubt::NoSum => "none".to_owned(),
            Doubt::ManySums => "many".to_owned(),
            Doubt::Uncounted => "uncounted".to_owned(),
        });
        assert!(settled.is_none() || doubt.is_none(), "both settled and not");
        settled.or(doubt)
    };
    let unknown = rows.iter().filter(|row| row.state == State::Unknown);
    let told: Vec<_> = unknown.map(|row| of(row).expect("each has a verdict")).collect();
    assert_eq!(told.len(), settled.len() + undecided.len(), "nothing else is told");
    (told.join(" "), is_final)
}

#[rustfmt::skip]
#[test]
fn what_the_counters_tell_is_told_and_nothing_else() {
    for (words, delta, told) in [
        // Chats, by the count alone.
        ("c?",                (1, 0, 0),      "+count"),
        ("c?",                (1, 1, 1),      "+count"),
        ("c?",                (0, 0, 0),      "-count"),
        ("c+ c+ c?",          (3, 1, 1),      "+count"),
        ("c+ c- c+ c?",       (2, 1, 1),      "-count"),
        ("c? c? c?",          (3, 2, 2),      "+count +count +count"),
        ("c? c? c?",          (0, 0, 0),      "-count -count -count"),
        ("c? c? c?",          (2, 1, 1),      "2/3 2/3 2/3"),
        ("c+ c? c?",          (2, 1, 1),      "1/2 1/2"),
        // Somebody else, or books that lag.
        ("c+ c?",             (3, 2, 2),      "miscounted"),
        ("c+ c+ c?",          (1, 1, 1),      "miscounted"),
        ("c? v?",             (2, 1, 301),    "miscounted miscounted"),
        ("v?",                (1, 1, 301),    "miscounted"),
        // Videos, by what was spent beyond chats.
        ("v?",                (0, 0, 300),    "+spending"),
        ("v?",                (0, 0, 0),      "-spending"),
        ("v?",                (0, 0, 301),    "+spending"),
        ("v?",                (0, 0, 299),    "+spending"),
        ("v?",                (0, 0, 302),    "none"),
        ("v?",                (0, 0, 150),    "none"),
        ("v?",                (0, 0, 500),    "none"),
        ("v? V?",             (0, 0, 500),    "-spending +spending"),
        ("v? V?",             (0, 0, 300),    "+spending -spending"),
        ("v? V?",             (0, 0, 800),    "+spending +spending"),
        ("v? V?",             (0, 0, 0),      "-spending -spending"),
        ("v? v?",             (0, 0, 600),    "+spending +spending"),
        ("v? v?",             (0, 0, 300),    "1/2 1/2"),
        ("v? v? V?",          (0, 0, 800),    "1/2 1/2 +spending"),
        ("v? v? v? v? v? V? V? V?", (0, 0, 1_500), "many many many many many many many many"),
        ("v+ V+ v?",          (0, 0, 800),    "-spending"),
        ("v+ V+ v?",          (0, 0, 1_100),  "+spending"),
        ("v+ V+ v?",          (0, 0, 300),    "none"),
        // Both at once; what chats cost is the gateway's own figure.
        ("c+ c? v?",          (2, 1, 301),    "+count +spending"),
        ("c+ c? v?",          (1, 1, 301),    "-count +spending"),
        ("c+ c? v?",          (1, 0, 1),      "-count -spending"),
        ("c? c? v?",          (1, 500, 800),  "1/2 1/2 +spending"),
        // What nothing counts widens what videos may have cost.
        ("o+ v?",             (0, 0, 400),    "+spending"),
        ("o? v?",             (0, 0, 400),    "+spending uncounted"),
        ("o? v?",             (0, 0, 300),    "+spending uncounted"),
        ("o? o? o? v?",       (0, 0, 300),    "many uncounted uncounted uncounted"),
        // What is young may still be charged; what was charged is charged.
        ("c?!",               (0, 0, 0),      "young"),
        ("c?!",               (1, 0, 0),      "+count"),
        ("c? c?!",            (0, 0, 0),      "-count young"),
        ("v?!",               (0, 0, 0),      "young"),
        ("v?! V?",            (0, 0, 500),    "young +spending"),
        // Before the checkpoint, nothing is known.
        ("c?< c?",            (1, 0, 0),      "older +count"),
        ("c+< v+< v?<",       (0, 0, 300),    "older"),
        // Nothing to tell.
        ("",                  (0, 0, 0),      ""),
        ("c+ c- v+",          (9, 9, 9),      ""),
    ] {
        let told_for = |words: &str| verdict(words, delta).0;
        let mut expected: Vec<_> = told.split(' ').collect();
        let (got, mut given) = (told_for(words), Vec::new());
        given.extend(got.split(' '));
        // Rows are told in their own order here.
        if words.starts_with('o') {
            expected.sort_unstable();
            given.sort_unstable();
        }
        assert_eq!(given, expected, "{words:?} with {delta:?}");
    }
}

#[test]
fn only_what_time_can_tell_keeps_the_checkpoint() {
    for (words, delta, is_final) in [
        ("", (0, 0, 0), true),
        ("c?!", (1, 0, 0), true),
        ("c?!", (0, 0, 0), false),
        ("c?! c?", (1, 0, 0), false),
        ("c? c?", (1, 0, 0), true),
        ("c? c? c+!", (2, 0, 0), true),
        ("c+! c+ c?", (1, 0, 0), false),
        ("c+ c+ c?", (1, 0, 0), true),
        ("c?<", (0, 0, 0), true),
    ] {
        assert_eq!(verdict(words, delta).1, is_final, "{words:?} with {delta:?}");
    }
}

#[test]
fn counters_that_went_back_tell_nothing() {
    let rows = rows("c? v? c?<");
    for now in [books(9, 100, 1_000, 60), books(10, 99, 1_000, 60), books(10, 100, 999, 60)] {
        let told = decide(&books(10, 100, 1_000, 0), &now, &rows);
        assert!(told.settled.is_empty());
        let back = told.undecided.iter().filter(|(_, doubt)| *doubt == Doubt::WentBack).count();
        assert_eq!((told.undecided.len(), back), (3, 2));
    }
}

#[test]
fn the_drift_is_what_neither_book_explains() {
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
    ] {
        let before = books(10, 100, 1_000, 0);
        let now = books(10 + chats, 100, 1_000 + spent_cents, LATER);
        let Verdict { drift, .. } = decide(&before, &now, &rows(words));
        assert_eq!(drift.difference(), Some(difference), "{words:?} {spent_cents}: {drift:?}");
    }
}

#[test]
fn a_thousand_alike_are_told_at_once() {
    let many = format!("{} {}", "v? ".repeat(1_000), "V? ".repeat(1_000));
    let (told, _) = verdict(&many, (0, 0, 800_000));
    assert!(told.split(' ').all(|told| told == "+spending"));
}

proptest! {
    /// Whoever is told charged was, and whoever is told free was not, as long as the account is ours.
    #[test]
    fn whatever_is_told_is_true(
        purchases in prop::collection::vec((0..5_usize, 0..4_u8, any::<bool>()), 0..12),
        micros_before in (0..30_000_u64, 0..30_000_u64),
        rounding in 0..3_u64,
    ) {
        let kinds = [
            (Service::Chat, Usd::mills(3)),
            (Service::Chat, Usd::mills(6)),
            (Service::Video, Usd::dollars(3)),
            (Service::Video, Usd::dollars(5)),
            (Service::Other, Usd::mills(1_500)),
        ];
        let cents = |micros: u64| match rounding {
            0 => micros / 10_000,
            1 => micros.div_ceil(10_000),
            _ => (micros + 5_000) / 10_000,
        };
        let (mut chats, mut chat_micros, mut all_micros) = (7, micros_before.0, micros_before.1 + micros_before.0);
        let start = books(chats, cents(chat_micros), cents(all_micros), 0);
        let mut truths = Vec::new();
        for (kind, state, old) in purchases {
            let (service, toll) = kinds[kind];
            let (state, charged) = match state {
                0 => (State::Posted, true),
                1 => (State::Voided, false),
                2 => (State::Unknown, true),
                _ => (State::Unknown, false),
            };
            let at = if old { START } else { START + Duration::from_secs(LATER) };
            let row = row(service, toll, state, at);
            if charged {
                all_micros += toll.as_micros();
                if service == Service::Chat {
                    chats += 1;
                    chat_micros += toll.as_micros();
                }
            }
            truths.push((row, charged));
        }
        let now = books(chats, cents(chat_micros), cents(all_micros), LATER);
        let rows: Vec<Row> = truths.iter().map(|(row, _)| row.clone()).collect();
        let verdict = decide(&start, &now, &rows);
        for settled in &verdict.settled {
            let (row, charged) = truths.iter().find(|(row, _)| row.id == settled.id).unwrap();
            prop_assert_eq!(row.state, State::Unknown);
            prop_assert_eq!(settled.charged.is_some(), *charged);
        }
        let unknown = rows.iter().filter(|row| row.state == State::Unknown).count();
        prop_assert_eq!(verdict.settled.len() + verdict.undecided.len(), unknown);
        for (_, doubt) in &verdict.undecided {
            let blames = matches!(doubt, Doubt::Miscounted(_) | Doubt::NoSum | Doubt::WentBack);
            prop_assert!(!blames, "nobody else uses the account");
        }
        let difference = verdict.drift.difference();
        let agrees = matches!(difference, Some(Difference::None | Difference::Unknown));
        prop_assert!(agrees, "{:?}", difference);
        // A lone one of its kind, long ago, is always told.
        for service in [Service::Chat, Service::Video] {
            let alike: Vec<_> = rows
                .iter()
                .filter(|row| row.service == service && row.state == State::Unknown)
                .collect();
            let others = rows.iter().any(|row| row.service == Service::Other && row.state == State::Unknown);
            if let [lone] = alike[..] && lone.at == START && !(others && service == Service::Video) {
                prop_assert!(verdict.settled.iter().any(|settled| settled.id == lone.id));
            }
        }
    }
}
