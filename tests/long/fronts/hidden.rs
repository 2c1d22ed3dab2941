//! Byte streams in which a purchase is hidden: by every right reading it is part of a body, and whoever
//! reads the body's length wrongly takes it for a request.

use crate::guarantees::heads::corpus::{chat, get, post};
use crate::support::VIDEO;

/// A purchase that nobody made.
fn video() -> String {
    let lines = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", VIDEO.len());
    post("/api/v1/video", &lines, VIDEO)
}

/// Names for people, and the bytes.
pub(crate) fn streams() -> Vec<(String, String)> {
    let hidden = video();
    let behind_an_end = format!("0\r\n\r\n{hidden}");
    let length = |body: &str| format!("Content-Length: {}\r\n", body.len());
    let in_a_chunk = format!("{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len());
    let mut all = vec![
        ("the body of a GET".to_owned(), get("/healthz", &length(&hidden)) + &hidden),
        ("the chunks of a GET".to_owned(), {
            get("/healthz", "Transfer-Encoding: chunked\r\n") + &in_a_chunk
        }),
        ("the body of a page's POST".to_owned(), post("/", &length(&hidden), &hidden)),
        ("the body of a chat".to_owned(), chat(&length(&hidden), &hidden)),
        ("the chunk of a chat".to_owned(), chat("Transfer-Encoding: chunked\r\n", &in_a_chunk)),
        (
            "a chunk beside a length that ends before".to_owned(),
            chat("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", &in_a_chunk),
        ),
        (
            "a chunk before a length that ends before".to_owned(),
            chat("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", &in_a_chunk),
        ),
        (
            "a body that is announced and asked for".to_owned(),
            chat(&format!("Expect: 100-continue\r\n{}", length(&hidden)), &hidden),
        ),
        (
            "a body of something else that is expected".to_owned(),
            get("/healthz", &format!("Expect: 100-continue\r\n{}", length(&hidden))) + &hidden,
        ),
        (
            "a body behind an upgrade".to_owned(),
            chat(
                &format!("Connection: Upgrade\r\nUpgrade: websocket\r\n{}", length(&hidden)),
                &hidden,
            ),
        ),
        (
            "a length that is called a header of this hop".to_owned(),
            chat(&format!("Connection: Content-Length\r\n{}", length(&hidden)), &hidden),
        ),
        (
            "a coding that is called a header of this hop".to_owned(),
            chat("Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n", &in_a_chunk),
        ),
        (
            "a chunk's extension with a line feed".to_owned(),
            chat(
                "Transfer-Encoding: chunked\r\n",
                &format!("2;\nxx\r\n{:x}\r\n0\r\n\r\n{hidden}\r\n0\r\n\r\n", behind_an_end.len()),
            ),
        ),
        (
            "a chunk's length that is too long for a number".to_owned(),
            chat(
                "Transfer-Encoding: chunked\r\n",
                &format!("10000000000000000{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len()),
            ),
        ),
        (
            "a header's value".to_owned(),
            get("/healthz", &format!("X: {}\r\n", hidden.replace("\r\n", "\r \r"))),
        ),
    ];
    // Codings that are none, each with the right length of all that follows.
    for (name, line) in [
        ("a coding with a letter before", "Transfer-Encoding: xchunked"),
        ("a coding behind a vertical tab", "Transfer-Encoding: \x0bchunked"),
        ("a coding with a line feed alone", "X: y\nTransfer-Encoding : chunked"),
        ("a coding behind a carriage return", "X: y\rTransfer-Encoding: chunked"),
        ("a coding with a blank before the colon", "Transfer-Encoding : chunked"),
        ("a coding with an underscore", "Transfer_Encoding: chunked"),
        ("a coding in a folded line", "X: y\r\n Transfer-Encoding: chunked"),
        ("a coding in quotes", "Transfer-Encoding: \"chunked\""),
        ("the identity coding", "Transfer-Encoding: identity"),
        ("a coding with a parameter", "Transfer-Encoding: chunked;q=1"),
        ("a length of nothing besides", "Content-Length: 0"),
        ("a length with a sign besides", "Content-Length: +0"),
    ] {
        let lines = format!("{line}\r\n{}", length(&behind_an_end));
        all.push((name.to_owned(), chat(&lines, &behind_an_end)));
        all.push((format!("{name}, for a GET"), get("/healthz", &lines) + &behind_an_end));
    }
    let old = |text: String| text.replacen("HTTP/1.1", "HTTP/1.0", 1);
    let lines = format!("Connection: keep-alive\r\n{}", length(&hidden));
    all.push(("a body of HTTP/1.0".to_owned(), old(chat(&lines, &hidden))));
    all
}
