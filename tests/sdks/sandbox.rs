//! The real binary with its sandbox, on free ports.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// It ends with the value.
pub(crate) struct Sandbox {
    process: Child,
    /// Where callers call.
    pub(crate) address: String,
    _folder: tempfile::TempDir,
}

impl Sandbox {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut process = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .env_clear()
            .env("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0")
            .env("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0")
            .env("TOLLGATE_SANDBOX__JOB_TIME", "1s")
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (send, found) = mpsc::channel();
        thread::spawn(move || {
            let page = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("page"));
            send.send(page).ok();
            lines.for_each(drop);
        });
        let page = found.recv_timeout(Duration::from_secs(60)).ok().flatten();
        let line = page.expect("it says where it is");
        let address = line.split("http://").nth(1).expect("an address").trim().to_owned();
        Self { process, address: address.trim_end_matches('/').to_owned(), _folder: folder }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
