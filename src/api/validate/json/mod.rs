//! A strict JSON reader for request bodies, which are read once, straight into fields.
//!
//! Invariant: whatever two parsers could read differently is rejected, also in unknown fields:
//! duplicate keys, lone surrogates, a byte order mark, deep nesting.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::rule::{MAX_FAULTS, UnknownFields, quote};
use crate::gate::problem::{MALFORMED_JSON, Problem};

pub(super) const MAX_DEPTH: u8 = 32;

const MAX_UNKNOWN: usize = MAX_FAULTS + 1;

/// A string, if it was given.
pub(super) type Text<'a> = Field<Cow<'a, str>>;

pub(super) trait FromObject<'de> {
    const EXPECTED: &'static str = "an object";
    /// The keys that it has, for messages about others.
    const KEYS: &'static [&'static str] = &[];

    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error>;
}

/// Reads a body that is one object.
pub(super) fn read_body<'de, T: FromObject<'de> + Default>(
    payload: &'de [u8],
) -> Result<T, Problem> {
    let mut object = T::default();
    read_object(payload, &mut object)?;
    Ok(object)
}

/// Reads a body that is one object, into an object with a context.
pub(super) fn read_object<'de>(
    payload: &'de [u8],
    object: &mut impl FromObject<'de>,
) -> Result<(), Problem> {
    let text = text(payload)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    reader
        .deserialize_map(RootVisitor(object))
        .and_then(|()| reader.end())
        .map_err(|error| malformed(payload, text, &error))
}

pub(super) fn check_raw(payload: &[u8], raw: &RawValue) -> Result<(), Problem> {
    read_raw::<Skipped>(payload, raw).map(drop)
}

/// Reads a value of the body that was kept.
pub(super) fn read_raw<'de, T: FromValue<'de>>(
    payload: &[u8],
    raw: &'de RawValue,
) -> Result<Field<T>, Problem> {
    let text = raw.get();
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = ValueSeed::within(1).deserialize(&mut reader);
    read.map_err(|error| malformed(payload, text, &error))
}

fn read_members<'de, A: MapAccess<'de>>(
    mut map: A,
    object: &mut impl FromObject<'de>,
    depth: u8,
) -> Result<(), A::Error> {
    while let Some(Name(name)) = map.next_key()? {
        object.member(Entry { name, map: &mut map, depth })?;
    }
    Ok(())
}

pub(super) struct Entry<'m, 'de, A> {
    name: Cow<'de, str>,
    map: &'m mut A,
    depth: u8,
}

impl<'de, A: MapAccess<'de>> Entry<'_, 'de, A> {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn read_into<T: FromValue<'de>>(self, field: &mut Field<T>) -> Result<(), A::Error> {
        if !field.is_absent() {
            return Err(duplicate_key(&self.name));
        }
        *field = self.map.next_value_seed(ValueSeed::within(self.depth))?;
        Ok(())
    }

    /// Keeps the value's bytes. The caller must [`check_raw`] or [`read_raw`] them.
    pub(super) fn keep_raw<'a>(
        self,
        name: &'a str,
        kept: &mut BTreeMap<&'a str, &'de RawValue>,
    ) -> Result<(), A::Error> {
        if kept.contains_key(name) {
            return Err(duplicate_key(name));
        }
        kept.insert(name, self.map.next_value()?);
        Ok(())
    }

    /// Keeps the value's bytes. The caller must [`check_raw`] them.
    #[cfg(feature = "mcp")]
    pub(super) fn keep(self, kept: &mut Option<&'de RawValue>) -> Result<(), A::Error> {
        if kept.is_some() {
            return Err(duplicate_key(&self.name));
        }
        *kept = Some(self.map.next_value()?);
        Ok(())
    }

    /// Keeps the member as it is written. The caller must check the values, and find duplicates.
    #[cfg(feature = "mcp")]
    pub(super) fn keep_member(
        self,
        kept: &mut Vec<(Cow<'de, str>, &'de RawValue)>,
    ) -> Result<(), A::Error> {
        kept.push((self.name, self.map.next_value()?));
        Ok(())
    }

    pub(super) fn reject(self, unknown: &mut UnknownFields<'de>) -> Result<(), A::Error> {
        if unknown.first.len() < MAX_UNKNOWN {
            unknown.first.push(self.name.clone());
        }
        insert(&mut unknown.names, self.name)?;
        self.map.next_value_seed(ValueSeed::<Skipped>::within(self.depth))?;
        Ok(())
    }

    /// Skips a field that is ignored, and records its name unless it is `null`.
    pub(super) fn ignore(self, ignored: &mut UnknownFields<'de>) -> Result<(), A::Error> {
        insert(&mut ignored.names, self.name.clone())?;
        let value: Field<Skipped> = self.map.next_value_seed(ValueSeed::within(self.depth))?;
        if !value.is_null() && ignored.ignored.len() < MAX_UNKNOWN {
            ignored.ignored.push(self.name);
        }
        Ok(())
    }
}

