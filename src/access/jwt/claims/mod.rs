//! Reads what a token claims, by the settings and the time: all of it right, or nothing.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::object::{Malformed, Object};
use crate::config::{ClaimName, Jwt};
use crate::store::{Own, Role};

const MAX_SUBJECT: usize = 255;

pub(super) struct Claims {
    pub(super) subject: Arc<str>,
    pub(super) role: Role,
    pub(super) own: Own,
    /// When it ends, the leeway included: wall-clock time since the Unix epoch.
    pub(super) until: Duration,
}

impl Claims {
    pub(super) fn read(text: &str, rules: &Jwt, now: Duration) -> Result<Self, Malformed> {
        let claims = Object::read(text)?;
        let expiry = numeric_date(claims.written("exp").ok_or(Malformed)?)?;
        let until = expiry + rules.leeway;
        let is_early = |name| -> Result<bool, Malformed> {
            let from = claims.written(name).map(numeric_date).transpose()?;
            Ok(from.is_some_and(|from| from > now + rules.leeway))
        };
        let holds = now < until && !is_early("nbf")? && !is_early("iat")?;
        let is_theirs = claims.required::<String>("iss")? == rules.issuer;
        // Bound to a key of the bearer's (RFC 7800): good with a proof of it alone, and none is asked for.
        if !(holds && is_theirs && is_for(&claims, &rules.audience)?) || claims.has("cnf") {
            return Err(Malformed);
        }
        Ok(Self {
            subject: subject(claims.required("sub")?)?,
            role: rules.role_claim.as_ref().map_or(Role::Member, |name| role(&claims, name)),
            own: rules
                .budget_claim
                .as_ref()
                .map_or(Ok(Own::default()), |name| own(&claims, name))?,
            until,
        })
    }
}

fn is_for(claims: &Object<'_>, audience: &str) -> Result<bool, Malformed> {
    let named = claims.optional::<String>("aud");
    match named {
        Ok(named) => Ok(named.ok_or(Malformed)? == audience),
        Err(Malformed) => {
            let several: Vec<String> = claims.required("aud")?;
            Ok(several.iter().any(|named| named == audience))
        }
    }
}

fn subject(name: String) -> Result<Arc<str>, Malformed> {
    // Lines and directions of writing would lie to whoever reads a log or a list.
    let lies = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if name.trim().is_empty() || name.len() > MAX_SUBJECT || name.chars().any(lies) {
        return Err(Malformed);
    }
    Ok(visible(&name).into())
}

/// What nobody sees is written as `\u{…}`, here for every log, list and answer at once: `ada` and an `ada`
/// with a character of no width look like two, as they are two. No two names become the same, since one
/// that has `\u{` in it is written another way as well.
fn visible(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for (at, c) in name.char_indices() {
        let looks_escaped = c == '\\' && name[at..].starts_with("\\u{");
        if looks_escaped || is_unseen(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Characters of no width, fillers and marks (Unicode's `Default_Ignorable_Code_Point`, and those of
/// interlinear annotation), and blanks that are none to see.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{206f}' | '\u{2800}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn written<'a>(claims: &Object<'a>, name: &ClaimName) -> Result<Option<&'a str>, Malformed> {
    let ClaimName(path) = name;
    let Some((first, rest)) = path.split_first() else { return Ok(None) };
    let mut found = claims.written(first);
    for name in rest {
        let Some(outer) = found else { return Ok(None) };
        found = Object::read(outer)?.written(name);
    }
    Ok(found)
}

/// Whoever is not named an admin is none: what cannot be read gives nothing.
fn role(claims: &Object<'_>, name: &ClaimName) -> Role {
    let Ok(Some(written)) = written(claims, name) else { return Role::Member };
    let one: Option<String> = serde_json::from_str(written).ok();
    let several: Vec<&RawValue> = serde_json::from_str(written).unwrap_or_default();
    let among = several.iter().filter_map(|one| serde_json::from_str::<String>(one.get()).ok());
    let is_admin = one.into_iter().chain(among).any(|name| name == Role::Admin.name());
    if is_admin { Role::Admin } else { Role::Member }
}

/// `"5.00/day"`, `"100/month"`, or `{"day": "5.00", "month": "100"}` with one of them or both.
/// What cannot be read is a fault: none at all would be no limit.
fn own(claims: &Object<'_>, name: &ClaimName) -> Result<Own, Malformed> {
    let mut own = Own::default();
    let Some(written) = written(claims, name)? else { return Ok(own) };
    if let Ok(text) = serde_json::from_str::<String>(written) {
        let (amount, period) = text.split_once('/').ok_or(Malformed)?;
        set(&mut own, period, amount)?;
        return Ok(own);
    }
    let budget = Object::read(written)?;
    for period in budget.names() {
        set(&mut own, period, &budget.required::<String>(period)?)?;
    }
    if own == Own::default() { Err(Malformed) } else { Ok(own) }
}

fn set(own: &mut Own, period: &str, amount: &str) -> Result<(), Malformed> {
    let limit = match period {
        "day" => &mut own.day,
        "month" => &mut own.month,
        _ => return Err(Malformed),
    };
    *limit = Some(amount.parse().map_err(|_| Malformed)?);
    Ok(())
}

/// The last second of the year 9999: a time beyond it is a mistake.
const LATEST: u64 = 253_402_300_799;
const MAX_DIGITS: isize = 12;
/// Nobody needs more characters for a moment; who counts them need not count far.
const MAX_LENGTH: usize = 64;
/// The digits of a nanosecond; what is written behind them is cut off.
const NANOS: isize = 9;

/// Reads a moment as tokens write it (RFC 7519, 2: seconds since the Unix epoch, whole or not), digit by
/// digit, since no float holds them all. What is no JSON number or before 1970 is malformed.
fn numeric_date(written: &str) -> Result<Duration, Malformed> {
    if written.len() > MAX_LENGTH {
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
    if point > MAX_DIGITS {
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
mod tests;
