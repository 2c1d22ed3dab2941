//! `tollgate link`: makes, lists and revokes links for guests, also while a server runs.

use std::io::Write;

use clap::Subcommand;

use super::member::token_secret;
use super::member_terms::selection;
use super::{CommandError, Exit, OutputFormat, audit, check, ledger, print_list, usage};
use crate::access::links::{LinkCache, new_id};
use crate::api::people;
use crate::api::reports::links::{LinkSpend, document, list_with_spend};
use crate::api::validate::{WantedLink, check_label};
use crate::clock::{self, Date, iso8601};
use crate::config::{Settings, StoreConfig};
use crate::gateway::contract::member::parse_amount;
use crate::gateway::contract::money::Usd;
use crate::ledger::Selection;

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum LinkCommand {
    /// Make a link that is worth an amount; its address is shown once
    Create {
        /// The dollars that its holders can spend together: 3.00
        #[arg(long, value_name = "AMOUNT", value_parser = parse_amount)]
        amount: Usd,
        /// Its purpose, up to 64 characters
        #[arg(long = "for", value_name = "TEXT", value_parser = check_label)]
        label: String,
        /// The last UTC day on which it works, such as 2026-12-24
        #[arg(long, value_name = "DATE", value_parser = usage::until)]
        until: Date,
        /// Services and models that its holders may buy: chat, video, other or ids, separated by commas [default: access.may_buy]
        #[arg(long, value_name = "LIST", value_parser = selection)]
        may_buy: Option<Selection>,
        /// The number of browsers that may open it; programs may not use it then
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        uses: Option<u32>,
    },
    /// List all links with what was spent, the latest first
    List {
        /// Output format
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// End a link and its sessions for good
    Revoke {
        /// The link's id, as `tollgate link list` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
}

const NO_LINKS: &str = "set access.links = true, so that the server accepts links";
const NO_LEDGER: &str =
    "links need a persistent store: set store.url, for example to \"sqlite:tollgate.db\"";
const COLUMNS: &str = "id,for,state,amount,spent,left,until,uses,opened,may_buy,by,at";

/// Makes, lists or revokes links. Addresses and lists go to `out`, messages to `err`.
pub(super) async fn link(
    settings: &Settings,
    command: LinkCommand,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    if settings.store == StoreConfig::Memory {
        return Err(CommandError::usage(NO_LEDGER));
    }
    match command {
        LinkCommand::List { format } => {
            let listed = list_with_spend(&ledger::open_read_only(settings).await?).await?;
            print_list(format, (COLUMNS, listed.iter().map(cells)), &document(&listed), out)?;
        }
        LinkCommand::Revoke { id } => {
            let ledger = ledger::open_shared(settings).await?;
            if !ledger.revoke_link(&audit::actor(), id.as_str().into()).await? {
                return Err(format!("there is no link {id}").into());
            }
            writeln!(err, "revoked {id}")?;
            ledger::wait_for_servers(settings, &ledger).await;
        }
        LinkCommand::Create { amount, label, until, may_buy, uses } => {
            let wanted = WantedLink { amount, label, until, may_buy, uses };
            create(settings, wanted, out, err).await?;
        }
    }
    Ok(Exit::Done)
}

async fn create(
    settings: &Settings,
    wanted: WantedLink,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<(), CommandError> {
    if !settings.access.links {
        return Err(CommandError::usage(NO_LINKS));
    }
    let WantedLink { amount, until, .. } = wanted;
    if amount == Usd::ZERO {
        return Err(CommandError::usage("--amount: expected more than 0"));
    }
    if until < clock::today() {
        return Err(CommandError::usage("--until: expected a date that is not in the past"));
    }
    if let Some(may_buy) = &wanted.may_buy {
        let checked = settings.check_selection(may_buy);
        checked.map_err(|expected| CommandError::usage(format!("--may-buy: {expected}")))?;
    }
    let ledger = ledger::open_or_create(settings).await?;
    let (secret, warning) =
        token_secret(settings, &ledger, &ledger.members().await?, false).await?;
    let by = audit::actor();
    let link = people::links::link(new_id()?, wanted, (&by, ledger.now()));
    ledger.add_link(&by, &link).await?;
    let token = LinkCache::new(ledger.clone(), &secret).token(&link);
    writeln!(err, "the ledger is {} (store.url)", ledger::whole_path(settings))?;
    warning.iter().try_for_each(|warning| writeln!(err, "{warning}"))?;
    let (id, amount) = (&link.id, amount.short());
    writeln!(
        err,
        "made link {id}, worth {amount} through {until}; the address is shown only once:"
    )?;
    err.flush()?;
    writeln!(out, "{}/#t={}", check::own_address(settings), &*token)?;
    out.flush()?;
    ledger::wait_for_servers(settings, &ledger).await;
    Ok(())
}

fn cells(LinkSpend { link, spent, state }: &LinkSpend) -> [String; 12] {
    let uses = link.uses.map(|uses| uses.to_string());
    let may_buy = link.may_buy.as_ref().map(Selection::to_string);
    [
        link.id.to_string(),
        link.label.to_string(),
        (*state).to_owned(),
        link.amount.to_string(),
        spent.to_string(),
        link.amount.saturating_sub(*spent).to_string(),
        Date::before(link.expires_at).to_string(),
        uses.unwrap_or_default(),
        link.opened.to_string(),
        may_buy.unwrap_or_default(),
        link.by.to_string(),
        iso8601(link.created_at),
    ]
}
