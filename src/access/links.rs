//! Links: tokens that are worth an amount. A token is made from the link's row and the secret, so neither
//! alone makes one.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::cached_list::{CachedList, Listed};
use super::token::{self, Secret};
use super::{Authenticator, Credentials, Denied, Session};
use crate::clock;
use crate::gate::problem::{INVALID_CREDENTIALS, NOT_FOUND, Problem};
use crate::gateway::contract::member::LINK_PREFIX;
use crate::ledger::{Caller, Digest, Link, LinkEnd, SpendLimit, Store, Unavailable};

/// Browsers keep the cookie no longer than this.
const MAX_COOKIE_LIFETIME: Duration = Duration::from_secs(400 * 86_400);
const ID: usize = 8;
const NUMBER: usize = 4;
/// A program's token. Those of browsers count from 1.
const PROGRAM: u32 = 0;
const UNKNOWN: Denied = Denied::Invalid("no link has this token");

pub struct LinkCache {
    key: Zeroizing<[u8; 32]>,
    cached: CachedList<LinkList>,
}

struct LinkList(HashMap<Arc<str>, Entry>);

struct Entry {
    link: Link,
    revoked: CancellationToken,
}

/// The parts of a token.
struct Parts {
    id: Arc<str>,
    number: u32,
    mac: Digest,
}

impl Listed for LinkList {
    async fn read(store: &Store, old: Option<&Self>) -> Result<Self, Unavailable> {
        let entry = |link: Link| {
            let before = old.and_then(|old| old.0.get(&link.id));
            let revoked = before.map(|entry| entry.revoked.clone()).unwrap_or_default();
            (Arc::clone(&link.id), Entry { link, revoked })
        };
        Ok(Self(store.links().await?.into_iter().map(entry).collect()))
    }

    fn replaces(&self, _: &Self) {
        let ended = self.0.values().filter(|entry| entry.link.revoked_at.is_some());
        ended.for_each(|entry| entry.revoked.cancel());
    }
}

/// A session that a link opens in a browser.
pub struct OpenedLink {
    pub cookie: Zeroizing<String>,
    pub lifetime: Duration,
}

impl LinkCache {
    pub fn new(store: Store, secret: &Secret) -> Self {
        Self { key: secret.links.clone(), cached: CachedList::new(store) }
    }

    pub(super) async fn run(&self) {
        self.cached.run().await;
    }

    pub(super) async fn refresh(&self) {
        self.cached.refresh().await;
    }

    /// Returns the caller of a link's token, or of the cookie that it was exchanged for.
    pub(super) async fn session(
        &self,
        credentials: Credentials<'_>,
        admit: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Caller, Session), Denied> {
        let (text, is_cookie) = match credentials {
            Credentials::Cookie(text) => (text, true),
            Credentials::Token(text) => (text, false),
            Credentials::Missing | Credentials::User(_) | Credentials::Malformed => {
                return Err(UNKNOWN);
            }
        };
        let (parts, entry) = self.find(text, admit).await?;
        let Link { uses, opened, .. } = entry.link;
        if is_cookie == (parts.number == PROGRAM) || parts.number > opened {
            return Err(UNKNOWN);
        }
        if !is_cookie && uses.is_some() {
            return Err(Denied::Ended("this link works in browsers only: open it there"));
        }
        Ok(entry.session())
    }

    /// Exchanges a link's token for a cookie. A browser that has opened the link keeps its cookie.
    pub(super) async fn open(
        &self,
        token: &str,
        current: Option<&str>,
        admit: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<OpenedLink, Denied> {
        let (parts, entry) = self.find(token, admit).await?;
        if parts.number != PROGRAM {
            return Err(UNKNOWN);
        }
        let Entry { link, .. } = &entry;
        let lifetime = link.expires_at.saturating_sub(clock::wall()).min(MAX_COOKIE_LIFETIME);
        let of_same = |parts: &Parts| parts.id == link.id && self.is_genuine(parts, link);
        if let Some(current) = current
            && Parts::read(current).filter(of_same).is_some_and(|parts| parts.number != PROGRAM)
        {
            return Ok(OpenedLink { cookie: Zeroizing::new(current.to_owned()), lifetime });
        }
        let guard = self.cached.lock().await;
        let number = self.cached.store.open_link(Arc::clone(&link.id)).await?;
        // It is counted, so a list that cannot be read now must not cost the opening.
        self.cached.reload(&guard).await.ok();
        let number = number.ok_or(Denied::Ended(
            "this link has been opened in as many browsers as it allows; ask for another one",
        ))?;
        Ok(OpenedLink { cookie: self.text(link, number), lifetime })
    }

    /// Returns the token of a link, for its address.
    pub fn token(&self, link: &Link) -> Zeroizing<String> {
        self.text(link, PROGRAM)
    }

    /// Another server may have made the link a moment ago, so a miss asks the ledger.
    async fn find(
        &self,
        text: &str,
        admit: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Parts, Entry), Denied> {
        let parts = Parts::read(text).ok_or(UNKNOWN)?;
        let found = self.known(&parts)?;
        let found = match found {
            Some(entry) if parts.number <= entry.link.opened => entry,
            Some(_) | None => {
                admit()?;
                self.cached.refresh_since(clock::now()).await;
                self.known(&parts)?.ok_or(UNKNOWN)?
            }
        };
        match found.link.end(self.cached.store.now()) {
            None => Ok((parts, found)),
            Some(LinkEnd::Revoked) => Err(Denied::Ended("this link has been revoked")),
            Some(LinkEnd::Expired) => Err(Denied::Ended("this link has expired")),
            Some(LinkEnd::Restored) => Err(Denied::Ended(
                "this link ended when the server's ledger was restored; ask for another one",
            )),
        }
    }

    /// Returns the link of a genuine token.
    fn known(&self, parts: &Parts) -> Result<Option<Entry>, Denied> {
        let list = self.cached.list()?;
        let entry = list.0.get(&parts.id).filter(|entry| self.is_genuine(parts, &entry.link));
        Ok(entry
            .map(|Entry { link, revoked }| Entry { link: link.clone(), revoked: revoked.clone() }))
    }

    fn is_genuine(&self, parts: &Parts, link: &Link) -> bool {
        token::constant_time_eq(&self.mac(link, parts.number), &parts.mac)
    }

    fn text(&self, link: &Link, number: u32) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(ID + NUMBER + 32));
        bytes.extend(id_bytes(&link.id));
        bytes.extend(number.to_be_bytes());
        bytes.extend(self.mac(link, number));
        Zeroizing::new(format!("{LINK_PREFIX}{}", URL_SAFE_NO_PAD.encode(&*bytes)))
    }

    /// Authenticates all that a link grants, so that a changed row opens nothing.
    fn mac(&self, link: &Link, number: u32) -> Digest {
        let may_buy = link.may_buy.as_ref().map(ToString::to_string);
        let granted = format!(
            "{} {number} {} {} {} {:?} {may_buy:?}",
            link.id,
            link.amount.as_micros(),
            link.created_at.as_nanos(),
            link.expires_at.as_nanos(),
            link.uses,
        );
        *blake3::keyed_hash(&self.key, granted.as_bytes()).as_bytes()
    }
}

