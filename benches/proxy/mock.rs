//! A gateway that answers at once: `proxy mock ADDRESS`. It counts the purchases that reach it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::Outcome;

/// One key, credit without end, and a rate limit that no run reaches.
const BILLING: &str = r#"{"keys":[{"id":"key_bench","name":"bench","keyPrefix":"svc_sk_bench","createdAt":"2026-01-01T00:00:00Z","lastUsedAt":null,"revokedAt":null,"usageCount":0}],"stats":{"activeKeys":1,"totalUsage":0},"billing":{"hasCredits":true,"balanceCents":100000000000,"balanceFormatted":"$1000000000.00","rateLimit":{"requests":100000000,"windowSeconds":1},"usage":{"chat":{"count":0,"costCents":0},"search":{"count":0,"costCents":0},"images":{"count":0,"costCents":0},"totalSpentCents":0}}}"#;

#[derive(Default)]
struct Counters {
    purchases: AtomicU64,
    jobs: AtomicU64,
}

/// Serves until the process is killed.
pub(crate) fn serve(address: &str) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let counters = Arc::new(Counters::default());
    runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let counters = Arc::clone(&counters);
            // A client that goes away ends its connection only.
            tokio::task::spawn_local(async move { answer(stream, &counters).await.ok() });
        }
    }))
}

async fn answer(mut stream: TcpStream, counters: &Counters) -> Outcome {
    let (mut buffer, mut reply) = (Vec::with_capacity(32 * 1024), Vec::with_capacity(1024));
    loop {
        let (head, whole) = loop {
            if let Some(sizes) = request_size(&buffer)
                && buffer.len() >= sizes.1
            {
                break sizes;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        reply.clear();
        write_reply(&buffer[..head], counters, &mut reply);
        let is_last = buffer[..head].windows(17).any(|words| words == b"Connection: close");
        buffer.drain(..whole);
        stream.write_all(&reply).await?;
        if is_last {
            return Ok(());
        }
    }
}

/// Returns the length of the head and of the whole request, once the head is complete.
fn request_size(buffer: &[u8]) -> Option<(usize, usize)> {
    let head = buffer.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = str::from_utf8(&buffer[..head]).ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    Some((head, head + length.unwrap_or(0)))
}

fn write_reply(head: &[u8], counters: &Counters, reply: &mut Vec<u8>) {
    let body = if head.starts_with(b"POST /api/v1/chat") || head.starts_with(b"POST /v1/chat") {
        counters.purchases.fetch_add(1, Ordering::Relaxed);
        format!(
            r#"{{"message":{{"role":"assistant","content":"{}"}}}}"#,
            "A short answer to a short question. ".repeat(5)
        )
    } else if head.starts_with(b"POST /api/v1/video") {
        counters.purchases.fetch_add(1, Ordering::Relaxed);
        let job = counters.jobs.fetch_add(1, Ordering::Relaxed);
        let id = if job == 0 { "vid_bench".to_owned() } else { format!("vid_{job}") };
        format!(
            r#"{{"request_id":"{id}","model":"video-c-2","message":"Poll the status endpoint.","cost":{{"this_request":"$3.00","per_video":"$3.00"}},"balance":"$1000000.00","metadata":{{"latency_ms":12}}}}"#
        )
    } else if head.starts_with(b"GET /count") {
        counters.purchases.load(Ordering::Relaxed).to_string()
    } else if head.starts_with(b"GET /api/api-keys") {
        BILLING.to_owned()
    } else {
        r#"{"status":"completed","video_url":"http://127.0.0.1:1/clip.mp4"}"#.to_owned()
    };
    let length = body.len();
    reply.extend_from_slice(
        format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
            .as_bytes(),
    );
}
