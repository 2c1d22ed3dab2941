//! Keys and secrets are never printed.

use super::*;
use super::{read, read_with};

const CANARY: &str = "svc_sk_CANARY_0123456789-";
const LONG: &str = "a secret of 0123456789abcdef0123456789";

fn has_canary(text: &str) -> bool {
    text.contains("CANARY")
}

#[test]
fn key_in_the_file_is_rejected_by_position_and_not_printed() {
    for (file, place) in [
        (format!("[gateway]\nbase_url = \"{CANARY}\""), "proxy.toml:2:13"),
        (format!("# {CANARY}\n"), "proxy.toml:1:3"),
        (format!("[page]\ntitle = \"x {CANARY}\""), "proxy.toml:2:12"),
        (format!("[gateway]\nkey = \"{CANARY}\""), "proxy.toml:2:8"),
        (format!("[gateway]\n\"{CANARY}\" = 1"), "proxy.toml:2:2"),
        (format!("[\"{CANARY}\"]"), "proxy.toml:1:3"),
        ("[page]\ntitle = \"\\u0073vc_sk_CANARY\"".to_owned(), "proxy.toml:2:9"),
        ("[server]\nhosts = [\"a\", \"\\u0073vc_sk_CANARY\"]".to_owned(), "proxy.toml:2:15"),
        (format!("[gateway]\nkey = {CANARY}"), "proxy.toml:2:7"),
        (CANARY.to_owned(), "proxy.toml:1:1"),
        (format!("[gateway\nkey = \"{CANARY}\""), "proxy.toml:2:8"),
    ] {
        let errors = read(&file, &[]).expect_err(&file);
        let refusal = format!(
            "{place}: expected no gateway key here; set GATEWAY_API_KEY or GATEWAY_API_KEY_FILE"
        );
        assert!(errors.iter().any(|error| error.starts_with(&refusal)), "{errors:#?}");
        assert!(!has_canary(&errors.join("\n")), "{errors:#?}");
    }
}

#[test]
fn key_in_another_variable_is_rejected_and_not_printed() {
    for name in
        ["TOLLGATE_PAGE__TITLE", "TOLLGATE_SERVER__HOSTS", "TOLLGATE_GATEWAY__KEY", "TOLLGATE_X"]
    {
        let errors = read("", &[(name, CANARY)]).expect_err(name);
        assert!(errors[0].starts_with(&format!("{name}: ")), "{errors:#?}");
        assert!(!has_canary(&errors.join("\n")), "{errors:#?}");
    }
    let errors = read("", &[("TOLLGATE_svc_sk_CANARY", "x")]).expect_err("unknown");
    assert!(!has_canary(&errors.join("\n")), "{errors:#?}");
}

#[test]
fn invalid_keys_are_reported_by_number_and_not_printed() {
    let six = (0..6).map(|n| format!("{CANARY}{n}")).collect::<Vec<_>>().join(",");
    for (value, expected) in [
        ("CANARY-without-prefix".to_owned(), "key 1: expected a key that begins with svc_sk_…"),
        ("svc_sk_".to_owned(), "key 1: expected a key that begins with svc_sk_…"),
        (
            "$MY_KEY".to_owned(),
            "key 1: expected a key that begins with svc_sk_… (variables are not expanded)",
        ),
        (format!("{CANARY},"), "key 2: expected a key, found nothing"),
        (format!("{CANARY}, {CANARY}"), "key 2: expected a key other than key 1"),
        ("svc_sk_CANA+RY".to_owned(), "key 1: character 12: expected a letter, digit, _ or -"),
        ("svc_sk_éCANARY".to_owned(), "key 1: character 8: expected a letter, digit, _ or -"),
        (format!("{CANARY},svc_sk_/"), "key 2: character 8: expected a letter, digit, _ or -"),
        (format!("{CANARY} x"), "key 1: character 26: expected a letter, digit, _ or -"),
        (format!("{CANARY}é"), "key 1: character 26: expected a letter, digit, _ or -"),
        (format!("{CANARY}\nX-Evil: 1"), "key 1: character 26: expected a letter, digit, _ or -"),
        (six, "expected at most 5 keys, not 6"),
    ] {
        let errors = read("", &[URL, ("GATEWAY_API_KEY", &value)]).expect_err(&value);
        assert_eq!(errors, [format!("GATEWAY_API_KEY: {expected}")]);
        let file = |_: &Path| Ok(value.clone().into());
        let errors = read_with("", &[URL, ("GATEWAY_API_KEY_FILE", "k")], &file).expect_err(&value);
        assert_eq!(errors, [format!("GATEWAY_API_KEY_FILE: {expected}")]);
    }
}

