//! The check of a whole ledger: at the start, or on a thread of its own while the ledger is in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

use rusqlite::Connection;
use tracing::{info, warn};

use super::file::{self, Purpose};
use crate::clock;
use crate::ledger::engine::StoreError;
use crate::ledger::writer::CommandGate;
use crate::ledger::{Cause, Reason, Unavailable};

const OPS_PER_STOP_CHECK: i32 = 10_000;

/// Makes the statements of this connection fail once `stop` is set.
pub(super) fn interrupt_on(
    connection: &mut Connection,
    stop: &Arc<AtomicBool>,
) -> rusqlite::Result<()> {
    let stop = Arc::clone(stop);
    connection.progress_handler(OPS_PER_STOP_CHECK, Some(move || stop.load(Ordering::Relaxed)))
}

/// Reads the whole file. `reason` is why that is needed.
pub(super) fn check(connection: &Connection, reason: &'static str) -> Result<(), Reason> {
    info!(reason, "ledger check started");
    let began = clock::now();
    file::check_integrity(connection)?;
    let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    info!(elapsed_ms, "ledger check passed");
    Ok(())
}

pub(super) struct BackgroundCheck(thread::JoinHandle<bool>);

impl BackgroundCheck {
    /// Reports damage to the writer.
    pub(super) fn start(
        path: PathBuf,
        reason: &'static str,
        gate: CommandGate,
    ) -> io::Result<Self> {
        let work = move || match run(&path, reason, &gate.stop) {
            Ok(()) => true,
            Err(_interrupted) if gate.stop.load(Ordering::Relaxed) => false,
            Err(reason) if reason.cause == Cause::Damaged => {
                gate.report_fault(StoreError::Permanent(Unavailable(reason)));
                false
            }
            Err(error) => {
                warn!(%error, "ledger check failed");
                false
            }
        };
        Ok(Self(thread::Builder::new().name("ledger check".to_owned()).spawn(work)?))
    }

    /// Waits for the end. A check that was interrupted has not passed.
    pub(super) fn has_passed(self) -> bool {
        self.0.join().unwrap_or(false)
    }
}

fn run(path: &Path, reason: &'static str, stop: &Arc<AtomicBool>) -> Result<(), Reason> {
    let (mut connection, _) = file::connect(path, Purpose::Inspect)?;
    interrupt_on(&mut connection, stop)?;
    check(&connection, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_that_fails_is_not_damage() {
        let mut connection = Connection::open_in_memory().unwrap();
        crate::ledger::sqlite::schema::migrate(&mut connection).unwrap();
        check(&connection, "test").unwrap();
        connection.progress_handler(1, Some(|| true)).unwrap();
        assert_eq!(check(&connection, "test").unwrap_err().cause, Cause::Other);
    }
}
