//! Accepted URLs with their canonical form, and rejected ones with the reason.

use proptest::prelude::*;

use super::*;

#[rustfmt::skip]
const PASSES: &[(&str, &str)] = &[
    ("https://example.com/cat.png",              "https://example.com/cat.png"),
    ("http://example.com/cat.png",               "http://example.com/cat.png"),
    ("https://example.com",                      "https://example.com/"),
    ("https://example.com.",                     "https://example.com./"),
    ("HTTPS://EXAMPLE.COM/Cat.PNG",              "https://example.com/Cat.PNG"),
    ("hTtP://example.com/",                      "http://example.com/"),
    ("https://example.com:443/a",                "https://example.com/a"),
    ("https://example.com:8443/a",               "https://example.com:8443/a"),
    ("http://example.com:22/a",                  "http://example.com:22/a"),
    ("https://exa%6dple.com/a",                  "https://example.com/a"),
    ("https://bücher.example/a",                 "https://xn--bcher-kva.example/a"),
    ("https://例え.jp/é?q=ü",                    "https://xn--r8jz45g.jp/%C3%A9?q=%C3%BC"),
    ("https://example。com/a",                   "https://example.com/a"),
    ("https://example.com/a/../b/./c",           "https://example.com/b/c"),
    ("https://example.com/%2e%2e/b",             "https://example.com/b"),
    ("https://example.com/a@b:c",                "https://example.com/a@b:c"),
    ("https://example.com/?u=a@b",               "https://example.com/?u=a@b"),
    ("https://example.com/?a=1&b=%20#top",       "https://example.com/?a=1&b=%20#top"),
    ("https://cdn.example.com/a|b\"<>",          "https://cdn.example.com/a|b%22%3C%3E"),
    ("https://8.8.8.8/a",                        "https://8.8.8.8/a"),
    ("https://134744072/a",                      "https://8.8.8.8/a"),
    ("https://9.255.255.255/",                   "https://9.255.255.255/"),
    ("https://11.0.0.0/",                        "https://11.0.0.0/"),
    ("https://100.63.255.255/",                  "https://100.63.255.255/"),
    ("https://100.128.0.0/",                     "https://100.128.0.0/"),
    ("https://172.15.255.255/",                  "https://172.15.255.255/"),
    ("https://172.32.0.0/",                      "https://172.32.0.0/"),
    ("https://198.17.255.255/",                  "https://198.17.255.255/"),
    ("https://198.20.0.0/",                      "https://198.20.0.0/"),
    ("https://223.255.255.255/",                 "https://223.255.255.255/"),
    ("https://[2606:4700:4700::1111]/a",         "https://[2606:4700:4700::1111]/a"),
    ("https://[2001:4860:4860:0:0:0:0:8888]/",   "https://[2001:4860:4860::8888]/"),
    ("https://notlocalhost.com/",                "https://notlocalhost.com/"),
    ("https://local.example.com/",               "https://local.example.com/"),
    ("https://10.0.0.1.nip.io/",                 "https://10.0.0.1.nip.io/"),
];

