use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::*;

/// Standard error that takes a batch only when it is told to.
struct Pipe {
    taken: Sender<String>,
    may_take: Receiver<()>,
}

impl Write for Pipe {
    fn write(&mut self, batch: &[u8]) -> io::Result<usize> {
        self.may_take.recv().map_err(io::Error::other)?;
        self.taken.send(String::from_utf8_lossy(batch).into_owned()).map_err(io::Error::other)?;
        Ok(batch.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const FOREVER: Duration = Duration::from_secs(60);

fn stopped_pipe() -> (Arc<LogQueue>, Sender<()>, Receiver<String>) {
    let queue = Arc::new(LogQueue::new());
    let ((taken, batches), (read, may_take)) = (channel(), channel());
    let of_writer = Arc::clone(&queue);
    thread::spawn(move || of_writer.run(Pipe { taken, may_take }));
    (queue, read, batches)
}

#[test]
fn lines_arrive_in_order_and_flush_waits_for_the_last() {
    let (queue, read, batches) = stopped_pipe();
    for number in 0..1_000 {
        queue.push(format!("{number}\n").as_bytes());
        // More often than there can be batches.
        read.send(()).unwrap();
    }
    queue.flush(FOREVER);
    let written: String = batches.try_iter().collect();
    let numbers: Vec<_> = (0..1_000).map(|number| number.to_string()).collect();
    assert_eq!(written.lines().collect::<Vec<_>>(), numbers);
}

#[test]
fn stopped_reader_blocks_neither_lines_nor_flush_and_dropped_lines_are_counted() {
    let (queue, read, batches) = stopped_pipe();
    let line = [&[b'x'; 1_023][..], b"\n"].concat();
    queue.push(b"first\n");
    while lock(&queue.state).writer != Writer::Busy {
        thread::yield_now();
    }
    let fitting = MAX_BYTES / line.len();
    for _ in 0..fitting + 7 {
        queue.push(&line);
    }
    queue.push(b"small, but after a gap\n");
    queue.flush(Duration::ZERO);
    let state = lock(&queue.state);
    assert_eq!((state.lines.len(), state.dropped), (MAX_BYTES, 8));
    drop(state);
    read.send(()).unwrap();
    read.send(()).unwrap();
    assert_eq!(batches.recv().unwrap(), "first\n");
    assert_eq!(batches.recv().unwrap().lines().count(), fitting);
    read.send(()).unwrap();
    queue.flush(FOREVER);
    queue.push(b"later\n");
    assert_eq!(batches.recv().unwrap(), "later\n");
}

#[test]
fn line_after_a_long_silence_wakes_the_writer() {
    let (queue, read, batches) = stopped_pipe();
    let send = |line: &str| {
        read.send(()).unwrap();
        queue.push(line.as_bytes());
        assert_eq!(batches.recv().unwrap(), line);
    };
    send("first\n");
    while lock(&queue.state).writer != Writer::Waiting {
        thread::park_timeout(PAUSE);
    }
    send("second\n");
}

#[test]
fn line_that_never_fits_is_dropped_alone() {
    let (queue, read, batches) = stopped_pipe();
    read.send(()).unwrap();
    queue.push(&vec![b'x'; MAX_BYTES + 1]);
    queue.flush(FOREVER);
    queue.push(b"next\n");
    assert_eq!(batches.recv().unwrap(), "next\n");
}
