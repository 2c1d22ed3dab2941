//! Obtains the certificate from an ACME authority (RFC 8555), and renews it.
//!
//! The authority checks each name by tls-alpn-01: it connects to port 443, where [`Tls`] shows the
//! certificate that it expects.

mod client;
mod files;
mod order;
mod schedule;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use instant_acme::{Account, HttpClient};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use crate::clock;
use crate::config::{AcmeConfig, TlsFiles};
use crate::edge::tls::{Certificate, Tls};

use client::AuthorityClient;
use files::AcmeFiles;
use order::certificate_id;
use schedule::{MAX_WAIT, backoff, due_in_window, due_of_life, order_wait};

/// The time limit for an order, including the authority's checks.
const ORDER_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns the path of the certificate file, which holds chain and key.
pub fn certificate_files(config: &AcmeConfig) -> TlsFiles {
    AcmeFiles::new(&config.dir).certificate_files()
}

/// Shows the certificate of an earlier order, and renews it until the program ends. Settings that are sent
/// to the result apply at once, and an order that has failed is tried again.
pub fn start(tls: Tls, config: AcmeConfig) -> watch::Sender<AcmeConfig> {
    restore(&tls, &config);
    let connect = |config: &AcmeConfig| -> io::Result<Box<dyn HttpClient>> {
        Ok(Box::new(AuthorityClient::new(config)?))
    };
    let (sender, settings) = watch::channel(config);
    tokio::spawn(Renewal::new(tls, settings, Box::new(connect)).run());
    sender
}

fn restore(tls: &Tls, config: &AcmeConfig) {
    let files = certificate_files(config);
    if !files.cert.exists() {
        return;
    }
    match Certificate::load(&files) {
        Ok(certificate) => tls.show(certificate),
        Err(reason) => warn!(reason, "certificate rejected"),
    }
}

/// Returns a client for the authority.
type Connect = Box<dyn Fn(&AcmeConfig) -> io::Result<Box<dyn HttpClient>> + Send + Sync>;

struct Renewal {
    tls: Tls,
    settings: watch::Receiver<AcmeConfig>,
    connect: Connect,
    /// Orders that failed since the last certificate.
    failures: u32,
    planned: Option<Plan>,
}

/// The planned renewal of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    due: Duration,
    /// The time of the next question to the authority. All times are since the Unix epoch.
    ask_again: Duration,
    certificate: blake3::Hash,
    is_from_authority: bool,
}

impl Renewal {
    fn new(tls: Tls, settings: watch::Receiver<AcmeConfig>, connect: Connect) -> Self {
        Self { tls, settings, connect, failures: 0, planned: None }
    }

