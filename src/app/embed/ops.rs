//! The ops endpoints, for an application to mount where only operators reach them.

use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower::Service;

use super::{FindPeer, Tollgate, peer_of};
use crate::api::ops::Ops;
use crate::edge::runtime::Runtime;
use crate::gate::caller::{PEER_MISSING, Peer};
use crate::gate::host;
use crate::gate::problem::{INTERNAL, Problem};
use crate::gate::response::{self, Body};

/// Serves `/metrics`, `/readyz` and `/healthz`, and `/billing` and `/members` to this machine only.
///
/// Mount it at the root of a listener that only operators reach, and name that listener with
/// [`Config::ops_at`](crate::Config::ops_at), so that `tollgate reconcile` finds it. Every request
/// needs a [`Peer`](crate::Peer). It keeps the gate alive, as a clone does.
///
/// ```
/// use tollgate::{Config, Peer, Tollgate};
/// use tower::Service;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gate = Tollgate::new(Config::sandbox())?;
/// let mut request = http::Request::get("/readyz").header("host", "localhost").body(())?;
/// request.extensions_mut().insert(Peer("127.0.0.1:50000".parse()?));
/// assert_eq!(gate.ops().call(request).await?.status(), 200);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct OpsService {
    _runtime: Arc<Runtime>,
    find_peer: Option<FindPeer>,
    ops: Ops,
}

impl OpsService {
    pub(super) fn new(gate: &Tollgate) -> Self {
        let runtime = Arc::clone(&gate.runtime);
        let ops = runtime.app().ops(&runtime.shutdown, gate.ops.to_vec());
        Self { _runtime: runtime, find_peer: gate.find_peer, ops }
    }
}

impl<B: Send + 'static> Service<Request<B>> for OpsService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let refuse = |problem| Box::pin(ready(Ok(response::from_problem(problem, ""))));
        if let Err(problem) = host::adopt_authority(&mut request) {
            return refuse(problem);
        }
        let Some(Peer(peer)) = peer_of(request.extensions(), self.find_peer) else {
            return refuse(Problem::new(&INTERNAL).detail(PEER_MISSING));
        };
        Box::pin(self.ops.service_for(peer.ip()).call(request))
    }
}

impl fmt::Debug for OpsService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpsService").finish_non_exhaustive()
    }
}
