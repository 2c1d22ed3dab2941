//! The manual, the completions, and the files of a release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::packaging::done;
use crate::support::process::run;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate");
/// A build of the same sources gives the same files.
const EPOCH: (&str, &str) = ("SOURCE_DATE_EPOCH", "1700000000");

#[test]
fn manual_has_a_page_for_each_command_and_passes_the_linter() {
    let folder = TempDir::with_prefix("tollgate-man-").unwrap();
    let ended = run(folder.path(), &["man", "--out", "."], &[EPOCH]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut pages: Vec<_> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path()).collect();
    pages.sort();
    let names: Vec<_> = pages.iter().map(|page| page.file_name().unwrap()).collect();
    for name in ["tollgate.1", "tollgate-check.1", "tollgate-member-add.1"] {
        assert!(names.contains(&name.as_ref()), "{names:?}");
    }
    assert!(!names.contains(&"tollgate-man.1".as_ref()), "{names:?}");
    let lint = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).args(&pages).output();
    let said = lint.expect("mandoc").stdout;
    let said = String::from_utf8_lossy(&said);
    // The generator's spacing, which changes nothing.
    let is_fault = |line: &&str| !line.contains("skipping paragraph macro");
    let faults: Vec<_> = said.lines().filter(is_fault).collect();
    assert_eq!(faults, [""; 0]);
    let printed = run(folder.path(), &["man"], &[EPOCH]);
    assert_eq!(printed.stdout, fs::read_to_string(folder.path().join("tollgate.1")).unwrap());
    assert!(printed.stdout.contains("2023-11-14"), "{}", printed.stdout);
}

#[test]
fn each_shell_reads_its_completions() {
    let folder = TempDir::with_prefix("tollgate-shell-").unwrap();
    // What the shell offers after `tollgate pur`.
    let bash = "source ./c; COMP_WORDS=(tollgate pur); COMP_CWORD=1; _tollgate tollgate pur tollgate; \
                echo \"${COMPREPLY[@]}\"";
    let zsh =
        "autoload -U compinit; compinit -D; source ./c; whence -w _tollgate; grep -o purchase c";
    let fish = "source ./c; complete --do-complete 'tollgate pur'";
    for (shell, script) in [("bash", bash), ("zsh", zsh), ("fish", fish)] {
        let ended = run(folder.path(), &["completions", shell], &[]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        fs::write(folder.path().join("c"), ended.stdout).unwrap();
        let mut command = Command::new(shell);
        command.args(["-c", script]).current_dir(&folder).env("HOME", folder.path());
        let said = done(command.stdin(Stdio::null()));
        assert!(said.contains("purchase"), "{shell}: {said}");
    }
    assert_eq!(run(folder.path(), &["completions", "tcsh"], &[]).code, Some(2));
}

#[test]
fn licences_of_all_parts_are_given() {
    let said = done(&mut Command::new("contrib/release/licences"));
    let (list, texts) = said.split_once("\n\n\n").unwrap();
    let parts: Vec<_> = list.lines().skip(2).filter_map(|line| line.split_once(": ")).collect();
    assert!(parts.len() > 100, "{list}");
    for (part, _) in &parts {
        assert!(texts.contains(part), "no text of {part}");
    }
    // A text in the part of a part, one that only the authors' names had to be added to, and the compiler's.
    for notice in
        ["the fiat-crypto authors", "Andreas Fuchs <asf@boinkor.net>\n\nPermission", "Rust Project"]
    {
        assert!(texts.contains(notice), "{notice}");
    }
}

/// The files of a release whose program is the tested one.
fn release(folder: &Path) -> PathBuf {
    done(Command::new("contrib/release/build").arg(folder).env("TOLLGATE", PROGRAM));
    done(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(folder));
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    names.into_iter().find(|path| path.extension().is_some_and(|end| end == "deb")).expect("a deb")
}

/// Returns a document's commands that install the package, up to the end of their block.
fn install_commands(document: &str, package: &str) -> Vec<String> {
    let text = fs::read_to_string(document).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with("sudo apt install ./tollgate_"));
    let lines: Vec<_> = lines.take_while(|line| !line.starts_with("```")).collect();
    assert!(lines.first().is_some_and(|line| line.ends_with(package)), "{document}: {lines:?}");
    lines.into_iter().map(str::to_owned).collect()
}

