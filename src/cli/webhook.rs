//! `tollgate webhook test`: sends the event `ping`.

use std::io::Write;

use clap::Subcommand;
use url::Url;

use super::{CommandError, Exit};
use crate::account::webhooks;
use crate::config::{Settings, WebhookConfig};

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum WebhookCommand {
    /// Send the event `ping` once, and print the result
    Test {
        /// The address to send to [default: each of webhooks]
        #[arg(value_parser = WebhookConfig::parse_url)]
        url: Option<Url>,
    },
}

pub(super) async fn webhook(
    settings: &Settings,
    WebhookCommand::Test { url }: WebhookCommand,
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let configured = settings.webhooks.targets.iter().map(|target| target.url.clone());
    let addresses: Vec<_> = url.map_or_else(|| configured.collect(), |url| vec![url]);
    if addresses.is_empty() {
        return Err(CommandError::usage("webhooks: expected one in the settings, or a URL"));
    }
    if settings.webhooks.secrets.is_empty() {
        let expected =
            "expected a secret in TOLLGATE_WEBHOOK_SECRET or TOLLGATE_WEBHOOK_SECRET_FILE";
        return Err(CommandError::usage(expected));
    }
    let mut exit = Exit::Done;
    for address in addresses {
        let origin = WebhookConfig::origin(&address);
        match webhooks::ping(settings, &address).await {
            Ok(()) => writeln!(out, "{origin}: delivered")?,
            Err(error) => {
                writeln!(out, "{origin}: failed: {error}")?;
                exit = Exit::Failed;
            }
        }
    }
    Ok(exit)
}
