//! Connections to PostgreSQL: their settings, the server's, TLS, and errors that an operator can act on.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tollgate::ledger::postgres::{InstanceKind, PostgresTarget, connect};
use tollgate::ledger::{Cause, MoneyKind, Reason};

use crate::cluster::Cluster;

fn target(address: &str, money: MoneyKind) -> PostgresTarget {
    let target = PostgresTarget::parse(address, money, InstanceKind::Server).expect("an address");
    target.with_instance_name("host:1".to_owned())
}

async fn fail(target: PostgresTarget) -> Reason {
    match connect(&target).await {
        Ok(_) => panic!("{target} accepts the connection"),
        Err(reason) => reason,
    }
}

#[tokio::test]
async fn session_has_its_settings_over_tcp_and_the_socket() {
    let database = Cluster::shared().database();
    for address in [database.url(), database.socket_url()] {
        let connection = connect(&target(&address, MoneyKind::Real)).await.expect("it connects");
        for (name, expected) in [
            ("jit", "off"),
            ("plan_cache_mode", "force_generic_plan"),
            ("statement_timeout", "0"),
            ("idle_in_transaction_session_timeout", "2s"),
            ("lock_timeout", "5s"),
            ("TimeZone", "UTC"),
            ("application_name", "tollgate host:1"),
        ] {
            let row = connection.client.query_one(&format!("SHOW {name}"), &[]).await;
            assert_eq!(row.expect("a setting").get::<_, &str>(0), expected, "{name}");
        }
        assert!(!connection.is_closed());
        connection.close().await;
    }
    let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tollgate host:1'";
    assert_eq!(database.sql(&format!("{open} AND datname = '{}'", database.name)), "0");
}

#[tokio::test]
async fn errors_name_the_database_and_the_cause_without_the_password() {
    let cluster = Cluster::start("");
    fs::write(
        cluster.folder().join("data/pg_hba.conf"),
        "local all all trust\nhost all all all md5\n",
    )
    .expect("written");
    cluster.reload();
    cluster.sql("postgres", "CREATE ROLE reader LOGIN PASSWORD 'swordfish'");
    let at = cluster.address();
    for (login, database, cause, expected) in [
        ("reader:hunter2", "postgres", Cause::Permission, "password authentication failed"),
        ("reader:swordfish", "none", Cause::Other, "\"none\" does not exist; create it"),
    ] {
        let address = format!("postgres://{login}@{at}/{database}");
        let reason = fail(target(&address, MoneyKind::Real)).await;
        assert_eq!(reason.cause, cause, "{reason}");
        assert!(reason.text.starts_with(&format!("postgres://{at}/{database}: ")), "{reason}");
        assert!(reason.text.contains(expected), "{reason}");
        assert!(!reason.text.contains("hunter2") && !reason.text.contains("swordfish"), "{reason}");
    }
    let address = format!("postgres://reader:swordfish@{at}/postgres");
    connect(&target(&address, MoneyKind::Real)).await.expect("the right password");
    cluster.crash();
    let reason = fail(target(&address, MoneyKind::Real)).await;
    assert_eq!(reason.cause, Cause::Unreachable, "{reason}");
    cluster.recover();
    connect(&target(&address, MoneyKind::Real)).await.expect("it is back");
}

#[tokio::test]
async fn database_that_can_lose_purchases_is_refused_for_real_money() {
    let cluster = Cluster::start("fsync = off\n");
    let database = cluster.database();
    for name in ["fsync", "full_page_writes", "synchronous_commit"] {
        let others: String = ["fsync", "full_page_writes", "synchronous_commit"]
            .map(|it| format!("{it} = {}\n", if it == name { "off" } else { "on" }))
            .concat();
        cluster.add_settings(&others);
        cluster.restart();
        let reason = fail(target(&database.url(), MoneyKind::Real)).await;
        assert!(reason.text.contains(&format!(": {name} is off")), "{reason}");
        connect(&target(&database.url(), MoneyKind::Play)).await.expect("play money");
    }
}

#[tokio::test]
async fn database_that_only_reads_is_refused() {
    let cluster = Cluster::start("default_transaction_read_only = on\n");
    let address = format!("postgres://tollgate@{}/postgres", cluster.address());
    let reason = fail(target(&address, MoneyKind::Real)).await;
    assert!(reason.text.contains("does not allow writes"), "{reason}");
}

#[tokio::test]
async fn tls_verifies_the_server() {
    let cluster = Cluster::start("");
    certify(cluster.folder(), "DNS:localhost");
    cluster.add_settings("ssl = on\nssl_cert_file = '../cert.pem'\nssl_key_file = '../key.pem'\n");
    cluster.reload();
    let port = cluster.address().port();
    let secured = |host: &str, roots: &Path| {
        let address = format!("postgres://tollgate@{host}:{port}/postgres?sslmode=require");
        target(&address, MoneyKind::Real).with_tls(client(roots))
    };
    let ours = cluster.folder().join("cert.pem");
    let connection = connect(&secured("localhost", &ours)).await.expect("the name and the issuer");
    let row = connection
        .client
        .query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]);
    assert!(row.await.expect("a row").get::<_, bool>(0));
    let reason = fail(secured("127.0.0.1", &ours)).await;
    assert!(reason.text.contains("certificate"), "{reason}");
    let others = tempfile::tempdir().expect("a folder");
    certify(others.path(), "DNS:localhost");
    let reason = fail(secured("localhost", &others.path().join("cert.pem"))).await;
    assert!(reason.text.contains("certificate"), "{reason}");
    let unset = format!("postgres://tollgate@localhost:{port}/postgres?sslmode=verify-full");
    let reason = fail(target(&unset, MoneyKind::Real)).await;
    assert!(reason.text.contains("trust anchors"), "{reason}");
}

/// Makes a certificate that is its own issuer, and its key, which belongs to the folder's owner.
fn certify(folder: &Path, name: &str) {
    let arguments =
        ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=t"];
    let mut openssl = Command::new("openssl");
    openssl.args(arguments).args(["-addext", &format!("subjectAltName={name}")]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.args(["-keyout", "key.pem", "-out", "cert.pem"]).current_dir(folder);
    let made = openssl.output().expect("openssl is missing; on Debian: apt-get install openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(folder).expect("the folder"));
    let key = folder.join("key.pem");
    chown(&key, Some(owner), None).expect("the key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the key");
}

fn client(roots: &Path) -> ClientConfig {
    let mut store = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(roots).expect("a certificate");
    store.add(certificate).expect("a trust anchor");
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(store)
        .with_no_client_auth()
}
