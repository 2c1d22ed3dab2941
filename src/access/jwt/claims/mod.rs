//! Reads what a token claims, by the settings and the time: all of it right, or nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

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
        let own = rules.budget_claim.as_ref().map_or(Ok(Own::default()), |it| own(&claims, it))?;
        let role = rules.role_claim.as_ref().map_or(Role::Member, |name| role(&claims, name));
        Ok(Self { subject: subject(claims.required("sub")?)?, role, own, until })
    }
}

fn is_for(claims: &Object<'_>, audience: &str) -> Result<bool, Malformed> {
    if let Ok(named) = claims.required::<String>("aud") {
        return Ok(named == audience);
    }
    let several: Vec<String> = claims.required("aud")?;
    Ok(several.iter().any(|named| named == audience))
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

/// Writes invisible characters as `\u{…}`, so that no two names look the same in a log or a list. No two
/// names become the same, since one that has `\u{` in it is written another way as well.
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

/// A claim that cannot be read gives nothing.
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
const SECONDS: usize = 12;
const NANOS: usize = 9;
const MAX_LENGTH: usize = 64;

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
    let exponent: i64 = exponent.parse().map_err(|_| Malformed)?;
    let digits = format!("{whole}{part}");
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        return Ok(Duration::ZERO);
    }
    // How many places the first digit lies after the first digit that is read.
    let length = |text: &str| i64::try_from(text.len()).map_err(|_| Malformed);
    let zeros = (length(&digits)? - length(significant)?).saturating_sub(exponent);
    let zeros = usize::try_from(zeros.saturating_add(SECONDS as i64 - length(whole)?))
        .map_err(|_| Malformed)?;
    let (zeros, places) = (zeros.min(SECONDS + NANOS), SECONDS + NANOS);
    let placed = format!("{:0>zeros$}{significant}{:0>places$}", "", "");
    let (seconds, nanos) = placed[..places].split_at(SECONDS);
    let seconds = seconds.parse().ok().filter(|seconds| *seconds <= LATEST).ok_or(Malformed)?;
    Ok(Duration::new(seconds, nanos.parse().map_err(|_| Malformed)?))
}

/// A JSON object that somebody else wrote: each name once, each value of the expected type.
pub(super) struct Object<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

/// It is not what was expected. What it is instead is not said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl<'a> Object<'a> {
    pub(super) fn read(text: &'a str) -> Result<Self, Malformed> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let object = reader.deserialize_map(Members).map_err(|_| Malformed)?;
        reader.end().map_err(|_| Malformed)?;
        Ok(object)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn required<T: Deserialize<'a>>(&self, name: &str) -> Result<T, Malformed> {
        self.optional(name)?.ok_or(Malformed)
    }

    /// A member that need not be there; `null` is no absence.
    pub(super) fn optional<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, Malformed> {
        let Some(written) = self.written(name) else { return Ok(None) };
        serde_json::from_str(written).map(Some).map_err(|_| Malformed)
    }

    pub(super) fn written(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|value| value.get())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(AsRef::as_ref)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("a name is given twice"));
            }
        }
        Ok(Object(members))
    }
}

#[cfg(test)]
mod tests;
