//! Tests of the queue, step by step and over random lives.

use super::*;
use crate::clock;

mod random_runs;

const SECOND: Duration = Duration::from_secs(1);

/// A queue with a limit that the gateway told.
fn known(limit: RequestLimit) -> Scheduler {
    let mut queue = Scheduler::with_assumed_limit(limit);
    queue.set_limit(limit);
    queue
}

fn queue(requests: usize) -> Scheduler {
    known(RequestLimit { requests, period: SECOND })
}

fn ticket(number: u64, rank: Priority, caller: &str) -> Ticket {
    Ticket { number, priority: rank, caller: caller.into() }
}

fn enter(queue: &mut Scheduler, numbers: std::ops::Range<u64>, rank: Priority, caller: &str) {
    numbers.for_each(|number| queue.enqueue(&ticket(number, rank, caller), false));
}

/// Grants every free slot.
fn grants(queue: &mut Scheduler, now: Instant) -> Vec<u64> {
    std::iter::from_fn(|| queue.grant(now)).collect()
}

/// In a row: each is answered at once, and the next goes one window later.
fn one_by_one(queue: &mut Scheduler, mut now: Instant) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(granted) = queue.grant(now) {
        queue.release(now);
        order.push(granted);
        now += 2 * SECOND;
    }
    order
}

#[test]
fn slot_is_free_one_period_after_reply_not_after_send() {
    let start = clock::now();
    let mut queue = queue(2);
    enter(&mut queue, 0..3, Priority::Purchase, "a");
    assert_eq!(grants(&mut queue, start), [0, 1]);
    assert_eq!(queue.next_change(start), None, "nobody knows when the replies come");
    queue.release(start + 5 * SECOND);
    assert!(grants(&mut queue, start + 6 * SECOND).is_empty(), "clocks differ");
    let free = queue.next_change(start + 6 * SECOND).unwrap();
    assert_eq!(free, start + 6 * SECOND + Duration::from_millis(1));
    assert_eq!(grants(&mut queue, free), [2]);
}

#[test]
fn nothing_is_granted_while_other_servers_have_all_slots() {
    let start = clock::now();
    let mut queue = queue(3);
    enter(&mut queue, 0..1, Priority::Purchase, "a");
    assert_eq!(grants(&mut queue, start), [0]);
    queue.return_unused();
    queue.pause(start + 5 * SECOND);
    queue.pause(start + 3 * SECOND);
    queue.put_back(&ticket(0, Priority::Purchase, "a"));
    enter(&mut queue, 1..2, Priority::Purchase, "b");
    enter(&mut queue, 2..3, Priority::Internal, "");
    let almost = start + 5 * SECOND - Duration::from_nanos(1);
    assert!(grants(&mut queue, almost).is_empty());
    assert_eq!((queue.free_slots(almost), queue.waiting_count()), (0, 3));
    let next = queue.next_change(almost).unwrap();
    assert_eq!(next, start + 5 * SECOND);
    assert_eq!(queue.earliest(Priority::Purchase, almost), next);
    assert_eq!(grants(&mut queue, next), [2, 0, 1], "what it had before goes before later ones");
}

#[test]
fn unsent_request_takes_no_slot() {
    let start = clock::now();
    let mut queue = queue(1);
    enter(&mut queue, 0..2, Priority::Purchase, "a");
    assert_eq!(grants(&mut queue, start), [0]);
    queue.return_unused();
    assert_eq!(grants(&mut queue, start), [1]);
}

#[test]
fn caller_with_500_requests_does_not_delay_ten_callers_with_one() {
    let mut queue = queue(1);
    enter(&mut queue, 0..500, Priority::Purchase, "greedy");
    for number in 500..510 {
        enter(&mut queue, number..number + 1, Priority::Purchase, &format!("modest {number}"));
    }
    let order = one_by_one(&mut queue, clock::now());
    assert_eq!(order.len(), 510);
    let last = order.iter().position(|number| *number == 509).unwrap();
    assert_eq!(last, 10, "the greedy one goes once, and then the ten");
}

#[test]
fn polls_take_turns_by_caller() {
    let mut queue = queue(1);
    enter(&mut queue, 0..3, Priority::Watched, "a");
    enter(&mut queue, 3..4, Priority::Watched, "b");
    assert_eq!(one_by_one(&mut queue, clock::now()), [0, 3, 1, 2]);
}

