//! What `tollgate member` can be told, as the command line writes it.

use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};

use super::Refusal;
use crate::access::token::TOKEN_PREFIX;
use crate::cli::{Exit, Format};
use crate::contract::money::Usd;
use crate::contract::wire::KEY_PREFIX;
use crate::store::{self, Own, is_member_name};

/// `tollgate member …`
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Change {
    /// Adds members and prints their tokens, once
    Add {
        /// 1 to 64 of a-z 0-9 . _ -; a name is never given to another
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// What each may spend: 5.00/day, 50.00/month, or both
        #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = portion)]
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
    #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = portion)]
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

/// What may be spent in one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    /// Per UTC day.
    Day(Usd),
    /// Per UTC month.
    Month(Usd),
}

/// No more than this can be counted.
const MAX_PORTION: Usd = Usd::dollars(1_000_000_000);

fn portion(text: &str) -> Result<Portion, String> {
    let expected = || "expected dollars and a period, such as 5.00/day or 50.00/month".to_owned();
    let (amount, period) = text.split_once('/').ok_or_else(expected)?;
    let amount: Usd = amount.parse().map_err(|error| format!("{}: {error}", expected()))?;
    if amount > MAX_PORTION {
        return Err(format!("expected at most {}", MAX_PORTION.short()));
    }
    match period {
        "day" => Ok(Portion::Day(amount)),
        "month" => Ok(Portion::Month(amount)),
        _ => Err(expected()),
    }
}

/// A period that is named twice is a mistake.
pub(super) fn portions_must_differ(portions: &[Portion]) -> Result<(), Refusal> {
    let day = |portion: &Portion| matches!(portion, Portion::Day(_));
    if portions.len() > 2 || matches!(portions, [one, other] if day(one) == day(other)) {
        let why = "--budget: expected each period once at most".to_owned();
        return Err(Refusal(Exit::Mistake, why));
    }
    Ok(())
}

/// The budget with these portions instead of its own.
pub(super) fn with_portions(own: Own, portions: &[Portion]) -> Own {
    portions.iter().fold(own, |own, portion| match *portion {
        Portion::Day(amount) => Own { day: Some(amount), ..own },
        Portion::Month(amount) => Own { month: Some(amount), ..own },
    })
}

pub(super) fn budget_words(own: Own) -> String {
    match (own.day, own.month) {
        (None, None) => "without a budget of its own".to_owned(),
        (Some(day), None) => format!("budget {} a day", day.short()),
        (None, Some(month)) => format!("budget {} a month", month.short()),
        (Some(day), Some(month)) => {
            format!("budget {} a day, {} a month", day.short(), month.short())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_dollars_and_a_period() {
        for (text, expected) in [
            ("5.00/day", Portion::Day(Usd::dollars(5))),
            ("0.006/month", Portion::Month(Usd::mills(6))),
            ("0/day", Portion::Day(Usd::ZERO)),
        ] {
            assert_eq!(portion(text), Ok(expected));
        }
        for text in ["", "5", "5/week", "5.00 / day", "$5/day", "/day", "-1/day", "1/day/month"] {
            assert!(portion(text).unwrap_err().contains("5.00/day"), "{text}");
        }
        assert!(portion("1000000001/day").is_err());
    }
}
