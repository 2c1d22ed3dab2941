//! Money in micro-dollars: a budget chat costs $0.003, so cents are too coarse.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::gateway::contract::decimal;

const MICROS: u64 = 1_000_000;

/// An exact amount of US dollars, displayed as `0.006000`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Usd(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseUsdError {
    #[error("expected dollars such as 5.00 or 0.006")]
    Malformed,
    #[error("expected at most six places after the point")]
    TooPrecise,
    #[error("the amount is too large")]
    TooLarge,
}

/// An exact amount of US dollars that may be below zero, displayed as `-0.006000`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SignedUsd(i64);

/// The time that a budget is for, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    Day,
    /// From Monday to Sunday.
    Week,
    Month,
    /// All time: it never renews.
    Ever,
}

impl Period {
    pub const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Ever];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Ever => "ever",
        }
    }

    /// Returns the period with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|period| period.name() == name)
    }

    /// Returns the words that follow an amount, such as `a day`.
    pub const fn phrase(self) -> &'static str {
        match self {
            Self::Day => "a day",
            Self::Week => "a week",
            Self::Month => "a month",
            Self::Ever => "in all",
        }
    }
}

/// Spending limits per period; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpendLimit {
    pub day: Option<Usd>,
    pub week: Option<Usd>,
    pub month: Option<Usd>,
    pub ever: Option<Usd>,
}

impl SpendLimit {
    pub const NONE: Self = Self { day: None, week: None, month: None, ever: None };

    /// Returns a limit for one period.
    pub const fn of(period: Period, amount: Usd) -> Self {
        let amount = Some(amount);
        match period {
            Period::Day => Self { day: amount, ..Self::NONE },
            Period::Week => Self { week: amount, ..Self::NONE },
            Period::Month => Self { month: amount, ..Self::NONE },
            Period::Ever => Self { ever: amount, ..Self::NONE },
        }
    }

    pub const fn get(&self, period: Period) -> Option<Usd> {
        match period {
            Period::Day => self.day,
            Period::Week => self.week,
            Period::Month => self.month,
            Period::Ever => self.ever,
        }
    }

    /// Returns the periods that have a limit.
    pub fn rows(self) -> impl Iterator<Item = (Period, Usd)> {
        Period::ALL.into_iter().filter_map(move |period| Some((period, self.get(period)?)))
    }

    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Returns these limits, and those of `other` where this has none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.merge(other, Option::or)
    }

    /// Returns the stricter limit of each period.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        self.merge(other, |one, other| one.into_iter().chain(other).min())
    }

    /// Returns these limits, each higher by an amount.
    #[must_use]
    pub fn raised(self, by: Usd) -> Self {
        self.merge(Self::NONE, |limit, _| limit.map(|limit| Usd(limit.0.saturating_add(by.0))))
    }

    fn merge(self, other: Self, pick: impl Fn(Option<Usd>, Option<Usd>) -> Option<Usd>) -> Self {
        Self {
            day: pick(self.day, other.day),
            week: pick(self.week, other.week),
            month: pick(self.month, other.month),
            ever: pick(self.ever, other.ever),
        }
    }
}

/// Percentages of a budget at which its spending is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    /// Unused entries are zero.
    percents: [u8; Self::MAX],
}

impl Thresholds {
    pub const MAX: usize = 4;
    pub const NONE: Self = Self { percents: [0; Self::MAX] };

    /// Returns `None` if there are too many, or one that is not from 1 to 100.
    pub fn new(percents: &[u8]) -> Option<Self> {
        let mut all = Self::NONE;
        all.percents.get_mut(..percents.len())?.copy_from_slice(percents);
        percents.iter().all(|percent| (1..=100).contains(percent)).then_some(all)
    }

    pub fn iter(self) -> impl Iterator<Item = u8> {
        self.percents.into_iter().filter(|percent| *percent > 0)
    }

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

impl Usd {
    pub const ZERO: Self = Self(0);

    pub const fn micros(micros: u64) -> Self {
        Self(micros)
    }

    pub const fn mills(mills: u64) -> Self {
        Self(mills * 1_000)
    }

    pub const fn dollars(dollars: u64) -> Self {
        Self(dollars * MICROS)
    }

    /// Cents are the unit of the billing summary (2.3). A sum that is too large is clamped.
    pub const fn cents(cents: u64) -> Self {
        Self(cents.saturating_mul(10_000))
    }

