//! Over TLS, the key goes to a gateway whose certificate holds, and to no other.

use crate::long::fronts::front::{Front, Kind};
use crate::support::{Gate, Reply, Upstream, until};

#[test]
fn gateway_with_an_invalid_certificate_receives_nothing() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let front = Front::start(Kind::Secured, upstream.address());
    let certificate = front.certificate();
    let trusted = [("SSL_CERT_FILE", certificate.to_str().unwrap())];
    let port = front.address().port();
    for (name, host, anchors, status) in [
        ("a certificate that is trusted, for this address", "127.0.0.1", &trusted[..], 200),
        ("a certificate that nobody trusts", "127.0.0.1", &[], 502),
        ("a trusted certificate of another name", "localhost", &trusted, 502),
    ] {
        let base_url = format!("https://{host}:{port}");
        let environment = [&[("TOLLGATE_GATEWAY__BASE_URL", &*base_url)], anchors].concat();
        let before = upstream.requests();
        let gate = Gate::binary(&upstream, "", &environment);
        let answer = gate.chat();
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
        if status == 502 {
            assert_eq!(answer.code(), "gateway_unreachable", "{name}");
            assert_eq!(answer.charged().as_deref(), Some("no"), "{name}");
        }
        let sent = usize::from(status == 200);
        assert_eq!(upstream.requests() - before, sent, "{name}");
    }
}

#[test]
fn second_connection_resumes_the_tls_session() {
    let upstream = Upstream::start(|received| Reply::video(&format!("job-{}", received.number)));
    let front = Front::start(Kind::Secured, upstream.address());
    let certificate = front.certificate();
    let base_url = format!("https://127.0.0.1:{}", front.address().port());
    let environment = [
        ("TOLLGATE_GATEWAY__BASE_URL", &*base_url),
        ("SSL_CERT_FILE", certificate.to_str().unwrap()),
    ];
    let gate = Gate::binary(&upstream, "", &environment);
    for _ in 0..3 {
        // Each video has a connection of its own.
        assert_eq!(gate.video().status, 200);
    }
    until("two sessions are resumed", || front.sessions().matches('r').count() >= 2);
}
