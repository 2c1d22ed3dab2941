//! `[server]`: the listeners for callers, and what a caller may take of the server.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use url::Url;

use super::listen::{Listen, socket_address};
use super::read::{Section, section};
use super::store::StoreConfig;
use super::value::{self, Network, connections, line, secs, size, time, time_or_zero};

section! {
    pub struct ServerConfig {
        /// The addresses of the proxy. In open mode, sockets of unix and of systemd need `budget.total`.
        pub listen: Vec<Listen> = with(listen),
        /// Further names to answer for, on any port: lower case, without a port.
        pub hosts: Vec<String> = list("hosts", value::host, Vec::new()),
        /// The networks of the proxies in front whose `X-Forwarded-For` or `Forwarded` is believed.
        pub trusted_proxies: Vec<Network> = list("trusted_proxies", value::network, Vec::new()),
        pub max_connections: usize = number("max_connections", connections, 10_000),
        /// The maximum per address. If it is not set, a tenth of `max_connections`.
        pub max_connections_per_address: usize = number("max_connections_per_address", connections, 1_000),
        /// The memory for all requests that wait, with what has arrived of their bodies.
        pub max_body_memory: usize = text("max_body_memory", size, 256 << 20),
        /// The time limit for a request's head.
        pub header_timeout: Duration = text("header_timeout", time, secs(10)),
        /// The time limit for silence between two requests of a connection.
        pub idle_timeout: Duration = text("idle_timeout", time, secs(75)),
        /// The time limit for a request's body.
        pub body_timeout: Duration = text("body_timeout", time, secs(30)),
        /// The maximum size of a chat's body.
        pub chat_body: usize = text("chat_body", size, 2 << 20),
        /// The maximum size of a video order's body.
        pub video_body: usize = text("video_body", size, 64 << 10),
        /// How long a stop waits for purchases in flight.
        pub drain: Duration = text("drain", time_or_zero, secs(30)),
        /// The https origin where the gateway reaches this server. Its host is also in `hosts`.
        pub public_url: Option<String> = optional("public_url", value::public_url),
        /// The path that a server in front strips: empty, or `/ai`.
        pub prefix: String = text("prefix", value::prefix, String::new()),
        /// If `None`, `listen` is plain HTTP. It is read apart, because it depends on `hosts`.
        pub tls: Option<TlsConfig> = with(|_| None),
        /// Plain listeners that redirect to https.
        pub redirect: Vec<Listen> = list("redirect", Listen::parse_tcp, Vec::new()),
        /// The `max-age` of `Strict-Transport-Security`; zero sends none.
        pub hsts: Duration = text("hsts", time_or_zero, Duration::ZERO),
        /// How many HTTP/2 requests may be open at once on one connection.
        pub streams: u32 = number("streams", value::streams, 64),
        /// The name of this instance, if it is not host and process id.
        pub name: Option<String> = nullable("name", line),
    }
}

/// Where the certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsConfig {
    Files(TlsFiles),
    Acme(AcmeConfig),
}

/// The certificate chain, leaf first, and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// A certificate that an ACME authority issues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeConfig {
    /// From 1 to [`MAX_ACME_NAMES`], of `server.hosts`.
    pub names: Vec<String>,
    /// An address such as `mailto:ops@example.com`.
    pub contact: Option<String>,
    pub directory: Url,
    pub profile: Option<String>,
    /// The file of the directory's trust anchors; `None` is the system's.
    pub roots: Option<PathBuf>,
    /// The folder of the account, the certificate and their keys.
    pub dir: PathBuf,
}

/// The maximum number of names in one certificate.
pub const MAX_ACME_NAMES: usize = 20;

impl ServerConfig {
    /// Returns the settings of ACME, if the certificate comes from there.
    pub fn acme(&self) -> Option<&AcmeConfig> {
        if let Some(TlsConfig::Acme(acme)) = &self.tls { Some(acme) } else { None }
    }

    /// Returns the files of the certificate, if an operator renews them.
    pub fn tls_files(&self) -> Option<&TlsFiles> {
        if let Some(TlsConfig::Files(files)) = &self.tls { Some(files) } else { None }
    }

    /// Returns the addresses of `listen` that the settings know.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listen.iter().filter_map(Listen::address).collect()
    }
}

/// The directory of Let's Encrypt.
const DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