#[rustfmt::skip]
const FAILS: &[(&str, &str)] = &[
    // Whitespace, and what the parser would repair silently.
    ("", "starts with http:// or https://"),
    (" https://example.com/", "without spaces"),
    ("https://example.com/ ", "without spaces"),
    ("https://example.com/a b", "without spaces"),
    ("ht\ntp://example.com/", "without spaces"),
    ("https://a\tb.com/", "without spaces"),
    ("https://example.com/\r\nHost:x", "without spaces"),
    ("https://example.com/\0", "without spaces"),
    ("https://example.com/\u{7f}", "without spaces"),
    ("https:\\\\example.com\\a", "without spaces"),
    ("https://example.com\\@127.0.0.1/", "without spaces"),
    // Schemes.
    ("example.com/cat.png", "starts with http:// or https://"),
    ("//example.com/cat.png", "starts with http:// or https://"),
    ("http:example.com", "starts with http:// or https://"),
    ("http:/example.com", "starts with http:// or https://"),
    ("http:127.0.0.1", "starts with http:// or https://"),
    ("ftp://example.com/cat.png", "starts with http:// or https://"),
    ("file:///etc/passwd", "starts with http:// or https://"),
    ("data:image/png;base64,AAAA", "starts with http:// or https://"),
    ("javascript:alert(1)", "starts with http:// or https://"),
    ("gopher://example.com/", "starts with http:// or https://"),
    ("blob:https://example.com/1", "starts with http:// or https://"),
    ("view-source:https://example.com/", "starts with http:// or https://"),
    ("httpſ://example.com/", "starts with http:// or https://"),
    // Authority.
    ("https://", "a host"),
    ("https:///example.com/", "a host"),
    ("https://?a", "a host"),
    ("https://#a", "a host"),
    ("https://:443/", "a URL"),
    ("https://user@example.com/", "without a user name"),
    ("https://user:secret@example.com/", "without a user name"),
    ("https://:secret@example.com/", "without a user name"),
    ("https://@example.com/", "without a user name"),
    ("https://good.com@127.0.0.1/", "without a user name"),
    ("https://127.0.0.1%2f@example.com/", "without a user name"),
    ("https://example.com:99999/", "a URL"),
    ("https://example.com:x/", "a URL"),
    ("https://exa mple.com/", "without spaces"),
    ("https://exa%20mple.com/", "a URL"),
    ("https://xn--a/", "a URL"),
    ("https://a%00b.com/", "a URL"),
    // IPv4 in every notation.
    ("http://127.0.0.1/", "loopback"),
    ("http://127.0.0.1./", "loopback"),
    ("http://127.1/", "loopback"),
    ("http://2130706433/", "loopback"),
    ("http://0x7f.1/", "loopback"),
    ("http://0x7f000001/", "loopback"),
    ("http://0177.0.0.1/", "loopback"),
    ("http://017700000001/", "loopback"),
    ("http://１２７.０.０.１/", "loopback"),
    ("http://127。0。0。1/", "loopback"),
    ("http://%31%32%37.0.0.1/", "loopback"),
    ("http://①②⑦.0.0.1/", "loopback"),
    ("http://127.255.255.255:8080/", "loopback"),
    ("http://0.0.0.0/", "this network"),
    ("http://0/", "this network"),
    ("http://10.0.0.1/", "private"),
    ("http://10.255.255.255/", "private"),
    ("http://172.16.0.1/", "private"),
    ("http://172.31.255.255/", "private"),
    ("http://192.168.1.1/", "private"),
    ("http://100.64.0.1/", "carrier-grade NAT"),
    ("http://100.127.255.255/", "carrier-grade NAT"),
    ("http://100.100.100.200/", "carrier-grade NAT"),
    ("http://169.254.169.254/latest/meta-data", "link-local"),
    ("http://168.63.129.16/", "a cloud platform's services"),
    ("http://192.0.0.192/", "protocol assignments"),
    ("http://192.0.2.1/", "documentation"),
    ("http://198.51.100.1/", "documentation"),
    ("http://203.0.113.1/", "documentation"),
    ("http://192.88.99.1/", "6to4 relays"),
    ("http://198.18.0.1/", "benchmarks"),
    ("http://198.19.255.255/", "benchmarks"),
    ("http://224.0.0.1/", "multicast"),
    ("http://239.255.255.255/", "multicast"),
    ("http://240.0.0.1/", "reserved"),
    ("http://255.255.255.255/", "reserved"),
    ("http://256.1.1.1/", "a URL"),
    ("http://1.2.3.4.5/", "a URL"),
    ("http://example.1/", "a URL"),
    // IPv6, and IPv4 embedded in it.
    ("http://[::]/", "unspecified"),
    ("http://[::1]/", "loopback"),
    ("http://[0:0:0:0:0:0:0:1]/", "loopback"),
    ("http://[::ffff:127.0.0.1]/", "an IPv4 address in IPv6 form"),
    ("http://[::ffff:8.8.8.8]/", "an IPv4 address in IPv6 form"),
    ("http://[::127.0.0.1]/", "an IPv4 address in IPv6 form"),
    ("http://[64:ff9b::7f00:1]/", "NAT64"),
    ("http://[64:ff9b:1::1]/", "NAT64"),
    ("http://[2002:7f00:1::]/", "6to4"),
    ("http://[2001:0:1::1]/", "Teredo"),
    ("http://[2001:2::1]/", "protocol assignments"),
    ("http://[2001:20::1]/", "protocol assignments"),
    ("http://[2001:db8::1]/", "documentation"),
    ("http://[3fff::1]/", "documentation"),
    ("http://[fc00::1]/", "private"),
    ("http://[fd00:ec2::254]/", "private"),
    ("http://[fe80::1]/", "link-local"),
    ("http://[fec0::1]/", "site-local"),
    ("http://[ff02::1]/", "multicast"),
    ("http://[100::1]/", "reserved"),
    ("http://[5f00::1]/", "reserved"),
    ("http://[9000::1]/", "reserved"),
    ("http://[fe80::1%25eth0]/", "a URL"),
    ("http://[fe80::1%eth0]/", "a URL"),
    ("http://[::1/", "a URL"),
    // Private names.
    ("http://localhost/", "a name with a dot"),
    ("http://LOCALHOST./", "a name with a dot"),
    ("http://ⓛocalhost/", "a name with a dot"),
    ("http://metadata/", "a name with a dot"),
    ("http://intranet:8080/", "a name with a dot"),
    ("http://x.localhost/", "are private"),
    ("http://x.localhost./", "are private"),
    ("http://printer.local/", "are private"),
    ("http://metadata.google.internal/", "are private"),
    ("http://metadata.google.internal./", "are private"),
    ("http://nas.home.arpa/", "are private"),
    ("http://home.arpa/", "are private"),
    ("http://router.lan/", "are private"),
    ("http://a.b.corp/", "are private"),
    ("http://kubernetes.default.svc/", "`svc`"),
    ("http://vault.service.consul/", "`consul`"),
    ("http://abcdefghij.onion/", "`onion`"),
    ("http://x.test/", "`test`"),
    ("http://x.invalid/", "`invalid`"),
    ("http://1.0.0.10.in-addr.arpa/", "`arpa`"),
    ("http://x.alt/", "`alt`"),
    ("http://wiki.intra/", "`intra`"),
    ("http://metadata.tencentyun.com/latest", "`metadata.tencentyun.com`"),
    ("http://METADATA.tencentyun.com./", "`metadata.tencentyun.com`"),
    ("http://example.com../", "labels"),
    ("http://a..com/", "labels"),
    ("http://.example.com/", "labels"),
    ("http://./", "a name with a dot"),
];

