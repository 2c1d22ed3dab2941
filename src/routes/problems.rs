//! `GET /problems/<code>`: what a problem's `type` leads to, from the same rows as the problem.

use http::StatusCode;

use crate::answer::{self, Answer};
use crate::problem::{ALL, Charged, Kind, NOT_FOUND, Problem};

/// The page of the code at the end of `path`.
pub(super) fn answer(path: &str) -> Result<Answer, Problem> {
    let code = path.rsplit('/').next().unwrap_or_default();
    let kind = ALL.iter().find(|kind| kind.code == code);
    let kind = kind.ok_or_else(|| Problem::new(&NOT_FOUND))?;
    Ok(answer::bytes_of(StatusCode::OK, "text/html; charset=utf-8", page(kind).into()))
}

fn page(kind: &Kind) -> String {
    let charged = match kind.charged {
        Charged::No => "Nothing was charged.",
        Charged::Yes => "It was charged.",
        Charged::Unknown => "It may have been charged.",
    };
    let Kind { status, code, title, advice, .. } = kind;
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{code}</title>\
         <h1>{code}</h1><p>{title}. Status {}. {charged}</p><p>{advice}</p></html>\n",
        status.as_u16()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_leads_somewhere_and_nothing_else_does() {
        for kind in ALL {
            assert!(answer(&format!("/problems/{}", kind.code)).is_ok());
        }
        for path in ["/problems/", "/problems/x", "/problems/internal/../x"] {
            assert!(answer(path).is_err(), "{path}");
        }
    }
}
