//! A wire between a store and its database that a test cuts, or makes deaf.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    Pass,
    /// Ends the connection that has carried this text, before its COMMIT.
    CutBeforeCommit(&'static str),
    /// Passes the COMMIT on, but not its answer.
    CutAfterCommit(&'static str),
    /// Keeps back what carries this text until the wire passes again. Nothing of that transaction has
    /// reached the database, so none of its timeouts runs.
    Hold(&'static str),
    /// Takes everything, and passes nothing on.
    Deaf,
    /// Ends all connections, and each new one.
    Down,
}

/// It has a runtime of its own, because a store that is dropped blocks its test until it has signed off.
pub(crate) struct Wire {
    runtime: Option<Runtime>,
    pub(crate) address: SocketAddr,
    course: Arc<watch::Sender<Course>>,
    is_holding: Arc<watch::Sender<bool>>,
}

impl Wire {
    pub(crate) async fn to(database: SocketAddr) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let bound = runtime.spawn(TcpListener::bind("127.0.0.1:0"));
        let listener = bound.await.expect("it ends").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let course = Arc::new(watch::Sender::new(Course::Pass));
        let is_holding = Arc::new(watch::Sender::new(false));
        let (shared, holding) = (Arc::clone(&course), Arc::clone(&is_holding));
        runtime.spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("a connection");
                let (course, holding) = (Arc::clone(&shared), Arc::clone(&holding));
                tokio::spawn(carry(client, database, course, holding));
            }
        });
        Self { runtime: Some(runtime), address, course, is_holding }
    }

    pub(crate) fn set(&self, course: Course) {
        self.course.send_replace(course);
    }

    /// Waits until something is kept back.
    pub(crate) async fn is_holding(&self) {
        let mut holding = self.is_holding.subscribe();
        holding.wait_for(|is_holding| *is_holding).await.expect("the wire lives");
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn carry(
    client: TcpStream,
    database: SocketAddr,
    course: Arc<watch::Sender<Course>>,
    holding: Arc<watch::Sender<bool>>,
) {
    if *course.borrow() == Course::Down {
        return;
    }
    let server = TcpStream::connect(database).await.expect("the database listens");
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let mut changes = course.subscribe();
    let is_cut = AtomicBool::new(false);
    tokio::select! {
        () = ask(from_client, to_server, (&course, &holding), &is_cut) => {}
        () = answer(from_server, to_client, &course, &is_cut) => {}
        _ = changes.wait_for(|course| *course == Course::Down) => {}
    }
}

/// Carries what the store sends, and cuts where the test wants it.
async fn ask(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    (course, holding): (&watch::Sender<Course>, &watch::Sender<bool>),
    is_cut: &AtomicBool,
) {
    let (mut bytes, mut has_marker) = (vec![0; 1 << 20], false);
    loop {
        let Ok(length @ 1..) = from.read(&mut bytes).await else { return };
        let read = &bytes[..length];
        let now = *course.borrow();
        let marker = match now {
            Course::CutBeforeCommit(marker) | Course::CutAfterCommit(marker) => marker,
            Course::Hold(marker) => {
                if find(read, marker).is_some() {
                    holding.send_replace(true);
                    let mut changes = course.subscribe();
                    let passes = changes.wait_for(|course| *course == Course::Pass);
                    passes.await.expect("the wire lives");
                }
                ""
            }
            Course::Pass => "",
            Course::Deaf | Course::Down => continue,
        };
        has_marker |= !marker.is_empty() && find(read, marker).is_some();
        let Some(commit) = find(read, "COMMIT").filter(|_| has_marker) else {
            to.write_all(read).await.ok();
            continue;
        };
        let passed = if matches!(now, Course::CutAfterCommit(_)) { length } else { commit };
        is_cut.store(true, Ordering::Relaxed);
        to.write_all(&read[..passed]).await.ok();
        // The server reads what was written before the end of it, and then ends the connection.
        to.shutdown().await.ok();
        course.send_replace(Course::Pass);
        std::future::pending::<()>().await;
    }
}

async fn answer(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    course: &watch::Sender<Course>,
    is_cut: &AtomicBool,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        let passes = *course.borrow() != Course::Deaf && !is_cut.load(Ordering::Relaxed);
        if passes && to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

fn find(bytes: &[u8], text: &str) -> Option<usize> {
    bytes.windows(text.len()).position(|part| part == text.as_bytes())
}
