//! The arguments of tools.

use std::borrow::Cow;

use bytes::Bytes;
use serde::de::MapAccess;
use serde_json::value::RawValue;

use crate::api::validate::fields::Fields;
use crate::api::validate::json::{self, Entry, Field, FromObject};
use crate::api::validate::member::present;
use crate::api::validate::rule::Faults;
use crate::gate::problem::{FieldError, Problem};

/// Reads the arguments of a tool by name, and collects their faults.
pub struct Arguments<'a> {
    fields: Fields<'static, 'a>,
    faults: Faults,
}

impl<'a> Arguments<'a> {
    pub fn read(
        arguments: Option<&'a RawValue>,
        known: &'static [&'static str],
    ) -> Result<Self, Problem> {
        let (fields, faults) = Fields::read(object(arguments).as_bytes(), known)?;
        Ok(Self { fields, faults })
    }

    /// Returns a text that must be there. `purpose` says what it is.
    pub fn text(&mut self, name: &str, purpose: &str) -> Result<Option<String>, Problem> {
        let field: Field<Cow<'_, str>> = self.fields.get(name)?;
        let pointer = format!("/{name}");
        let missing = field.missing(purpose);
        missing.into_iter().for_each(|detail| self.faults.push(&pointer, "required", detail));
        Ok(present(&mut self.faults, &pointer, field).map(Cow::into_owned))
    }

    /// Returns a flag, which is off if it is absent.
    pub fn flag(&mut self, name: &str) -> Result<bool, Problem> {
        let flag = present(&mut self.faults, &format!("/{name}"), self.fields.get(name)?);
        Ok(flag.unwrap_or_default())
    }

    /// Returns an object as it is written, unless it is absent or `null`.
    pub fn object(&mut self, name: &str) -> Option<&'a str> {
        let text = self.fields.raw(name)?.get();
        if !text.starts_with('{') && text != "null" {
            let detail = "expected an object".to_owned();
            self.faults.push(format_args!("/{name}"), "wrong_type", detail);
        }
        (text != "null").then_some(text)
    }

    /// Reports that an argument is missing, or that there are too many.
    pub fn missing(&mut self, expected: &str) {
        self.faults.push("", "required", expected.to_owned());
    }

    /// # Errors
    /// Returns all faults.
    pub fn finish(self) -> Result<(), Problem> {
        if self.faults.is_empty() { Ok(()) } else { Err(self.faults.into_problem()) }
    }
}

/// Arguments of a tool that buys.
#[derive(Debug)]
pub struct OrderArguments {
    /// The JSON body for `/api/v1/chat` or `/api/v1/video`.
    pub order: Bytes,
    pub quote: Option<String>,
}

/// Removes the quote from the arguments.
pub fn order(arguments: Option<&RawValue>) -> Result<OrderArguments, Problem> {
    let mut draft = OrderDraft::default();
    json::read_object(object(arguments).as_bytes(), &mut draft)?;
    let quote = draft.quote.null_as_absent();
    if let Some(detail) = quote.wrong_type() {
        let pointer = "/quote".to_owned();
        return Err(Problem::invalid(vec![FieldError { pointer, code: "wrong_type", detail }]));
    }
    let quote = quote.into_value().map(Cow::into_owned).filter(|quote| !quote.is_empty());
    Ok(OrderArguments { order: draft.order.into_object(), quote })
}

/// Returns absent arguments and `null` as an empty object.
fn object(arguments: Option<&RawValue>) -> &str {
    arguments.map(RawValue::get).filter(|text| *text != "null").unwrap_or("{}")
}

#[derive(Default)]
struct OrderDraft<'a> {
    quote: Field<Cow<'a, str>>,
    order: Members<'a>,
}

impl<'a> FromObject<'a> for OrderDraft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "quote" => entry.read_into(&mut self.quote),
            _ => entry.keep_member(&mut self.order.0),
        }
    }
}

/// The members of an object, unparsed. The order's reader rejects duplicates.
#[derive(Default)]
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl Members<'_> {
    fn into_object(self) -> Bytes {
        let member = |(name, value): &(Cow<'_, str>, &RawValue)| {
            // Serializing a string cannot fail.
            format!("{}:{}", serde_json::to_string(name).unwrap_or_default(), value.get())
        };
        let members: Vec<_> = self.0.iter().map(member).collect();
        format!("{{{}}}", members.join(",")).into()
    }
}
