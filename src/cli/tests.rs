//! Tests of the command line.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::reconcile::ReportFormat;
use super::*;
use crate::clock;
use crate::config::{Settings, Target};

mod secrets;

const CANARY: &str = "svc_sk_CANARY_0123456789";

fn read(arguments: &[&str]) -> (Result<Cli, Exit>, String, String) {
    let arguments = ["tollgate"].iter().chain(arguments).map(OsString::from);
    match Cli::parse_args(arguments) {
        Ok(cli) => (Ok(cli), String::new(), String::new()),
        Err((Exit::Done, help)) => (Err(Exit::Done), help, String::new()),
        Err((exit, text)) => (Err(exit), String::new(), text),
    }
}

fn load(folder: &Path, environment: &[(&str, &str)]) -> Result<Loaded, Vec<SettingError>> {
    load_from(None, true, folder, variables(environment))
}

fn variables(environment: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    environment.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn checked(loaded: &Result<Loaded, Vec<SettingError>>) -> (Exit, String, String) {
    let runtime = runtime().expect("a runtime");
    runtime.block_on(check_with(loaded, false))
}

async fn check_with(
    loaded: &Result<Loaded, Vec<SettingError>>,
    is_online: bool,
) -> (Exit, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = match loaded {
        Ok(loaded) => {
            check::check(loaded, (is_online, ReportFormat::Text), &mut out, &mut err).await
        }
        Err(errors) => Ok(print_errors(errors, &mut err).expect("writing to a Vec cannot fail")),
    };
    let exit = exit.unwrap_or_else(|CommandError { exit, message }| {
        err.extend(message.into_bytes());
        exit
    });
    (exit, String::from_utf8(out).expect("text"), String::from_utf8(err).expect("text"))
}

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

#[test]
fn serve_is_the_default_command() {
    let (cli, ..) = read(&[]);
    assert_eq!(cli.map(|cli| cli.command()), Ok(Command::Serve { adopt: Adopt::default() }));
    let (cli, ..) = read(&["--config", "a.toml", "check", "--online"]);
    let cli = cli.expect("valid settings");
    assert_eq!(cli.config.as_deref(), Some(Path::new("a.toml")));
    let format = ReportFormat::Text;
    assert_eq!(cli.command(), Command::Check { online: true, format, live: false });
    let (cli, ..) = read(&["sandbox", "--listen", "[::1]:0", "--config", "a.toml"]);
    let listen = "[::1]:0".parse().expect("an address");
    assert_eq!(cli.map(|cli| cli.command()), Ok(Command::Sandbox { listen }));
}

#[test]
fn help_and_version_succeed_and_errors_print_no_key() {
    let (cli, out, _) = read(&["--version"]);
    assert_eq!(
        (cli, out.trim()),
        (Err(Exit::Done), concat!("tollgate ", env!("CARGO_PKG_VERSION")))
    );
    let (cli, out, _) = read(&["--help"]);
    assert_eq!(cli, Err(Exit::Done));
    assert!(
        ["serve", "check", "sandbox", "--config"].iter().all(|word| out.contains(word)),
        "{out}"
    );
    for arguments in [
        vec!["chekc"],
        vec!["--listen", "x"],
        vec!["sandbox", "--listen", "localhost:1"],
        vec![CANARY],
        vec!["sandbox", "--listen", CANARY],
    ] {
        let (cli, out, err) = read(&arguments);
        assert_eq!(cli, Err(Exit::UsageError), "{arguments:?}");
        assert!(out.is_empty() && !err.is_empty() && !err.contains("CANARY"), "{err}");
    }
}

#[test]
fn empty_folder_runs_the_sandbox() {
    let folder = folder(&[]);
    let loaded = load(folder.path(), &[]);
    let (exit, out, err) = checked(&loaded);
    assert_eq!((exit, err.as_str()), (Exit::Done, ""));
    for line in
        ["gateway   the sandbox", "listen    127.0.0.1:8080", "callers   open", "budgets   none"]
    {
        assert!(out.contains(line), "{out}");
    }
}

#[test]
fn environment_overrides_env_file_and_both_override_the_settings_file() {
    let folder = folder(&[
        ("proxy.toml", "[page]\ntitle = 'file'\n[server]\ndrain = '1s'\n[log]\nlevel = 'warn'"),
        (
            ".env",
            "\u{feff}# a comment\nTOLLGATE_PAGE__TITLE=first\nexport TOLLGATE_SERVER__DRAIN=2s\n\
             TOLLGATE_SERVER__DRAIN=3s\nSOMETHING_ELSE=1\n",
        ),
    ]);
    let loaded = load(folder.path(), &[("TOLLGATE_PAGE__TITLE", "real")]).expect("valid settings");
    assert_eq!(loaded.settings.page.title, "real");
    assert_eq!(loaded.settings.server.drain.as_secs(), 2, "of two lines the first holds");
    assert_eq!(loaded.settings.log.level, tracing::Level::WARN);
    assert_eq!(loaded.file, Some(folder.path().join("proxy.toml")));
}

#[test]
fn env_file_does_not_change_the_process_environment() {
    let folder = folder(&[(".env", "TOLLGATE_PAGE__TITLE=only-for-this-test\n")]);
    let loaded = load(folder.path(), &[]).expect("valid settings");
    assert_eq!(loaded.settings.page.title, "only-for-this-test");
    assert!(env::vars_os().all(|(_, value)| value != "only-for-this-test"));
}

#[test]
fn errors_in_env_file_have_a_line_and_no_value() {
    for (text, line) in [
        (format!("A=1\nGATEWAY_API_KEY {CANARY}\n"), 2),
        (format!("A=1\n\n# x\n{CANARY}\n"), 4),
        (format!("GATEWAY_API_KEY=\"{CANARY}\nB=2\n"), 1),
        (format!("\u{feff}{CANARY} x\n"), 1),
        (format!("A=1\r\nGATEWAY_API_KEY='{CANARY}' x y\r\n"), 2),
        (format!("A=1\n{CANARY}   # {CANARY}\n"), 2),
        (format!("A='1\n2\n3'\n# x\n\nGATEWAY_API_KEY=a b {CANARY}"), 6),
        (format!("A={}\nGATEWAY_API_KEY=a b {CANARY}", "x".repeat(20_000)), 2),
    ] {
        let folder = folder(&[(".env", &text)]);
        let errors = load(folder.path(), &[]).expect_err(&text);
        let path = folder.path().join(".env");
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(
            errors[0].to_string(),
            format!(
                "{}:{line}: expected NAME=value, or NAME='value' if the value has blanks or quotes",
                path.display()
            )
        );
    }
}

#[test]
fn folder_named_env_is_ignored() {
    let folder = folder(&[]);
    fs::create_dir(folder.path().join(".env")).expect("made");
    assert!(load(folder.path(), &[]).is_ok());
}

#[test]
fn explicit_file_must_exist_and_be_text() {
    let folder = folder(&[]);
    let path = folder.path().join("other.toml");
    let error = |path: &Path| {
        let errors = load_from(Some(path), true, Path::new(""), variables(&[]))
            .expect_err("invalid settings");
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].to_string()
    };
    let shown = path.display();
    assert_eq!(
        error(&path),
        format!("{shown}: expected a readable file: No such file or directory (os error 2)")
    );
    fs::write(&path, b"[log]\nlevel = '\xff'").expect("written");
    assert_eq!(error(&path), format!("{shown}: expected a readable file: line 2 is not UTF-8"));
    assert!(error(folder.path()).contains("Is a directory"));
    fs::write(&path, "[log]\nlevel = 'debug'").expect("written");
    let loaded =
        load_from(Some(&path), true, Path::new(""), variables(&[])).expect("valid settings");
    assert_eq!(loaded.settings.log.level, tracing::Level::DEBUG);
}

