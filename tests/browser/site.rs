//! A tiny web server for the driver's own tests: fixed pages on a free port.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use crate::support::PATIENCE;

/// A site of one page, which `GET /` shows; any other path is 200 `ok`.
#[derive(Debug)]
pub(crate) struct Site {
    /// Its origin (`http://127.0.0.1:1234`).
    pub(crate) origin: String,
    posts: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Site {
    /// Serves `html` with further header lines (each ended by `\r\n`).
    pub(crate) fn serve(headers: &'static str, html: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let posts = Arc::<AtomicUsize>::default();
        let ended = Arc::<AtomicBool>::default();
        let (count, end) = (Arc::clone(&posts), Arc::clone(&ended));
        let server = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let count = Arc::clone(&count);
                thread::spawn(move || answer(stream, headers, html, &count));
            }
        });
        Self { origin: format!("http://{address}"), posts, ended, server: Some(server) }
    }

    /// How many POSTs arrived.
    pub(crate) fn posts(&self) -> usize {
        self.posts.load(Ordering::SeqCst)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.origin.trim_start_matches("http://"));
        let _ = self.server.take().map(JoinHandle::join);
    }
}

fn answer(mut stream: TcpStream, headers: &str, html: &str, posts: &AtomicUsize) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let lines = BufReader::new(&stream).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let Some(request) = head.first() else { return };
    posts.fetch_add(usize::from(request.starts_with("POST ")), Ordering::SeqCst);
    let body = if request.starts_with("GET / ") { html } else { "ok" };
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\
         {headers}\r\n{body}"
    );
}
