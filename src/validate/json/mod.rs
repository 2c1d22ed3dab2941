//! The gate that every JSON body passes: one object, no key twice, no depth, nothing after it; read
//! once, into fields that say whether they were there and of the right type.
//!
//! Invariant: whatever two JSON readers could read differently (a key given twice, a lone surrogate,
//! a byte order mark, depth) is refused here, also in values that nobody asked for.

mod fault;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::rule::MAX_FAULTS;
use super::text::shown;
use crate::problem::Problem;

/// How many arrays and objects may lie within each other, the outermost object included.
pub(super) const MAX_DEPTH: u8 = 32;

/// The most names that [`Unknown`] remembers for its faults; one more than is ever listed.
const MAX_UNKNOWN: usize = MAX_FAULTS + 1;

/// An object that knows what each of its keys means.
pub(super) trait Members<'de> {
    /// Takes one key and its value: hands `entry` to one of its verbs.
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error>;
}

/// Reads `payload`, which has to be one JSON object, into `object`.
///
/// Errors: 400 `malformed_json`, with line and column (both from 1, the column in characters).
pub(super) fn object<'de>(
    payload: &'de [u8],
    object: &mut impl Members<'de>,
) -> Result<(), Problem> {
    let text = fault::text(payload)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    reader
        .deserialize_map(Outermost(object))
        .and_then(|()| reader.end())
        .map_err(|error| fault::malformed(payload, text, &error))
}

/// Looks into a value of `payload` that was kept as it was written, with the same strictness.
pub(super) fn look_into(payload: &[u8], kept: &RawValue) -> Result<(), Problem> {
    let text = kept.get();
    let mut reader = serde_json::Deserializer::from_str(text);
    match Value::<Skipped>::within(1).deserialize(&mut reader) {
        Ok(_) => Ok(()),
        Err(error) => Err(fault::malformed(payload, text, &error)),
    }
}

/// Reads all members of an object that is the `depth`th one from outside.
fn members<'de, A: MapAccess<'de>>(
    mut map: A,
    object: &mut impl Members<'de>,
    depth: u8,
) -> Result<(), A::Error> {
    while let Some(name) = map.next_key_seed(Name)? {
        object.member(Entry { name, map: &mut map, depth })?;
    }
    Ok(())
}

/// Reads an object that is the `depth`th one from outside into a new value.
pub(super) fn inner<'de, T: Members<'de> + Default, A: MapAccess<'de>>(
    map: A,
    depth: u8,
) -> Result<Option<T>, A::Error> {
    let mut object = T::default();
    members(map, &mut object, depth)?;
    Ok(Some(object))
}

/// A key whose value has not been read yet.
pub(super) struct Entry<'m, 'de, A> {
    name: Cow<'de, str>,
    map: &'m mut A,
    depth: u8,
}

impl<'de, A: MapAccess<'de>> Entry<'_, 'de, A> {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the value into the field that the key names.
    pub(super) fn fill<T: Shape<'de>>(self, field: &mut Field<T>) -> Result<(), A::Error> {
        if !field.is_absent() {
            return Err(twice(&self.name));
        }
        *field = self.map.next_value_seed(Value::within(self.depth))?;
        Ok(())
    }

    /// Keeps the value as it is written, under the `name` that was let through. Whoever keeps it has
    /// to [`look_into`] it.
    pub(super) fn keep<'a>(
        self,
        name: &'a str,
        kept: &mut Vec<(&'a str, &'de RawValue)>,
    ) -> Result<(), A::Error> {
        if kept.iter().any(|(other, _)| *other == name) {
            return Err(twice(name));
        }
        kept.push((name, self.map.next_value()?));
        Ok(())
    }

    /// Skips the value of a key that means nothing here.
    pub(super) fn refuse(self, unknown: &mut Unknown<'de>) -> Result<(), A::Error> {
        if unknown.first.len() < MAX_UNKNOWN {
            unknown.first.push(self.name.clone());
        }
        unknown.names.admit(self.name)?;
        self.map.next_value_seed(Value::<Skipped>::within(self.depth))?;
        Ok(())
    }

    /// Skips the value of a key that is passed over; one with `null` asks for nothing.
    pub(super) fn pass_over(self, passed: &mut Unknown<'de>) -> Result<(), A::Error> {
        passed.names.admit(self.name.clone())?;
        let value: Field<Skipped> = self.map.next_value_seed(Value::within(self.depth))?;
        if !value.is_null() && passed.first.len() < MAX_UNKNOWN {
            passed.first.push(self.name);
        }
        Ok(())
    }
}

/// The keys of an object that mean nothing in it.
#[derive(Default)]
pub(super) struct Unknown<'de> {
    names: Names<'de>,
    first: Vec<Cow<'de, str>>,
}

impl<'de> Unknown<'de> {
    pub(super) fn first(&self) -> &[Cow<'de, str>] {
        &self.first
    }
}

/// The keys that an object had so far.
#[derive(Default)]
struct Names<'de>(HashSet<Cow<'de, str>>);

impl<'de> Names<'de> {
    fn admit<E: Error>(&mut self, name: Cow<'de, str>) -> Result<(), E> {
        if self.0.contains(&name) {
            return Err(twice(&name));
        }
        self.0.insert(name);
        Ok(())
    }
}

struct Skipped;

impl Shape<'_> for Skipped {
    const EXPECTED: &'static str = "nothing";
}

struct Outermost<'m, M>(&'m mut M);

impl<'de, M: Members<'de>> Visitor<'de> for Outermost<'_, M> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        members(map, self.0, 1)
    }
}

/// A key, unescaped, so that `\u0070rompt` is the same key as `prompt`.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