#[test]
fn private_files_that_others_can_read_or_change_cause_warnings() {
    use std::os::unix::fs::PermissionsExt;
    let (read, change) = ("other users can read the file", "other users can change the file");
    let both = "other users can read and change the file";
    let folder = folder(&[
        ("key", &format!("{CANARY}\n")),
        (".env", "TOLLGATE_STORE__URL=sqlite:ledger.db\n"),
        ("ledger.db", ""),
        ("proxy.toml", ""),
    ]);
    let set = |name: &str, mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(folder.path().join(name), mode).expect("changed");
    };
    let names = ["key", ".env", "ledger.db", "proxy.toml"];
    let environment = [
        ("GATEWAY_API_KEY_FILE", "key"),
        ("TOLLGATE_GATEWAY__BASE_URL", "https://gateway.example.com"),
    ];
    let warnings =
        || load(folder.path(), &environment).expect("valid settings").warnings.join("\n");
    names.iter().for_each(|name| set(name, 0o600));
    assert!(!warnings().contains("other users"), "{}", warnings());
    for (mode, said) in
        [(0o640, read), (0o604, read), (0o620, change), (0o602, change), (0o666, both)]
    {
        for (name, shown) in
            [("key", "GATEWAY_API_KEY_FILE"), (".env", ".env"), ("ledger.db", "store.url")]
        {
            set(name, mode);
            let found = warnings();
            assert!(found.contains(&format!("{shown}: {said}; chmod 600 it")), "{mode:o}: {found}");
            set(name, 0o600);
        }
    }
    for (mode, warns) in [(0o644, false), (0o664, true), (0o646, true)] {
        set("proxy.toml", mode);
        let found = warnings();
        assert_eq!(found.contains(&format!("proxy.toml: {change}")), warns, "{mode:o}: {found}");
    }
}