    pub const fn as_micros(self) -> u64 {
        self.0
    }

    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Reads the gateway's notation (2.3, 2.5), such as `$5.00`.
    pub fn from_dollar_text(text: &str) -> Result<Self, ParseUsdError> {
        text.strip_prefix('$').ok_or(ParseUsdError::Malformed)?.parse()
    }

    /// Formats with at least two decimal places, and more only if needed: `$5.00`, `$0.006`.
    pub fn short(self) -> String {
        let (whole, mut fraction, mut places) = (self.0 / MICROS, self.0 % MICROS, 6);
        while places > 2 && fraction % 10 == 0 {
            places -= 1;
            fraction /= 10;
        }
        format!("${whole}.{fraction:0places$}")
    }
}

impl SignedUsd {
    pub const ZERO: Self = Self(0);

    /// An amount that is too large is clamped.
    pub fn micros(micros: i128) -> Self {
        Self(i64::try_from(micros).unwrap_or(if micros < 0 { i64::MIN } else { i64::MAX }))
    }

    pub fn cents(cents: i64) -> Self {
        Self::micros(i128::from(cents) * 10_000)
    }

    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns zero for an amount below zero.
    pub fn or_zero(self) -> Usd {
        Usd(u64::try_from(self.0).unwrap_or_default())
    }

    pub const fn abs(self) -> Usd {
        Usd(self.0.unsigned_abs())
    }

    /// Formats as [`Usd::short`], such as `-$5.00`.
    pub fn short(self) -> String {
        format!("{}{}", self.sign(), self.abs().short())
    }

    const fn sign(self) -> &'static str {
        if self.0 < 0 { "-" } else { "" }
    }
}

/// Reads a plain decimal, as in settings and flags: `5`, `5.00`, `0.006`.
impl std::str::FromStr for Usd {
    type Err = ParseUsdError;

    fn from_str(text: &str) -> Result<Self, ParseUsdError> {
        let (whole, fraction) = match text.split_once('.') {
            Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
            Some(_) => return Err(ParseUsdError::Malformed),
            None => (text, ""),
        };
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) {
            return Err(ParseUsdError::Malformed);
        }
        if fraction.len() > 6 {
            return Err(ParseUsdError::TooPrecise);
        }
        let whole: u64 = whole.parse().map_err(|_| ParseUsdError::TooLarge)?;
        let fraction: u64 =
            format!("{fraction:0<6}").parse().map_err(|_| ParseUsdError::Malformed)?;
        let micros = whole.checked_mul(MICROS).and_then(|micros| micros.checked_add(fraction));
        micros.map(Self).ok_or(ParseUsdError::TooLarge)
    }
}

/// Reads dollars and a period: `5.00/day`, `20/week`, `50.00/month` or `500/ever`.
impl std::str::FromStr for SpendLimit {
    type Err = ParseUsdError;

    fn from_str(text: &str) -> Result<Self, ParseUsdError> {
        let (amount, period) = text.split_once('/').ok_or(ParseUsdError::Malformed)?;
        let period = Period::named(period).ok_or(ParseUsdError::Malformed)?;
        Ok(Self::of(period, amount.parse()?))
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        decimal::write(f, self.0 / MICROS, 1)?;
        f.write_str(".")?;
        decimal::write(f, self.0 % MICROS, 6)
    }
}

impl fmt::Display for SignedUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.sign(), self.abs())
    }
}

impl Serialize for SignedUsd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Usd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amount_is_parsed_exactly_or_rejected() {
        for (text, micros) in [
            ("0", 0),
            ("5", 5_000_000),
            ("5.00", 5_000_000),
            ("0.006", 6_000),
            ("0.000001", 1),
            ("18446744073709.551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Usd(micros)), "{text}");
            assert_eq!(Usd::from_dollar_text(&format!("${text}")), Ok(Usd(micros)), "{text}");
        }
        for (text, why) in [
            ("", ParseUsdError::Malformed),
            (".5", ParseUsdError::Malformed),
            ("5.", ParseUsdError::Malformed),
            ("-5", ParseUsdError::Malformed),
            ("+5", ParseUsdError::Malformed),
            ("5,00", ParseUsdError::Malformed),
            ("1,000.00", ParseUsdError::Malformed),
            ("5e3", ParseUsdError::Malformed),
            (" 5", ParseUsdError::Malformed),
            ("5.0.0", ParseUsdError::Malformed),
            ("$5", ParseUsdError::Malformed),
            ("٥", ParseUsdError::Malformed),
            ("0.0000001", ParseUsdError::TooPrecise),
            ("18446744073709.551616", ParseUsdError::TooLarge),
            ("99999999999999999999999", ParseUsdError::TooLarge),
        ] {
            assert_eq!(text.parse::<Usd>(), Err(why), "{text}");
        }
        assert_eq!(Usd::from_dollar_text("5.00"), Err(ParseUsdError::Malformed));
    }