    async fn run(mut self) {
        loop {
            let config = self.settings.borrow_and_update().clone();
            let wait = self.advance(&config).await;
            tokio::select! {
                () = sleep(wait) => {}
                // A reload also tries again at once what has failed.
                changed = self.settings.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Renews the certificate if it is due. Returns the wait until the next check.
    async fn advance(&mut self, config: &AcmeConfig) -> Duration {
        let certificate = self.tls.certificate();
        if let Some(certificate) = &certificate
            && config.names.iter().all(|name| certificate.covers(name))
        {
            let due = self.plan(config, certificate).await;
            let wait = due.saturating_sub(clock::wall());
            if !wait.is_zero() {
                return wait.min(MAX_WAIT);
            }
        }
        let ordering = timeout(ORDER_TIMEOUT, self.renew(config, certificate.as_deref()));
        let elapsed = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "the authority is too slow"));
        match ordering.await.unwrap_or_else(elapsed) {
            Ok(()) => {
                self.failures = 0;
                Duration::ZERO
            }
            Err(error) => self.failed(&error, config, certificate.as_deref()),
        }
    }

    /// Returns the time to renew: as the authority suggests (ARI, RFC 9773), else after two thirds of
    /// the certificate's life.
    async fn plan(&mut self, config: &AcmeConfig, certificate: &Certificate) -> Duration {
        let (now, fingerprint) = (clock::wall(), blake3::hash(certificate.leaf()));
        let old = self.planned.filter(|plan| plan.certificate == fingerprint);
        if let Some(plan) = old.filter(|plan| now < plan.ask_again) {
            return plan.due;
        }
        // If the authority does not answer, its last word counts.
        let last = old.filter(|plan| plan.is_from_authority).map(|plan| (plan.due, MAX_WAIT));
        let suggested = self.suggestion(config, certificate).await.or(last);
        let (due, ask_again) = suggested.unwrap_or_else(|| {
            (due_of_life(certificate.starts(), certificate.expires(), &fingerprint), MAX_WAIT)
        });
        let is_from_authority = suggested.is_some();
        let ask_again = now + ask_again;
        let plan = Plan { due, ask_again, certificate: fingerprint, is_from_authority };
        if old.is_none_or(|old| old.due != due) {
            let at = clock::iso8601(due);
            let source = if is_from_authority { "authority" } else { "lifetime" };
            info!(at, source, "certificate renewal planned");
        }
        self.planned = Some(plan);
        due
    }

    /// Asks the authority for the renewal window of this certificate, and for the time to ask again.
    async fn suggestion(
        &self,
        config: &AcmeConfig,
        certificate: &Certificate,
    ) -> Option<(Duration, Duration)> {
        let id = certificate_id(certificate.leaf())?;
        // Without an account, the certificate was not ordered here.
        let account = self.known_account(config).await?;
        let (info, ask_again) = account.renewal_info(&id).await.ok()?;
        let since_epoch = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let window = info.suggested_window;
        let (start, end) = (window.start.unix_timestamp(), window.end.unix_timestamp());
        let fingerprint = blake3::hash(certificate.leaf());
        let due = due_in_window(since_epoch(start), since_epoch(end), &fingerprint);
        Some((due, ask_again.clamp(Duration::from_secs(60), MAX_WAIT)))
    }

    async fn known_account(&self, config: &AcmeConfig) -> Option<Account> {
        let credentials = AcmeFiles::new(&config.dir).account(&config.directory).ok()??;
        let builder = Account::builder_with_http((self.connect)(config).ok()?);
        builder.from_credentials(credentials).await.ok()
    }

    async fn renew(&mut self, config: &AcmeConfig, old: Option<&Certificate>) -> io::Result<()> {
        let files = AcmeFiles::new(&config.dir);
        files.create_folder()?;
        let account = order::account(config, &files, || (self.connect)(config)).await?;
        // If the authority rejected the name of the old one, the next order goes without it.
        let replaced = old.filter(|_| self.failures == 0 && self.is_known_to_authority());
        let renewed = order::complete(&account, config, &files, (&self.tls, replaced)).await;
        self.tls.withdraw_challenges();
        renewed?;
        let certificate = Certificate::load(&files.certificate_files());
        let certificate = certificate.map_err(io::Error::other)?;
        info!(certificate = certificate.summary(), "certificate obtained");
        self.tls.show(certificate);
        Ok(())
    }

    /// Returns whether the authority supports renewal information for the current certificate.
    fn is_known_to_authority(&self) -> bool {
        self.planned.is_some_and(|plan| plan.is_from_authority)
    }

    /// Logs a failure. Returns the wait until the next attempt.
    fn failed(
        &mut self,
        error: &io::Error,
        config: &AcmeConfig,
        certificate: Option<&Certificate>,
    ) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let now = clock::wall();
        let placed = AcmeFiles::new(&config.dir).placed_orders();
        let wait = backoff(self.failures).max(order_wait(&placed, now));
        let retry_seconds = wait.as_secs();
        warn!(%error, retry_seconds, "certificate order failed");
        if let Some(certificate) = certificate {
            let (starts, expires) = (certificate.starts(), certificate.expires());
            if expires.saturating_sub(now) < expires.saturating_sub(starts) / 3 {
                let at = clock::iso8601(expires);
                error!(at, "certificate expiring");
            }
        }
        wait
    }
}
