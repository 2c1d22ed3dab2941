//! The gate that every query passes, the twin of [`super::json`]: names and values are decoded once, a name that is
//! not asked for is a fault, and so is one that is there twice.

use super::rule::Faults;
use super::text::shown;
use crate::problem::Problem;

/// What is wrong with a value: the fault's stable name, and what was expected.
pub(super) struct Wrong {
    pub(super) code: &'static str,
    pub(super) detail: String,
}

/// The parameters of a query.
pub(super) struct Params<'q> {
    /// Name and value as they were sent.
    pairs: Vec<(&'q str, &'q str)>,
    known: Vec<&'static str>,
    faults: Faults,
}

impl<'q> Params<'q> {
    /// Splits a query, without its `?`.
    pub(super) fn read(query: Option<&'q str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        Self { pairs, known: Vec::new(), faults: Faults::default() }
    }

    /// Whether a parameter is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.pairs.iter().any(|pair| decoded(pair.0).as_deref() == Some(name.as_bytes()))
    }

    /// Returns the values of a parameter as they were sent.
    pub(super) fn all(&mut self, name: &'static str) -> Vec<&'q str> {
        self.known.push(name);
        let named = |pair: &&(&str, _)| decoded(pair.0).as_deref() == Some(name.as_bytes());
        self.pairs.iter().filter(named).map(|(_, value)| *value).collect()
    }

    /// Returns the one value of a parameter, as `judge` reads it.
    pub(super) fn one<T>(
        &mut self,
        name: &'static str,
        judge: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Option<T> {
        match self.all(name)[..] {
            [] => None,
            [value] => self.accept(name, judge(value)),
            ref several => {
                let detail = format!("expected one {name}, not {}", several.len());
                self.accept(name, Err(Wrong { code: "duplicate", detail }))
            }
        }
    }

    /// Returns what was read of a parameter, or lists the fault.
    pub(super) fn accept<T>(&mut self, name: &str, read: Result<T, Wrong>) -> Option<T> {
        let fault =
            |Wrong { code, detail }| self.faults.push(format_args!("/{name}"), code, detail);
        read.map_err(fault).ok()
    }

    /// Lists every parameter that was not asked for, and ends the reading.
    ///
    /// # Errors
    /// 422 `invalid_request` with every fault; its pointers name the parameters.
    pub(super) fn finish(mut self) -> Result<(), Problem> {
        for (name, _) in &self.pairs {
            if decoded(name).is_some_and(|name| self.known.iter().any(|it| it.as_bytes() == name)) {
                continue;
            }
            let name = shown(name);
            let expected = match self.known.is_empty() {
                true => "this endpoint takes no query".to_owned(),
                false => {
                    format!("there is no parameter `{name}`; known: {}", self.known.join(", "))
                }
            };
            let place = name.replace('~', "~0").replace('/', "~1");
            self.faults.push(format_args!("/{place}"), "unknown_parameter", expected);
        }
        self.finish_leniently()
    }

    /// Ends the reading; parameters that were not asked for are passed over.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub(super) fn finish_leniently(self) -> Result<(), Problem> {
        if self.faults.is_empty() { Ok(()) } else { Err(self.faults.into_problem()) }
    }
}

/// Sees that there is no query: none would be passed on.
///
/// # Errors
/// 422 `invalid_request`; its pointers name the parameters.
pub fn no_query(query: Option<&str>) -> Result<(), Problem> {
    Params::read(query).finish()
}

/// `text` with its percent-encoding and its `+` undone as forms write them; `None` where a `%` is not
/// followed by two hexadecimal digits, which readers make different things of.
pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    let digit = |bytes: &mut std::str::Bytes<'_>| {
        let digit = char::from(bytes.next()?).to_digit(16)?;
        u8::try_from(digit).ok()
    };
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => digit(&mut bytes)? << 4 | digit(&mut bytes)?,
            b'+' => b' ',
            _ => byte,
        });
    }
    Some(decoded)
}
