//! What may happen next, and how often it does.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Buy,
    Repeat,
    HangUp,
    Turn,
    Moment,
    Seconds,
    Minutes,
    Crash,
    Stop,
    Jump,
    RefuseStore,
    RevokeKey,
    RenewKeys,
    PollJob,
    LearnCredit,
    Reconcile,
    Forget,
}

/// How often each is taken.
pub(crate) const STEPS: &[(u64, Step)] = &[
    (24, Step::Buy),
    (22, Step::Repeat),
    (9, Step::HangUp),
    (12, Step::Turn),
    (24, Step::Moment),
    (14, Step::Seconds),
    (4, Step::Minutes),
    (6, Step::Crash),
    (1, Step::Stop),
    (3, Step::Jump),
    (6, Step::RefuseStore),
    (2, Step::RevokeKey),
    (3, Step::RenewKeys),
    (5, Step::PollJob),
    (3, Step::LearnCredit),
    (3, Step::Reconcile),
    (1, Step::Forget),
];
/// For a run in which nothing has gone wrong.
pub(crate) const FAULTS: &[Step] = &[Step::Crash, Step::Stop, Step::Jump, Step::RefuseStore];
