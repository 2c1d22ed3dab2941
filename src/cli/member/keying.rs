//! The secret that a member's token is made with: found, or made, once it is known that it is needed.

use std::io::{self, Write};

use crate::access::SecretFault;
use crate::access::token::Secret;
use crate::cli::{Exit, secret};
use crate::config::Config;
use crate::store::{Identity, Member};

use super::Refusal;

/// A secret, and whose tokens it ends.
pub(super) struct Keying {
    pub(super) secret: Secret,
    ended: Option<Ended>,
}

/// The tokens that were made with another one.
struct Ended {
    of: usize,
    is_made: bool,
}

impl Keying {
    /// The secret of the settings, beside a ledger with these members that was keyed by the one `before`.
    /// Another one is taken where the file with it is gone, or where it `may_change`. Nothing of the
    /// ledger is changed yet, but the file is made: so whatever can be refused has been judged before.
    /// It stays where the change still fails, since somebody else may have made a token with it by then.
    pub(super) fn of(
        config: &Config,
        members: &[Member],
        before: Option<Identity>,
        may_change: bool,
    ) -> Result<Self, Refusal> {
        let is_made = secret::is_missing(config);
        let secret = secret::secret_or_new(config).map_err(Refusal::failed)?;
        let is_another = before.is_some_and(|print| print != secret.print());
        if is_another && !is_made && !may_change {
            return Err(Refusal(Exit::Mistake, SecretFault::Another.to_string()));
        }
        let of = members.iter().filter(|member| member.revoked.is_none()).count();
        let ended = (of > 0 && (is_made || is_another)).then_some(Ended { of, is_made });
        Ok(Self { secret, ended })
    }

    /// Says what has ended, if anything. A server that runs has the secret that it started with.
    pub(super) fn tell(&self, is_served: bool, err: &mut impl Write) -> io::Result<()> {
        let Some(Ended { of, is_made }) = self.ended else { return Ok(()) };
        let what = match is_made {
            true => "was not beside the ledger and is made anew",
            false => "is another one from now on",
        };
        let when = match is_served {
            true => {
                "the server that runs keeps the one before until it is started again, and the token \
                 below does not hold there; after that "
            }
            false => "",
        };
        writeln!(
            err,
            "the secret {what}: {when}the tokens of {of} earlier members hold no more; put it back as \
             it was, or give each another token with `tollgate member rotate`"
        )
    }
}