impl Entry {
    fn session(&self) -> (Caller, Session) {
        let Self { link, revoked } = self;
        let session = Session {
            own_budget: SpendLimit { ever: Some(link.amount), ..SpendLimit::NONE },
            may_buy: link.may_buy.clone(),
            display_name: Some(Arc::clone(&link.label)),
            revoked: Some(revoked.clone()),
            expires_at: Some(link.expires_at),
            ..Session::default()
        };
        (Caller::Link(Arc::clone(&link.id)), session)
    }
}

impl Parts {
    fn read(text: &str) -> Option<Self> {
        let encoded = text.strip_prefix(LINK_PREFIX)?;
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(encoded).ok()?);
        let (id, rest) = bytes.split_first_chunk::<ID>()?;
        let (number, mac) = rest.split_first_chunk::<NUMBER>()?;
        Some(Self {
            id: id_text(*id),
            number: u32::from_be_bytes(*number),
            mac: mac.try_into().ok()?,
        })
    }
}

fn id_text(bytes: [u8; ID]) -> Arc<str> {
    format!("{:016x}", u64::from_be_bytes(bytes)).into()
}

fn id_bytes(id: &str) -> [u8; ID] {
    u64::from_str_radix(id, 16).unwrap_or_default().to_be_bytes()
}

/// Returns a random id for a link.
pub fn new_id() -> io::Result<Arc<str>> {
    let mut bytes = [0; ID];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(id_text(bytes))
}

impl Authenticator {
    /// Opens a link in a browser, for its holder. A browser with the cookie `current` of the same link
    /// keeps it.
    pub async fn open_link(
        &self,
        token: &str,
        current: Option<&str>,
        address: &Caller,
    ) -> Result<OpenedLink, Problem> {
        let limit = || self.failures.check(address, clock::now());
        let opened =
            self.links()?.open(token, current, || limit().map_err(Denied::Throttled)).await;
        opened.map_err(|denied| self.link_rejection(denied, address))
    }

    fn link_rejection(&self, denied: Denied, address: &Caller) -> Problem {
        match denied {
            Denied::Unavailable(_) => self.list_unavailable(),
            Denied::Ended(reason) => {
                Problem::new(&INVALID_CREDENTIALS).detail(reason).log_reason(reason)
            }
            Denied::Invalid(_) | Denied::Forged | Denied::Throttled(_) => {
                self.rejection(denied, address)
            }
        }
    }

    /// Fails with 404 unless `access.links` is set.
    pub fn links(&self) -> Result<&LinkCache, Problem> {
        let detail = "links are available with access.links = true only";
        self.links.as_ref().ok_or_else(|| Problem::new(&NOT_FOUND).detail(detail))
    }

    /// Returns whether a text is the token of a link, where there are links.
    pub fn is_link(&self, text: &str) -> bool {
        self.links_of(text).is_some()
    }

    /// Returns the links if credentials are the token or cookie of one.
    pub(super) fn links_with(&self, credentials: Credentials<'_>) -> Option<&LinkCache> {
        let (Credentials::Token(text) | Credentials::Cookie(text)) = credentials else {
            return None;
        };
        self.links_of(text)
    }

    pub(super) async fn of_link(
        &self,
        links: &LinkCache,
        credentials: Credentials<'_>,
        address: &Caller,
    ) -> Result<(Caller, Session), Problem> {
        let limit = || self.failures.check(address, clock::now());
        let found = links.session(credentials, || limit().map_err(Denied::Throttled)).await;
        found.map_err(|denied| self.link_rejection(denied, address))
    }

    pub(super) fn links_of(&self, text: &str) -> Option<&LinkCache> {
        self.links.as_ref().filter(|_| text.starts_with(LINK_PREFIX))
    }
}