fn insert<'a, E: Error>(names: &mut HashSet<Cow<'a, str>>, name: Cow<'a, str>) -> Result<(), E> {
    if names.contains(&name) {
        return Err(duplicate_key(&name));
    }
    names.insert(name);
    Ok(())
}

struct Skipped;

impl FromValue<'_> for Skipped {
    const EXPECTED: &'static str = "nothing";
}

struct RootVisitor<'m, M>(&'m mut M);

impl<'de, M: FromObject<'de>> Visitor<'de> for RootVisitor<'_, M> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        read_members(map, self.0, 1)
    }
}

/// An unescaped key: `\u0070rompt` is `prompt`.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

fn duplicate_key<E: Error>(name: &str) -> E {
    E::custom(format_args!("the key `{}` is given twice in one object", quote(name)))
}

#[derive(Debug, Default)]
pub(super) enum Field<T> {
    #[default]
    Absent,
    /// Names the type that was found, which may be `null`.
    WrongType(&'static str),
    Present(T),
}

const NULL: &str = "null";

pub(super) trait FromValue<'de>: Sized {
    const EXPECTED: &'static str;

    fn string(_: Cow<'de, str>) -> Option<Self> {
        None
    }

    /// Takes numbers without a point or an exponent that fit an `i64` or a `u64`.
    fn integer(_: i128) -> Option<Self> {
        None
    }

    fn boolean(_: bool) -> Option<Self> {
        None
    }

    fn elements<A: SeqAccess<'de>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        while seq.next_element_seed(ValueSeed::<Skipped>::within(depth))?.is_some() {}
        Ok(None)
    }

    fn members<A: MapAccess<'de>>(mut map: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut names = HashSet::new();
        while let Some(Name(name)) = map.next_key()? {
            insert(&mut names, name)?;
            map.next_value_seed(ValueSeed::<Skipped>::within(depth))?;
        }
        Ok(None)
    }
}

impl<'de, T: FromObject<'de> + Default> FromValue<'de> for T {
    const EXPECTED: &'static str = <T as FromObject<'de>>::EXPECTED;

    fn members<A: MapAccess<'de>>(map: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut object = T::default();
        read_members(map, &mut object, depth)?;
        Ok(Some(object))
    }
}

impl<'de> FromValue<'de> for Cow<'de, str> {
    const EXPECTED: &'static str = "a string";

    fn string(text: Cow<'de, str>) -> Option<Self> {
        Some(text)
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "true or false";

    fn boolean(flag: bool) -> Option<Self> {
        Some(flag)
    }
}

/// Guess: the gateway's "integer" is written as one. `8.0` and `8e0` are rejected.
impl FromValue<'_> for i128 {
    const EXPECTED: &'static str = "a whole number, written without a point or an exponent";

    fn integer(number: i128) -> Option<Self> {
        Some(number)
    }
}

impl<T> Field<T> {
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    pub(super) fn value(&self) -> Option<&T> {
        if let Self::Present(value) = self { Some(value) } else { None }
    }

    pub(super) fn into_value(self) -> Option<T> {
        if let Self::Present(value) = self { Some(value) } else { None }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::WrongType(NULL))
    }

    pub(super) fn null_as_absent(self) -> Self {
        if self.is_null() { Self::Absent } else { self }
    }

    pub(super) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Field<U> {
        match self {
            Self::Absent => Field::Absent,
            Self::WrongType(found) => Field::WrongType(found),
            Self::Present(value) => Field::Present(convert(value)),
        }
    }

    pub(super) fn missing(&self, purpose: &str) -> Option<String> {
        self.is_absent().then(|| format!("required: {purpose}"))
    }

    pub(super) fn wrong_type<'de>(&self) -> Option<String>
    where
        T: FromValue<'de>,
    {
        let Self::WrongType(found) = self else { return None };
        Some(format!("expected {}, found {found}", T::EXPECTED))
    }
}

pub(super) struct ValueSeed<T> {
    within: u8,
    shape: PhantomData<fn() -> T>,
}

impl<T> ValueSeed<T> {
    pub(super) fn within(depth: u8) -> Self {
        Self { within: depth, shape: PhantomData }
    }

    fn deeper<E: Error>(&self) -> Result<u8, E> {
        if self.within < MAX_DEPTH {
            return Ok(self.within + 1);
        }
        let expected = "nested arrays and objects";
        Err(E::custom(format_args!("expected at most {MAX_DEPTH} {expected}")))
    }
}

