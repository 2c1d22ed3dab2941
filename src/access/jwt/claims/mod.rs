//! Reads what a token claims, by the settings and the time: all of it right, or nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::config::{ClaimPath, JwtConfig};
use crate::store::{OwnBudget, Role};

const MAX_SUBJECT: usize = 255;

pub(super) struct Claims {
    pub(super) subject: Arc<str>,
    pub(super) role: Role,
    pub(super) own_budget: OwnBudget,
    /// When it ends, the leeway included: wall-clock time since the Unix epoch.
    pub(super) expires_at: Duration,
}

impl Claims {
    pub(super) fn read(text: &str, rules: &JwtConfig, now: Duration) -> Result<Self, Malformed> {
        let claims = JsonObject::read(text)?;
        let expiry = numeric_date(claims.raw("exp").ok_or(Malformed)?)?;
        let until = expiry + rules.leeway;
        let is_early = |name| -> Result<bool, Malformed> {
            let from = claims.raw(name).map(numeric_date).transpose()?;
            Ok(from.is_some_and(|from| from > now + rules.leeway))
        };
        let holds = now < until && !is_early("nbf")? && !is_early("iat")?;
        let is_theirs = claims.required::<String>("iss")? == rules.issuer;
        // Bound to a key of the bearer's (RFC 7800): good with a proof of it alone, and none is asked for.
        if !(holds && is_theirs && is_audience(&claims, &rules.audience)?) || claims.has("cnf") {
            return Err(Malformed);
        }
        let own = rules
            .budget_claim
            .as_ref()
            .map_or(Ok(OwnBudget::default()), |it| own_budget(&claims, it))?;
        let role = rules.role_claim.as_ref().map_or(Role::Member, |name| role(&claims, name));
        Ok(Self {
            subject: subject(claims.required("sub")?)?,
            role,
            own_budget: own,
            expires_at: until,
        })
    }
}

fn is_audience(claims: &JsonObject<'_>, audience: &str) -> Result<bool, Malformed> {
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
    Ok(escape_invisible(&name).into())
}

/// Writes invisible characters as `\u{…}`, so that no two names look the same in a log or a list. No two
/// names become the same, since one that has `\u{` in it is written another way as well.
fn escape_invisible(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for (at, c) in name.char_indices() {
        let looks_escaped = c == '\\' && name[at..].starts_with("\\u{");
        if looks_escaped || is_invisible(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Characters of no width, fillers and marks (Unicode's `Default_Ignorable_Code_Point`, and those of
/// interlinear annotation), and blanks that are none to see.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{206f}' | '\u{2800}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn raw_claim<'a>(claims: &JsonObject<'a>, name: &ClaimPath) -> Result<Option<&'a str>, Malformed> {
    let ClaimPath(path) = name;
    let Some((first, rest)) = path.split_first() else { return Ok(None) };
    let mut found = claims.raw(first);
    for name in rest {
        let Some(outer) = found else { return Ok(None) };
        found = JsonObject::read(outer)?.raw(name);
    }
    Ok(found)
}

/// A claim that cannot be read gives nothing.
fn role(claims: &JsonObject<'_>, name: &ClaimPath) -> Role {
    let Ok(Some(written)) = raw_claim(claims, name) else { return Role::Member };
    let one: Option<String> = serde_json::from_str(written).ok();
    let several: Vec<&RawValue> = serde_json::from_str(written).unwrap_or_default();
    let among = several.iter().filter_map(|one| serde_json::from_str::<String>(one.get()).ok());
    let is_admin = one.into_iter().chain(among).any(|name| name == Role::Admin.name());
    if is_admin { Role::Admin } else { Role::Member }
}

/// `"5.00/day"`, `"100/month"`, or `{"day": "5.00", "month": "100"}` with one of them or both.
/// What cannot be read is a fault: none at all would be no limit.
fn own_budget(claims: &JsonObject<'_>, name: &ClaimPath) -> Result<OwnBudget, Malformed> {
    let mut own = OwnBudget::default();
    let Some(written) = raw_claim(claims, name)? else { return Ok(own) };
    if let Ok(text) = serde_json::from_str::<String>(written) {
        let (amount, period) = text.split_once('/').ok_or(Malformed)?;
        set_limit(&mut own, period, amount)?;
        return Ok(own);
    }
    let budget = JsonObject::read(written)?;
    for period in budget.names() {
        set_limit(&mut own, period, &budget.required::<String>(period)?)?;
    }
    if own == OwnBudget::default() { Err(Malformed) } else { Ok(own) }
}

fn set_limit(own: &mut OwnBudget, period: &str, amount: &str) -> Result<(), Malformed> {
    let limit = match period {
        "day" => &mut own.day,
        "month" => &mut own.month,
        _ => return Err(Malformed),
    };
    *limit = Some(amount.parse().map_err(|_| Malformed)?);
    Ok(())
}

/// The last second of the year 9999: a time beyond it is a mistake.
const MAX_SECONDS: u64 = 253_402_300_799;
const SECOND_DIGITS: usize = 12;
const NANO_DIGITS: usize = 9;
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
    let zeros = usize::try_from(zeros.saturating_add(SECOND_DIGITS as i64 - length(whole)?))
        .map_err(|_| Malformed)?;
    let (zeros, places) = (zeros.min(SECOND_DIGITS + NANO_DIGITS), SECOND_DIGITS + NANO_DIGITS);
    let placed = format!("{:0>zeros$}{significant}{:0>places$}", "", "");
    let (seconds, nanos) = placed[..places].split_at(SECOND_DIGITS);
    let seconds =
        seconds.parse().ok().filter(|seconds| *seconds <= MAX_SECONDS).ok_or(Malformed)?;
    Ok(Duration::new(seconds, nanos.parse().map_err(|_| Malformed)?))
}

/// A JSON object that somebody else wrote: each name once, each value of the expected type.
pub(super) struct JsonObject<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

/// It is not what was expected. What it is instead is not said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl<'a> JsonObject<'a> {
    pub(super) fn read(text: &'a str) -> Result<Self, Malformed> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let object = reader.deserialize_map(ObjectVisitor).map_err(|_| Malformed)?;
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
        let Some(written) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(written).map(Some).map_err(|_| Malformed)
    }

    pub(super) fn raw(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|value| value.get())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(AsRef::as_ref)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = JsonObject<'de>;

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
        Ok(JsonObject(members))
    }
}

#[cfg(test)]
mod tests;
