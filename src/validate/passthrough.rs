//! What an endpoint of `gateway.passthrough` takes: one sound JSON object, of which nothing more is known.

use bytes::Bytes;
use serde::de::MapAccess;

use super::json::{self, Entry, Members, Unknown};
use super::query::no_query;
use super::{Checked, Order, Paid};
use crate::contract::money::Usd;
use crate::problem::Problem;

/// Reads the body of a call to the endpoint at `path`, which costs `toll`. It is sent as it is written,
/// but for blanks around it: nobody here knows which of its fields mean what.
///
/// Errors: 400 `malformed_json`; 422 `invalid_request` for a query.
pub fn passthrough(
    payload: &[u8],
    query: Option<&str>,
    path: &str,
    toll: Usd,
) -> Result<Checked<Order>, Problem> {
    no_query(query)?;
    json::object(payload, &mut Whatever::default())?;
    Ok(Checked(Order {
        paid: Paid::Other,
        model: path.into(),
        toll,
        body: Bytes::copy_from_slice(payload.trim_ascii()),
    }))
}

/// An object whose keys mean nothing here; they are read for their faults.
#[derive(Default)]
struct Whatever<'de>(Unknown<'de>);

impl<'de> Members<'de> for Whatever<'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        entry.refuse(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/api/v1/search";

    fn code(payload: &[u8], query: Option<&str>) -> Option<&'static str> {
        passthrough(payload, query, PATH, Usd::mills(6)).err().map(|problem| problem.kind().code)
    }

    #[test]
    fn what_is_sound_is_sent_as_it_is_written() {
        for payload in ["{}", r#" {"q": "x",  "n": 1.50e1, "deep": [[{"a": null}]]} \n"#] {
            let payload = payload.replace("\\n", "\n");
            let order = passthrough(payload.as_bytes(), None, PATH, Usd::mills(6)).unwrap();
            let order = order.into_inner();
            assert_eq!(order.body, payload.trim());
            assert_eq!((order.paid, &*order.model, order.toll), (Paid::Other, PATH, Usd::mills(6)));
        }
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        let deep = format!("{}{}", "{\"a\":".repeat(40), "1}");
        for payload in [
            "",
            "[]",
            "7",
            "{}{}",
            "{\"a\":1,\"a\":2}",
            "{\"a\":{\"b\":1,\"\\u0062\":2}}",
            "{\"a\":\"\\ud800\"}",
            "\u{feff}{}",
            "{\"a\":NaN}",
            &deep,
        ] {
            assert_eq!(code(payload.as_bytes(), None), Some("malformed_json"), "{payload:?}");
        }
        assert_eq!(code(b"{\"a\":\"\xff\"}", None), Some("malformed_json"));
    }

    #[test]
    fn a_query_is_refused_rather_than_lost() {
        assert_eq!(code(b"{}", Some("q=1")), Some("invalid_request"));
        assert_eq!(code(b"{}", Some("")), None);
        let problem = no_query(Some("a=1&b")).unwrap_err();
        let pointers: Vec<_> = problem.faults().iter().map(|fault| &*fault.pointer).collect();
        assert_eq!(pointers, ["/a", "/b"]);
    }
}