#[test]
fn key_file_is_read_with_a_warning_if_others_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder(&[("key", &format!("{CANARY}\n"))]);
    let environment = [
        ("GATEWAY_API_KEY_FILE", "key"),
        ("TOLLGATE_GATEWAY__BASE_URL", "https://gateway.example.com/secret-path"),
    ];
    for (mode, warns) in [(0o644, true), (0o600, false), (0o640, true)] {
        let path = folder.path().join("key");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
        let loaded = load(folder.path(), &environment);
        let (exit, out, err) = checked(&loaded);
        assert_eq!(exit, Exit::Done);
        assert!(out.contains("gateway   live, gateway.example.com, 1 key\n"), "{out}");
        assert_eq!(err.contains("GATEWAY_API_KEY_FILE: other users can read"), warns, "{err}");
        let said = format!("{out}{err}{loaded:?}");
        assert!(!said.contains("CANARY") && !out.contains("secret-path"), "{said}");
        let Target::Live { keys, .. } = loaded.expect("valid settings").settings.gateway.target
        else {
            panic!("not live")
        };
        assert_eq!(keys[0].expose(), CANARY);
    }
}

#[test]
fn file_found_in_the_folder_that_directs_the_key_causes_a_warning() {
    const HOST: &str = "[gateway]\nbase_url = \"https://gateway.example\"\n";
    let key = ("GATEWAY_API_KEY", CANARY);
    let env_file = format!("GATEWAY_API_KEY={CANARY}\n");
    let found = folder(&[("proxy.toml", HOST)]);
    let warned = |loaded: Result<Loaded, Vec<SettingError>>| {
        let warnings = loaded.expect("valid settings").warnings.join("\n");
        assert!(!warnings.contains(CANARY), "{warnings}");
        warnings.contains("sends the environment's key to gateway.example")
    };
    assert!(warned(load(found.path(), &[key])));
    let here = folder(&[("proxy.toml", "[gateway]\nbase_url = \"http://127.0.0.1:9\"\n")]);
    let warnings = load(here.path(), &[key]).expect("valid settings").warnings;
    assert!(!warnings.iter().any(|warning| warning.contains("the environment's key")));
    // There is no warning if the user names the file or the address, or the key is beside the file.
    let file = found.path().join("proxy.toml");
    assert!(!warned(load_from(Some(&file), true, Path::new(""), variables(&[key]))));
    let base_url = ("TOLLGATE_GATEWAY__BASE_URL", "https://gateway.example");
    assert!(!warned(load(found.path(), &[key, base_url])));
    let beside = folder(&[("proxy.toml", HOST), (".env", &env_file)]);
    assert!(!warned(load(beside.path(), &[])));
}

#[test]
fn invalid_character_in_a_key_is_reported_by_position() {
    let key = "svc_sk_CANA+RY_0123456789";
    let folder = folder(&[("key", key)]);
    let base_url = ("TOLLGATE_GATEWAY__BASE_URL", "https://gateway.example");
    for (name, value) in [("GATEWAY_API_KEY", key), ("GATEWAY_API_KEY_FILE", "key")] {
        let (exit, out, err) = checked(&load(folder.path(), &[base_url, (name, value)]));
        let expected = "key 1: character 12: expected a letter, digit, _ or -";
        assert_eq!((exit, err), (Exit::UsageError, format!("{name}: {expected}\n")), "{out}");
    }
}

#[test]
fn check_prints_each_error_on_a_line_and_exits_with_2() {
    let folder = folder(&[("proxy.toml", "[log]\nlevel = 'loud'\n[pgae]\n")]);
    let (exit, out, err) = checked(&load(folder.path(), &[("TOLLGATE_X", CANARY)]));
    assert_eq!((exit, out.as_str()), (Exit::UsageError, ""));
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(lines.len(), 3, "{err}");
    assert!(lines[0].contains("proxy.toml:2:9: log.level: expected"), "{err}");
    assert!(
        lines[1].contains("proxy.toml:3:2: unknown section `pgae`, did you mean `page`?"),
        "{err}"
    );
    assert!(lines[2].starts_with("TOLLGATE_X: unknown variable"), "{err}");
}

