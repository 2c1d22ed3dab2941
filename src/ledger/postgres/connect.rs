//! Opens a connection, and checks that the database can hold a ledger.

use std::error::Error as _;
use std::future::Future;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Connection, Error, NoTls, SimpleQueryMessage, SimpleQueryRow};
use tokio_util::task::AbortOnDropHandle;

use super::PostgresTarget;
use crate::ledger::{Cause, MoneyKind, Reason};
use crate::trust::explain;

const MIN_VERSION: u32 = 14;
/// For all of a connection's start, on all hosts.
const MAX_START: Duration = Duration::from_secs(10);
const MAX_CLOSE: Duration = Duration::from_secs(1);

/// Settings of each connection.
///
/// There is no timeout of statements, because a COMMIT that is cancelled while it waits for its
/// replica is committed on the primary only. Planning with JIT would take longer than the work.
const SESSION: &str = "\
    SET jit = off; \
    SET plan_cache_mode = force_generic_plan; \
    SET statement_timeout = 0; \
    SET idle_session_timeout = 0; \
    SET idle_in_transaction_session_timeout = '2s'; \
    SET lock_timeout = '5s'; \
    SET default_transaction_isolation = 'read committed'; \
    SET TimeZone = 'UTC'; \
    SELECT current_setting('fsync'), current_setting('full_page_writes'), \
        current_setting('synchronous_commit')";
/// The settings that `SESSION` selects. With real money, none may be off.
const DURABILITY: [&str; 3] = ["fsync", "full_page_writes", "synchronous_commit"];

/// A connection that is ready for statements. It ends when this value is dropped.
pub struct PostgresConnection {
    pub client: Client,
    task: AbortOnDropHandle<()>,
}

impl PostgresConnection {
    /// Returns whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.task.is_finished() || self.client.is_closed()
    }

    /// Waits for the statements that were sent, then says goodbye to the server.
    pub async fn close(self) {
        drop(self.client);
        // An error means that it has ended already.
        timeout(MAX_CLOSE, self.task).await.ok();
    }
}

/// Connects to the first host that accepts writes.
///
/// # Errors
///
/// Returns [`Cause::Unreachable`] if a later attempt may succeed without a change of settings.
pub async fn connect(target: &PostgresTarget) -> Result<PostgresConnection, Reason> {
    let max_start = MAX_START.max(target.min_patience);
    let opened = timeout(max_start, open(target)).await.unwrap_or_else(|_elapsed| {
        Err(Reason::new(Cause::Unreachable, "the database does not answer"))
    });
    opened.map_err(|Reason { cause, text }| Reason::new(cause, format!("{target}: {text}")))
}

async fn open(target: &PostgresTarget) -> Result<PostgresConnection, Reason> {
    let (version, connection) = match &target.tls {
        Some(tls) => spawn(target.config.connect(tls.clone()).await?),
        None if target.needs_tls() => return Err("its trust anchors for TLS are missing".into()),
        None => spawn(target.config.connect(NoTls).await?),
    };
    check_version(&version)?;
    let found = rows_of(connection.client.simple_query(SESSION).await?);
    let row = found.first().ok_or("the database did not report its settings")?;
    let off = DURABILITY.iter().enumerate().find(|(at, _)| row.get(*at) == Some("off"));
    if let Some((_, name)) = off.filter(|_| target.money == MoneyKind::Real) {
        return Err(Reason::from(format!(
            "{name} is off, so the database can lose purchases that it has committed: turn it on"
        )));
    }
    Ok(connection)
}

pub(super) fn rows_of(replies: Vec<SimpleQueryMessage>) -> Vec<SimpleQueryRow> {
    let row = |reply| if let SimpleQueryMessage::Row(row) = reply { Some(row) } else { None };
    replies.into_iter().filter_map(row).collect()
}

/// Starts the task that owns the socket. Returns the server's version, too.
fn spawn<S, T>((client, connection): (Client, Connection<S, T>)) -> (String, PostgresConnection)
where
    Connection<S, T>: Future<Output = Result<(), Error>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let version = connection.parameter("server_version").unwrap_or_default().to_owned();
    // Its error is also that of the statements, which report it.
    let task = AbortOnDropHandle::new(tokio::spawn(async { drop(connection.await) }));
    (version, PostgresConnection { client, task })
}

fn check_version(version: &str) -> Result<(), Reason> {
    let major = version.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    if major.parse::<u32>().is_ok_and(|major| major >= MIN_VERSION) {
        return Ok(());
    }
    Err(Reason::from(format!("expected PostgreSQL {MIN_VERSION} or later, found {version}")))
}

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        if let Some(error) = error.as_db_error() {
            let advice = match error.code() {
                &SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                    "; check user and password in DATABASE_URL".to_owned()
                }
                &SqlState::INVALID_CATALOG_NAME => "; create it with createdb".to_owned(),
                &SqlState::TOO_MANY_CONNECTIONS => "; raise max_connections".to_owned(),
                code => format!(" ({})", code.code()),
            };
            return Self::new(cause_of(error.code()), format!("{}{advice}", error.message()));
        }
        let text = match error.source() {
            Some(source) => explain(source).map_or(format!("{error}: {source}"), str::to_owned),
            None => error.to_string(),
        };
        Self::new(Cause::Unreachable, text)
    }
}

fn cause_of(code: &SqlState) -> Cause {
    match code {
        &SqlState::DISK_FULL => Cause::DiskFull,
        &SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED => Cause::Damaged,
        &SqlState::INVALID_PASSWORD
        | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION
        | &SqlState::INSUFFICIENT_PRIVILEGE => Cause::Permission,
        // The timeout ends the connection.
        &SqlState::TOO_MANY_CONNECTIONS | &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => {
            Cause::Unreachable
        }
        // The server is starting, stopping or failing over; or a connection broke.
        code if code.code().starts_with("57P") || code.code().starts_with("08") => {
            Cause::Unreachable
        }
        _ => Cause::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused() {
        for (version, is_accepted) in
            [("14.0", true), ("15.18 (Debian 15.18-0+deb12u1)", true), ("17beta1", true)]
                .into_iter()
                .chain([("13.9", false), ("9.6.1", false), ("", false)])
        {
            assert_eq!(check_version(version).is_ok(), is_accepted, "{version}");
        }
    }

    #[test]
    fn errors_of_the_database_name_their_cause() {
        for (code, cause) in [
            ("53100", Cause::DiskFull),
            ("XX001", Cause::Damaged),
            ("28P01", Cause::Permission),
            ("42501", Cause::Permission),
            ("53300", Cause::Unreachable),
            ("25P03", Cause::Unreachable),
            ("57P03", Cause::Unreachable),
            ("57P01", Cause::Unreachable),
            ("08006", Cause::Unreachable),
            ("42P01", Cause::Other),
        ] {
            assert_eq!(cause_of(&SqlState::from_code(code)), cause, "{code}");
        }
    }
}
