//! A web server before the gate, as a child process with the recipe of the documents.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::markdown::read;
use crate::support::server::ReservedPort;
use crate::support::until;

const CERTIFICATE: &str = "certificate.pem";
/// Of this machine's address, and of no name.
const CERTIFIED: &str = "[req]\ndistinguished_name = name\nx509_extensions = is\nprompt = no\n[name]\n\
    CN = gateway\n[is]\nsubjectAltName = IP:127.0.0.1\nbasicConstraints = critical,CA:FALSE\n";

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nginx,
    /// nginx, which serves the files of a site itself.
    Site,
    /// nginx with the certificate, which the recipe has.
    Secured,
    HaProxy,
    Caddy,
}

/// A running front; it ends with the value.
pub(crate) struct Front {
    child: Child,
    port: ReservedPort,
    folder: TempDir,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Self::Nginx | Self::Site | Self::Secured => "nginx",
            Self::HaProxy => "haproxy",
            Self::Caddy => "caddy",
        }
    }

    /// Its file, as people copy it.
    pub(crate) fn recipe(self) -> String {
        let file = match self {
            Self::Nginx | Self::Secured => "nginx.conf",
            Self::Site => "nginx-site.conf",
            Self::HaProxy => "haproxy.cfg",
            Self::Caddy => "Caddyfile",
        };
        read(format!("contrib/front/{file}"))
    }

    /// The recipe, with this address and without a certificate, and what the distribution's own
    /// files say around it.
    fn settings(self, own: SocketAddr, behind: SocketAddr, folder: &Path) -> String {
        let own_text = own.to_string();
        let is_kept = |line: &&str| {
            self == Self::Secured || !line.trim_start().starts_with("ssl_certificate")
        };
        let recipe = self.recipe();
        let lines = recipe.lines().filter(is_kept);
        let bare = lines.fold(String::new(), |text, line| text + line + "\n");
        let swap = |text: String, from: &str, to: &str| {
            assert_eq!(text.matches(from).count(), 1, "{from:?} in the recipe of {self:?}");
            text.replace(from, to)
        };
        let here = swap(bare, "127.0.0.1:8080", &behind.to_string());
        let folder = folder.display();
        match self {
            Self::Nginx | Self::Site | Self::Secured => {
                let root = format!("root {folder}/site;");
                let is_site = self == Self::Site;
                let here = if is_site { swap(here, "root /srv/site;", &root) } else { here };
                let is_secured = self == Self::Secured;
                let (listen, here) = match is_secured {
                    true => {
                        let here = swap(here, "/etc/ssl/chat.example.com.pem", CERTIFICATE);
                        (" ssl", swap(here, "/etc/ssl/private/chat.example.com.key", "private.key"))
                    }
                    false => ("", here),
                };
                let own = format!("listen {own_text}{listen};");
                let recipe = swap(here, "listen 443 ssl;", &own);
                let log = match is_secured {
                    true => format!(
                        "log_format sessions \"$ssl_session_reused\";\n\
                         access_log {folder}/sessions sessions;\n"
                    ),
                    false => "access_log off;\n".to_owned(),
                };
                let user = if nix::unistd::geteuid().is_root() { "user root;\n" } else { "" };
                let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                    .map(|name| format!("{name}_temp_path {folder}/{name};\n"))
                    .concat();
                format!(
                    "{user}daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\n\
                     events {{ worker_connections 512; }}\nhttp {{\n{log}{paths}{recipe}}}\n"
                )
            }
            Self::HaProxy => {
                let from = "bind :443 ssl crt /etc/haproxy/chat.example.com.pem";
                let recipe = swap(here, from, &format!("bind {own_text}"));
                format!("global\n    maxconn 256\n    nbthread 1\n{recipe}")
            }
            Self::Caddy => {
                let site = format!("http://:{} {{\n\tbind {}", own.port(), own.ip());
                let recipe = swap(here, "chat.example.com {", &site);
                format!("{{\n\tadmin off\n\tauto_https off\n}}\n{recipe}")
            }
        }
    }

    fn command(self, settings: &Path, folder: &Path) -> Command {
        let mut command = Command::new(self.program());
        match self {
            Self::Nginx | Self::Site | Self::Secured => {
                command.arg("-p").arg(folder).arg("-e").arg("stderr").arg("-c")
            }
            Self::HaProxy => command.args(["-db", "-f"]),
            Self::Caddy => command.args(["run", "--adapter", "caddyfile", "--config"]),
        };
        command.arg(settings).env("HOME", folder).env("XDG_DATA_HOME", folder);
        command.env("XDG_CONFIG_HOME", folder).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

impl Front {
    /// How the TLS session of each request's connection began, so far: `r` for resumed, else `.`.
    pub(crate) fn sessions(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("sessions")).unwrap_or_default();
        log.lines().collect()
    }

    /// One before this address.
    pub(crate) fn start(kind: Kind, behind: SocketAddr) -> Self {
        let folder = TempDir::with_prefix("tollgate-front-").unwrap();
        let port = ReservedPort::new();
        let address = port.address();
        let (settings, log) = (folder.path().join("settings"), folder.path().join("log"));
        fs::write(&settings, kind.settings(address, behind, folder.path())).unwrap();
        if kind == Kind::Site {
            fs::create_dir(folder.path().join("site")).unwrap();
            fs::write(folder.path().join("site/index.html"), "the site").unwrap();
        }
        if kind == Kind::Secured {
            certify(folder.path());
        }
        let mut command = kind.command(&settings, folder.path());
        let child = command.stderr(fs::File::create(&log).unwrap()).spawn();
        let program = kind.program();
        let package = if program == "nginx" { "nginx-light" } else { program };
        let child = child.unwrap_or_else(|error| {
            panic!("{program}: {error}; install it: apt-get install {package}")
        });
        let mut front = Self { child, port, folder };
        until("the front listens", || {
            let has_ended = front.child.try_wait().unwrap().is_some();
            let log = || fs::read_to_string(&log).unwrap_or_default();
            assert!(!has_ended, "{program} does not start with its recipe: {}", log());
            TcpStream::connect(address).is_ok()
        });
        front
    }

    /// Its certificate, which it has signed itself.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.folder.path().join(CERTIFICATE)
    }

    /// Where callers call.
    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }
}

fn certify(folder: &Path) {
    fs::write(folder.join("certified"), CERTIFIED).unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config"])
        .args(["certified", "-keyout", "private.key", "-out", CERTIFICATE])
        .current_dir(folder)
        .output()
        .expect("openssl is missing; install it: apt-get install openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

impl Drop for Front {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
