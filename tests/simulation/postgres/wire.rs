//! A wire between a process and the database: it is cut, loses an answer, holds a COMMIT back, or
//! changes the SQL that a mutation names.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, BufWriter, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// The wires of all runs.
static WIRES: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    Pass,
    /// The next transaction is cut off before its COMMIT.
    CutBeforeCommit,
    /// The next COMMIT is passed on, and its answer is lost.
    CutAfterCommit,
    /// The next COMMIT waits.
    HoldCommit,
    Held,
    Down,
}

/// SQL, and what the wire puts in its place.
pub(super) type Edit = (&'static str, &'static str);

/// Ends with the last clone.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) address: SocketAddr,
    line: Arc<Line>,
    _task: Arc<AbortOnDropHandle<()>>,
}

struct Line {
    course: watch::Sender<Course>,
    edit: Edit,
    edited: AtomicBool,
}

impl Wire {
    pub(super) fn to(database: SocketAddr, edit: Edit) -> Self {
        let listener = WIRES.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (course, edited) = (watch::Sender::new(Course::Pass), AtomicBool::new(false));
        let line = Arc::new(Line { course, edit, edited });
        let shared = Arc::clone(&line);
        let task = WIRES.spawn(async move {
            let mut carried = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.expect("a connection");
                let line = Arc::clone(&shared);
                carried.spawn(async move { line.carry(client, database).await.ok() });
                while carried.try_join_next().is_some() {}
            }
        });
        Self { address, line, _task: Arc::new(AbortOnDropHandle::new(task)) }
    }

    pub(super) fn set(&self, course: Course) {
        self.line.course.send_replace(course);
    }

    pub(super) fn is_held(&self) -> bool {
        *self.line.course.borrow() == Course::Held
    }

    /// Returns whether it has changed a statement.
    pub(super) fn has_edited(&self) -> bool {
        self.line.edited.load(Ordering::Relaxed)
    }
}

impl Line {
    async fn carry(&self, client: TcpStream, database: SocketAddr) -> io::Result<()> {
        let mut changes = self.course.subscribe();
        if *changes.borrow_and_update() == Course::Down {
            return Ok(());
        }
        let server = TcpStream::connect(database).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let ((from_client, mut to_client), (mut from_server, to_server)) =
            (client.into_split(), server.into_split());
        tokio::select! {
            asked = self.ask(from_client, to_server) => asked,
            answered = copy(&mut from_server, &mut to_client) => answered.map(drop),
            _ = changes.wait_for(|course| *course == Course::Down) => Ok(()),
        }
    }

    /// Carries what the process sends, until it is cut.
    async fn ask(&self, from: OwnedReadHalf, to: OwnedWriteHalf) -> io::Result<()> {
        let (mut from, mut to) = (BufReader::new(from), BufWriter::new(to));
        // The first message has no type.
        let mut head = 4;
        loop {
            let mut message = vec![0; head];
            from.read_exact(&mut message).await?;
            let length = u32::from_be_bytes(message[head - 4..].try_into().expect("four bytes"));
            message.resize(head - 4 + length as usize, 0);
            from.read_exact(&mut message[head..]).await?;
            self.edit(&mut message);
            let is_commit = find(&message, "COMMIT").is_some();
            let course = *self.course.borrow();
            match course {
                Course::Down => return Ok(()),
                Course::CutBeforeCommit if is_commit => {
                    self.course.send_replace(Course::Pass);
                    return Ok(());
                }
                Course::CutAfterCommit if is_commit => {
                    self.course.send_replace(Course::Pass);
                    to.write_all(&message).await?;
                    // The server reads what was written before the end of it.
                    return to.flush().await;
                }
                Course::HoldCommit if is_commit => {
                    self.course.send_replace(Course::Held);
                    let mut changes = self.course.subscribe();
                    changes.wait_for(|course| *course != Course::Held).await.ok();
                }
                Course::Pass
                | Course::CutBeforeCommit
                | Course::CutAfterCommit
                | Course::HoldCommit
                | Course::Held => {}
            }
            to.write_all(&message).await?;
            if from.buffer().is_empty() {
                to.flush().await?;
            }
            head = 5;
        }
    }

    fn edit(&self, message: &mut Vec<u8>) {
        let (sql, other) = self.edit;
        let Some(at) = find(message, sql).filter(|_| !sql.is_empty()) else { return };
        message.splice(at..at + sql.len(), other.bytes());
        let length = u32::try_from(message.len() - 1).expect("a short message");
        message[1..5].copy_from_slice(&length.to_be_bytes());
        self.edited.store(true, Ordering::Relaxed);
    }
}

fn find(bytes: &[u8], text: &str) -> Option<usize> {
    bytes.windows(text.len().max(1)).position(|part| part == text.as_bytes())
}
