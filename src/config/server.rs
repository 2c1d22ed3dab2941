//! Reads the section `[server]`.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use url::Url;

use super::read::Section;
use super::{Listen, ServerConfig, TlsFiles, value};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn server(section: &mut Section<'_>, folder: &Path) -> ServerConfig {
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
        tls: section.table("tls", |table| tls(table, folder)).flatten(),
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
    let is_list = |text: &str| text.starts_with('[') && text.parse::<SocketAddr>().is_err();
    if !section.is_structured("listen", is_list) {
        return section.optional("listen", Listen::parse).map_or(default, |listen| vec![listen]);
    }
    let listen = section.list("listen", Listen::parse, default);
    if listen.is_empty() {
        section.error("listen", "expected at least one address");
    }
    listen
}

fn tls(table: &mut Section<'_>, folder: &Path) -> Option<TlsFiles> {
    let (cert, key) = (table.required("cert", value::line), table.required("key", value::line));
    Some(TlsFiles { cert: folder.join(cert?), key: folder.join(key?) })
}
