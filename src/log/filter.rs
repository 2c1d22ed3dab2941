//! Which events are logged. A reload changes `log.level`.

use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer};

static TARGETS: LazyLock<ArcSwap<Targets>> = LazyLock::new(Default::default);

/// A filter for all layers. An event costs nothing more than with a fixed level.
pub(super) struct LogFilter;

/// Sets the level. Libraries log only warnings, because other events can hold headers.
pub(in crate::cli) fn set_level(level: Level) {
    let targets = Targets::new()
        .with_target("tollgate", level)
        .with_default(LevelFilter::WARN.min(level.into()));
    TARGETS.store(Arc::new(targets));
    tracing::callsite::rebuild_interest_cache();
}

impl<S: Subscriber> Layer<S> for LogFilter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        Layer::<S>::register_callsite(&**TARGETS.load(), metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>, cx: Context<'_, S>) -> bool {
        Layer::<S>::enabled(&**TARGETS.load(), metadata, cx)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Layer::<S>::max_level_hint(&**TARGETS.load())
    }
}
