//! A request as the gateway received it.

use std::io::Read;

/// Prices of contract 2.5 and 2.6 in micro-dollars, written down again: a test that took them from
/// the code under test would prove nothing. `eta-5` has no price there.
const PRICES: &[(&str, u64)] = &[
    ("alpha-sonnet-4.5", 6_000),
    ("beta-4-maverick", 6_000),
    ("gamma-large", 6_000),
    ("delta-k2.5", 6_000),
    ("epsilon-3-pro", 6_000),
    ("uncensored-ai", 3_000),
    ("beta-4-scout", 3_000),
    ("zeta-m2.5", 3_000),
    ("eta-5-mini", 3_000),
    ("theta-32b", 3_000),
    ("iota-5", 3_000),
    // Added by a test's settings.
    ("new-model", 10_000),
    ("video-e-gen4.5", 5_000_000),
    ("video-d-3.1", 5_000_000),
    ("video-a-2", 3_000_000),
    ("video-b", 3_000_000),
    ("video-c-2", 3_000_000),
    ("video-d-3.1-fast", 3_000_000),
    ("video-c-3-fast", 3_000_000),
    ("video-e-gen4-turbo", 3_000_000),
];

/// The price of the passthrough endpoint of the tests, in micro-dollars.
const SEARCH: u64 = 10_000;

/// A request that the gateway read completely.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    /// The index among all requests, from 0.
    pub(crate) number: usize,
    /// The index of its connection, from 0.
    pub(crate) connection: usize,
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in lower case, in wire order.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Head and body, byte for byte.
    pub(crate) bytes: Vec<u8>,
}

impl ReceivedRequest {
    /// The values of a header.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        values(&self.headers, name)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("the gate sends JSON")
    }

    /// Returns its price in micro-dollars; 0 if it is no purchase.
    pub(crate) fn price(&self) -> u64 {
        price(&self.method, &self.target, &self.body)
    }
}

/// Returns a request's price in micro-dollars.
pub(crate) fn price(method: &str, target: &str, body: &[u8]) -> u64 {
    let default = match (method, target) {
        ("POST", "/api/v1/chat" | "/v1/chat/completions") => "alpha-sonnet-4.5",
        ("POST", "/api/v1/video" | "/v1/videos") => "video-a-2",
        ("POST", "/api/v1/search") => return SEARCH,
        _ => return 0,
    };
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let model = body["model"].as_str().unwrap_or(default);
    PRICES.iter().find(|(name, _)| *name == model).map_or(0, |(_, price)| *price)
}

/// Returns what is bought, regardless of the model: chat or video, and the text.
pub(crate) fn fingerprint(method: &str, target: &str, body: &[u8]) -> Option<String> {
    if price(method, target, body) == 0 {
        return None;
    }
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(format!("{target} {} {}", body["messages"], body["prompt"]))
}

/// The values of a header; `name` in lower case.
pub(crate) fn values<'a>(headers: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
}

/// Reads a head with its empty line, or returns `None` if the connection ends before it.
pub(crate) fn read_head(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(head)
}

/// Returns the first line, and the headers with lower-case names.
pub(crate) fn parse_head(head: &[u8]) -> (String, Vec<(String, String)>) {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.trim_end().split("\r\n");
    let first = lines.next().unwrap_or_default().to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    (first, lines.filter_map(header).collect())
}
