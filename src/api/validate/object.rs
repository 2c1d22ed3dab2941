//! The declaration of objects that are read from JSON, and the faults of their fields.

use std::fmt::Display;

use super::json::{Field, FromValue};
use super::rule::Faults;

/// Declares a struct that is read from a JSON object: a line for each key, as in a `match`.
///
/// A line has the key, the field and its type. The last line is for other keys: `reject` makes them
/// faults, and `ignore` keeps their names for the reply.
///
/// With `checked()`, the struct has a method `check`, which returns the faults of the fields in the
/// order of their lines, and then the rejected keys. A line may end with checks:
/// - `required("a name")` makes it a fault if the field is absent, or has another type;
/// - `optional()` makes it a fault if the field is present with another type, which includes `null`;
/// - `"too_long" => |body| …` makes it a fault with this code if the closure returns a text.
///
/// Arguments of `checked` are arguments of `check`, which the closures may use.
///
/// ```ignore
/// object! {
///     /// The body of `POST /bff/labels`.
///     struct LabelBody<'a> checked(max: usize) {
///         "name" => name: Text<'a>, required("a name"), "too_long" => |body| {
///             (body.name.value()?.len() > max).then(|| format!("expected at most {max} bytes"))
///         };
///         "color" => color: Text<'a>, optional();
///         _ => reject;
///     }
/// }
///
/// let body: LabelBody<'_> = json::read_body(payload)?;
/// let faults = body.check(64);
/// let name = faults.accept(body.name.into_value())?;
/// ```
macro_rules! object {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident<$de:lifetime> $(expected $expected:literal)? {
            $($key:literal => $field:ident: $type:ty;)*
            _ => $others:ident;
        }
    ) => {
        $(#[$meta])*
        #[derive(Default)]
        $vis struct $name<$de> {
            $($vis $field: $type,)*
            $vis unknown: $crate::api::validate::rule::UnknownFields<$de>,
        }

        impl<$de> $crate::api::validate::json::FromObject<$de> for $name<$de> {
            $(const EXPECTED: &'static str = $expected;)?
            const KEYS: &'static [&'static str] = &[$($key),*];

            fn member<A: serde::de::MapAccess<$de>>(
                &mut self,
                entry: $crate::api::validate::json::Entry<'_, $de, A>,
            ) -> Result<(), A::Error> {
                match entry.name() {
                    $($key => entry.read_into(&mut self.$field),)*
                    _ => entry.$others(&mut self.unknown),
                }
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident<$de:lifetime> checked($($given:ident: $context:ty)?)
        $(expected $expected:literal)? {
            $(
                $key:literal => $field:ident: $type:ty
                    $(, $presence:ident($($purpose:expr)?))?
                    $(, $code:literal => $check:expr)*;
            )*
            _ => $others:ident;
        }
    ) => {
        $crate::api::validate::object::object! {
            $(#[$meta])*
            $vis struct $name<$de> $(expected $expected)? {
                $($key => $field: $type;)*
                _ => $others;
            }
        }

        impl<$de> $name<$de> {
            $vis fn check(&self $(, $given: $context)?) -> $crate::api::validate::rule::Faults {
                let mut faults = $crate::api::validate::rule::Faults::default();
                $(
                    $(faults.$presence(concat!("/", $key), &self.$field $(, $purpose)?);)?
                    $(faults.rule(concat!("/", $key), $code, self, $check);)*
                )*
                let keys = <Self as $crate::api::validate::json::FromObject<'_>>::KEYS;
                faults.unknown_fields(&self.unknown, keys, &"");
                faults
            }
        }

        #[cfg(test)]
        impl $crate::api::validate::object::HasRules for $name<'_> {
            const RULES: &'static [(&'static str, &'static [&'static str])] = &[$(
                (concat!("/", $key), &[$(stringify!($presence),)? $($code),*]),
            )*];
        }
    };
}
pub(super) use object;

/// The rules of an object, so that tests can break all of them.
#[cfg(test)]
pub(super) trait HasRules {
    /// The pointers and checks of the lines.
    const RULES: &'static [(&'static str, &'static [&'static str])];

    /// Returns a pointer and a code for each fault that the rules can report.
    fn codes() -> Vec<(&'static str, &'static str)> {
        let codes = |check| match check {
            "required" => vec!["required", "wrong_type"],
            "optional" => vec!["wrong_type"],
            code => vec![code],
        };
        let of_line = |(pointer, checks): &(&'static str, &[&'static str])| {
            let codes = checks.iter().flat_map(|check| codes(check));
            codes.map(|code| (*pointer, code)).collect::<Vec<_>>()
        };
        Self::RULES.iter().flat_map(of_line).collect()
    }
}

impl Faults {
    pub(super) fn required<'de, T: FromValue<'de>>(
        &mut self,
        at: impl Display,
        field: &Field<T>,
        purpose: &str,
    ) {
        if field.is_absent() {
            self.push(&at, "required", format!("required: {purpose}"));
        }
        self.optional(at, field);
    }

    pub(super) fn optional<'de, T: FromValue<'de>>(&mut self, at: impl Display, field: &Field<T>) {
        if let Some(detail) = field.wrong_type() {
            self.push(at, "wrong_type", detail);
        }
    }

    /// Reports what `check` returns about an object.
    pub(super) fn rule<T>(
        &mut self,
        at: impl Display,
        code: &'static str,
        object: &T,
        check: impl FnOnce(&T) -> Option<String>,
    ) {
        if let Some(detail) = check(object) {
            self.push(at, code, detail);
        }
    }
}
