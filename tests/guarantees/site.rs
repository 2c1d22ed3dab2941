//! A site in `page.dir`, as browsers and other programs see it: no deployment is missed, and nothing is hidden
//! that its owner shows.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::client::Answer;
use crate::support::{Gate, Reply, Upstream};

const SETTINGS: &str = "page.dir = \"site\"";

/// Writes a version of the site as Kubernetes mounts a ConfigMap: links through `..data`, and times of the image.
fn deploy(site: &Path, version: &str) {
    let folder = site.join(format!("..{version}"));
    fs::create_dir_all(&folder).unwrap();
    for name in ["index.html", "app.js"] {
        let file = folder.join(name);
        fs::write(&file, format!("<p>{version}</p>")).unwrap();
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        symlink(Path::new("..data").join(name), site.join(name)).ok();
    }
    symlink(format!("..{version}"), site.join("..data_tmp")).unwrap();
    fs::rename(site.join("..data_tmp"), site.join("..data")).unwrap();
}

fn start(upstream: &Upstream) -> Gate {
    Gate::binary_in(upstream, SETTINGS, |folder| {
        let site = folder.join("site");
        fs::create_dir_all(site.join(".well-known")).unwrap();
        fs::write(site.join(".well-known/security.txt"), "Contact: mailto:a@b.example").unwrap();
        deploy(&site, "one");
    })
}

#[test]
fn next_deployment_is_seen_at_once() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = start(&upstream);
    for path in ["/", "/index.html", "/app.js"] {
        deploy(&gate.folder().join("site"), "one");
        let first = gate.get(path);
        assert_eq!((first.status, &*first.text()), (200, "<p>one</p>"), "{path}");
        assert_eq!(first.value("cache-control"), Some("no-cache"), "{path}");
        let tag = first.value("etag").unwrap().to_owned();
        let known =
            [("If-None-Match", &*tag), ("If-Modified-Since", "Thu, 01 Jan 1970 00:00:01 GMT")];
        let ask = || -> Answer { gate.ask("GET", path, &known, "") };
        assert_eq!(ask().status, 304, "{path}");
        // Of the same size and time.
        deploy(&gate.folder().join("site"), "two");
        let second = ask();
        assert_eq!((second.status, &*second.text()), (200, "<p>two</p>"), "{path}");
    }
    let markup = gate.get("/");
    assert_eq!(markup.value("content-type"), Some("text/html; charset=utf-8"));
}

#[test]
fn well_known_files_are_served_and_hidden_ones_are_not() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = start(&upstream);
    let contact = gate.get("/.well-known/security.txt");
    assert_eq!((contact.status, &*contact.text()), (200, "Contact: mailto:a@b.example"));
    for path in ["/..data/index.html", "/..one/index.html", "/.well-known/nothing"] {
        assert_eq!(gate.get(path).status, 404, "{path}");
    }
}
