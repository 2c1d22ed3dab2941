//! What a public address is, told by the standard library's tables rather than by ours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

/// Panics where `canonical` has a host that others cannot reach, or says who calls.
pub(super) fn is_public(canonical: &str) {
    let url = Url::parse(canonical).expect("an address");
    assert!(["http", "https"].contains(&url.scheme()), "{canonical}");
    assert!(url.username().is_empty() && url.password().is_none(), "{canonical}");
    assert!(canonical.bytes().all(|byte| byte.is_ascii_graphic()), "{canonical:?}");
    match url.host().expect("a host") {
        Host::Ipv4(address) => assert!(!is_private_v4(address), "{address}"),
        Host::Ipv6(address) => assert!(!is_private_v6(address), "{address}"),
        Host::Domain(name) => {
            let bare = name.trim_end_matches('.').to_ascii_lowercase();
            assert!(bare.contains('.'), "{name}");
            assert!(bare.parse::<IpAddr>().is_err(), "{name}");
            for private in [
                ".localhost",
                ".local",
                ".internal",
                ".arpa",
                ".lan",
                ".svc",
                ".consul",
                ".onion",
                ".test",
                ".invalid",
                ".alt",
                ".intra",
                ".metadata.tencentyun.com",
            ] {
                assert!(!format!(".{bare}").ends_with(private), "{name}");
            }
        }
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || first == 0
        || first >= 240
        || (first == 100 && second & 0xC0 == 64)
        || (first == 198 && second & 0xFE == 18)
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || address.is_unique_local()
        || address.is_unicast_link_local()
        || address.to_ipv4().is_some()
        || address.segments()[0] == 0x2002
        || address.segments()[0] & 0xE000 != 0x2000
}
