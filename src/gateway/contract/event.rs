//! The events that webhooks receive.

/// A kind of event, by its name in `webhooks.events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    BudgetThreshold,
    BalanceLow,
    OutcomeUnknown,
    KeyRefused,
    KeyRevoked,
    KeyRedacted,
    LedgerUnusable,
    CertificateExpiring,
    JobFinished,
    JobFailed,
    /// [`JobFinished`](Self::JobFinished) as OpenAI's SDKs read it.
    VideoCompleted,
    VideoFailed,
    /// Only from `tollgate webhook test`.
    Ping,
}

impl EventKind {
    /// The events that a webhook can choose.
    pub const ALL: [Self; 12] = [
        Self::BudgetThreshold,
        Self::BalanceLow,
        Self::OutcomeUnknown,
        Self::KeyRefused,
        Self::KeyRevoked,
        Self::KeyRedacted,
        Self::LedgerUnusable,
        Self::CertificateExpiring,
        Self::JobFinished,
        Self::JobFailed,
        Self::VideoCompleted,
        Self::VideoFailed,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::BudgetThreshold => "budget.threshold",
            Self::BalanceLow => "balance.low",
            Self::OutcomeUnknown => "outcome.unknown",
            Self::KeyRefused => "key.refused",
            Self::KeyRevoked => "key.revoked",
            Self::KeyRedacted => "key.redacted",
            Self::LedgerUnusable => "ledger.unusable",
            Self::CertificateExpiring => "certificate.expiring",
            Self::JobFinished => "job.finished",
            Self::JobFailed => "job.failed",
            Self::VideoCompleted => "video.completed",
            Self::VideoFailed => "video.failed",
            Self::Ping => "ping",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
