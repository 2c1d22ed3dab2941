//! A gateway that answers everybody, and remembers when each request arrived.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tollgate::clock::{self, Instant};

const BOOKS: &str = r#"{"keys":[{"id":"key_1","name":"production","keyPrefix":"svc_sk_CANARY_01","createdAt":null,"lastUsedAt":null,"revokedAt":null,"usageCount":7}],"billing":{"balanceCents":4210,"rateLimit":{"requests":60,"windowSeconds":60},"usage":{"chat":{"count":3,"costCents":1},"totalSpentCents":790}}}"#;
const CHAT: &str = r#"{"choices":[{"message":{"role":"assistant","content":"hello"}}]}"#;

/// See the file's documentation. It ends with the process.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    arrivals: Arc<Mutex<Vec<Instant>>>,
}

impl Recorder {
    pub(crate) fn start() -> Self {
        Self::telling(60, 60)
    }

    /// One that tells this rate limit.
    pub(crate) fn telling(requests: usize, seconds: u64) -> Self {
        let limit = format!(r#"{{"requests":{requests},"windowSeconds":{seconds}}}"#);
        Self::listing(BOOKS.replace(r#"{"requests":60,"windowSeconds":60}"#, &limit))
    }

    /// One that lists no keys: it hangs up on whoever asks for them.
    pub(crate) fn unlisted() -> Self {
        Self::listing(String::new())
    }

    fn listing(books: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&arrivals);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let written = Arc::clone(&written);
                let books = books.clone();
                thread::spawn(move || answer(stream, &written, &books));
            }
        });
        Self { address, arrivals }
    }

    pub(crate) fn arrivals(&self) -> Vec<Instant> {
        let mut arrivals = self.arrivals.lock().unwrap().clone();
        arrivals.sort_unstable();
        arrivals
    }

    /// Never more than `limit` arrivals in any stretch of `period`.
    pub(crate) fn assert_held(&self, limit: usize, period: Duration) {
        for stretch in self.arrivals().windows(limit + 1) {
            let length = stretch[limit] - stretch[0];
            assert!(length >= period, "{} arrivals within {length:?}", limit + 1);
        }
    }
}

/// One request after another; an arrival is written down before its answer. A payload with the word "lost"
/// has none.
fn answer(stream: TcpStream, arrivals: &Mutex<Vec<Instant>>, books: &str) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => head.push(line.to_ascii_lowercase()),
            }
        }
        let length = head.iter().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.map_or(0, |length| length.trim().parse().unwrap());
        let mut payload = vec![0; length];
        reader.read_exact(&mut payload).unwrap();
        arrivals.lock().unwrap().push(clock::now());
        let body = if head[0].starts_with("get /api/api-keys ") { books } else { CHAT };
        if body.is_empty() || payload.windows(4).any(|word| word == b"lost") {
            return;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
