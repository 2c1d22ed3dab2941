//! Keeps the certificate of a server up to date, while it serves.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::interval;

use crate::app::{App, SharedState};
use crate::config::{AcmeConfig, Settings};
use crate::edge::acme;

/// How soon a renewed certificate is noticed.
const INTERVAL: Duration = Duration::from_secs(10);

/// The tasks that renew the certificate.
pub(super) struct Certificates {
    /// `None` if an operator renews it.
    acme: Option<watch::Sender<AcmeConfig>>,
}

impl Certificates {
    /// Shows the certificate of an earlier start, and begins to follow its age or its files.
    pub(super) fn start(app: &App) -> Self {
        let Some(tls) = app.shared.tls.clone() else { return Self { acme: None } };
        let Some(config) = app.settings.server.acme() else {
            tokio::spawn(follow_files(app.shared.clone()));
            return Self { acme: None };
        };
        acme::restore(&tls, config);
        let (sender, settings) = watch::channel(config.clone());
        tokio::spawn(acme::run(tls, settings));
        Self { acme: Some(sender) }
    }

    /// Applies other settings. An order that has failed is tried again at once.
    pub(super) fn reconfigure(&self, settings: &Settings) {
        if let (Some(acme), Some(config)) = (&self.acme, settings.server.acme()) {
            acme.send_replace(config.clone());
        }
    }
}

async fn follow_files(shared: SharedState) {
    let Some(tls) = shared.tls else { return };
    let mut due = interval(INTERVAL);
    loop {
        due.tick().await;
        tls.reload_if_changed(&shared.hosts.load().listed());
    }
}