    #[test]
    fn amount_below_zero_has_a_sign() {
        for (cents, long, short, left) in [
            (-420, "-4.200000", "-$4.20", 0),
            (-1, "-0.010000", "-$0.01", 0),
            (0, "0.000000", "$0.00", 0),
            (7, "0.070000", "$0.07", 70_000),
        ] {
            let amount = SignedUsd::cents(cents);
            assert_eq!((amount.to_string(), amount.short()), (long.to_owned(), short.to_owned()));
            assert_eq!(amount.or_zero(), Usd(left));
        }
        assert_eq!(SignedUsd::cents(i64::MIN).as_micros(), i64::MIN);
        assert_eq!(SignedUsd::cents(i64::MAX).as_micros(), i64::MAX);
    }

    #[test]
    fn short_form_has_as_many_places_as_needed() {
        for (micros, shown) in [
            (0, "$0.00"),
            (5_000_000, "$5.00"),
            (6_000, "$0.006"),
            (10_000, "$0.01"),
            (1, "$0.000001"),
        ] {
            assert_eq!(Usd(micros).short(), shown);
        }
    }

    proptest! {
        #[test]
        fn formatted_amount_parses_back(micros: u64) {
            prop_assert_eq!(Usd(micros).to_string().parse(), Ok(Usd(micros)));
            prop_assert_eq!(Usd::from_dollar_text(&Usd(micros).short()), Ok(Usd(micros)));
        }

        #[test]
        fn up_to_six_decimal_places_are_parsed_exactly(
            whole in prop_oneof![Just(18_446_744_073_708_u64), Just(18_446_744_073_709), any::<u64>()],
            fraction in "[0-9]{1,7}",
        ) {
            let micros = u128::from(whole) * u128::from(MICROS)
                + format!("{fraction:0<6}")[..6].parse::<u128>().unwrap();
            let expected = match u64::try_from(micros) {
                _ if fraction.len() > 6 => Err(ParseUsdError::TooPrecise),
                Ok(micros) => Ok(Usd(micros)),
                Err(_) => Err(ParseUsdError::TooLarge),
            };
            prop_assert_eq!(format!("{whole}.{fraction}").parse(), expected);
            prop_assert_eq!(format!("00{whole}.{fraction}").parse(), expected);
        }

        #[test]
        fn only_digits_with_at_most_one_point_are_an_amount(text in "[0-9.,+ e$_-]{0,9}|\\PC{0,9}") {
            let is_digits = |part: &str| {
                !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
            };
            let is_amount = match text.split_once('.') {
                Some((whole, fraction)) => is_digits(whole) && is_digits(fraction) && fraction.len() <= 6,
                None => is_digits(&text),
            };
            prop_assert_eq!(text.parse::<Usd>().is_ok(), is_amount);
            prop_assert_eq!(Usd::from_dollar_text(&text).is_ok(), text.starts_with('$') && text[1..].parse::<Usd>().is_ok());
        }

        #[test]
        fn checked_arithmetic_is_exact_or_none(one: u64, other: u64) {
            let exact = |micros: Option<u64>| micros.map(Usd);
            let sum = u64::try_from(u128::from(one) + u128::from(other)).ok();
            let left = u64::try_from(i128::from(one) - i128::from(other)).ok();
            prop_assert_eq!(Usd(one).checked_add(Usd(other)), exact(sum));
            prop_assert_eq!(Usd(one).checked_sub(Usd(other)), exact(left));
            prop_assert_eq!(Usd(one).saturating_sub(Usd(other)), Usd(left.unwrap_or(0)));
            let cents = u64::try_from(u128::from(one) * 10_000).unwrap_or(u64::MAX);
            prop_assert_eq!(Usd::cents(one), Usd(cents));
        }
    }
}