#[test]
fn public_url_is_sent_in_canonical_form() {
    for (raw, canonical) in PASSES {
        assert_eq!(image_url(raw).as_deref(), Ok(*canonical), "{raw:?}");
        assert_eq!(image_url(canonical).as_deref(), Ok(*canonical), "{canonical:?}");
    }
}

#[test]
fn other_urls_are_rejected_with_a_reason() {
    for (raw, reason) in FAILS {
        match image_url(raw) {
            Ok(canonical) => panic!("{raw:?} passed as {canonical}"),
            Err(said) => assert!(said.contains(reason), "{raw:?}: {said}"),
        }
    }
}

#[test]
fn length_limit_applies_before_and_after_encoding() {
    let long = |length: usize| {
        let start = "https://example.com/";
        format!("{start}{}", "a".repeat(length - start.len()))
    };
    assert!(image_url(&long(2_048)).is_ok());
    assert!(image_url(&long(2_049)).unwrap_err().contains("2048 bytes, not 2049"));
    let encoded = format!("https://example.com/{}", "é".repeat(1_000));
    assert!(encoded.len() <= 2_048);
    assert!(image_url(&encoded).unwrap_err().contains("percent-encoded"));
    let label = format!("https://{}.com/", "a".repeat(64));
    assert!(image_url(&label).unwrap_err().contains("labels"));
    let name = format!("https://{}com/", "a.".repeat(126));
    assert!(image_url(&name).unwrap_err().contains("labels"));
}

#[test]
fn host_name_length_is_limited() {
    let label = |length| "a".repeat(length);
    let of = |last| format!("https://{0}.{0}.{0}.{1}/", label(63), label(last));
    for (address, passes) in [
        (format!("https://{}.com/", label(63)), true),
        (format!("https://{}.com/", label(64)), false),
        (of(61), true),
        (of(62), false),
    ] {
        assert_eq!(image_url(&address).is_ok(), passes, "{address}");
    }
}

fn addresses() -> impl Strategy<Value = String> {
    let host = prop_oneof![
        "[a-zA-Z0-9é。%.-]{1,20}",
        "[a-z]{1,5}(\\.[a-z]{1,5}){1,3}\\.?",
        "[0-9x]{1,4}(\\.[0-9]{1,3}){0,3}",
        "\\[[0-9a-f:]{2,20}\\]",
    ];
    let port = prop_oneof![Just(String::new()), (0u32..70_000).prop_map(|port| format!(":{port}"))];
    ("[hH]ttps?://", host, port, "([/?#]\\PC{0,20})?")
        .prop_map(|(scheme, host, port, rest)| format!("{scheme}{host}{port}{rest}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn canonical_url_is_accepted_unchanged(raw in addresses()) {
        if let Ok(canonical) = image_url(&raw) {
            prop_assert_eq!(image_url(&canonical), Ok(canonical.clone()));
            prop_assert!(canonical.is_ascii());
        }
    }

    #[test]
    fn private_network_is_rejected_in_every_notation(last in 0u32..0x0100_0000) {
        let address = 0x0A00_0000 | last;
        let octal = format!("0{address:o}");
        let hexadecimal = format!("{address:#x}");
        for host in [address.to_string(), octal, hexadecimal, format!("10.{last}")] {
            let judged = image_url(&format!("http://{host}/"));
            prop_assert!(judged.is_err(), "{}", host);
        }
    }

    #[test]
    fn arbitrary_text_never_panics(raw in any::<String>()) {
        let _ = image_url(&raw);
        let _ = image_url(&format!("http://{raw}"));
    }
}
