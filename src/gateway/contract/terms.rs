//! The terms of a member: all that admins set of it.
//!
//! The command line, the endpoints, the reports, the page's form, the audit log and the ledger read one table of them,
//! [`TERMS`]. A new term is one row there, and a column of the ledger.

use std::fmt;
use std::sync::Arc;

use super::member::Role;
use super::money::{Period, SpendLimit, Usd};
use super::selection::Selection;

/// A row of [`TERMS`].
pub struct Term {
    /// Its name in requests, reports and the audit log. Its flag has dashes instead.
    pub name: &'static str,
    /// Its column in the ledger, which holds text.
    pub column: &'static str,
    /// The text for `--help` and the page.
    pub help: &'static str,
    pub value: fn(&MemberTerms) -> TermValue<'_>,
    pub input: fn(&mut TermsChange) -> TermInput<'_>,
    /// Sets it to what [`TermValue::text`] has written. Returns `None` if the text cannot be read.
    pub read: fn(&mut MemberTerms, Option<&str>) -> Option<()>,
}

/// The value of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermValue<'a> {
    Role(Role),
    Name(Option<&'a str>),
    Limits(SpendLimit),
    Selection(Option<&'a Selection>),
}

impl TermValue<'_> {
    /// Returns the text that the ledger keeps.
    pub fn text(self) -> Option<String> {
        match self {
            Self::Role(role) => Some(role.name().to_owned()),
            Self::Name(name) => name.map(str::to_owned),
            Self::Limits(limits) => Some(budget_text(limits)),
            Self::Selection(names) => names.map(Selection::to_string),
        }
    }

    /// Returns the text for people; `None` if there is no value.
    pub fn shown(self) -> Option<String> {
        self.text().filter(|text| !text.is_empty())
    }
}