#[test]
fn key_file_is_relative_to_the_folder_and_trimmed() {
    let file = |path: &Path| {
        assert_eq!(path, Path::new("/etc/tollgate/key"));
        Ok(format!("{CANARY}\n").into())
    };
    let config =
        read_with("", &[URL, ("GATEWAY_API_KEY_FILE", "key")], &file).expect("valid settings");
    assert!(!has_canary(&format!("{config:?} {config:#?}")));
    let Target::Live { keys, .. } = config.gateway.target else { panic!("not live") };
    assert_eq!(keys[0].expose(), CANARY);
    let errors = read("", &[URL, ("GATEWAY_API_KEY_FILE", "key")]).expect_err("no file");
    assert_eq!(errors, ["GATEWAY_API_KEY_FILE: expected a file with the key: there is none"]);
    let both = [URL, ("GATEWAY_API_KEY_FILE", "key"), ("GATEWAY_API_KEY", CANARY)];
    let errors = read("", &both).expect_err("both");
    assert_eq!(
        errors,
        ["GATEWAY_API_KEY: expected GATEWAY_API_KEY or GATEWAY_API_KEY_FILE, not both"]
    );
}

#[test]
fn no_error_contains_a_value() {
    let value = "hunter2-hunter2";
    for name in Settings::names() {
        let (section, own) = name.split_once('.').expect("section.name");
        let variable = format!("TOLLGATE_{section}__{own}").to_uppercase();
        for said in [
            read(&format!("[{section}]\n{own} = {{ x = '{value}' }}"), &[]),
            read(&format!("[{section}]\n{own} = ['{value} *', '~']"), &[]),
            read("", &[(&variable, &format!("\u{7}{value} *"))]),
            read("", &[(&variable, &format!("['{value} ~'"))]),
        ] {
            let said = format!("{said:?}");
            assert!(said.starts_with("Ok(") || !said.contains("hunter2"), "{name}: {said}");
        }
    }
}

#[test]
fn weak_secret_is_rejected_and_not_printed() {
    let few = "change-me-".repeat(5);
    for value in ["hunter2-hunter2", "hunter2-hunter2-hunter2-hunter2", &few, CANARY] {
        let errors = read("", &[("TOLLGATE_SECRET", value)]).expect_err(value);
        assert!(errors[0].starts_with("TOLLGATE_SECRET: expected a"), "{errors:?}");
        assert!(!errors[0].contains("hunter2") && !errors[0].contains("change-me"), "{errors:?}");
        let file = |_: &Path| Ok(value.to_owned().into());
        let errors = read_with("", &[("TOLLGATE_SECRET_FILE", "s")], &file).expect_err(value);
        assert!(errors[0].starts_with("TOLLGATE_SECRET_FILE: expected a"), "{errors:?}");
        assert!(!errors[0].contains("hunter2") && !has_canary(&errors[0]), "{errors:?}");
    }
    let errors = read("", &[("TOLLGATE_SECRET_FILE", "s")]).expect_err("no file");
    assert_eq!(errors, ["TOLLGATE_SECRET_FILE: expected a file with the secret: there is none"]);
    let both = [("TOLLGATE_SECRET_FILE", "s"), ("TOLLGATE_SECRET", LONG)];
    let errors = read("", &both).expect_err("both");
    assert_eq!(
        errors,
        ["TOLLGATE_SECRET: expected TOLLGATE_SECRET or TOLLGATE_SECRET_FILE, not both"]
    );
}

#[test]
fn secret_is_read_from_variable_or_file_and_not_printed() {
    let file = |path: &Path| {
        assert_eq!(path, Path::new("/etc/tollgate/s"));
        Ok(format!("{LONG}\n").into())
    };
    let of_file = read_with("", &[("TOLLGATE_SECRET_FILE", "s")], &file).expect("valid settings");
    let of_variable = read("", &[("TOLLGATE_SECRET", LONG)]).expect("valid settings");
    for config in [of_file, of_variable] {
        assert!(!format!("{config:?} {config:#?}").contains("0123456789"));
        assert_eq!(config.secret.expect("it is there").expose(), LONG);
    }
    let empty = read("", &[("TOLLGATE_SECRET", " "), ("TOLLGATE_SECRET_FILE", "")]);
    assert_eq!(empty.expect("valid settings").secret, None);
}
