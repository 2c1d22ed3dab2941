//! Who calls: callers, members and their logins, and who was refused for free.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Clock, Digest, Unavailable};
use crate::contract::money::Usd;
use crate::sync::lock;

/// Who is asking: limits, budgets, keys and jobs count per caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Somebody without credentials, by address: IPv4 as it is, IPv6 by its /64.
    Address(IpAddr),
    /// Who holds a token that tollgate issued, by the member's name.
    Member(Arc<str>),
    /// A user of the web app's own login, by its JWT's `sub`.
    Subject(Arc<str>),
}

const MEMBER: &str = "member:";
const SUBJECT: &str = "subject:";

impl Caller {
    /// Whether text that a caller is written as is that of a member or a subject.
    pub fn is_authenticated(written: &str) -> bool {
        written.starts_with(MEMBER) || written.starts_with(SUBJECT)
    }

    /// The network of so many leading bits (of IPv4, of IPv6) that an address is in.
    pub fn network(&self, bits: (u32, u32)) -> Option<IpAddr> {
        match self {
            Self::Address(IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(u32::BITS - bits.0).unwrap_or(0);
                Some(Ipv4Addr::from_bits(address.to_bits() & mask).into())
            }
            Self::Address(IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(u128::BITS - bits.1).unwrap_or(0);
                Some(Ipv6Addr::from_bits(address.to_bits() & mask).into())
            }
            Self::Member(_) | Self::Subject(_) => None,
        }
    }

    /// Where this caller's idempotency keys live. Addresses move, so those who are known by nothing
    /// else share one namespace.
    pub fn namespace(&self) -> String {
        match self {
            Self::Address(_) => "open".to_owned(),
            Self::Member(_) | Self::Subject(_) => self.to_string(),
        }
    }
}

/// As the ledger and the log write it. No address looks like a member or a subject.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(network)) => write!(f, "{network}/64"),
            Self::Member(name) => write!(f, "{MEMBER}{name}"),
            Self::Subject(subject) => write!(f, "{SUBJECT}{subject}"),
        }
    }
}

/// How often a server looks at the [`edition`](super::Store::members_version): what another process changes holds
/// there after this and the time that reading the list takes.
pub const VERSION_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Logins of one member that are kept; where there are more, the first to be opened are over.
pub(super) const MAX_LOGINS_PER_MEMBER: usize = 100;

const MAX_NAME_LEN: usize = 64;

/// Whether a member may be called so: 1 to 64 of `a-z 0-9 . _ -`.
pub fn is_member_name(text: &str) -> bool {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    (1..=MAX_NAME_LEN).contains(&text.len()) && text.bytes().all(is_plain)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    #[default]
    Member,
    /// Sees everybody's spend and jobs, and the account's numbers.
    Admin,
}

impl Role {
    pub const ALL: [Self; 2] = [Self::Member, Self::Admin];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Admin => "admin",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// A caller's own budget, which holds besides `budget.caller`; `None` is no limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnBudget {
    pub day: Option<Usd>,
    pub month: Option<Usd>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// 1 to 64 of `a-z 0-9 . _ -`; never given to another once it was used.
    pub name: Arc<str>,
    pub role: Role,
    pub own_budget: OwnBudget,
    /// The keyed hash of its token; the token itself is nowhere.
    pub token: Digest,
    /// The token's first characters, by which a person tells it from others.
    pub prefix: Arc<str>,
    /// When it was added: wall-clock time since the Unix epoch.
    pub added_at: Duration,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Duration>,
}

/// A login: the cookie that stands for a member's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginSession {
    /// The keyed hash of the cookie's value.
    pub id: Digest,
    pub member: Arc<str>,
    /// The keyed hash of the token it was opened with: with another token it is over.
    pub token: Digest,
    /// When it ends at the latest: wall-clock time since the Unix epoch.
    pub expires_at: Duration,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum MemberError {
    /// Someone has, or had, this name: jobs and spend stay with it.
    #[error("there is, or was, a member of this name")]
    NameTaken,
    #[error("there is no member of this name")]
    NotFound,
    #[error("this member was revoked")]
    Revoked,
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

#[derive(Clone, Debug)]
pub enum MemberChange {
    Add(Member),
    /// Ends its token and logins for good; one that is revoked already stays as it is.
    Revoke,
    Update(Option<Role>, Option<OwnBudget>),
    /// Gives it another token; the old one and its logins end.
    Rotate(Digest, Arc<str>),
}

const MAX_REFUSALS: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RefusalKey {
    /// Only who sent it: its body was not read.
    Caller(Caller),
    Fingerprint(Digest),
}

/// The latest refusals that cost nothing, by what is known of the request. It lives as long as the
/// process. Whatever it does not remember counts as refused when it was forgotten: a new process starts
/// as if everybody had just been refused, because requests failed while none was running.
pub struct RecentRefusals {
    clock: Clock,
    log: Mutex<RefusalLog>,
}

struct RefusalLog {
    last: HashMap<RefusalKey, Duration>,
    /// Notes in the order in which they were made; one that was renewed is in it more than once.
    order: VecDeque<(RefusalKey, Duration)>,
    forgotten_until: Duration,
}

impl fmt::Debug for RecentRefusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusals").finish_non_exhaustive()
    }
}

