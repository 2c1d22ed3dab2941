//! The flags of a member's terms, made from their table.

use clap::builder::PossibleValue;
use clap::error::ErrorKind;
use clap::{
    Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches, ValueEnum, value_parser,
};

use super::terms::{budget, budget_text, limit_change, merge_budgets};
use crate::gateway::contract::member::parse_name;
use crate::gateway::contract::terms::{TERMS, Term, TermInput, TermValue};
use crate::ledger::{MemberTerms, Role, Selection, TermsChange};

/// The group of all flags that change a member, at least one of which is required.
pub(super) const CHANGES: &str = "to";

/// Flags that set terms. An update also has flags that remove them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermFlags<const IS_UPDATE: bool>(pub(super) TermsChange);

#[doc(hidden)]
impl ValueEnum for Role {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Member, Self::Admin]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Member => "Buys on its own budget",
            Self::Admin => "Also sees all spending and jobs, and the account",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

impl<const IS_UPDATE: bool> Args for TermFlags<IS_UPDATE> {
    fn augment_args(command: Command) -> Command {
        let mut change = TermsChange::default();
        let flags = TERMS.iter().flat_map(|term| flags(term, (term.input)(&mut change), IS_UPDATE));
        if IS_UPDATE {
            let changes = ArgGroup::new(CHANGES).required(true).multiple(true);
            command.group(changes).args(flags.map(|flag| flag.group(CHANGES)))
        } else {
            command.args(flags)
        }
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flags(term: &Term, input: TermInput<'_>, is_update: bool) -> Vec<Arg> {
    let (flag, word) = (flag(term), term.name.replace('_', " "));
    let set = Arg::new(flag.clone()).long(flag.clone());
    let switch = |name: String, help: String| {
        Arg::new(name.clone()).long(name).help(help).action(ArgAction::SetTrue)
    };
    let (remove, help) = (format!("no-{flag}"), term.help);
    let (mut flags, remove) = match input {
        TermInput::Role(_) => {
            let set = set.value_name("ROLE").value_parser(value_parser!(Role)).help(help);
            let default = Role::default().name();
            (vec![if is_update { set } else { set.default_value(default) }], None)
        }
        TermInput::Name(_) => {
            let set = set.value_name(flag.to_uppercase()).value_parser(parse_name).help(help);
            let remove = switch(remove, format!("Leave them without a {word}"));
            (vec![set], Some(remove.conflicts_with(flag)))
        }
        TermInput::Limits(_) => {
            let kept = if is_update { "; an omitted period stays as it is" } else { "" };
            let set = set.value_name("AMOUNT/PERIOD").value_parser(budget);
            let remove = switch(remove, format!("Remove the {word}; with --{flag}, replace it"));
            (vec![set.help(format!("{help}{kept}")).action(ArgAction::Append)], Some(remove))
        }
        TermInput::Selection(_) => {
            let setting = format!("access.{}", term.name);
            let default = if is_update { String::new() } else { format!(" [default: {setting}]") };
            let set = set.value_name("LIST").value_parser(selection);
            let all = format!("{flag}-all");
            let every = switch(all.clone(), "Let them buy everything that is sold".to_owned());
            let reset =
                switch(format!("{flag}-default"), format!("Let them buy what {setting} says"));
            let reset = reset.conflicts_with_all([flag.clone(), all]);
            let set = set.help(format!("{help}{default}"));
            (vec![set, every.conflicts_with(flag)], Some(reset))
        }
    };
    flags.extend(remove.filter(|_| is_update));
    flags
}

impl<const IS_UPDATE: bool> FromArgMatches for TermFlags<IS_UPDATE> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut change = TermsChange::default();
        for term in TERMS {
            let flag = flag(term);
            let is_on = |name: String| {
                matches.try_get_one::<bool>(&name).is_ok_and(|is_on| is_on == Some(&true))
            };
            let is_removed = is_on(format!("no-{flag}"));
            match (term.input)(&mut change) {
                TermInput::Role(to) => *to = matches.get_one(&flag).copied(),
                TermInput::Name(to) => {
                    let name = matches.get_one(&flag).cloned();
                    *to = name.map(Some).or(is_removed.then_some(None));
                }
                TermInput::Limits(to) => {
                    let limits = matches.get_many(&flag).into_iter().flatten();
                    let limits = merge_budgets(limits).map_err(|error| {
                        clap::Error::raw(ErrorKind::ValueValidation, error.to_string())
                    })?;
                    *to = limit_change(is_removed, limits);
                }
                TermInput::Selection(to) => {
                    let all = || is_on(format!("{flag}-all")).then(Selection::everything);
                    let listed = matches.get_one(&flag).cloned().or_else(all);
                    *to = listed.map(Some).or(is_on(format!("{flag}-default")).then_some(None));
                }
            }
        }
        Ok(Self(change))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn flag(term: &Term) -> String {
    term.name.replace('_', "-")
}

pub(super) fn selection(text: &str) -> Result<Selection, &'static str> {
    let selection = Selection::parse(text);
    let is_empty = selection.names().len() == 0;
    let expected = "expected chat, video, other or ids of models, separated by commas";
    if is_empty { Err(expected) } else { Ok(selection) }
}

/// Describes terms, such as `role member, budget $5.00 a day`. A new member's role is left out.
pub(super) fn terms_text(terms: &MemberTerms, has_role: bool) -> String {
    let texts = TERMS.iter().filter_map(|term| {
        let word = term.name.replace('_', " ");
        match (term.value)(terms) {
            TermValue::Role(role) => has_role.then(|| format!("{word} {}", role.name())),
            TermValue::Name(name) => name.map(|name| format!("{word} {name}")),
            TermValue::Limits(limits) => Some(budget_text(limits)),
            TermValue::Selection(names) => {
                let names = names?.names().collect::<Vec<_>>().join(", ");
                Some(format!("{word} {names}"))
            }
        }
    });
    texts.collect::<Vec<_>>().join(", ")
}
