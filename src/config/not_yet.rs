//! Settings that are understood and whose feature this version does not have: refused at start, never ignored.

use super::{Budget, Config, Mode, Spend, Store, Target, Tls};

type Row = (&'static str, fn(&Config) -> bool, &'static str);

/// One row per setting, deleted when its feature lands.
#[rustfmt::skip]
pub(super) const NOT_YET: &[Row] = &[
    ("server.tls", |config| matches!(config.server.tls, Some(Tls { .. })),
        "this version does not serve TLS, and never plain HTTP where TLS was asked for; put a TLS front-end before it"),
    ("store.url", |config| config.store == Store::Redis,
        "this version does not share a store between instances; use \"memory\" or \"sqlite:…\", and unset REDIS_URL"),
];

impl Config {
    /// A sentence for each setting whose feature this version does not have. `serve` refuses to
    /// start while there is one.
    pub fn not_yet(&self) -> Vec<String> {
        let asked = NOT_YET.iter().filter(|(_, is_asked, _)| is_asked(self));
        asked.map(|(name, _, sentence)| format!("{name}: {sentence}")).collect()
    }

    /// A sentence for each setting that is right and still deserves a second look.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let live = matches!(self.gateway.target, Target::Live { .. });
        if live && self.store == Store::Memory {
            warnings.push(
                "store.url: with \"memory\", what was bought and which keys were used is forgotten \
                 when the process ends"
                    .to_owned(),
            );
        }
        if live && self.page.media_origins.is_empty() {
            warnings.push(
                "page.media_origins: empty, so finished videos are not fetched from where the gateway \
                 puts them: the page plays none, and GET /bff/video/content is a 404; a job's status has \
                 the address whose origin belongs here"
                    .to_owned(),
            );
        }
        let Budget { total, .. } = self.budget;
        if live && self.is_fronted() && self.access.mode == Mode::Open && total == Spend::default()
        {
            warnings.push(
                "budget.total: not set, while server.hosts or server.trusted_proxies say that others \
                 reach us: whoever does can spend the whole balance"
                    .to_owned(),
            );
        }
        if self.access.mode == Mode::Members && self.store == Store::Memory {
            warnings.push(
                "access.mode: with store.url = \"memory\", `tollgate member add` reaches no list that \
                 this server reads; use \"sqlite:…\""
                    .to_owned(),
            );
        }
        if !self.admin.listen.ip().to_canonical().is_loopback() {
            warnings.push("admin.listen: the metrics are open to whoever reaches it".to_owned());
        }
        warnings
    }

    /// Whether only this machine's own users can be calling.
    pub fn is_private(&self) -> bool {
        let own = self.server.listen.iter().all(|at| at.ip().to_canonical().is_loopback());
        own && !self.is_fronted()
    }

    /// Whether others are expected, whatever we listen on.
    fn is_fronted(&self) -> bool {
        !self.server.hosts.is_empty() || !self.server.trusted_proxies.is_empty()
    }
}