#[test]
fn internal_requests_go_first_then_nine_purchases_per_poll() {
    let mut queue = queue(1);
    enter(&mut queue, 0..30, Priority::Watched, "p");
    enter(&mut queue, 100..125, Priority::Purchase, "b");
    enter(&mut queue, 200..201, Priority::Internal, "");
    let order = one_by_one(&mut queue, clock::now());
    assert_eq!(order[0], 200);
    let polls = order.iter().enumerate().filter(|(_, number)| **number < 30);
    let polls: Vec<_> = polls.map(|(place, _)| place).take(3).collect();
    assert_eq!(polls, [10, 20, 28], "after nine purchases each, and when there are no more");
    assert_eq!(order.len(), 56);
}

#[test]
fn polls_leave_last_slots_to_purchases() {
    let start = clock::now();
    for (limit, reserve) in [(1, 0), (4, 0), (5, 1), (10, 1), (11, 2), (60, 6)] {
        let mut queue = queue(limit);
        enter(&mut queue, 0..100, Priority::Watched, "p");
        let moments = (0..3_000).map(|millis| start + Duration::from_millis(millis));
        let polls: usize = moments.map(|now| grants(&mut queue, now).len()).sum();
        assert_eq!(polls, limit - reserve, "{limit}");
        let now = start + 3 * SECOND;
        enter(&mut queue, 100..200, Priority::Purchase, "b");
        assert_eq!(grants(&mut queue, now).len(), reserve, "{limit}");
        assert_eq!(queue.free_slots(now), 0);
    }
}

#[test]
fn polls_are_spread_over_slots_that_purchases_leave() {
    let start = clock::now();
    for (purchases, left) in [(0, 60), (5, 50), (12, 36), (30, 1)] {
        let mut queue = known(RequestLimit { requests: 60, period: 60 * SECOND });
        enter(&mut queue, 0..20, Priority::Watched, "p");
        enter(&mut queue, 100..100 + purchases, Priority::Purchase, "b");
        let first = grants(&mut queue, start);
        let polls = first.iter().filter(|number| **number < 20).count();
        assert_eq!(first.len() - polls, usize::try_from(purchases).unwrap());
        assert_eq!(polls, usize::try_from(purchases / 9).unwrap().max(1), "{purchases}");
        if left > 1 {
            let next = start + Duration::from_millis(60_060) / left;
            assert_eq!(queue.next_change(start), Some(next), "{purchases}");
            assert_eq!(grants(&mut queue, next).len(), 1, "{purchases}");
        } else {
            // The burst may go on. If it does not, polls go on after half a window.
            let next = start + Duration::from_millis(30_030);
            assert_eq!(queue.next_change(start), Some(next));
            assert_eq!(grants(&mut queue, next).len(), 1);
        }
    }
}

#[test]
fn watched_jobs_are_polled_before_unwatched_ones_except_every_tenth_time() {
    let mut queue = queue(1);
    enter(&mut queue, 0..3, Priority::Unwatched, "u");
    enter(&mut queue, 100..120, Priority::Watched, "w");
    let order = one_by_one(&mut queue, clock::now());
    let unwatched = order.iter().enumerate().filter(|(_, number)| **number < 100);
    let unwatched: Vec<_> = unwatched.map(|(place, _)| place).collect();
    assert_eq!((unwatched, order.len()), (vec![9, 19, 22], 23));
}

#[test]
fn assumed_limit_keeps_one_slot_for_internal_request() {
    let start = clock::now();
    let mut queue = Scheduler::with_assumed_limit(RequestLimit { requests: 5, period: SECOND });
    enter(&mut queue, 0..9, Priority::Purchase, "a");
    enter(&mut queue, 20..22, Priority::Watched, "p");
    assert_eq!(grants(&mut queue, start), [0, 1, 2, 3]);
    let expected = queue.earliest(Priority::Purchase, start);
    assert!(expected > start && queue.earliest(Priority::Internal, start) == start);
    enter(&mut queue, 10..12, Priority::Internal, "");
    assert_eq!(grants(&mut queue, start), [10], "it is counted, too");
    queue.set_limit(RequestLimit { requests: 7, period: SECOND });
    assert_eq!(grants(&mut queue, start), [11, 4]);
}

