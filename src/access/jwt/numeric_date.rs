//! Reads a moment as tokens write it (RFC 7519, 2: seconds since the Unix epoch, whole or not), exactly:
//! digit by digit, since no float holds them all.

use std::ops::Range;
use std::time::Duration;

use crate::access::object::Malformed;

/// The last second of the year 9999: a time beyond it is a mistake.
const LATEST: u64 = 253_402_300_799;
/// Its digits.
const MOST_DIGITS: isize = 12;
/// Nobody needs more characters for a moment; who counts them need not count far.
const LONGEST: usize = 64;
/// The digits of a nanosecond; what is written behind them is cut off.
const NANOS: isize = 9;

/// `written` is a JSON number; anything else, and what is before 1970, is malformed.
pub(super) fn read(written: &str) -> Result<Duration, Malformed> {
    if written.len() > LONGEST {
        return Err(Malformed);
    }
    let (mantissa, exponent) = written.split_once(['e', 'E']).unwrap_or((written, "0"));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(part) {
        return Err(Malformed);
    }
    let exponent: isize = exponent.parse().map_err(|_| Malformed)?;
    let digits = format!("{whole}{part}");
    let significant = digits.trim_start_matches('0').as_bytes();
    if significant.is_empty() {
        return Ok(Duration::ZERO);
    }
    let zeros = digits.len() - significant.len();
    // How many of them stand before the point.
    let place = |length: usize| isize::try_from(length).map_err(|_| Malformed);
    let point = (place(whole.len())? - place(zeros)?).checked_add(exponent).ok_or(Malformed)?;
    if point > MOST_DIGITS {
        return Err(Malformed);
    }
    // A digit of value, counted from the point: what stands beyond those that are written is a zero.
    let at = |place: isize| {
        let place = place.checked_add(point).and_then(|place| usize::try_from(place).ok());
        u64::from(place.and_then(|place| significant.get(place)).map_or(0, |digit| digit - b'0'))
    };
    let number = |places: Range<isize>| places.fold(0, |sum, place| sum * 10 + at(place));
    let seconds = number(-point.max(0)..0);
    let nanos = u32::try_from(number(0..NANOS)).map_err(|_| Malformed)?;
    if seconds > LATEST { Err(Malformed) } else { Ok(Duration::new(seconds, nanos)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_moment_is_read_digit_by_digit_or_it_is_none() {
        for (written, seconds, nanos) in [
            ("0", 0, 0),
            ("-0", u64::MAX, 0),
            ("0.0", 0, 0),
            ("0e99", 0, 0),
            ("1800000600", 1_800_000_600, 0),
            ("1800000600.5", 1_800_000_600, 500_000_000),
            ("1800000600.000000001", 1_800_000_600, 1),
            ("1800000600.9999999999", 1_800_000_600, 999_999_999),
            ("1.8000006005E9", 1_800_000_600, 500_000_000),
            ("18e+8", 1_800_000_000, 0),
            ("18000006005e-1", 1_800_000_600, 500_000_000),
            ("5e-1", 0, 500_000_000),
            ("5e-99", 0, 0),
            ("0.18e10", 1_800_000_000, 0),
            ("253402300799", LATEST, 0),
            ("253402300800", u64::MAX, 0),
            ("1e300", u64::MAX, 0),
            ("1e9223372036854775807", u64::MAX, 0),
            ("1e-9223372036854775807", 0, 0),
            ("1e99999999999999999999", u64::MAX, 0),
            ("-1", u64::MAX, 0),
            ("\"1800000600\"", u64::MAX, 0),
            ("true", u64::MAX, 0),
            ("null", u64::MAX, 0),
            ("[1]", u64::MAX, 0),
            ("", u64::MAX, 0),
        ] {
            let expected = (seconds < u64::MAX).then(|| Duration::new(seconds, nanos));
            assert_eq!(read(written).ok(), expected, "{written}");
        }
        assert!(read(&"0".repeat(LONGEST + 1)).is_err());
    }

    proptest! {
        #[test]
        fn the_same_moment_is_the_same_however_the_point_is_moved(
            seconds in 0..=LATEST,
            nanos in 0..1_000_000_000_u32,
            shift in 0..12_usize,
        ) {
            let moment = Duration::new(seconds, nanos);
            prop_assert_eq!(read(&format!("{seconds}.{nanos:09}")), Ok(moment));
            prop_assert_eq!(read(&format!("{seconds}{nanos:09}e-9")), Ok(moment));
            let zeros = "0".repeat(shift);
            prop_assert_eq!(read(&format!("0.{zeros}{seconds:012}{nanos:09}e{}", 12 + shift)), Ok(moment));
        }
    }
}
