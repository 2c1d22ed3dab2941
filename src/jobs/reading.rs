//! Reads what a status body says of a job, by the words of `[jobs]`: the contract does not show the
//! body (4.3), so where things are and what they are called is a guess that settings can mend.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The text at the first of `pointers` (RFC 6901) that leads to one.
pub fn text_at(body: &[u8], pointers: &[String]) -> Option<String> {
    pointers.iter().find_map(|pointer| {
        let path: Vec<String> = pointer
            .split('/')
            .skip(1)
            .map(|part| part.replace("~1", "/").replace("~0", "~"))
            .collect();
        let mut json = serde_json::Deserializer::from_slice(body);
        At(&path).deserialize(&mut json).ok().flatten()
    })
}

/// Follows the rest of a pointer into whatever comes.
struct At<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Option<String>, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<Option<String>, E> {
        Ok(self.0.is_empty().then(|| text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            match self.0.split_first() {
                Some((first, rest)) if *first == name => found = map.next_value_seed(At(rest))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Option<String>, A::Error> {
        let wanted = self
            .0
            .split_first()
            .and_then(|(first, rest)| first.parse::<usize>().ok().map(|position| (position, rest)));
        let mut found = None;
        for position in 0.. {
            let more = match wanted {
                Some((at, rest)) if at == position => {
                    let item = list.next_element_seed(At(rest))?;
                    let is_there = item.is_some();
                    found = item.flatten();
                    is_there
                }
                _ => list.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(found)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<String>, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pointer_that_leads_to_a_text_holds() {
        let body =
            br#"{"n":1.5,"x":null,"b":true,"url":7,"output":[{"a/b":"deep"},"second"],"s":"flat"}"#;
        for (pointers, found) in [
            (&["/s"][..], Some("flat")),
            (&["/nothing", "/url", "/output/1"], Some("second")),
            (&["/output/0/a~1b"], Some("deep")),
            (&["/output/2", "/output/x", "/output", "/n", "/x", "/b", "/s/t", ""], None),
        ] {
            let pointers: Vec<_> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
            assert_eq!(text_at(body, &pointers).as_deref(), found, "{pointers:?}");
        }
        assert_eq!(text_at(b"not json", &["/s".to_owned()]), None);
    }
}