impl<'de, T: FromValue<'de>> DeserializeSeed<'de> for ValueSeed<T> {
    type Value = Field<T>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Field<T>, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de, T: FromValue<'de>> Visitor<'de> for ValueSeed<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_unit<E>(self) -> Result<Field<T>, E> {
        Ok(Field::WrongType(NULL))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Field<T>, E> {
        Ok(read(T::boolean(flag), "a boolean"))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Field<T>, E> {
        Ok(read(T::integer(number.into()), "a number"))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Field<T>, E> {
        Ok(read(T::integer(number.into()), "a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Field<T>, E> {
        Ok(Field::WrongType("a number"))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Field<T>, E> {
        Ok(read(T::string(Cow::Borrowed(text)), "a string"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Field<T>, E> {
        Ok(read(T::string(Cow::Owned(text.to_owned())), "a string"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Field<T>, A::Error> {
        let depth = self.deeper()?;
        Ok(read(T::elements(seq, depth)?, "an array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Field<T>, A::Error> {
        let depth = self.deeper()?;
        Ok(read(T::members(map, depth)?, "an object"))
    }
}

fn read<T>(value: Option<T>, found: &'static str) -> Field<T> {
    value.map_or(Field::WrongType(found), Field::Present)
}

/// serde_json's syntax errors, and what was expected instead.
#[rustfmt::skip]
const SYNTAX_ERRORS: &[(&str, &str)] = &[
    ("EOF while parsing a list",          "the body ends within an array"),
    ("EOF while parsing an object",       "the body ends within an object"),
    ("EOF while parsing a string",        "the body ends within a string"),
    ("EOF while parsing a value",         "the body ends where a value is expected"),
    ("control character",                 "expected an escape such as \\n instead of a raw control character"),
    ("expected `,` or `]`",               "expected `,` or `]` after an element of an array"),
    ("expected `,` or `}`",               "expected `,` or `}` after a value of an object"),
    ("expected `:`",                      "expected `:` after a key"),
    ("expected ident",                    "expected `true`, `false` or `null`"),
    ("expected value",                    "expected a value"),
    ("invalid escape",                    "expected \" \\ / b f n r t, or u and four hexadecimal digits, after a backslash"),
    ("invalid number",                    "expected a valid JSON number"),
    ("key must be a string",              "expected a key in double quotes"),
    ("lone leading surrogate",            "expected a whole surrogate pair, such as \\ud83d\\ude00"),
    ("number out of range",               "expected a smaller number"),
    ("trailing characters",               "expected nothing after the object"),
    ("trailing comma",                    "expected another item after the comma, or no comma"),
    ("unexpected end of hex escape",      "expected a whole surrogate pair, such as \\ud83d\\ude00"),
];

fn text(payload: &[u8]) -> Result<&str, Problem> {
    let text = std::str::from_utf8(payload)
        .map_err(|error| problem(payload, error.valid_up_to() + 1, "expected UTF-8"))?;
    let start = text.bytes().position(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    match start.map(|start| (start, payload[start])) {
        Some((_, b'{')) => Ok(text),
        Some((_, 0xEF)) if text.starts_with('\u{FEFF}') => {
            Err(problem(payload, 1, "expected `{` without a byte order mark before it"))
        }
        Some((start, _)) => {
            Err(problem(payload, start + 1, "expected `{`: the body is one JSON object"))
        }
        None => Err(problem(payload, payload.len(), "expected a JSON object: the body is empty")),
    }
}

/// `part` is a slice of `payload`.
fn malformed(payload: &[u8], part: &str, error: &serde_json::Error) -> Problem {
    let start = part.as_ptr().addr().saturating_sub(payload.as_ptr().addr());
    let line_start: usize =
        part.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    problem(payload, start + line_start + error.column(), &describe(error))
}

fn describe(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match error.classify() {
        Category::Data => {
            let place = format!(" at line {} column {}", error.line(), error.column());
            message.strip_suffix(&place).unwrap_or(&message).to_owned()
        }
        Category::Syntax | Category::Eof | Category::Io => SYNTAX_ERRORS
            .iter()
            .find(|(theirs, _)| message.starts_with(theirs))
            .map_or("expected well-formed JSON", |(_, ours)| ours)
            .to_owned(),
    }
}

/// `read` counts the bytes up to the fault.
fn problem(payload: &[u8], read: usize, expected: &str) -> Problem {
    let before = &payload[..read.min(payload.len())];
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    let column = before[line_start..].iter().filter(|byte| **byte & 0xC0 != 0x80).count().max(1);
    Problem::new(&MALFORMED_JSON).detail(format!("line {line}, column {column}: {expected}"))
}

#[cfg(test)]
mod tests;
