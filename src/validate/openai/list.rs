//! The query of `GET /v1/videos`: which part of the list, in which order.

use url::form_urlencoded;

use crate::problem::Problem;
use crate::validate::Checked;
use crate::validate::rule::{Faults, Rule};
use crate::validate::text::shown;

/// How many come where nothing is said, as OpenAI does.
const DEFAULT: usize = 20;
const MOST: usize = 100;

/// A checked part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// At most so many.
    pub limit: usize,
    /// Those that come after this one.
    pub after: Option<String>,
    /// Oldest first.
    pub is_ascending: bool,
}

/// Reads and judges the query; parameters that nobody knows are passed over.
///
/// Errors: 422 `invalid_request` with every fault.
pub fn page(query: Option<&str>) -> Result<Checked<Page>, Problem> {
    let mut draft = Draft::default();
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match &*name {
            "limit" => draft.limit = Some(value.into_owned()),
            "after" => draft.after = Some(value.into_owned()),
            "order" => draft.order = Some(value.into_owned()),
            _ => {}
        }
    }
    let mut faults = Faults::default();
    faults.judge(RULES, &draft, &"");
    match (faults.is_empty(), draft.limit()) {
        (true, Some(limit)) => Ok(Checked(Page {
            limit,
            after: draft.after,
            is_ascending: draft.order.as_deref() == Some("asc"),
        })),
        _ => Err(faults.into_problem()),
    }
}

#[derive(Default)]
struct Draft {
    limit: Option<String>,
    after: Option<String>,
    order: Option<String>,
}

impl Draft {
    fn limit(&self) -> Option<usize> {
        match &self.limit {
            None => Some(DEFAULT),
            Some(text) => text.parse().ok().filter(|limit| (1..=MOST).contains(limit)),
        }
    }
}

#[rustfmt::skip]
const RULES: &[Rule<Draft>] = &[
    Rule { pointer: "/limit", code: "bad_parameter", broken: |page| {
        page.limit().is_none().then(|| format!("expected a whole number from 1 to {MOST}"))
    } },
    Rule { pointer: "/order", code: "bad_parameter", broken: |page| {
        let order = page.order.as_deref()?;
        (!["asc", "desc"].contains(&order)).then(|| format!("expected asc or desc, not `{}`", shown(order)))
    } },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_list_is_what_sdks_ask_for() {
        for (query, limit, after, is_ascending) in [
            (None, 20, None, false),
            (Some("limit=5&after=vid_1&order=asc&x=y"), 5, Some("vid_1"), true),
            (Some("limit=100&order=desc"), 100, None, false),
        ] {
            let page = page(query).expect("right").into_inner();
            let after = after.map(str::to_owned);
            assert_eq!(page, Page { limit, after, is_ascending });
        }
        for query in ["limit=0", "limit=101", "limit=x", "limit=", "order=up"] {
            assert!(page(Some(query)).is_err(), "{query}");
        }
    }
}