#[test]
fn steady_purchases_do_not_starve_polls() {
    let mut now = clock::now();
    let mut queue = queue(5);
    enter(&mut queue, 0..1, Priority::Watched, "p");
    // One place is always free, the one that is kept: four calls without a reply yet.
    (0..4).for_each(|_| queue.in_flight += 1);
    let mut before = 0;
    for number in 1..50 {
        enter(&mut queue, number..number + 1, Priority::Purchase, "b");
        if grants(&mut queue, now).contains(&0) {
            break;
        }
        before += 1;
        queue.release(now);
        now += 2 * SECOND;
    }
    assert_eq!(before, 9);
}

#[test]
fn smaller_limit_waits_for_sent_requests_and_larger_one_applies_at_once() {
    let start = clock::now();
    let mut queue = queue(4);
    enter(&mut queue, 0..9, Priority::Purchase, "a");
    assert_eq!(grants(&mut queue, start).len(), 4);
    (0..4).for_each(|step| queue.release(start + step * SECOND / 10));
    queue.set_limit(RequestLimit { requests: 2, period: 2 * SECOND });
    for (millis, granted) in [(1_500, 0), (2_110, 0), (2_210, 1), (2_310, 1), (2_400, 0)] {
        let now = start + Duration::from_millis(millis);
        assert_eq!(grants(&mut queue, now).len(), granted, "{millis}");
    }
    queue.set_limit(RequestLimit { requests: 5, period: 2 * SECOND });
    assert_eq!(grants(&mut queue, start + Duration::from_millis(2_400)).len(), 3);
}

#[test]
fn longer_period_counts_expired_replies_again() {
    let start = clock::now();
    let mut queue = queue(3);
    enter(&mut queue, 0..9, Priority::Purchase, "a");
    grants(&mut queue, start);
    (0..3).for_each(|_| queue.release(start));
    assert_eq!(grants(&mut queue, start + 2 * SECOND).len(), 3);
    (0..3).for_each(|_| queue.release(start + 2 * SECOND));
    queue.set_limit(RequestLimit { requests: 7, period: 60 * SECOND });
    assert_eq!(grants(&mut queue, start + 30 * SECOND).len(), 1);
}

#[test]
fn no_slot_is_granted_until_429_is_over() {
    let start = clock::now();
    let mut queue = queue(10);
    enter(&mut queue, 0..1, Priority::Internal, "");
    enter(&mut queue, 1..2, Priority::Purchase, "a");
    queue.throttle(Some(3 * SECOND), start);
    queue.throttle(Some(SECOND), start);
    queue.throttle(None, start);
    assert_eq!((queue.free_slots(start), grants(&mut queue, start).len()), (0, 0));
    assert_eq!(queue.next_change(start), Some(start + 3 * SECOND));
    assert_eq!(queue.earliest(Priority::Purchase, start), start + 3 * SECOND);
    assert_eq!(grants(&mut queue, start + 3 * SECOND), [0, 1]);
}

#[test]
fn polls_wait_less_for_the_limit_than_purchases() {
    let start = clock::now();
    let held = || {
        let mut queue = queue(9);
        queue.wait_for_limit(start);
        enter(&mut queue, 0..1, Priority::Purchase, "a");
        enter(&mut queue, 1..2, Priority::Watched, "a");
        enter(&mut queue, 2..3, Priority::Internal, "");
        assert_eq!(grants(&mut queue, start), [2]);
        assert_eq!(queue.next_change(start), Some(start + SECOND));
        assert_eq!(queue.expected_turn(Priority::Purchase, "a", start), start + 5 * SECOND);
        queue
    };
    let mut unanswered = held();
    assert_eq!(grants(&mut unanswered, start + SECOND), [1]);
    assert_eq!(grants(&mut unanswered, start + 5 * SECOND), [0]);
    let mut answered = held();
    answered.set_limit(RequestLimit { requests: 9, period: SECOND });
    assert_eq!(grants(&mut answered, start), [0, 1]);
    let mut refused = held();
    refused.stop_waiting_for_limit();
    assert_eq!(grants(&mut refused, start), [0, 1]);
}