impl RecentRefusals {
    /// Nothing is remembered of the time before now. `clock` is the one of the store.
    pub fn new(clock: Clock) -> Self {
        let (last, order, forgotten_until) = (HashMap::new(), VecDeque::new(), clock());
        Self { clock, log: Mutex::new(RefusalLog { last, order, forgotten_until }) }
    }

    pub fn record(&self, of: RefusalKey) {
        let now = (self.clock)();
        let mut noted = lock(&self.log);
        noted.last.insert(of.clone(), now);
        noted.order.push_back((of, now));
        while noted.order.len() > MAX_REFUSALS {
            let Some((of, at)) = noted.order.pop_front() else { return };
            if noted.last.get(&of) == Some(&at) {
                noted.last.remove(&of);
                noted.forgotten_until = noted.forgotten_until.max(at);
            }
        }
    }

    /// When a request like this one, or any of its caller's, may last have been refused.
    pub fn last(&self, caller: &Caller, fingerprint: &Digest) -> Duration {
        let noted = lock(&self.log);
        let keys = [RefusalKey::Caller(caller.clone()), RefusalKey::Fingerprint(*fingerprint)];
        let last = keys.iter().filter_map(|key| noted.last.get(key)).max();
        last.copied().unwrap_or_default().max(noted.forgotten_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_caller_tells_whether_it_has_credentials() {
        let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
        for (caller, has) in [
            (Caller::Address(v4), false),
            (Caller::Address(v6), false),
            (Caller::Member("ann".into()), true),
            (Caller::Subject("ann".into()), true),
        ] {
            assert_eq!(Caller::is_authenticated(&caller.to_string()), has, "{caller}");
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn caller(number: u8) -> Caller {
        Caller::Address([192, 0, 2, number].into())
    }

    /// Refusals at moments that the test sets.
    struct Wound(RecentRefusals, Arc<Mutex<Duration>>);

    impl Wound {
        fn new(now: Duration) -> Self {
            let time = Arc::new(Mutex::new(now));
            let read = Arc::clone(&time);
            Self(RecentRefusals::new(Arc::new(move || *lock(&read))), time)
        }

        fn note(&self, of: RefusalKey, now: Duration) {
            *lock(&self.1) = now;
            self.0.record(of);
        }
    }

    #[test]
    fn refusal_counts_for_its_caller_or_for_its_fingerprint_alone() {
        let refusals = Wound::new(SECOND);
        refusals.note(RefusalKey::Caller(caller(1)), 5 * SECOND);
        refusals.note(RefusalKey::Fingerprint([2; 32]), 7 * SECOND);
        refusals.note(RefusalKey::Fingerprint([3; 32]), 3 * SECOND);
        for (number, print, last) in [(1, 1, 5), (1, 2, 7), (1, 3, 5), (2, 3, 3), (2, 1, 1)] {
            assert_eq!(
                refusals.0.last(&caller(number), &[print; 32]),
                SECOND * last,
                "{number} {print}"
            );
        }
    }

    #[test]
    fn forgotten_refusals_count_for_everybody_and_memory_is_bounded() {
        let refusals = Wound::new(Duration::ZERO);
        refusals.note(RefusalKey::Caller(caller(1)), 2 * SECOND);
        // One that is renewed again and again pushes the others out, and is not forgotten itself.
        for second in 0..MAX_REFUSALS as u32 {
            assert_eq!(refusals.0.last(&caller(2), &[2; 32]), Duration::ZERO);
            refusals.note(RefusalKey::Fingerprint([1; 32]), SECOND * (3 + second));
        }
        assert_eq!(refusals.0.last(&caller(2), &[2; 32]), 2 * SECOND);
        refusals.note(RefusalKey::Fingerprint([1; 32]), 90_000 * SECOND);
        assert_eq!(refusals.0.last(&caller(2), &[2; 32]), 2 * SECOND);
        let noted = refusals.0.log.lock().unwrap();
        assert_eq!((noted.last.len(), noted.order.len()), (1, MAX_REFUSALS));
    }
}
