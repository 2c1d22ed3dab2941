//! A site at another origin than tollgate's: pages of the test, and files of a folder.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::chromium::lock;
use crate::page::Page;
use crate::support::PATIENCE;

/// Its pages by path, which may come to be after it.
type Pages = Arc<Mutex<HashMap<String, String>>>;

/// It ends with the value.
pub(crate) struct Shop {
    /// `http://localhost:1234`: to a browser, `127.0.0.1` is another site.
    pub(crate) origin: String,
    port: u16,
    pages: Pages,
    ended: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Shop {
    /// With the files of this folder, if any, where it has no page.
    pub(crate) fn open(folder: Option<PathBuf>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let (ended, pages) = (Arc::<AtomicBool>::default(), Pages::default());
        let (end, shown) = (Arc::clone(&ended), Arc::clone(&pages));
        let server = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let (shown, folder) = (Arc::clone(&shown), folder.clone());
                thread::spawn(move || answer(stream, &shown, folder.as_deref()));
            }
        });
        let origin = format!("http://localhost:{port}");
        Self { origin, port, pages, ended, server: Some(server) }
    }

    /// Shows this at `path`, which says by its ending what it is.
    pub(crate) fn show(&self, path: &str, text: &str) {
        lock(&self.pages).insert(path.to_owned(), text.to_owned());
    }

    /// As a setting: the origins that may call.
    pub(crate) fn listed(&self) -> String {
        format!("[\"{}\"]", self.origin)
    }

    /// Somebody's tab with this page of it, which may ask tollgate at `gate` besides.
    pub(crate) fn visit(&self, path: &str, gate: &str) -> Page {
        let page = Page::new(&self.origin);
        page.allow(gate);
        page.goto(&format!("{}{path}", self.origin));
        page
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        drop(self.server.take().map(JoinHandle::join));
    }
}

fn answer(mut stream: TcpStream, pages: &Pages, folder: Option<&Path>) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let lines = BufReader::new(&stream).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("/");
    let page = lock(pages).get(path).cloned();
    let file = || fs::read_to_string(folder?.join(path.trim_start_matches('/'))).ok();
    let text = page.or_else(file);
    let status = if text.is_some() { "200 OK" } else { "404 Not Found" };
    let kind = match path.rsplit_once('.') {
        Some((_, "html")) => "text/html; charset=utf-8",
        Some((_, "js" | "mjs")) => "text/javascript",
        _ => "text/plain",
    };
    let text = text.unwrap_or_default();
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
    .ok();
}