/// Where a change of a term is written to.
pub enum TermInput<'a> {
    /// One of [`Role::ALL`].
    Role(&'a mut Option<Role>),
    /// A name as [`parse_name`](super::member::parse_name) reads it.
    Name(&'a mut Option<Option<Arc<str>>>),
    Limits(&'a mut LimitChange),
    Selection(&'a mut Option<Option<Selection>>),
}

/// A type of values.
pub trait TermType: Sized {
    type Change;

    fn value(&self) -> TermValue<'_>;
    fn input(change: &mut Self::Change) -> TermInput<'_>;
    fn read(text: Option<&str>) -> Option<Self>;
}

trait Change<T> {
    fn apply(self, before: T) -> T;
}

impl<T> Change<T> for Option<T> {
    fn apply(self, before: T) -> T {
        self.unwrap_or(before)
    }
}

macro_rules! term_types {
    ($($type:ty, $change:ty, $kind:ident($of:ident => $value:expr), $text:ident => $read:expr;)*) => { $(
        impl TermType for $type {
            type Change = $change;

            fn value(&self) -> TermValue<'_> {
                let $of = self;
                TermValue::$kind($value)
            }

            fn input(change: &mut $change) -> TermInput<'_> {
                TermInput::$kind(change)
            }

            fn read($text: Option<&str>) -> Option<Self> {
                $read
            }
        }
    )* };
}
term_types! {
    Role, Option<Self>, Role(role => *role),
        text => Self::ALL.into_iter().find(|role| Some(role.name()) == text);
    Option<Arc<str>>, Option<Self>, Name(name => name.as_deref()), text => Some(text.map(Into::into));
    SpendLimit, LimitChange, Limits(limits => *limits), text => read_budget(text?);
    Option<Selection>, Option<Self>, Selection(names => names.as_ref()),
        text => Some(text.map(Selection::parse));
}

/// Declares the terms, their changes and their table.
macro_rules! terms {
    ($($(#[$doc:meta])* $term:ident: $type:ty, $column:literal, $help:literal;)*) => {
        /// The terms of a member that admins set.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct MemberTerms { $($(#[$doc])* pub $term: $type,)* }

        /// A change of [`MemberTerms`]. `None` leaves a term as it is, `Some(None)` removes it.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct TermsChange { $(pub $term: <$type as TermType>::Change,)* }

        impl TermsChange {
            /// Returns the terms after the change.
            pub fn apply(self, before: MemberTerms) -> MemberTerms {
                MemberTerms { $($term: self.$term.apply(before.$term),)* }
            }
        }

        /// The terms in the order in which they are shown.
        pub const TERMS: &[Term] = &[$(Term {
            name: stringify!($term),
            column: $column,
            help: $help,
            value: |terms| terms.$term.value(),
            input: |change| <$type>::input(&mut change.$term),
            read: |terms, text| {
                terms.$term = <$type>::read(text)?;
                Some(())
            },
        },)*];
    };
}

terms! {
    role: Role, "role",
        "Role of the members";
    group: Option<Arc<str>>, "group_name",
        "Group whose budget they share; add it first with `tollgate group add`";
    budget: SpendLimit, "budget",
        "Spending limit of each member, by day, week, month or ever: 5.00/day; repeat it to set several";
    /// `None` is `access.may_buy`.
    may_buy: Option<Selection>, "may_buy",
        "Services and models that they may buy: chat, video, other or ids, separated by commas";
}

/// Writes the values, such as `role member, budget 5.00/day`.
impl fmt::Display for MemberTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = TERMS.iter().filter_map(|term| {
            let text = (term.value)(self).shown()?;
            Some(format!("{} {text}", term.name.replace('_', " ")))
        });
        f.write_str(&texts.collect::<Vec<_>>().join(", "))
    }
}

/// Writes limits as the ledger keeps them, such as `1.00/day 5.00/month`.
pub fn budget_text(limits: SpendLimit) -> String {
    let rows = limits.rows();
    let texts = rows.map(|(period, amount)| format!("{}/{}", amount_text(amount), period.name()));
    texts.collect::<Vec<_>>().join(" ")
}

/// Reads limits of [`budget_text`]. An unreadable one must not count as none.
pub fn read_budget(text: &str) -> Option<SpendLimit> {
    let mut limits = text.split_ascii_whitespace();
    limits.try_fold(SpendLimit::NONE, |all, one| Some(all.or(one.parse().ok()?)))
}

/// Formats an amount such as `5.00`.
pub fn amount_text(amount: Usd) -> String {
    amount.short().trim_start_matches('$').to_owned()
}

/// A change of limits, in the order of [`Period::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitChange(pub [Option<Option<Usd>>; 4]);

impl LimitChange {
    pub const REMOVE_ALL: Self = Self([Some(None); 4]);

    /// Returns this change, and then sets the limits that `limits` has.
    #[must_use]
    pub fn set(self, limits: SpendLimit) -> Self {
        let mut changes = self.0;
        for (change, period) in changes.iter_mut().zip(Period::ALL) {
            *change = limits.get(period).map(Some).or(*change);
        }
        Self(changes)
    }

    /// Returns the limits after the change.
    pub fn apply(self, before: SpendLimit) -> SpendLimit {
        let change = |limit: SpendLimit, (period, change): (Period, Option<Option<Usd>>)| {
            let amount = change.unwrap_or(before.get(period));
            amount.map_or(limit, |amount| SpendLimit::of(period, amount).or(limit))
        };
        Period::ALL.into_iter().zip(self.0).fold(SpendLimit::NONE, change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_change_keeps_sets_and_removes() {
        let (one, two) = (Usd::dollars(1), Usd::dollars(2));
        let before = SpendLimit { day: Some(one), week: Some(one), ..SpendLimit::NONE };
        let change = LimitChange([None, Some(None), Some(Some(two)), None]);
        let after = SpendLimit { day: Some(one), month: Some(two), ..SpendLimit::NONE };
        assert_eq!(change.apply(before), after);
        assert_eq!(LimitChange::default().apply(before), before);
        assert_eq!(LimitChange::REMOVE_ALL.apply(before), SpendLimit::NONE);
        let week = SpendLimit::of(Period::Week, two);
        assert_eq!(LimitChange::REMOVE_ALL.set(week).apply(before), week);
        assert_eq!(LimitChange::default().set(week).apply(before), week.or(before));
    }

    #[test]
    fn budget_is_read_as_it_was_written() {
        let (day, month) = (Some(Usd::mills(1_500)), Some(Usd::ZERO));
        for budget in [
            SpendLimit::NONE,
            SpendLimit { day, month, ..SpendLimit::NONE },
            SpendLimit { week: day, ever: month, ..SpendLimit::NONE },
        ] {
            assert_eq!(read_budget(&budget_text(budget)), Some(budget));
        }
        for text in ["lots", "1.00", "1.00/day lots/month"] {
            assert_eq!(read_budget(text), None, "{text}");
        }
    }
}
