//! What single values promise.

use proptest::prelude::*;

use super::*;

#[test]
fn times_are_a_whole_number_and_a_unit() {
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
    assert_eq!(time_or_none("0s"), Ok(Duration::ZERO));
}

#[test]
fn sizes_are_a_whole_number_and_a_binary_unit() {
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
fn networks_are_folded_and_hold_no_stray_bits() {
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
fn numbers_stay_in_their_range() {
    assert!(count(0).is_err() && count(-1).is_err() && count(1 << 32).is_err());
    assert_eq!(count(1).map(NonZeroU32::get), Ok(1));
    assert!(seconds(0).is_err() && seconds(86_401).is_err() && seconds(86_400).is_ok());
    assert!(connections(0).is_err() && connections(1_000_001).is_err() && connections(1).is_ok());
    assert!(seed(-1).is_err() && seed(0).is_ok());
}

#[test]
fn pointers_and_names_are_exact() {
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
    fn every_time_reads_as_the_number_that_was_written(
        number in 1_u64..=300_000,
        (unit, millis) in prop::sample::select(TIME_UNITS),
    ) {
        let expected = number * millis;
        let read = time(&format!("{number}{unit}")).ok().map(|time| time.as_millis());
        prop_assert_eq!(read, (expected <= MAX_TIME).then_some(u128::from(expected)));
    }

    #[test]
    fn every_size_reads_as_the_number_that_was_written(
        number in 1_u64..=100_000,
        (unit, factor) in prop::sample::select(SIZE_UNITS),
    ) {
        let expected = number * factor;
        let read = size(&format!("{number}{unit}")).ok().map(|size| size as u64);
        prop_assert_eq!(read, (expected <= MAX_SIZE).then_some(expected));
    }

    #[test]
    fn no_text_breaks_a_reader_or_is_repeated(text in "\\PC{12,30}") {
        let faults = [
            time(&text).err(), size(&text).err(), network(&text).err(), money(&text).err(),
            listen(&text).err(), pointer(&text).err(),
        ];
        for fault in faults.into_iter().flatten() {
            prop_assert!(!fault.contains(&text), "{}", fault);
        }
    }
}