fn twice<E: Error>(name: &str) -> E {
    E::custom(format_args!("the key `{}` is given twice in one object", shown(name)))
}

#[derive(Debug, Default)]
pub(super) enum Field<T> {
    #[default]
    Absent,
    /// It has a value of another type; `null` is one.
    Wrong(Kind),
    Is(T),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

/// What a field's value has to be: a type implements the kinds of JSON that it can be read from.
pub(super) trait Shape<'de>: Sized {
    const EXPECTED: &'static str;

    fn string(_: Cow<'de, str>) -> Option<Self> {
        None
    }

    /// From a number that is written without a point or an exponent and fits an `i64` or a `u64`.
    fn whole(_: i128) -> Option<Self> {
        None
    }

    fn boolean(_: bool) -> Option<Self> {
        None
    }

    /// From an array that is the `depth`th container from outside.
    fn elements<A: SeqAccess<'de>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        while seq.next_element_seed(Value::<Skipped>::within(depth))?.is_some() {}
        Ok(None)
    }

    /// From an object that is the `depth`th container from outside.
    fn members<A: MapAccess<'de>>(mut map: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut names = Names::default();
        while let Some(name) = map.next_key_seed(Name)? {
            names.admit(name)?;
            map.next_value_seed(Value::<Skipped>::within(depth))?;
        }
        Ok(None)
    }
}

impl<'de> Shape<'de> for Cow<'de, str> {
    const EXPECTED: &'static str = "a string";

    fn string(text: Cow<'de, str>) -> Option<Self> {
        Some(text)
    }
}

/// A whole number as it is written in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole(pub(super) i128);

/// Guess: the gateway's "integer" is what is written as one. `8.0` and `8e0`, which some readers take
/// as 8, are refused.
impl Shape<'_> for Whole {
    const EXPECTED: &'static str = "a whole number, written without a point or an exponent";

    fn whole(number: i128) -> Option<Self> {
        Some(Self(number))
    }
}

impl<T> Field<T> {
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    pub(super) fn value(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Absent | Self::Wrong(_) => None,
        }
    }

    pub(super) fn into_value(self) -> Option<T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Absent | Self::Wrong(_) => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Wrong(Kind::Null))
    }

    /// The same, for who takes `null` for absence.
    pub(super) fn or_absent(self) -> Self {
        match self {
            Self::Wrong(Kind::Null) => Self::Absent,
            Self::Absent | Self::Wrong(_) | Self::Is(_) => self,
        }
    }

    /// The same with another value.
    pub(super) fn map<U>(self, other: impl FnOnce(T) -> U) -> Field<U> {
        match self {
            Self::Absent => Field::Absent,
            Self::Wrong(kind) => Field::Wrong(kind),
            Self::Is(value) => Field::Is(other(value)),
        }
    }

    /// What to tell the caller when the field is not there and has to be: what it is for.
    pub(super) fn missing(&self, purpose: &str) -> Option<String> {
        self.is_absent().then(|| format!("required: {purpose}"))
    }

    /// What to tell the caller when the field's value is of the wrong type.
    pub(super) fn mistyped<'de>(&self) -> Option<String>
    where
        T: Shape<'de>,
    {
        match self {
            Self::Wrong(kind) => {
                Some(format!("expected {}, found {}", T::EXPECTED, kind.in_words()))
            }
            Self::Absent | Self::Is(_) => None,
        }
    }
}

impl Kind {
    fn in_words(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }
}

/// Reads the next value, of whatever type, into a `Field<T>`.
pub(super) struct Value<T> {
    within: u8,
    shape: PhantomData<fn() -> T>,
}

impl<T> Value<T> {
    /// A value that lies in `depth` arrays and objects.
    pub(super) fn within(depth: u8) -> Self {
        Self { within: depth, shape: PhantomData }
    }

    fn deeper<E: Error>(&self) -> Result<u8, E> {
        if self.within < MAX_DEPTH {
            return Ok(self.within + 1);
        }
        let expected = "arrays and objects within each other";
        Err(E::custom(format_args!("expected at most {MAX_DEPTH} {expected}")))
    }
}

impl<'de, T: Shape<'de>> DeserializeSeed<'de> for Value<T> {
    type Value = Field<T>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Field<T>, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de, T: Shape<'de>> Visitor<'de> for Value<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_unit<E>(self) -> Result<Field<T>, E> {
        Ok(Field::Wrong(Kind::Null))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Field<T>, E> {
        Ok(read(T::boolean(flag), Kind::Boolean))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Field<T>, E> {
        Ok(read(T::whole(number.into()), Kind::Number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Field<T>, E> {
        Ok(read(T::whole(number.into()), Kind::Number))
    }

    /// A number with a point or an exponent, `-0`, or one beyond 64 bits: nothing takes those.
    fn visit_f64<E>(self, _: f64) -> Result<Field<T>, E> {
        Ok(Field::Wrong(Kind::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Field<T>, E> {
        Ok(read(T::string(Cow::Borrowed(text)), Kind::String))
    }

    fn visit_str<E>(self, text: &str) -> Result<Field<T>, E> {
        Ok(read(T::string(Cow::Owned(text.to_owned())), Kind::String))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Field<T>, A::Error> {
        let depth = self.deeper()?;
        Ok(read(T::elements(seq, depth)?, Kind::Array))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Field<T>, A::Error> {
        let depth = self.deeper()?;
        Ok(read(T::members(map, depth)?, Kind::Object))
    }
}

fn read<T>(value: Option<T>, found: Kind) -> Field<T> {
    value.map_or(Field::Wrong(found), Field::Is)
}

#[cfg(test)]
mod tests;
