//! A gateway that answers everybody, and remembers when each request arrived.

use crate::support::{Ending, Reply, Upstream};

const BOOKS: &str = r#"{"keys":[{"id":"key_1","name":"production","keyPrefix":"svc_sk_CANARY_01","createdAt":null,"lastUsedAt":null,"revokedAt":null,"usageCount":7}],"billing":{"balanceCents":4210,"rateLimit":{"requests":60,"windowSeconds":60},"usage":{"chat":{"count":3,"costCents":1},"totalSpentCents":790}}}"#;

/// One whose rate limit is 60 requests in 60 seconds.
pub(crate) fn recorder() -> Upstream {
    telling(60, 60)
}

/// One that tells this rate limit.
pub(crate) fn telling(requests: usize, seconds: u64) -> Upstream {
    let limit = format!(r#"{{"requests":{requests},"windowSeconds":{seconds}}}"#);
    let books = BOOKS.replace(r#"{"requests":60,"windowSeconds":60}"#, &limit);
    answering(Reply::new(200, books))
}

/// One that lists no keys: it hangs up on whoever asks for them.
pub(crate) fn unlisted() -> Upstream {
    answering(Reply::nothing(Ending::Fin))
}

/// A payload with the word "lost" has no answer.
fn answering(books: Reply) -> Upstream {
    Upstream::with_books(move |received| match received.target.as_str() {
        "/api/api-keys" => books.clone(),
        _ if String::from_utf8_lossy(&received.body).contains("lost") => {
            Reply::nothing(Ending::Fin)
        }
        _ => Reply::chat("hello"),
    })
}
