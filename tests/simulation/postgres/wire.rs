//! A wire between a process and the database: it is cut, loses an answer, or changes the SQL that a
//! mutation names.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// The wires of all runs. Their time does not stand still.
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
    Down,
}

/// SQL, and what the wire puts in its place. Both are equally long, as the protocol counts bytes.
pub(super) type Edit = (&'static str, &'static str);

/// Ends with its process.
pub(super) struct Wire {
    pub(super) address: SocketAddr,
    course: Arc<watch::Sender<Course>>,
    has_edited: Arc<AtomicBool>,
    _task: AbortOnDropHandle<()>,
}

impl Wire {
    pub(super) fn to(database: SocketAddr, edits: &'static [Edit]) -> Self {
        let listener = WIRES.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let course = Arc::new(watch::Sender::new(Course::Pass));
        let shared = Arc::clone(&course);
        let edited = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&edited);
        let task = WIRES.spawn(async move {
            let mut carried = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.expect("a connection");
                let (course, edited) = (Arc::clone(&shared), Arc::clone(&noted));
                carried.spawn(carry(client, database, course, edits, edited));
                while carried.try_join_next().is_some() {}
            }
        });
        Self { address, course, has_edited: edited, _task: AbortOnDropHandle::new(task) }
    }

    pub(super) fn set(&self, course: Course) {
        self.course.send_replace(course);
    }

    /// Returns whether it has changed a statement.
    pub(super) fn has_edited(&self) -> bool {
        self.has_edited.load(Ordering::Relaxed)
    }
}

async fn carry(
    client: TcpStream,
    database: SocketAddr,
    course: Arc<watch::Sender<Course>>,
    edits: &'static [Edit],
    edited: Arc<AtomicBool>,
) {
    if *course.borrow() == Course::Down {
        return;
    }
    let server = TcpStream::connect(database).await.expect("the database listens");
    client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).expect("TCP");
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let mut changes = course.subscribe();
    tokio::select! {
        () = ask(from_client, to_server, &course, edits, &edited) => {}
        () = answer(from_server, to_client) => {}
        _ = changes.wait_for(|course| *course == Course::Down) => {}
    }
}

/// Carries what the process sends, until it is cut.
async fn ask(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    course: &watch::Sender<Course>,
    edits: &[Edit],
    edited: &AtomicBool,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        let read = &mut bytes[..length];
        for (sql, other) in edits {
            assert_eq!(sql.len(), other.len(), "{sql}");
            while let Some(at) = find(read, sql) {
                read[at..at + sql.len()].copy_from_slice(other.as_bytes());
                edited.store(true, Ordering::Relaxed);
            }
        }
        let is_cut =
            |course: &Course| matches!(course, Course::CutBeforeCommit | Course::CutAfterCommit);
        let commit = find(read, "COMMIT").filter(|_| is_cut(&course.borrow()));
        let Some(commit) = commit else {
            if to.write_all(read).await.is_err() {
                return;
            }
            continue;
        };
        let was = course.send_replace(Course::Pass);
        let passed = if was == Course::CutAfterCommit { length } else { commit };
        // The server reads what was written before the end of it.
        to.write_all(&read[..passed]).await.ok();
        return;
    }
}

async fn answer(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

fn find(bytes: &[u8], text: &str) -> Option<usize> {
    bytes.windows(text.len()).position(|part| part == text.as_bytes())
}