pub(super) fn server(
    section: &mut Section<'_>,
    folder: &Path,
    store: &StoreConfig,
) -> ServerConfig {
    let mut server = ServerConfig::read(section);
    server.listen = server.listen.into_iter().map(|at| at.in_folder(folder)).collect();
    if let Some(url) = server.public_url.as_deref().and_then(|text| Url::parse(text).ok())
        && let Some(host) = url.host_str()
        && !server.hosts.iter().any(|known| known == host)
    {
        server.hosts.push(host.to_owned());
    }
    if !section.has("max_connections_per_address") {
        server.max_connections_per_address = server.max_connections.div_ceil(10);
    }
    server.tls = tls(section, &server.hosts, (folder, store));
    if server.max_body_memory < server.chat_body.max(server.video_body) {
        let expected = "expected at least server.chat_body and server.video_body";
        section.error("max_body_memory", expected);
    }
    server
}

fn listen(section: &mut Section<'_>) -> Vec<Listen> {
    let default = vec![SocketAddr::from(([127, 0, 0, 1], 8080)).into()];
    // In a variable, `[::1]:8080` is an address, but `["…"]` is a list.
    let is_list = |text: &str| text.starts_with('[') && socket_address(text, "") == Err("");
    if !section.is_structured("listen", is_list) {
        return section.optional("listen", Listen::parse).map_or(default, |listen| vec![listen]);
    }
    let listen = section.list("listen", Listen::parse, default);
    if listen.is_empty() {
        section.error("listen", "expected at least one address");
    }
    listen
}

fn tls(
    section: &mut Section<'_>,
    hosts: &[String],
    (folder, store): (&Path, &StoreConfig),
) -> Option<TlsConfig> {
    let read = |table: &mut Section<'_>| {
        if !table.has("acme") {
            return files(table, folder).map(TlsConfig::Files);
        }
        for name in ["cert", "key"] {
            if table.has(name) {
                table.optional(name, line);
                table.error(name, "expected either acme, or cert and key");
            }
        }
        table
            .table("acme", |table| acme(table, hosts, (folder, store)))
            .flatten()
            .map(TlsConfig::Acme)
    };
    let tls = section.table("tls", read).flatten();
    if let Some(TlsConfig::Acme(acme)) = &tls
        && !section.has_error("hosts")
        && let Err(expected) = check_names(&acme.names)
    {
        let name = if section.has("hosts") { "hosts" } else { "tls" };
        section.error(name, &format!("{expected}, because server.tls.acme is set"));
    }
    tls
}

fn files(table: &mut Section<'_>, folder: &Path) -> Option<TlsFiles> {
    let (cert, key) = (table.required("cert", line), table.required("key", line));
    Some(TlsFiles { cert: folder.join(cert?), key: folder.join(key?) })
}

fn acme(
    table: &mut Section<'_>,
    hosts: &[String],
    (folder, store): (&Path, &StoreConfig),
) -> Option<AcmeConfig> {
    const AGREE: &str = "expected true, if you agree to the authority's terms of service";
    let has_agree = table.has("agree");
    if !table.flag("agree") && has_agree {
        table.error("agree", AGREE);
    } else if !has_agree {
        table.section_error(
            "expected `agree = true`, if you agree to the authority's terms of service",
        );
    }
    let contact = table.optional("contact", value::mail);
    let directory = match table.optional("directory", value::directory) {
        None => value::directory(DIRECTORY).ok(),
        given => given,
    };
    let profile = table.optional("profile", value::name);
    let roots = table.optional("roots", line).map(|roots| folder.join(roots));
    let own = table.optional("dir", line).map(|dir| folder.join(dir));
    let dir = own.or_else(|| Some(store.path()?.with_file_name("acme")));
    if dir.is_none() {
        table.section_error("expected a setting `dir`, because the ledger is not a file");
    }
    Some(AcmeConfig {
        names: hosts.to_vec(),
        contact,
        directory: directory?,
        profile,
        roots,
        dir: dir?,
    })
}

/// Checks the names of a certificate. Patterns are no hosts.
fn check_names(names: &[String]) -> Result<(), String> {
    let is_address = |name: &String| {
        name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
    };
    match names {
        [] => Err("expected the names of the certificate in server.hosts".to_owned()),
        names if names.iter().any(is_address) => Err("expected names, not addresses".to_owned()),
        names if names.len() > MAX_ACME_NAMES => {
            Err(format!("expected at most {MAX_ACME_NAMES} names"))
        }
        _ => Ok(()),
    }
}
