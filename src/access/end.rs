//! Waits for the end of a caller's credentials, so that no stream and no purchase in the queue outlives
//! them.

use std::future::pending;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Standing;
use crate::clock;

/// The wall clock is looked at again after this long: it may have been set.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

impl Standing {
    /// Resolves once the credentials hold no more: cancelled, or past their time. Never for a caller
    /// without any.
    pub async fn over(&self) {
        tokio::select! {
            () = cancelled(self.ended.as_ref()) => {}
            () = passed(self.until) => {}
        }
    }

    /// Whether they hold no more.
    pub fn is_over(&self) -> bool {
        self.ended.as_ref().is_some_and(CancellationToken::is_cancelled)
            || self.until.is_some_and(|until| until <= clock::wall())
    }
}

async fn cancelled(ended: Option<&CancellationToken>) {
    match ended {
        Some(ended) => ended.cancelled().await,
        None => pending().await,
    }
}

async fn passed(until: Option<Duration>) {
    let Some(until) = until else { return pending().await };
    while let Some(left) = until.checked_sub(clock::wall()).filter(|left| !left.is_zero()) {
        sleep(left.min(LOOK_AGAIN)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_standing_is_over_when_its_time_is_or_when_it_is_cancelled() {
        let token = CancellationToken::new();
        let past = clock::wall() - Duration::from_secs(1);
        let soon = clock::wall() + Duration::from_millis(30);
        let later = clock::wall() + Duration::from_secs(3_600);
        let standing = |until, ended: Option<&CancellationToken>| Standing {
            until,
            ended: ended.cloned(),
            ..Standing::default()
        };
        assert!(standing(Some(past), None).over().now_or_never().is_some());
        assert!(standing(Some(past), None).is_over());
        standing(Some(soon), Some(&token)).over().await;
        for lasting in [standing(None, None), standing(Some(later), Some(&token))] {
            assert!(!lasting.is_over() && lasting.over().now_or_never().is_none());
        }
        token.cancel();
        assert!(standing(Some(later), Some(&token)).is_over());
        standing(Some(later), Some(&token)).over().await;
    }
}
