//! Reads single values: times, sizes, numbers, money, addresses, networks, names.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use super::Network;
use super::read::Parsed;
use crate::contract::money::Usd;

const TIME_UNITS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZE_UNITS: &[(&str, u64)] =
    &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
/// The longest time that a setting takes, so that no deadline overflows: 400 days.
const MAX_TIME: u64 = 400 * 86_400_000;
const MAX_SIZE: u64 = 16 << 30;

/// A time that may not be nothing: `500ms`, `10s`, `5m`, `24h`, `7d`.
pub(super) fn time(text: &str) -> Parsed<Duration> {
    match time_or_none(text)? {
        Duration::ZERO => Err("expected a time longer than nothing".into()),
        time => Ok(time),
    }
}

/// A time, `0s` included.
pub(super) fn time_or_none(text: &str) -> Parsed<Duration> {
    let expected =
        "expected a whole number and a unit, such as \"500ms\", \"10s\", \"5m\" or \"24h\"";
    let millis = with_unit(text, TIME_UNITS).ok_or(expected)?;
    match millis {
        Some(millis) if millis <= MAX_TIME => Ok(Duration::from_millis(millis)),
        _ => Err("expected a time of at most 400 days".into()),
    }
}

/// A size in bytes, at least one: `512B`, `64KiB`, `2MiB`.
pub(super) fn size(text: &str) -> Parsed<usize> {
    let expected = "expected a whole number and a unit, such as \"512B\", \"64KiB\" or \"2MiB\"";
    match with_unit(text, SIZE_UNITS).ok_or(expected)? {
        Some(0) => Err("expected a size of at least \"1B\"".into()),
        Some(bytes) if bytes <= MAX_SIZE => {
            usize::try_from(bytes).map_err(|_| "expected a size that this machine can hold".into())
        }
        _ => Err("expected a size of at most \"16GiB\"".into()),
    }
}

/// `None` when it is not a number and a unit; `Some(None)` when it does not fit.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<Option<u64>> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    if number.is_empty() {
        return None;
    }
    Some(number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor)))
}

pub(super) fn money(text: &str) -> Parsed<Usd> {
    if text.is_empty() {
        return Err("expected dollars as text, such as \"5.00\"".into());
    }
    text.parse().map_err(|error| format!("{error}").into())
}

/// A count that fits a `NonZeroU32`.
pub(super) fn count(number: i64) -> Parsed<NonZeroU32> {
    let expected = || "expected a whole number from 1 to 4294967295".into();
    u32::try_from(number).ok().and_then(NonZeroU32::new).ok_or_else(expected)
}

pub(super) fn seconds(number: i64) -> Parsed<Duration> {
    match u64::try_from(number) {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err("expected whole seconds, from 1 to 86400".into()),
    }
}

pub(super) fn connections(number: i64) -> Parsed<usize> {
    match usize::try_from(number) {
        Ok(connections @ 1..=1_000_000) => Ok(connections),
        _ => Err("expected a whole number from 1 to 1000000".into()),
    }
}

pub(super) fn seed(number: i64) -> Parsed<u64> {
    u64::try_from(number).map_err(|_| "expected a whole number from 0".into())
}

pub(super) fn listen(text: &str) -> Parsed<SocketAddr> {
    let expected = "expected an address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"";
    text.parse().map_err(|_| expected.into())
}

/// A network, or a single address; IPv4 in IPv6 clothes is folded, bits beyond the prefix are a fault.
pub(super) fn network(text: &str) -> Parsed<Network> {
    let expected = "expected a network such as \"10.0.0.0/8\" or \"2001:db8::/32\", or one address";
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let written: IpAddr = address.parse().map_err(|_| expected)?;
    let address = written.to_canonical();
    let (width, folded) = (bits(address), bits(written) - bits(address));
    let prefix = match prefix {
        None => width,
        Some(digits) if digits.len() <= 3 && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let prefix = digits.parse::<u8>().ok().and_then(|prefix| prefix.checked_sub(folded));
            prefix.filter(|prefix| *prefix <= width).ok_or("expected a shorter network prefix")?
        }
        Some(_) => return Err(expected.into()),
    };
    if has_bits_beyond(address, prefix) {
        return Err("expected no bits of the address beyond the network's prefix".into());
    }
    Ok(Network { address, prefix })
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn has_bits_beyond(address: IpAddr, prefix: u8) -> bool {
    let left_aligned = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    left_aligned.checked_shl(u32::from(prefix)).is_some_and(|rest| rest != 0)
}

/// Text that is not blank and holds no control characters.
pub(super) fn line(text: &str) -> Parsed<String> {
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        return Err("expected text of one line that is not blank".into());
    }
    Ok(text.to_owned())
}

pub(super) fn name(text: &str) -> Parsed<String> {
    if !(1..=128).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("expected a name of 1 to 128 visible ASCII characters".into());
    }
    Ok(text.to_owned())
}

/// A JSON pointer (RFC 6901) to something inside the document.
pub(super) fn pointer(text: &str) -> Parsed<String> {
    let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    if !text.starts_with('/') || !escapes || text.chars().any(char::is_control) {
        return Err("expected a JSON pointer such as \"/output/url\"".into());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests;
