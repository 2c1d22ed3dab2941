//! Secrets are those that are written, in `.env` and in files.

use super::*;
use crate::access::secret_file;
use crate::config::StoreConfig;

#[test]
fn secret_in_env_file_is_the_one_that_is_written() {
    let secret = "$HOME/${PATH}#$$0123456789abcdefghijklm";
    for written in [secret.to_owned(), format!("'{secret}'"), format!("\"{secret}\"")] {
        let folder = folder(&[(".env", &format!("HOME=x\nTOLLGATE_SECRET={written}\n"))]);
        let read = load(folder.path(), &[]).expect("valid settings").settings.secret;
        assert_eq!(read.expect("a secret").expose(), secret, "{written}");
    }
}

#[tokio::test]
async fn byte_order_mark_is_part_of_no_secret() {
    use std::os::unix::fs::PermissionsExt;
    const SECRET: &str = "a secret of 0123456789abcdef0123456789";
    const WEBHOOK: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const ADDRESS: &str = "postgres://me:hunter2@127.0.0.1/gate";
    let settings = "[gateway]\nbase_url = 'http://127.0.0.1:9'\n[access]\nmode = 'oidc'\n\
                    oidc = { issuer = 'https://login.example', client_id = 'gate' }\n\
                    [store]\nurl = 'postgres'\n[[webhooks]]\nurl = 'https://a.example'\nevents = '*'\n";
    let marked = |text: &str| format!("\u{feff}{text}\r\n");
    let folder = folder(&[
        ("proxy.toml", &marked(settings)),
        ("key", &marked(CANARY)),
        ("secret", &marked(SECRET)),
        ("webhook", &marked(WEBHOOK)),
        ("address", &marked(ADDRESS)),
        ("client", &marked("hunter2")),
        ("tollgate.secret", &marked(SECRET)),
    ]);
    let variables = [
        ("GATEWAY_API_KEY_FILE", "key"),
        ("TOLLGATE_SECRET_FILE", "secret"),
        ("TOLLGATE_WEBHOOK_SECRET_FILE", "webhook"),
        ("DATABASE_URL_FILE", "address"),
        ("OIDC_CLIENT_SECRET_FILE", "client"),
    ];
    let settings = load(folder.path(), &variables).expect("valid settings").settings;
    let Target::Live { keys, .. } = &settings.gateway.target else { panic!("not live") };
    let StoreConfig::Postgres(postgres) = &settings.store else { panic!("no database") };
    let AccessMode::Oidc(oidc) = &settings.access.mode else { panic!("no login service") };
    let client_secret = oidc.client_secret.as_ref().expect("a secret");
    assert_eq!(
        [
            keys[0].expose(),
            settings.secret.as_ref().expect("a secret").expose(),
            postgres.address.expose(),
            client_secret.expose(),
        ],
        [CANARY, SECRET, ADDRESS, "hunter2"]
    );
    assert_eq!(settings.webhooks.secrets[0].expose(), (0..32).collect::<Vec<u8>>());

    // The file beside a ledger.
    let path = folder.path().join("tollgate.secret");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("changed");
    let hash = |settings: &Settings| {
        let secret = secret_file::secret(settings).expect("a secret");
        token::hash_token(&secret, "tg_a")
    };
    let beside = StoreConfig::Sqlite(folder.path().join("ledger.db"));
    let beside = Settings { store: beside, secret: None, ..settings.clone() };
    assert!(hash(&beside) == hash(&settings));
}
