//! Reads one JSON value into a field of a known type; a value of another type is read too, so that
//! the faults after it are found.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{DEEPEST, Name, Names, Skipped};

/// What became of a field.
#[derive(Debug, Default)]
pub(in crate::validate) enum Field<T> {
    /// The key was not there.
    #[default]
    Absent,
    /// It has a value of another type; `null` is one.
    Wrong(Kind),
    /// Its value.
    Is(T),
}

/// The types that JSON tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::validate) enum Kind {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

/// What a field's value has to be: a type implements the kinds of JSON that it can be read from.
pub(in crate::validate) trait Shape<'de>: Sized {
    /// The type in words, with its article.
    const EXPECTED: &'static str;

    /// From a string.
    fn string(_: Cow<'de, str>) -> Option<Self> {
        None
    }

    /// From a number that is written without a point or an exponent and fits an `i64` or a `u64`.
    fn whole(_: i128) -> Option<Self> {
        None
    }

    /// From `true` or `false`.
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
pub(in crate::validate) struct Whole(pub(in crate::validate) i128);

/// Guess: the gateway's "integer" is what is written as one. `8.0` and `8e0`, which some readers take
/// as 8, are refused.
impl Shape<'_> for Whole {
    const EXPECTED: &'static str = "a whole number, written without a point or an exponent";

    fn whole(number: i128) -> Option<Self> {
        Some(Self(number))
    }
}

impl<T> Field<T> {
    pub(in crate::validate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// The value, where there is one of the right type.
    pub(in crate::validate) fn value(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Absent | Self::Wrong(_) => None,
        }
    }

    /// The value itself, where there is one of the right type.
    pub(in crate::validate) fn into_value(self) -> Option<T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Absent | Self::Wrong(_) => None,
        }
    }

    /// Whether the key was there, with `null`.
    pub(in crate::validate) fn is_null(&self) -> bool {
        matches!(self, Self::Wrong(Kind::Null))
    }

    /// The same, for who takes `null` for absence.
    pub(in crate::validate) fn or_absent(self) -> Self {
        match self {
            Self::Wrong(Kind::Null) => Self::Absent,
            Self::Absent | Self::Wrong(_) | Self::Is(_) => self,
        }
    }

    /// The same with another value.
    pub(in crate::validate) fn map<U>(self, other: impl FnOnce(T) -> U) -> Field<U> {
        match self {
            Self::Absent => Field::Absent,
            Self::Wrong(kind) => Field::Wrong(kind),
            Self::Is(value) => Field::Is(other(value)),
        }
    }

    /// What to tell the caller when the field is not there and has to be: what it is for.
    pub(in crate::validate) fn missing(&self, purpose: &str) -> Option<String> {
        self.is_absent().then(|| format!("required: {purpose}"))
    }

    /// What to tell the caller when the field's value is of the wrong type.
    pub(in crate::validate) fn mistyped<'de>(&self) -> Option<String>
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
pub(in crate::validate) struct Value<T> {
    within: u8,
    shape: PhantomData<fn() -> T>,
}

impl<T> Value<T> {
    /// A value that lies in `depth` arrays and objects.
    pub(in crate::validate) fn within(depth: u8) -> Self {
        Self { within: depth, shape: PhantomData }
    }

    fn deeper<E: Error>(&self) -> Result<u8, E> {
        match self.within < DEEPEST {
            true => Ok(self.within + 1),
            false => Err(E::custom(format_args!(
                "expected at most {DEEPEST} arrays and objects within each other"
            ))),
        }
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
