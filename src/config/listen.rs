//! The places that a listener can be bound to.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::value::{PORT_OUT_OF_RANGE, Parsed};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Address(SocketAddr),
    /// A unix socket at this path.
    Unix(PathBuf),
    /// The sockets that systemd passes under this name, or those that no other setting names.
    Systemd(Option<String>),
}

impl Listen {
    pub(super) fn parse(text: &str) -> Parsed<Self> {
        Self::parse_or(
            text,
            "expected an address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\", or \
             \"unix:PATH\", \"systemd\" or \"systemd:NAME\"",
        )
    }

    /// Parses the place of a listener that callers do not use: TCP only, and not the sockets of callers.
    pub(super) fn parse_tcp(text: &str) -> Parsed<Self> {
        let expected =
            "expected an address and a port, such as \"127.0.0.1:9464\", or \"systemd:NAME\"";
        match Self::parse_or(text, expected)? {
            tcp @ (Self::Address(_) | Self::Systemd(Some(_))) => Ok(tcp),
            Self::Unix(_) | Self::Systemd(None) => Err(expected.into()),
        }
    }

    fn parse_or(text: &str, expected: &'static str) -> Parsed<Self> {
        match text.split_once(':') {
            None if text == "systemd" => Ok(Self::Systemd(None)),
            Some(("systemd" | "unix", "")) => Err(expected.into()),
            Some(("systemd", name)) => Ok(Self::Systemd(Some(name.to_owned()))),
            Some(("unix", path)) => Ok(Self::Unix(path.into())),
            _ => Ok(Self::Address(socket_address(text, expected)?)),
        }
    }

    /// Returns it with a relative path resolved against this folder.
    pub(super) fn in_folder(self, folder: &Path) -> Self {
        match self {
            Self::Unix(path) => Self::Unix(folder.join(path)),
            other @ (Self::Address(_) | Self::Systemd(_)) => other,
        }
    }

    /// Returns the address, if the settings know it.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Unix(_) | Self::Systemd(_) => None,
        }
    }

    pub(super) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// Returns whether it is a loopback address. The settings do not say who reaches other sockets.
    pub(super) fn is_loopback(&self) -> bool {
        self.address().is_some_and(|at| at.ip().to_canonical().is_loopback())
    }
}

/// Parses an address and a port. Fails with `expected`, or because the port is out of range.
pub fn socket_address(text: &str, expected: &'static str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| if has_high_port(text) { PORT_OUT_OF_RANGE } else { expected })
}

/// Returns whether this would be an address if its port were at most 65535.
fn has_high_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(address, port)| {
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        is_number && format!("{address}:0").parse::<SocketAddr>().is_ok()
    })
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Systemd(None) => write!(f, "systemd"),
            Self::Systemd(Some(name)) => write!(f, "systemd:{name}"),
        }
    }
}
