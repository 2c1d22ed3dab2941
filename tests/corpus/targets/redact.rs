//! Whatever a gateway writes, no key is left in it: neither as it is nor after it was decoded once or
//! twice. What was JSON stays JSON.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::IgnoredAny;
use tollgate::config::Key;
use tollgate::gateway::redact::Redactor;
use tollgate::metrics::Metrics;

use super::decode;

#[rustfmt::skip]
pub(super) const WORDS: &[&str] = &[
    KEY, "svc_sk_", "CANARY_", "0123456789abcdef", "s", "_", "C", "0", "{\"a\":\"", "\"}", "\\", "\\\\", "\\u00", "\\u0073", "\\u005f", "\\x73",
    "%", "%25", "%73", "%5F", "%26", "%5c", "&", "&amp;", "&#", "&#x", "&#115", "&#0115;", "&#x5f;", "&#X5F", "&lowbar;", "&bsol;", "&percnt;",
    "\\u0026", "\\u005c", "\\u0025", ";", "c3ZjX3NrX0NBTkFSWV8wMTIzNDU2Nzg5YWJjZGVm", "7376635f736b5f43414e4152595f30313233343536373839616263646566",
];

const KEY: &str = "svc_sk_CANARY_0123456789abcdef";

thread_local! {
    static REDACTOR: RefCell<Redactor> = RefCell::new({
        let redactor = Redactor::new(Arc::new(Metrics::default()));
        redactor.add_keys(&[Key::new(KEY.to_owned())]);
        redactor
    });
}

pub(super) fn redact(data: &[u8]) -> bool {
    let text = Bytes::copy_from_slice(data);
    let out = REDACTOR.with_borrow(|redactor| redactor.redact_bytes(text.clone()));
    assert_eq!(out.len(), data.len());
    let once = decode::ALL.map(|decode| decode(&out));
    let twice = once.iter().flat_map(|text| decode::ALL.map(|decode| decode(text)));
    for text in [out.to_vec()].into_iter().chain(once.clone()).chain(twice) {
        assert!(!text.windows(KEY.len()).any(|part| part == KEY.as_bytes()), "the key");
    }
    let is_json = |text: &[u8]| serde_json::from_slice::<IgnoredAny>(text).is_ok();
    assert!(!is_json(data) || is_json(&out), "{:?}", String::from_utf8_lossy(&out));
    // What was overwritten may have been the one place that was no UTF-8.
    let is_text = |text: &[u8]| std::str::from_utf8(text).is_ok();
    assert!(!is_text(data) || is_text(&out), "{:?}", String::from_utf8_lossy(&out));
    out != text
}
