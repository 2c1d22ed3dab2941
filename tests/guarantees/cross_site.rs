//! Reads that a page of another site makes a browser send.

use crate::support::client::Answer;
use crate::support::{Gate, Reply, Upstream};

const LISTED: &str = "https://app.example";
const CROSS: (&str, &str) = ("Sec-Fetch-Site", "cross-site");
const SAME_SITE: (&str, &str) = ("Sec-Fetch-Site", "same-site");
const NAVIGATE: (&str, &str) = ("Sec-Fetch-Mode", "navigate");
const DOCUMENT: (&str, &str) = ("Sec-Fetch-Dest", "document");
const FRAME: (&str, &str) = ("Sec-Fetch-Dest", "iframe");

fn gate() -> (Upstream, Gate) {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    });
    let settings = format!(
        "access.allowed_origins = [\"{LISTED}\"]\n\
         gateway.passthrough = [{{ method = \"GET\", path = \"/api/v1/pricing\", price = \"0.00\" }}]"
    );
    let gate = Gate::start(&upstream, &settings);
    (upstream, gate)
}

fn read(gate: &Gate, path: &str, headers: &[(&str, &str)]) -> Answer {
    gate.ask("GET", path, headers, "")
}

#[test]
fn cross_site_read_without_a_listed_origin_is_refused_and_uses_no_limit() {
    let (upstream, gate) = gate();
    let unlisted = ("Origin", "https://evil.example");
    for path in ["/bff/me", "/bff/jobs", "/bff/usage", "/bff/events", "/v1/models", "/v1/videos"] {
        for headers in [
            &[CROSS][..],
            &[SAME_SITE],
            &[CROSS, unlisted],
            &[CROSS, ("Origin", "null")],
            &[CROSS, NAVIGATE, FRAME],
            &[CROSS, ("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "image")],
        ] {
            let refused = read(&gate, path, headers);
            let of = format!("{path} {headers:?}: {}", refused.text());
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (403, "origin_not_allowed"),
                "{of}"
            );
            assert_eq!(refused.value("ratelimit"), None, "{of}");
        }
        for headers in [
            &[][..],
            &[("Sec-Fetch-Site", "same-origin")],
            &[("Sec-Fetch-Site", "none"), NAVIGATE, DOCUMENT],
            &[CROSS, ("Origin", LISTED)],
            &[SAME_SITE, ("Origin", LISTED)],
            &[CROSS, NAVIGATE, DOCUMENT],
        ] {
            let passed = read(&gate, path, headers);
            assert!(matches!(passed.status, 200 | 204), "{path} {headers:?}: {}", passed.text());
        }
    }
    for path in [
        "/bff/client.js",
        "/bff/client.d.ts",
        "/bff/proof.js",
        "/bff/widgets.js",
        "/bff/widgets/base.js",
        "/bff/widgets/markdown.js",
        "/bff/widgets/math.js",
        "/bff/widgets/highlight.js",
        "/bff/widgets/purchases.js",
        "/bff/widgets/dom.js",
        "/bff/widgets/format.js",
        "/bff/text/en.js",
        "/bff/text/de.js",
        "/bff/openapi.json",
        "/bff/catalog",
        "/",
        "/healthz",
        "/problems/rate_limited",
    ] {
        assert_eq!(read(&gate, path, &[CROSS]).status, 200, "{path}");
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn no_navigation_reaches_a_passthrough() {
    let (upstream, gate) = gate();
    let path = "/api/v1/pricing";
    for headers in [
        &[CROSS][..],
        &[CROSS, NAVIGATE, DOCUMENT],
        &[SAME_SITE, NAVIGATE, DOCUMENT],
        &[("Sec-Fetch-Site", "none"), NAVIGATE, DOCUMENT],
        &[("Sec-Fetch-Site", "same-origin"), NAVIGATE, FRAME],
    ] {
        let refused = read(&gate, path, headers);
        assert_eq!((refused.status, refused.code().as_str()), (403, "origin_not_allowed"));
    }
    assert_eq!(upstream.requests(), 0);
    for headers in [&[][..], &[("Sec-Fetch-Site", "same-origin")], &[CROSS, ("Origin", LISTED)]] {
        assert_eq!(read(&gate, path, headers).status, 200, "{headers:?}");
    }
    // One answer serves all who ask within a second.
    assert!((1..=3).contains(&upstream.requests()), "{}", upstream.requests());
}
