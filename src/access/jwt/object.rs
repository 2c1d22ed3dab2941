//! Reads a JSON object that somebody else wrote: each name once, each value of the type that is asked
//! for, or not at all.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

pub(super) struct Object<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

/// It is not what was expected; what it is instead is nobody's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl<'a> Object<'a> {
    /// `text` has to be one object, and nothing after it.
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
mod tests {
    use super::*;

    #[test]
    fn an_object_is_read_strictly_or_not_at_all() {
        let text = r#"{"a":1,"\u0062":"x","n":null,"o":{"a":[1]}}"#;
        let object = Object::read(text).unwrap();
        assert_eq!(object.required::<u64>("a"), Ok(1));
        assert_eq!(object.required::<String>("b"), Ok("x".to_owned()));
        assert_eq!(object.optional::<u64>("b"), Err(Malformed));
        assert_eq!(object.optional::<u64>("c"), Ok(None));
        assert_eq!(object.required::<u64>("c"), Err(Malformed));
        assert_eq!(object.optional::<String>("n"), Err(Malformed));
        assert!(object.has("n") && !object.has("c"));
        assert_eq!(object.written("o"), Some(r#"{"a":[1]}"#));
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        for text in [
            "",
            "[]",
            "1",
            "null",
            "{} ,",
            "{}{}",
            "{\"a\":1",
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            "{'a':1}",
            "\u{feff}{}",
            &deep,
        ] {
            assert!(Object::read(text).is_err(), "{}", text.get(..20).unwrap_or(text));
        }
    }
}