#[test]
fn check_rejects_what_serve_rejects() {
    let folder = folder(&[("proxy.toml", "[store]\nurl = 'mysql://localhost'")]);
    let (exit, out, err) = checked(&load(folder.path(), &[]));
    assert_eq!((exit, out.as_str()), (Exit::UsageError, ""));
    assert!(err.contains("store.url: expected \"memory\", \"sqlite:"), "{err}");
}

#[test]
fn missing_files_are_reported_by_position_and_with_all_other_errors() {
    let jwt = "jwt = { issuer = 'i', audience = 'a', jwks = 'keys.json' }";
    let text =
        format!("[page]\ndir = 'site'\n[access]\nmode = 'jwt'\n{jwt}\n[log]\nlevel = 'loud'");
    let folder = folder(&[("proxy.toml", &text)]);
    let (exit, out, err) = checked(&load(folder.path(), &[]));
    assert_eq!((exit, out.as_str()), (Exit::UsageError, ""));
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(lines.len(), 3, "{err}");
    for (line, expected) in lines.into_iter().zip([
        "proxy.toml:2:7: page.dir: expected a folder that exists: ",
        "proxy.toml:5:46: access.jwt.jwks: expected a file that exists: ",
        "proxy.toml:7:9: log.level: expected",
    ]) {
        assert!(line.contains(expected), "{err}");
    }
    let access = format!("{{ mode = 'jwt', {jwt} }}");
    let folder = self::folder(&[("proxy.toml", &format!("access = {access}"))]);
    let inline = ("TOLLGATE_ACCESS__JWT", jwt.trim_start_matches("jwt = "));
    let (_, _, err) = checked(&load(folder.path(), &[inline]));
    assert!(err.starts_with("TOLLGATE_ACCESS__JWT: access.jwt.jwks: expected a file"), "{err}");
}

#[test]
fn page_dir_with_secret_files_is_rejected() {
    let files =
        &[("key", CANARY), ("proxy.toml", "page.dir = '.'\nstore.url = 'sqlite:ledger.db'")];
    let folder = folder(files);
    let environment = [
        ("GATEWAY_API_KEY_FILE", "key"),
        ("TOLLGATE_GATEWAY__BASE_URL", "https://gateway.example.com"),
    ];
    let errors = load(folder.path(), &environment).expect_err("it would serve all of these");
    let said: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let secret = "the secret beside the ledger (tollgate.secret)";
    let videos = "the kept videos (videos.dir)";
    for what in
        ["the ledger (store.url)", secret, videos, "the settings file", "GATEWAY_API_KEY_FILE"]
    {
        let expected = format!("page.dir: expected a folder that does not contain {what}");
        assert!(said.iter().any(|error| error.ends_with(&expected)), "{what}: {said:?}");
    }
    assert_eq!(said.len(), 5, "{said:?}");

    fs::create_dir_all(folder.path().join("site/.t")).expect("made");
    let load_with = |settings: &str| {
        fs::write(folder.path().join("proxy.toml"), settings).expect("written");
        load(folder.path(), &environment)
    };
    load_with("page.dir = 'site'").expect("nothing is in the site");
    // A link of the site may lead there.
    load_with("page.dir = 'site'\nstore.url = 'sqlite:site/.t/ledger.db'").expect_err("a ledger");
    std::os::unix::fs::symlink(folder.path(), folder.path().join("www")).expect("linked");
    assert_eq!(load_with("page.dir = 'www'").expect_err("by way of a link").len(), 5);
}

#[test]
fn page_dir_with_the_secret_of_a_linked_ledger_is_rejected() {
    let folder = folder(&[]);
    let site = folder.path().join("site");
    fs::create_dir(&site).expect("made");
    std::os::unix::fs::symlink(folder.path().join("elsewhere.db"), site.join("linked.db"))
        .expect("linked");
    fs::write(folder.path().join("elsewhere.db"), "").expect("written");
    let long = ("TOLLGATE_SECRET", "a secret of 0123456789abcdef0123456789");
    for url in ["sqlite:site/.tollgate.db", "sqlite:site/linked.db"] {
        let settings = format!("page.dir = 'site'\nstore.url = '{url}'\nvideos.keep = '0s'");
        fs::write(folder.path().join("proxy.toml"), settings).expect("written");
        for is_there in [false, true] {
            if is_there {
                fs::write(site.join("tollgate.secret"), CANARY).expect("written");
            }
            let errors = load(folder.path(), &[]).expect_err(url);
            let said: Vec<_> = errors.iter().map(ToString::to_string).collect();
            let what = "does not contain the secret beside the ledger (tollgate.secret)";
            assert!(said.len() == 1 && said[0].ends_with(what), "{url}: {said:?}");
        }
        fs::remove_file(site.join("tollgate.secret")).expect("removed");
        load(folder.path(), &[long]).expect("no such file is made or read");
    }
}

