//! The query of `GET /v1/videos`: which part of the list, in which order.

use crate::problem::Problem;
use crate::validate::Checked;
use crate::validate::query::{Params, Wrong, decoded};
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

/// Reads and judges the query; parameters that nobody knows are passed over, and the last of several counts.
///
/// # Errors
/// 422 `invalid_request` with every fault.
pub fn page(query: Option<&str>) -> Result<Checked<Page>, Problem> {
    let mut params = Params::read(query);
    let limit = match params.all("limit").last() {
        None => Some(DEFAULT),
        Some(value) => {
            let limit = text(value).parse().ok().filter(|limit| (1..=MOST).contains(limit));
            let detail = format!("expected a whole number from 1 to {MOST}");
            params.accept("limit", limit.ok_or(Wrong { code: "bad_parameter", detail }))
        }
    };
    let after = params.all("after").last().map(|value| text(value));
    let is_ascending = match params.all("order").last().map(|value| text(value)).as_deref() {
        None | Some("desc") => Some(false),
        Some("asc") => Some(true),
        Some(order) => {
            let detail = format!("expected asc or desc, not `{}`", shown(order));
            params.accept("order", Err(Wrong { code: "bad_parameter", detail }))
        }
    };
    params.finish_leniently()?;
    let (limit, is_ascending) = (limit.unwrap_or(DEFAULT), is_ascending.unwrap_or_default());
    Ok(Checked(Page { limit, after, is_ascending }))
}

/// The value as readers that are not strict decode it.
fn text(value: &str) -> String {
    let decoded = decoded(value).unwrap_or_else(|| value.as_bytes().to_vec());
    String::from_utf8_lossy(&decoded).into_owned()
}

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
