//! Whether an address of a picture can be public, by its text alone (contract 2.5).
//!
//! The gateway fetches it, and a bad one is charged like a good one. Names are never resolved here: an
//! answer would be stale by the time the gateway asks, and asking would tell others what runs where.
//! A public name that points to a private address is therefore not caught.

mod host;

use url::Url;

/// The longest address, in bytes, as given and in its canonical form.
///
/// Guess: the contract names no limit; this is what common servers and browsers agree on.
const LONGEST: usize = 2_048;

/// The canonical form of a public http or https address, which is what is sent; or why `raw` is none.
///
/// Guess: "public" (2.5) is every name with a dot that is not reserved for private networks, and every
/// address that is routed globally, on any port.
pub fn image_url(raw: &str) -> Result<String, String> {
    if raw.len() > LONGEST {
        return Err(format!("expected at most {LONGEST} bytes, not {}", raw.len()));
    }
    // The parser drops tabs and line ends and turns `\` into `/`: what it reads is not what was given.
    if raw.chars().any(|letter| letter <= ' ' || letter == '\u{7F}' || letter == '\\') {
        return Err("expected an address without blanks, control characters and `\\`".to_owned());
    }
    let rest =
        after_scheme(raw).ok_or("expected an address that starts with http:// or https://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() {
        return Err("expected a host after the scheme".to_owned());
    }
    if authority.contains('@') {
        return Err("expected an address without a user name".to_owned());
    }
    let url = Url::parse(raw).map_err(|error| format!("expected an address: {error}"))?;
    let host = url.host().ok_or("expected a host after the scheme")?;
    host::public(&host)?;
    match url.as_str().len() > LONGEST {
        true => Err(format!("expected at most {LONGEST} bytes once it is percent-encoded")),
        false => Ok(url.into()),
    }
}

fn after_scheme(raw: &str) -> Option<&str> {
    let (scheme, rest) = raw.split_once("://")?;
    ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)).then_some(rest)
}

#[cfg(test)]
mod tests;
