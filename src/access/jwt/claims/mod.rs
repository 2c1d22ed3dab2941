//! Validates a token's claims against the settings and the time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::MALFORMED_CLAIMS;
use crate::access::subject;
use crate::config::{AllowRule, ClaimPath, TokenRules};
use crate::ledger::{Period, Role, Selection, SpendLimit, is_member_name};

pub(super) struct Claims {
    pub(super) subject: Arc<str>,
    pub(super) role: Role,
    pub(super) own_budget: SpendLimit,
    pub(super) group: Option<Arc<str>>,
    pub(super) may_buy: Option<Selection>,
    /// Wall-clock time since the Unix epoch, including the leeway.
    pub(super) expires_at: Duration,
}

impl Claims {
    /// Fails with the reason for the log.
    pub(super) fn read(
        text: &str,
        config: &TokenRules,
        now: Duration,
    ) -> Result<Self, &'static str> {
        const EXP: &str = "the token's exp is missing or malformed";
        let claims = JsonObject::read(text).map_err(|_| MALFORMED_CLAIMS)?;
        let expires_at = numeric_date(claims.raw("exp").ok_or(EXP)?).map_err(|_| EXP)?;
        let expires_at = expires_at + config.leeway;
        let has_begun = |name| {
            let from = claims.raw(name).map(numeric_date).transpose();
            from.is_ok_and(|from| from.is_none_or(|from| from <= now + config.leeway))
        };
        if now >= expires_at {
            return Err("the token has expired");
        }
        if !has_begun("nbf") || !has_begun("iat") {
            return Err("the token is not valid yet, or its nbf or iat is malformed");
        }
        if claims.required::<String>("iss").ok().as_ref() != Some(&config.issuer) {
            return Err("the token's iss is not the issuer of the settings");
        }
        if !is_audience(&claims, &config.audience).unwrap_or(false) {
            return Err("the token's aud is not the audience of the settings");
        }
        if claims.has("cnf") {
            return Err("the token needs a proof of possession (cnf, RFC 7800)");
        }
        let own_budget = match &config.budget_claim {
            Some(path) => {
                own_budget(&claims, path).map_err(|_| "the budget's claim is malformed")?
            }
            None => SpendLimit::default(),
        };
        let group = match &config.group_claim {
            Some(path) => group(&claims, path).map_err(|_| "the group's claim is malformed")?,
            None => None,
        };
        let may_buy = match &config.may_buy_claim {
            Some(path) => may_buy(&claims, path).map_err(|_| "the claim may_buy is malformed")?,
            None => None,
        };
        let role = config.role_claim.as_ref().map_or(Role::Member, |path| role(&claims, path));
        let name = claims.required::<String>("sub").ok();
        let subject = name.and_then(|name| subject::escaped(&name));
        let subject = subject.ok_or("the token's sub is missing, or is no name of a caller")?;
        Ok(Self { subject, role, own_budget, group, may_buy, expires_at })
    }
}

fn is_audience(claims: &JsonObject<'_>, audience: &str) -> Result<bool, Malformed> {
    if let Ok(name) = claims.required::<String>("aud") {
        return Ok(name == audience);
    }
    Ok(claims.required::<Vec<String>>("aud")?.iter().any(|name| name == audience))
}

fn raw_claim<'a>(claims: &JsonObject<'a>, path: &ClaimPath) -> Result<Option<&'a str>, Malformed> {
    let Some((first, rest)) = path.0.split_first() else { return Ok(None) };
    let mut found = claims.raw(first);
    for name in rest {
        let Some(outer) = found else { return Ok(None) };
        found = JsonObject::read(outer)?.raw(name);
    }
    Ok(found)
}

/// Returns a claim that is text and not blank.
pub(super) fn text(claims: &JsonObject<'_>, path: &ClaimPath) -> Option<String> {
    let raw = raw_claim(claims, path).ok()??;
    serde_json::from_str(raw).ok().filter(|text: &String| !text.trim().is_empty())
}