#[test]
fn restart_restores_log() {
    let start = clock::now();
    let mut queue = queue(3);
    queue.restore([start + SECOND, start].into_iter());
    enter(&mut queue, 0..9, Priority::Purchase, "a");
    let now = start + SECOND + SECOND / 2;
    assert_eq!(grants(&mut queue, now).len(), 2);
}

#[test]
fn expected_wait_ends_when_slot_is_free() {
    let start = clock::now();
    let millis = Duration::from_millis;
    let mut queue = queue(3);
    assert_eq!(queue.expected_turn(Priority::Purchase, "x", start), start);
    enter(&mut queue, 0..3, Priority::Purchase, "a");
    grants(&mut queue, start);
    queue.release(start + millis(100));
    queue.release(start + millis(300));
    let now = start + millis(500);
    // One reply is still to come.
    for (waiting, expected) in [(0, 1_101), (1, 1_301), (2, 1_501), (3, 2_102), (4, 2_302)] {
        let told = queue.expected_turn(Priority::Purchase, "x", now);
        assert_eq!(told, start + millis(expected), "behind {waiting}");
        let name = format!("caller {waiting}");
        queue.enqueue(&ticket(10 + waiting, Priority::Purchase, &name), false);
    }
    // A caller with none waiting goes before the second of each of the others.
    let modest = queue.expected_turn(Priority::Purchase, "x", now);
    enter(&mut queue, 20..60, Priority::Purchase, "caller 0");
    assert_eq!(queue.expected_turn(Priority::Purchase, "x", now), modest);
    assert!(queue.expected_turn(Priority::Purchase, "caller 0", now) > modest);
}

#[test]
fn wait_after_429_without_retry_after_doubles_up_to_one_period() {
    let mut now = clock::now();
    let mut queue = known(RequestLimit { requests: 9, period: 10 * SECOND });
    for (told, seconds) in
        [(None, 2), (None, 4), (None, 8), (None, 10), (Some(SECOND), 1), (None, 10)]
    {
        queue.throttle(told, now);
        assert_eq!(queue.next_change(now), Some(now + seconds * SECOND));
        now += seconds * SECOND;
    }
    queue.reset_throttle();
    queue.throttle(None, now);
    assert_eq!(queue.next_change(now), Some(now + 2 * SECOND));
}

#[test]
fn concurrent_429s_count_once() {
    let start = clock::now();
    let mut queue = known(RequestLimit { requests: 9, period: 10 * SECOND });
    for _ in 0..5 {
        queue.throttle(None, start);
    }
    assert_eq!(queue.next_change(start), Some(start + 2 * SECOND));
    let later = start + 3 * SECOND;
    queue.throttle(None, later);
    assert_eq!(queue.next_change(later), Some(later + 4 * SECOND));
}

#[test]
fn expected_wait_of_purchase_includes_polls() {
    let start = clock::now();
    let told = |polls: u64| {
        let mut queue = queue(1);
        for number in 0..9 {
            queue.enqueue(&ticket(number, Priority::Purchase, &format!("caller {number}")), false);
        }
        enter(&mut queue, 9..9 + polls, Priority::Watched, "a");
        queue.expected_turn(Priority::Purchase, "x", start) - start
    };
    assert_eq!(told(1) - told(0), told(0) / 9, "one more round");
    assert_eq!(told(5), told(1), "every tenth alone");
}

#[test]
fn expired_replies_delay_nothing() {
    let start = clock::now();
    let mut queue = queue(2);
    (0..2).for_each(|_| queue.release(start));
    let later = start + 10 * SECOND;
    assert_eq!(queue.expected_turn(Priority::Purchase, "x", later), later);
    assert_eq!(queue.earliest(Priority::Internal, later), later);
}

#[test]
fn replies_are_dropped_once_no_period_needs_them() {
    let start = clock::now();
    let mut queue = queue(MIN_KEPT_REPLIES + 100);
    (0..MIN_KEPT_REPLIES + 100).for_each(|_| queue.release(start));
    assert_eq!(queue.replies.len(), MIN_KEPT_REPLIES + 100, "all of them count");
    queue.release(start + 2 * SECOND);
    assert_eq!(queue.replies.len(), MIN_KEPT_REPLIES);
}
