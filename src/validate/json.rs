//! The gate that every JSON body passes: one object, no key twice, no depth, nothing after it; read
//! once, into fields that say whether they were there and of the right type.
//!
//! Invariant: whatever two JSON readers could read differently (a key given twice, a lone surrogate,
//! a byte order mark, depth) is refused here, also in values that nobody asked for.

mod fault;
mod shape;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

pub(super) use shape::{Field, Kind, Shape, Value, Whole};

use super::text::shown;
use crate::problem::Problem;

/// How many arrays and objects may lie within each other, the outermost object included.
pub(super) const DEEPEST: u8 = 32;

/// The most names that [`Unknown`] remembers for its faults; one more than is ever listed.
const MOST_UNKNOWN: usize = super::rule::MOST_FAULTS + 1;

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
pub(super) fn members<'de, A: MapAccess<'de>>(
    mut map: A,
    object: &mut impl Members<'de>,
    depth: u8,
) -> Result<(), A::Error> {
    while let Some(name) = map.next_key_seed(Name)? {
        object.member(Entry { name, map: &mut map, depth })?;
    }
    Ok(())
}

/// A key whose value has not been read yet.
pub(super) struct Entry<'m, 'de, A> {
    name: Cow<'de, str>,
    map: &'m mut A,
    depth: u8,
}

impl<'de, A: MapAccess<'de>> Entry<'_, 'de, A> {
    /// The key.
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
        if unknown.first.len() < MOST_UNKNOWN {
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
        if !value.is_null() && passed.first.len() < MOST_UNKNOWN {
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
    /// The first of them, as they came.
    pub(super) fn first(&self) -> &[Cow<'de, str>] {
        &self.first
    }
}

/// The keys that an object had so far.
#[derive(Default)]
struct Names<'de>(HashSet<Cow<'de, str>>);

impl<'de> Names<'de> {
    fn admit<E: Error>(&mut self, name: Cow<'de, str>) -> Result<(), E> {
        match self.0.get(&name) {
            Some(_) => Err(twice(&name)),
            None => {
                self.0.insert(name);
                Ok(())
            }
        }
    }
}

/// A value that is read for its faults only.
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

#[cfg(test)]
mod tests;
