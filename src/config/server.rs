//! Reads the section `[server]`.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use url::Url;

use super::read::Section;
use super::{
    AcmeConfig, Listen, MAX_ACME_NAMES, ServerConfig, StoreConfig, TlsConfig, TlsFiles,
    socket_address, value,
};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The directory of Let's Encrypt.
const DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

pub(super) fn server(
    section: &mut Section<'_>,
    folder: &Path,
    store: &StoreConfig,
) -> ServerConfig {
    let listen = listen(section).into_iter().map(|at| at.in_folder(folder)).collect();
    let mut hosts = section.list("hosts", value::host, Vec::new());
    let public_url = section.text("public_url", value::public_url, None);
    let prefix = section.text("prefix", value::prefix, String::new());
    if let Some(url) = public_url.as_deref().and_then(|text| Url::parse(text).ok())
        && let Some(host) = url.host_str()
        && !hosts.iter().any(|known| known == host)
    {
        hosts.push(host.to_owned());
    }
    let tls = tls(section, &hosts, (folder, store));
    let max_connections = section.number("max_connections", value::connections, 10_000);
    let tenth = max_connections.div_ceil(10);
    let server = ServerConfig {
        listen,
        hosts,
        trusted_proxies: section.list("trusted_proxies", value::network, Vec::new()),
        max_connections,
        max_connections_per_address: section.number(
            "max_connections_per_address",
            value::connections,
            tenth,
        ),
        max_body_memory: section.text("max_body_memory", value::size, 256 << 20),
        header_timeout: section.text("header_timeout", value::time, secs(10)),
        idle_timeout: section.text("idle_timeout", value::time, secs(75)),
        body_timeout: section.text("body_timeout", value::time, secs(30)),
        chat_body: section.text("chat_body", value::size, 2 << 20),
        video_body: section.text("video_body", value::size, 64 << 10),
        drain: section.text("drain", value::time_or_zero, secs(30)),
        public_url,
        prefix,
        tls,
        redirect: section.list("redirect", Listen::parse_tcp, Vec::new()),
        hsts: section.text("hsts", value::time_or_zero, Duration::ZERO),
        streams: section.number("streams", value::streams, 64),
        name: section.nullable("name", value::line),
    };
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
                table.optional(name, value::line);
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
    let (cert, key) = (table.required("cert", value::line), table.required("key", value::line));
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
    let roots = table.optional("roots", value::line).map(|roots| folder.join(roots));
    let own = table.optional("dir", value::line).map(|dir| folder.join(dir));
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