#[test]
fn check_prints_who_may_call() {
    let members = "store.url = 'sqlite:ledger.db'\naccess.mode = 'members'";
    let folder = folder(&[("proxy.toml", members)]);
    let (exit, out, _) = checked(&load(folder.path(), &[]));
    assert_eq!(exit, Exit::Done);
    assert!(out.contains("callers   members: NONE YET"), "{out}");
    assert!(!folder.path().join("ledger.db").exists(), "it makes nothing");
}

#[test]
fn members_need_a_ledger_on_disk() {
    let folder = folder(&[("proxy.toml", "[access]\nmode = 'members'")]);
    let (exit, _, err) = checked(&load(folder.path(), &[]));
    assert_eq!(exit, Exit::UsageError);
    assert!(err.contains("proxy.toml:2:8: access.mode: expected store.url with it"), "{err}");
}

#[test]
fn missing_key_hides_no_default_of_the_ledger() {
    let settings = "[access]\nmode = 'members'\n[gateway]\nbase_url = 'https://g.example'";
    let folder = folder(&[("proxy.toml", settings)]);
    let (exit, _, err) = checked(&load(folder.path(), &[]));
    assert_eq!(exit, Exit::UsageError);
    assert!(err.contains("gateway.base_url: expected a key with it"), "{err}");
    assert!(!err.contains("store.url"), "{err}");
}

#[test]
fn variable_that_is_not_utf8_is_an_error() {
    use std::os::unix::ffi::OsStringExt;
    let folder = folder(&[]);
    let variables = [
        (OsString::from("TOLLGATE_PAGE__TITLE"), OsString::from_vec(vec![0xff])),
        (OsString::from("OTHERS"), OsString::from_vec(vec![0xff])),
    ];
    let errors = load_from(None, true, folder.path(), variables).expect_err("invalid settings");
    assert_eq!(format!("{errors:?}"), "[TOLLGATE_PAGE__TITLE: expected text in UTF-8]");
}

#[tokio::test]
async fn sandbox_warns_if_other_machines_can_reach_it() {
    // No machine has this address, so nothing is served.
    let listen = "192.0.2.1:0".parse().expect("an address");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let served = sandbox::sandbox(&Settings::default(), listen, &mut out, &mut err).await;
    assert!(served.is_err() && out.is_empty());
    let printed = String::from_utf8(err).expect("text");
    assert!(printed.starts_with("warning: --listen: other machines can reach 192.0.2.1:0"));
}

#[tokio::test]
async fn check_online_asks_nothing_in_the_sandbox_or_after_an_error() {
    let folder = folder(&[]);
    for (variables, exit, says) in [
        (&[][..], Exit::Done, "nothing to ask"),
        (&[("TOLLGATE_LIMITS__BURST", "many")], Exit::UsageError, "TOLLGATE_LIMITS__BURST"),
        (&[("TOLLGATE_STORE__URL", "mysql://localhost")], Exit::UsageError, "store.url"),
    ] {
        let (ended, out, err) = check_with(&load(folder.path(), variables), true).await;
        assert_eq!(ended, exit);
        assert!((out + &err).contains(says), "{says}");
    }
}

#[tokio::test(start_paused = true)]
async fn reports_have_defaults_and_reject_unknown_options() {
    clock::set_wall(Some(Duration::from_secs(8 * 86_400)));
    let (cli, ..) = read(&["usage"]);
    let since = Duration::from_secs(86_400);
    let usage =
        Command::Usage { since, until: None, by: vec![GroupBy::Day], format: OutputFormat::Table };
    assert_eq!(cli.map(|cli| cli.command()), Ok(usage));
    clock::set_wall(None);
    let (cli, ..) = read(&["reconcile", "--dry-run"]);
    assert_eq!(
        cli.map(|cli| cli.command()),
        Ok(Command::Reconcile { dry_run: true, since_backup: false, format: ReportFormat::Text })
    );
    for arguments in [
        &["usage", "--since", CANARY][..],
        &["usage", "--by", "week"],
        &["usage", "--format", "xml"],
        &["reconcile", "--now"],
    ] {
        let (cli, out, err) = read(arguments);
        assert_eq!((cli, out.as_str()), (Err(Exit::UsageError), ""), "{arguments:?}");
        assert!(!err.contains("CANARY"), "{err}");
    }
}
