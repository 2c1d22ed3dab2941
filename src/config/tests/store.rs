//! The address of a shared ledger: its places, its conflicts, and that no error shows a password.

use super::*;

const ADDRESS: &str = "postgres://tollgate:hunter2@db.example.com/tollgate";
const DATABASE: (&str, &str) = ("DATABASE_URL", ADDRESS);

fn address(config: &Settings) -> &str {
    let StoreConfig::Postgres(postgres) = &config.store else { panic!("{:?}", config.store) };
    postgres.address.expose()
}

#[test]
fn shared_ledger_has_its_address_in_a_variable_a_file_or_the_settings() {
    let config = read("store.url = 'postgres'", &[URL, KEY, DATABASE]).expect("valid settings");
    assert_eq!(address(&config), ADDRESS);
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
    let file = |path: &Path| {
        assert_eq!(path, Path::new("/etc/tollgate/secret/address"));
        Ok(format!("{ADDRESS}\n").into())
    };
    let named = [URL, KEY, ("DATABASE_URL_FILE", "secret/address")];
    let config = read_with("store.url = 'postgres'", &named, &file).expect("valid settings");
    assert_eq!(address(&config), ADDRESS);
    let written =
        "store = { url = 'postgres://tollgate@db/tollgate', ca = 'ca.pem', migrate = 'never' }";
    let config = read(written, &[URL, KEY, DATABASE]).expect("valid settings");
    assert_eq!(address(&config), "postgres://tollgate@db/tollgate");
    let StoreConfig::Postgres(postgres) = &config.store else { panic!("{:?}", config.store) };
    assert_eq!(postgres.ca.as_deref(), Some(Path::new("/etc/tollgate/ca.pem")));
    assert!(!postgres.may_migrate);
}

#[test]
fn database_of_another_program_is_not_read() {
    for (file, path) in
        [("", "/etc/tollgate/tollgate.db"), ("store.url = 'sqlite:t.db'", "/etc/tollgate/t.db")]
    {
        let config = read(file, &[URL, KEY, DATABASE]).expect("valid settings");
        assert_eq!(config.store.path(), Some(Path::new(path)));
    }
}

#[test]
fn faulty_addresses_are_reported_without_a_value() {
    let missing = "expected the database's address with it, in DATABASE_URL or DATABASE_URL_FILE";
    let password = "expected no password here; set store.url = \"postgres\", and the address in \
                    DATABASE_URL or DATABASE_URL_FILE";
    for (url, expected) in [
        ("postgres", missing),
        ("postgres://me:hunter2@db/gate", password),
        ("postgresql://:hunter2@db/gate", password),
        ("postgres:me:hunter2@db/gate", password),
        ("postgres://db/gate?user=me&password=hunter2", password),
        ("redis://:hunter2@cache/0", "expected \"postgres\", with the address of a PostgreSQL"),
        ("rediss://cache", "expected \"postgres\", with the address of a PostgreSQL"),
        ("valkey://cache", "expected \"postgres\", with the address of a PostgreSQL"),
        ("hunter2", "expected \"memory\", \"sqlite:tollgate.db\", or \"postgres\" with"),
    ] {
        let errors = read(&format!("store.url = '{url}'"), &[URL, KEY]).expect_err(url);
        let start = format!("proxy.toml:1:13: store.url: {expected}");
        assert!(errors.len() == 1 && errors[0].starts_with(&start), "{url}: {errors:?}");
        assert!(!errors[0].contains("hunter2"), "{errors:?}");
    }
    let both = [URL, KEY, DATABASE, ("DATABASE_URL_FILE", "address")];
    let errors = read("store.url = 'postgres'", &both).expect_err("both");
    let expected = "DATABASE_URL: store.url: expected DATABASE_URL or DATABASE_URL_FILE, not both";
    assert_eq!(errors, [expected]);
}

#[test]
fn shared_ledger_refuses_what_each_server_has_alone() {
    let rows = [
        ("", &[DATABASE][..], "store.url: expected a ledger of this server's own, because its"),
        ("access.mode = 'members'", &[URL, KEY, DATABASE], "access.mode: expected TOLLGATE_SECRET"),
        (
            "server.public_url = 'https://a.example'\npage.pictures = true",
            &[URL, KEY, DATABASE],
            "page.pictures: expected store.url with it",
        ),
    ];
    for (file, variables, expected) in rows {
        let file = format!("store.url = 'postgres'\n{file}");
        let errors = read(&file, variables).expect_err(&file);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{errors:?}");
    }
    let secret = ("TOLLGATE_SECRET", "a secret of 0123456789abcdef0123456789");
    let members = "store.url = 'postgres'\naccess.mode = 'members'";
    read(members, &[URL, KEY, DATABASE, secret]).expect("valid settings");
}
