//! Objects whose fields are kept as they are written, and read one by one.

use std::collections::BTreeMap;

use serde::de::MapAccess;
use serde_json::value::RawValue;

use super::json::{self, Entry, Field, FromObject, FromValue};
use super::rule::{Faults, UnknownFields};
use crate::gate::problem::Problem;

pub(super) struct Fields<'n, 'de> {
    payload: &'de [u8],
    known: &'n [&'static str],
    kept: BTreeMap<&'static str, &'de RawValue>,
    unknown: UnknownFields<'de>,
}

impl<'n, 'de> Fields<'n, 'de> {
    /// Reads an object. Other fields than the known ones are faults.
    pub(super) fn read(
        payload: &'de [u8],
        known: &'n [&'static str],
    ) -> Result<(Self, Faults), Problem> {
        let unknown = UnknownFields::default();
        let mut fields = Self { payload, known, kept: BTreeMap::new(), unknown };
        json::read_object(payload, &mut fields)?;
        let mut faults = Faults::default();
        faults.unknown_fields(&fields.unknown, known, &"");
        Ok((fields, faults))
    }

    pub(super) fn get<T: FromValue<'de>>(&self, name: &str) -> Result<Field<T>, Problem> {
        self.raw(name).map_or(Ok(Field::Absent), |raw| json::read_raw(self.payload, raw))
    }

    pub(super) fn raw(&self, name: &str) -> Option<&'de RawValue> {
        self.kept.get(name).copied()
    }
}

impl<'de> FromObject<'de> for Fields<'_, 'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        match self.known.iter().find(|name| **name == entry.name()) {
            Some(name) => entry.keep_raw(name, &mut self.kept),
            None => entry.reject(&mut self.unknown),
        }
    }
}