/// Returns the first TOML block after these words.
fn settings_after(document: &str, words: &str) -> String {
    let text = fs::read_to_string(document).unwrap();
    let (_, rest) = text.split_once(words).unwrap();
    let (_, block) = rest.split_once("```toml\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

/// Does for a command what its reader does, without systemd.
fn without_asking(command: &str) -> String {
    let command = command.split("   ").next().unwrap();
    match command {
        "sudoedit /etc/tollgate/proxy.toml" => "cp proxy.toml /etc/tollgate/proxy.toml".to_owned(),
        "sudoedit /etc/tollgate/gateway-key" => {
            "cp gateway-key /etc/tollgate/gateway-key".to_owned()
        }
        _ => command
            .replace("sudo apt ", "apt-get -y ")
            .replace("sudo ", "")
            .replace("systemctl enable --now ", "systemctl enable "),
    }
}

#[test]
fn package_is_clean_and_installs_as_documented() {
    let folder = TempDir::with_prefix("tollgate-release-").unwrap();
    let package = release(folder.path());
    let name = package.file_name().unwrap().to_str().unwrap();
    let lint = done(
        Command::new("lintian").args(["--allow-root", "--fail-on=error,warning"]).arg(&package),
    );
    assert_eq!(lint, "");
    let mut unpack = Command::new("sh");
    let tar = "dpkg-deb --fsys-tarfile \"$0\" | tar xO ./usr/share/doc/tollgate/copyright";
    let copyright = done(unpack.args(["-c", tar]).arg(&package));
    let given = ["\nLicense: third-party\n", "\n Copyright (c) Andreas Fuchs"];
    assert!(given.iter().all(|part| copyright.contains(part)));
    let guide = "docs/guide/deploy.md";
    let commands = install_commands(guide, name);
    assert!(commands.len() > 4, "{commands:?}");
    let commands: Vec<_> = commands.iter().map(|command| without_asking(command)).collect();
    let [settings, key] = ["proxy.toml", "gateway-key"].map(|file| folder.path().join(file));
    fs::write(&settings, settings_after(guide, "sudo apt install ./tollgate_")).unwrap();
    fs::write(&key, format!("svc_sk_{}\n", "1".repeat(32))).unwrap();
    let (install, then) = (&commands[0], commands[1..].join(" && "));
    let script = format!(
        "cd /tmp && {install} && dpkg --verify tollgate && tollgate --version && \
         tollgate --config /etc/tollgate/proxy.toml check && \
         test -f /usr/share/man/man1/tollgate.1.gz && \
         test ! -e /etc/systemd/system/multi-user.target.wants/tollgate.service && \
         {then} && \
         test -e /etc/systemd/system/multi-user.target.wants/tollgate.service && \
         test -e /etc/systemd/system/sockets.target.wants/tollgate.socket && \
         test -e /etc/systemd/system/sockets.target.wants/tollgate-redirect.socket && \
         apt-get -y purge tollgate && test \"$(ls -A /etc/tollgate)\" = gateway-key && \
         test -z \"$(ls /etc/systemd/system/sockets.target.wants/tollgate*)\" && \
         test ! -e /usr/bin/tollgate && \
         echo installed and purged"
    );
    let files = [&package, &settings, &key].map(|path| path.display().to_string());
    let copy = format!("copy-in {} /tmp", files.join(" "));
    let run = format!("chroot \"$1\" sh -exc '{script}'");
    let mut debian = Command::new("mmdebstrap");
    debian.args(["--variant=apt", "--include=ca-certificates,init-system-helpers,systemd"]);
    debian.arg(format!("--customize-hook={copy}")).arg(format!("--customize-hook={run}"));
    let output = debian.args(["bookworm", "/dev/null"]).output().expect("mmdebstrap");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("\ninstalled and purged"), "{said}");
}
