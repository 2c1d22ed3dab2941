//! Tests of single values.

use proptest::prelude::*;

use super::*;
use crate::config::Listen;

#[test]
fn times_have_a_whole_number_and_a_unit() {
    for (text, millis) in [
        ("500ms", 500),
        ("10s", 10_000),
        ("5m", 300_000),
        ("24h", 86_400_000),
        ("7d", 604_800_000),
        ("400d", MAX_TIME),
        ("010s", 10_000),
    ] {
        assert_eq!(time(text), Ok(Duration::from_millis(millis)), "{text}");
    }
    for text in [
        "",
        "10",
        "s",
        "-1s",
        "+1s",
        "1.5s",
        "10 s",
        " 10s",
        "10s ",
        "10S",
        "1h30m",
        "1w",
        "٣s",
        "401d",
        "0s",
        "18446744073709551615d",
        "99999999999999999999999s",
    ] {
        assert!(time(text).is_err(), "{text}");
    }
    assert_eq!(time_or_zero("0s"), Ok(Duration::ZERO));
}

#[test]
fn sizes_have_a_whole_number_and_a_binary_unit() {
    for (text, bytes) in [("512B", 512), ("64KiB", 65_536), ("2MiB", 2_097_152), ("1GiB", 1 << 30)]
    {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    for text in [
        "",
        "512",
        "B",
        "0B",
        "-1B",
        "2MB",
        "2mib",
        "2 MiB",
        "1.5MiB",
        "17GiB",
        "99999999999999999999GiB",
    ] {
        assert!(size(text).is_err(), "{text}");
    }
}

#[test]
fn networks_are_canonical_without_host_bits() {
    for (text, address, prefix) in [
        ("10.0.0.0/8", "10.0.0.0", 8),
        ("192.0.2.7", "192.0.2.7", 32),
        ("0.0.0.0/0", "0.0.0.0", 0),
        ("192.0.2.7/32", "192.0.2.7", 32),
        ("2001:db8::/32", "2001:db8::", 32),
        ("::/0", "::", 0),
        ("::1", "::1", 128),
        ("::ffff:10.0.0.0/104", "10.0.0.0", 8),
        ("::ffff:10.0.0.1", "10.0.0.1", 32),
    ] {
        let address = address.parse().expect("an address");
        assert_eq!(network(text), Ok(Network { address, prefix }), "{text}");
    }
    for text in [
        "",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/+8",
        "10.0.0.1/8",
        "10.0.0/8",
        "2001:db8::1/32",
        "::/129",
        "::ffff:10.0.0.0/8",
        "example.com",
        "10.0.0.0/8/8",
        "fe80::1%eth0",
        " 10.0.0.0/8",
        "10.0.0.0/256",
    ] {
        assert!(network(text).is_err(), "{text}");
    }
}

#[test]
fn numbers_outside_their_range_are_rejected() {
    assert!(count(0).is_err() && count(-1).is_err() && count(1 << 32).is_err());
    assert_eq!(count(1).map(NonZeroU32::get), Ok(1));
    assert!(seconds(0).is_err() && seconds(86_401).is_err() && seconds(86_400).is_ok());
    assert!(connections(0).is_err() && connections(1_000_001).is_err() && connections(1).is_ok());
    assert!(seed(-1).is_err() && seed(0).is_ok());
}

#[test]
fn pointers_and_names_are_validated() {
    for text in ["/url", "/data/0/url", "/a~1b/~0", "/"] {
        assert!(pointer(text).is_ok(), "{text}");
    }
    for text in ["", "url", "/a~2", "/a~", "#/url", "$.url", "/a\n"] {
        assert!(pointer(text).is_err(), "{text}");
    }
    assert!(name("new-model:1").is_ok());
    for text in ["", "a b", "ä", "a\n", &"a".repeat(129)] {
        assert!(name(text).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn times_round_trip(
        number in 1_u64..=300_000,
        (unit, millis) in prop::sample::select(TIME_UNITS),
    ) {
        let expected = number * millis;
        let read = time(&format!("{number}{unit}")).ok().map(|time| time.as_millis());
        prop_assert_eq!(read, (expected <= MAX_TIME).then_some(u128::from(expected)));
    }

    #[test]
    fn sizes_round_trip(
        number in 1_u64..=100_000,
        (unit, factor) in prop::sample::select(SIZE_UNITS),
    ) {
        let expected = number * factor;
        let read = size(&format!("{number}{unit}")).ok().map(|size| size as u64);
        prop_assert_eq!(read, (expected <= MAX_SIZE).then_some(expected));
    }

    #[test]
    fn parsers_neither_panic_nor_print_the_value(text in "\\PC{12,30}") {
        let errors = [
            time(&text).err(), size(&text).err(), network(&text).err(), money(&text).err(),
            Listen::parse(&text).err(), pointer(&text).err(),
        ];
        for error in errors.into_iter().flatten() {
            prop_assert!(!error.contains(&text), "{}", error);
        }
    }
}

#[test]
fn hosts_are_names_without_a_port() {
    for (text, read) in [
        ("app.example.com", "app.example.com"),
        ("App.Example.COM", "app.example.com"),
        ("localhost", "localhost"),
        ("192.0.2.7", "192.0.2.7"),
        ("::1", "[::1]"),
        ("[2001:DB8::1]", "[2001:db8::1]"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("my_service", "my_service"),
    ] {
        assert_eq!(host(text).as_deref(), Ok(read), "{text}");
    }
    for text in [
        "",
        "*",
        "*.example.com",
        "example.com:80",
        "https://example.com",
        "example.com/",
        "a..b",
        "a.",
        ".a",
        "bücher.example",
        "a b",
        "u@a.com",
        "0x7f.1",
        "127.1",
        "2130706433",
        "-a.com",
        "a-.com",
        "a;b",
        "a,b",
    ] {
        assert!(host(text).is_err(), "{text}");
    }
}

#[test]
fn origins_have_the_form_that_browsers_send() {
    for text in [
        "https://app.example.com",
        "http://localhost:5173",
        "https://app.example.com:8443",
        "http://[::1]:3000",
        "http://192.0.2.7",
        "capacitor://localhost",
        "chrome-extension://abcdefghijklmnop",
    ] {
        assert_eq!(origin(text).as_deref(), Ok(text));
    }
    for text in [
        "",
        "*",
        "null",
        "app.example.com",
        "https://app.example.com/",
        "https://app.example.com/path",
        "https://App.example.com",
        "HTTPS://app.example.com",
        "https://app.example.com:443",
        "http://app.example.com:80",
        "https://*.example.com",
        "https://u@app.example.com",
        "https://app.example.com?x",
        "https://app.example.com#x",
        "https://",
        "file://",
        "file://x",
        "https://a,b",
        "https://a;b",
        "https://a b",
        "https://bücher.example",
        "https://a:99999",
        "https://a:",
        "https://a:08",
        "capacitor://",
        "Capacitor://localhost",
        "https://a.example https://b.example",
    ] {
        assert!(origin(text).is_err(), "{text}");
    }
    assert!(web_origin("capacitor://localhost").is_err());
}

#[test]
fn base_url_needs_https_or_loopback() {
    for text in [
        "https://gateway.example.com",
        "https://gateway.example.com/prefix",
        "https://gateway.example.com:8443",
        "http://localhost:9000",
        "http://127.0.0.1:9000",
        "http://[::1]:9000",
    ] {
        assert!(base_url(text).is_ok(), "{text}");
    }
    for (text, why) in [
        ("http://gateway.example.com", "https"),
        ("http://10.0.0.1", "https"),
        ("http://localhost.example.com", "https"),
        ("http://x.localhost", "https"),
        ("http://localhost.", "https"),
        ("ftp://gateway.example.com", "address"),
        ("gateway.example.com", "address"),
        ("", "address"),
        ("https://user:hunter2@gateway.example.com", "user"),
        ("https://user@gateway.example.com", "user"),
        ("https://gateway.example.com/?a=1", "query"),
        ("https://gateway.example.com/?", "query"),
        ("https://gateway.example.com/#a", "query"),
        ("https://gate\tway.example.com", "address"),
        ("https://gateway.example.com\\@evil", "address"),
        (" https://gateway.example.com", "address"),
    ] {
        let error = base_url(text).expect_err(text);
        assert!(error.contains(why) && !error.contains("hunter2"), "{text}: {error}");
    }
}

#[test]
fn passthrough_paths_are_exact_and_not_built_in() {
    for text in ["/api/v1/search", "/api/v1/images/edit", "/api/v1/video/list"] {
        assert!(endpoint(text).is_ok(), "{text}");
    }
    for text in [
        "",
        "/api/v1/",
        "/api/v1/chat",
        "/api/v1/video",
        "/api/v1/video/status",
        "/api/api-keys",
        "/api/v1/../api-keys",
        "/api/v1/./chat",
        "/api/v1//chat",
        "/api/v1/search/",
        "/api/v1/a?b",
        "/api/v1/a#b",
        "/api/v1/%2e%2e",
        "/api/v1/*",
        "/API/v1/search",
        "https://x/api/v1/search",
        "/api/v1/a b",
    ] {
        assert!(endpoint(text).is_err(), "{text}");
    }
    assert!(method("DELETE").is_err() && method("get").is_err() && method("GET").is_ok());
}
