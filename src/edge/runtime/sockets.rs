//! Opens the sockets of `server.listen` and `admin.listen`: bound here, or passed by systemd.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdListener};

use listenfd::ListenFd;

use crate::config::{Listen, Settings};
use crate::edge::{self, Listener};

/// The names of the passed sockets, separated by colons.
const NAMES: &str = "LISTEN_FDNAMES";

/// All sockets of a server. None of them accepts yet.
pub(super) struct Sockets {
    pub(super) callers: Vec<Listener>,
    pub(super) redirects: Vec<Listener>,
    pub(super) ops: Listener,
    pub(super) ops_address: SocketAddr,
}

impl Sockets {
    pub(super) fn open(settings: &Settings) -> io::Result<Self> {
        let mut passed = PassedSockets::from_environment()?;
        let ops = passed.open("admin.listen", &settings.admin_listen)?;
        let ops = <[Listener; 1]>::try_from(ops);
        let ops = ops.ok().and_then(|[ops]| Some((ops.address()?, ops)));
        let (ops_address, ops) = ops.ok_or_else(|| {
            invalid("admin.listen: expected one TCP socket of this name from systemd")
        })?;
        let mut redirects = Vec::new();
        for place in &settings.server.redirect {
            redirects.extend(passed.open("server.redirect", place)?);
        }
        let mut places: Vec<_> = settings.server.listen.iter().collect();
        // An entry without a name takes what the others leave.
        places.sort_by_key(|place| **place == Listen::Systemd(None));
        let mut callers = Vec::new();
        for place in places {
            callers.extend(passed.open("server.listen", place)?);
        }
        passed.check_all_used()?;
        Ok(Self { callers, redirects, ops, ops_address })
    }

    /// Returns the addresses of the callers' sockets.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.callers.iter().filter_map(Listener::address).collect()
    }
}

/// The sockets that systemd passed and that are not used yet, each with its name.
struct PassedSockets(Vec<(String, Listener)>);

impl PassedSockets {
    #[expect(clippy::disallowed_methods, reason = "it configures the process, not tollgate")]
    fn from_environment() -> io::Result<Self> {
        let names = std::env::var(NAMES).unwrap_or_default();
        let mut names = names.split(':');
        let mut descriptors = ListenFd::from_env();
        let mut sockets = Vec::new();
        for index in 0..descriptors.len() {
            let name = names.next().unwrap_or_default().to_owned();
            let socket = take(&mut descriptors, index).map_err(|error| {
                let why = "expected a listening TCP or unix stream socket";
                invalid(format!("socket {index} ({name}) of systemd: {why}: {error}"))
            })?;
            sockets.push((name, socket));
        }
        Ok(Self(sockets))
    }

    /// Binds this place of a setting, or takes its sockets.
    fn open(&mut self, setting: &'static str, place: &Listen) -> io::Result<Vec<Listener>> {
        let bound = match place {
            Listen::Address(address) => Listener::bind(*address),
            Listen::Unix(path) => Listener::bind_unix(path),
            Listen::Systemd(name) => {
                let taken = self.take(name.as_deref());
                if taken.is_empty() {
                    let advice = "start the socket unit, which starts this service";
                    let text =
                        format!("{setting}: {place}: systemd passed no such socket: {advice}");
                    return Err(invalid(text));
                }
                return Ok(taken);
            }
        };
        Ok(vec![bound.map_err(|error| cannot_listen(place, &error))?])
    }

    fn take(&mut self, wanted: Option<&str>) -> Vec<Listener> {
        let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
        self.0.extract_if(.., |(name, _)| is_wanted(name)).map(|(_, socket)| socket).collect()
    }

    /// An unused socket would accept connections that stay unanswered.
    fn check_all_used(&self) -> io::Result<()> {
        let Some((name, socket)) = self.0.first() else { return Ok(()) };
        let text = format!(
            "systemd passed {socket}, named {name}, which no setting uses: add \
             server.listen = \"systemd\", or disable its socket unit"
        );
        Err(invalid(text))
    }
}

fn take(descriptors: &mut ListenFd, index: usize) -> io::Result<Listener> {
    let missing = || io::Error::other("it is missing");
    match descriptors.take_tcp_listener(index) {
        Ok(socket) => Listener::passed_tcp(socket.ok_or_else(missing)?),
        Err(_) => {
            Listener::passed_unix(descriptors.take_unix_listener(index)?.ok_or_else(missing)?)
        }
    }
}

/// A mistake in the settings, or in the units of systemd.
fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, text.into())
}

/// Binds a socket. The error names the address.
pub fn bind(at: SocketAddr) -> io::Result<StdListener> {
    edge::bind(at).map_err(|error| cannot_listen(at, &error))
}

fn cannot_listen(place: impl std::fmt::Display, error: &io::Error) -> io::Error {
    let hint = if error.kind() == ErrorKind::AddrInUse {
        "; another program uses it, maybe another tollgate: set server.listen or admin.listen"
    } else {
        ""
    };
    io::Error::new(error.kind(), format!("cannot listen on {place}: {error}{hint}"))
}
