//! What `tollgate member` can be told, as the command line writes it.

use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};

use super::portion::{self, Portion};
use crate::access::token::TOKEN_PREFIX;
use crate::cli::Format;
use crate::contract::wire::KEY_PREFIX;
use crate::store::{self, is_member_name};

/// `tollgate member …`
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Change {
    /// Adds members and prints their tokens, once
    Add {
        /// 1 to 64 of a-z 0-9 . _ -; a name is never given to another
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// What each may spend: 5.00/day, 50.00/month, or both
        #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = portion::read)]
        budgets: Vec<Portion>,
        /// What it may do
        #[arg(long, value_enum, default_value = "member")]
        role: Role,
    },
    /// Lists all members, their budgets and what they spent
    List {
        /// How it is printed
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Ends members' tokens and logins, for good
    Revoke {
        /// Whose
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
    },
    /// Changes members' budget or role
    Update {
        /// Whose
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// What changes
        #[command(flatten)]
        to: Update,
    },
    /// Gives members another token and prints it, once; the old one and its logins end
    Rotate {
        /// Whose
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// Goes on with the secret as it is now: tokens that were made with another hold no more
        #[arg(long)]
        new_secret: bool,
    },
}

/// What `update` changes.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(id = "to", required = true, multiple = true)]
pub struct Update {
    /// What it may spend: 5.00/day, 50.00/month, or both; a period that is not named stays as it is
    #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = portion::read)]
    pub(super) budgets: Vec<Portion>,
    /// Takes its own budget away; with --budget, all but that
    #[arg(long)]
    pub(super) no_budget: bool,
    /// What it may do
    #[arg(long, value_enum)]
    pub(super) role: Option<Role>,
}

/// `--role`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Buys for itself
    Member,
    /// Sees everybody's spend and jobs, and the account's numbers as well
    Admin,
}

impl From<Role> for store::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Member => Self::Member,
            Role::Admin => Self::Admin,
        }
    }
}

fn name(text: &str) -> Result<Arc<str>, &'static str> {
    if text.starts_with(TOKEN_PREFIX) || text.starts_with(KEY_PREFIX) {
        return Err("expected a name, not a token or a key");
    }
    is_member_name(text).then(|| text.into()).ok_or("expected 1 to 64 of a-z 0-9 . _ -")
}
