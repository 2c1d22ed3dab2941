//! The query of whatever is about several jobs: any number of `request_id`, up to a bound.

use super::rule::{Faults, Rule};
use super::status::{decoded, status};
use super::{Checked, StatusQuery};
use crate::problem::Problem;

/// The jobs that a query names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobIds {
    /// Their identifiers, each as in [`StatusQuery`], each once; none where none is named.
    pub request_ids: Vec<Box<str>>,
}

/// The most jobs that one question may be about.
pub const MOST_JOBS: usize = 50;

/// Reads and judges the query, without its `?`.
///
/// # Errors
/// 422 `invalid_request` with every fault; its pointers name the parameters.
pub fn job_ids(query: Option<&str>) -> Result<Checked<JobIds>, Problem> {
    let mut faults = Faults::default();
    let mut request_ids: Vec<Box<str>> = Vec::new();
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    for pair in pairs {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        let is_known = decoded(name).as_deref() == Some(b"request_id");
        match status(Some(pair)).map(Checked::into_inner) {
            Ok(StatusQuery { request_id }) if request_ids.contains(&request_id) => {}
            Ok(StatusQuery { request_id }) => request_ids.push(request_id),
            // A pair that names something else is also missing what it does not name.
            Err(problem) => {
                let own = |code| is_known || code != "required";
                for fault in problem.faults().iter().filter(|fault| own(fault.code)) {
                    faults.push(&fault.pointer, fault.code, fault.detail.clone());
                }
            }
        }
        if request_ids.len() > MOST_JOBS {
            break;
        }
    }
    faults.judge(RULES, &request_ids, &"");
    match faults.is_empty() {
        true => Ok(Checked(JobIds { request_ids })),
        false => Err(faults.into_problem()),
    }
}

#[rustfmt::skip]
const RULES: &[Rule<Vec<Box<str>>>] = &[
    Rule { pointer: "/request_id", code: "too_many", broken: |ids| {
        (ids.len() > MOST_JOBS).then(|| format!("expected at most {MOST_JOBS} jobs"))
    } },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(query: Option<&str>) -> Vec<String> {
        let checked = job_ids(query).expect("no fault").into_inner();
        checked.request_ids.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn any_number_of_jobs_up_to_the_bound_is_named_each_once() {
        assert!(ids(None).is_empty() && ids(Some("&&")).is_empty());
        assert_eq!(ids(Some("request_id=a&request_id=b%2F&request_id=a")), ["a", "b/"]);
        assert_eq!(ids(Some("request_id=a&request%5fid=b&request_id=c")), ["a", "b", "c"]);
    }

    #[test]
    fn as_many_jobs_as_the_bound_says_may_be_named_and_not_one_more() {
        let query = |count| (0..count).map(|id| format!("request_id={id}&")).collect::<String>();
        assert_eq!(ids(Some(&query(MOST_JOBS))).len(), MOST_JOBS);
        assert!(job_ids(Some(&query(MOST_JOBS + 1))).is_err());
    }

    #[test]
    fn every_fault_is_named() {
        let many: String = (0..60).map(|number| format!("request_id={number}&")).collect();
        for (query, expected) in [
            ("request_id=a&x=1", &[("/x", "unknown_parameter")][..]),
            (
                "request_id=&request_id=a+b",
                &[("/request_id", "empty"), ("/request_id", "bad_character")],
            ),
            (&many, &[("/request_id", "too_many")]),
        ] {
            let problem = job_ids(Some(query)).expect_err(query);
            let faults: Vec<_> =
                problem.faults().iter().map(|fault| (&*fault.pointer, fault.code)).collect();
            assert_eq!(faults, expected, "{query}");
        }
    }
}
