//! `Tollgate-Ledger`: the name of the ledger that a purchase relies on.
//!
//! The name changes whenever the server may have forgotten purchases, and their keys with them. A client
//! that repeats a key sends the name under which it first sent it. If the name has changed since, the repeat
//! is refused before anything is sent: the key would buy a second time.

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use tower::service_fn;
use tower::util::BoxCloneSyncService;

use crate::answer::Answer;
use crate::downstream::Call;
use crate::downstream::route::{Class, Endpoint};
use crate::problem::{LEDGER_CHANGED, Problem};
use crate::purchase::{Purchase, Receipt};

const TOLLGATE_LEDGER: HeaderName = HeaderName::from_static("tollgate-ledger");

type Purchases = BoxCloneSyncService<Purchase, Receipt, Problem>;

/// Returns `purchases`, or, if the call names another ledger than `name`, a service that refuses every
/// purchase with `ledger_changed`: no new purchase is made, no running one joined, no reply replayed.
pub(super) fn guard<B>(name: &HeaderValue, call: &Call<B>, purchases: Purchases) -> Purchases {
    if names_another(name, &call.head.headers) {
        return BoxCloneSyncService::new(service_fn(|_: Purchase| async { Err(changed()) }));
    }
    purchases
}

fn changed() -> Problem {
    Problem::new(&LEDGER_CHANGED).detail(
        "Tollgate-Ledger names another ledger than this one, which may not know this purchase's key; nothing was sent",
    )
}

fn names_another(name: &HeaderValue, headers: &HeaderMap) -> bool {
    headers.get_all(TOLLGATE_LEDGER).iter().any(|named| named != name)
}

/// Adds the name to the catalog and to whatever a paid request is answered with.
pub(super) fn named<B>(name: &HeaderValue, call: &Call<B>, mut answer: Answer) -> Answer {
    if call.route.class == Class::Paid || call.route.endpoint == Endpoint::Catalog {
        answer.headers_mut().insert(TOLLGATE_LEDGER, name.clone());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_header_passes_and_any_other_name_is_refused() {
        let name = HeaderValue::from_static("one");
        for (sent, is_another) in [
            (&[][..], false),
            (&["one"], false),
            (&["one", "one"], false),
            (&["two"], true),
            (&["ONE"], true),
            (&[""], true),
            (&["one", "two"], true),
            (&["one, two"], true),
        ] {
            let mut headers = HeaderMap::new();
            for value in sent {
                headers.append(TOLLGATE_LEDGER, HeaderValue::from_static(value));
            }
            assert_eq!(names_another(&name, &headers), is_another, "{sent:?}");
        }
    }
}
