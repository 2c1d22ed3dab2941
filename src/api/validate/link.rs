//! The body of `POST /bff/links`: a new link.

use super::budget::{AMOUNT, check_line, day, required, sum};
use super::json::{self, Field, FromObject, Text};
use super::member::{Names, checked, nullable, selection};
use super::object::object;
use super::rule::Faults;
use crate::clock::Date;
use crate::gate::problem::Problem;
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::selection::Selection;

const MAX_LABEL: usize = 64;

/// A link that a caller asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedLink {
    pub amount: Usd,
    /// A line of text that says what it is for.
    pub label: String,
    /// The last UTC day on which it works.
    pub until: Date,
    /// `None` is `access.may_buy`.
    pub may_buy: Option<Selection>,
    /// The number of browsers that may open it; `None` is any number, and programs.
    pub uses: Option<u32>,
}

object! {
    struct LinkBody<'a> {
        "amount" => amount: Text<'a>;
        "for" => label: Text<'a>;
        "until" => until: Text<'a>;
        "may_buy" => may_buy: Field<Names<'a>>;
        "uses" => uses: Field<i128>;
        _ => reject;
    }
}

/// `sold` are the names that `may_buy` may have.
pub fn new_link(payload: &[u8], today: Date, sold: &[&str]) -> Result<WantedLink, Problem> {
    let body: LinkBody<'_> = json::read_body(payload)?;
    let mut faults = Faults::default();
    faults.unknown_fields(&body.unknown, LinkBody::KEYS, &"");
    let amount = sum(&mut faults, ("/amount", AMOUNT), body.amount);
    let label = required(&mut faults, ("/for", "what it is for, a line of text"), body.label);
    let label = label.and_then(|label| checked(&mut faults, "/for", check_label(&label)));
    let until = day(&mut faults, body.until, today);
    let may_buy = nullable(&mut faults, "/may_buy", body.may_buy).flatten();
    let may_buy = may_buy.and_then(|names| selection(names, ("/may_buy", sold), &mut faults));
    let uses = nullable(&mut faults, "/uses", body.uses).flatten();
    let uses = uses.and_then(|uses| checked(&mut faults, "/uses", check_uses(uses)));
    match (amount, label, until) {
        (Some(amount), Some(label), Some(until)) if faults.is_empty() => {
            Ok(WantedLink { amount, label, until, may_buy, uses })
        }
        _ => Err(faults.into_problem()),
    }
}

/// Accepts what a link is for: a line of text.
pub fn check_label(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("expected a line of text".to_owned());
    }
    check_line(text, MAX_LABEL).map(|()| text.to_owned())
}

fn check_uses(uses: i128) -> Result<u32, &'static str> {
    let uses = u32::try_from(uses).ok().filter(|uses| (1..=1_000_000).contains(uses));
    uses.ok_or("expected a whole number from 1 to 1000000")
}