/// Returns whether the claim has the rule's value, or a list that contains it. A number or a flag
/// is compared as it is written.
pub(super) fn meets(claims: &JsonObject<'_>, rule: &AllowRule) -> bool {
    let is = |raw: &str| match serde_json::from_str::<String>(raw) {
        Ok(text) => text == rule.is,
        Err(_) => !raw.starts_with(['[', '{']) && raw == rule.is,
    };
    let Ok(Some(raw)) = raw_claim(claims, &rule.claim) else { return false };
    match serde_json::from_str::<Vec<&RawValue>>(raw) {
        Ok(several) => several.iter().any(|one| is(one.get())),
        Err(_) => is(raw),
    }
}

/// An unreadable claim grants nothing.
fn role(claims: &JsonObject<'_>, path: &ClaimPath) -> Role {
    let Ok(Some(raw)) = raw_claim(claims, path) else { return Role::Member };
    let one: Option<String> = serde_json::from_str(raw).ok();
    let several: Vec<&RawValue> = serde_json::from_str(raw).unwrap_or_default();
    let among = several.iter().filter_map(|one| serde_json::from_str::<String>(one.get()).ok());
    let is_admin = one.into_iter().chain(among).any(|name| name == Role::Admin.name());
    if is_admin { Role::Admin } else { Role::Member }
}

/// Reads `"5.00/day"`, `"100/month"`, or `{"day": "5.00", "month": "100"}`.
///
/// Fails if the claim is unreadable, because an absent budget means no limit.
fn own_budget(claims: &JsonObject<'_>, path: &ClaimPath) -> Result<SpendLimit, Malformed> {
    let mut budget = SpendLimit::default();
    let Some(raw) = raw_claim(claims, path)? else { return Ok(budget) };
    if let Ok(text) = serde_json::from_str::<String>(raw) {
        return text.parse().map_err(|_| Malformed);
    }
    let limits = JsonObject::read(raw)?;
    for period in limits.names() {
        set_limit(&mut budget, period, &limits.required::<String>(period)?)?;
    }
    if budget == SpendLimit::default() { Err(Malformed) } else { Ok(budget) }
}

/// Reads `"design"`, or `["design"]`.
///
/// Fails if the claim is unreadable, because without a group no budget of a group applies.
fn group(claims: &JsonObject<'_>, path: &ClaimPath) -> Result<Option<Arc<str>>, Malformed> {
    let Some(raw) = raw_claim(claims, path)? else { return Ok(None) };
    let name = match serde_json::from_str::<String>(raw) {
        Ok(name) => name,
        Err(_) => {
            serde_json::from_str::<[String; 1]>(raw).map(|[name]| name).map_err(|_| Malformed)?
        }
    };
    if is_member_name(&name) { Ok(Some(name.into())) } else { Err(Malformed) }
}

/// Reads `"chat video-b"`, or `["chat", "video-b"]`.
///
/// Fails if the claim is unreadable, because an absent one means `access.may_buy`.
fn may_buy(claims: &JsonObject<'_>, path: &ClaimPath) -> Result<Option<Selection>, Malformed> {
    let Some(raw) = raw_claim(claims, path)? else { return Ok(None) };
    if let Ok(text) = serde_json::from_str::<String>(raw) {
        return Ok(Some(Selection::parse(&text)));
    }
    let names = serde_json::from_str::<Vec<String>>(raw).map_err(|_| Malformed)?;
    Ok(Some(Selection::new(names)))
}

fn set_limit(budget: &mut SpendLimit, period: &str, amount: &str) -> Result<(), Malformed> {
    let period = Period::named(period).ok_or(Malformed)?;
    *budget = SpendLimit::of(period, amount.parse().map_err(|_| Malformed)?).or(*budget);
    Ok(())
}

const MAX_SECONDS: u64 = 253_402_300_799;
const SECOND_DIGITS: usize = 12;
const NANO_DIGITS: usize = 9;
const MAX_LENGTH: usize = 64;

/// Reads a `NumericDate` (RFC 7519, 2) as exact seconds since the Unix epoch.
pub(super) fn numeric_date(written: &str) -> Result<Duration, Malformed> {
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
    // The zeros between the highest digit of `SECOND_DIGITS` and the first significant one.
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

pub(super) struct JsonObject<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

/// Carries no details, because the input is secret.
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

    /// `null` does not count as absent.
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
                return Err(A::Error::custom("duplicate name"));
            }
        }
        Ok(JsonObject(members))
    }
}

#[cfg(test)]
mod tests;
