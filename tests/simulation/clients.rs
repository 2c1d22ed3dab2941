//! What each client asked for, whether it still waits, and its answer.

use std::time::Duration;

use bytes::Bytes;
use tollgate::gate::problem::Charged;
use tollgate::ledger::PurchaseId;
use uuid::Uuid;

use crate::setup::FIRST_VIDEO;
use crate::world::World;

/// What a client wants, and how a repeat is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) caller: usize,
    pub(crate) order: usize,
    pub(crate) claim: Asked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Key(u64),
    Fingerprint { is_retry: bool },
}

/// What makes two requests one purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A key of an endpoint.
    Key { key: u64, is_video: bool },
    /// A caller's order.
    Fingerprint { caller: usize, order: usize },
}

impl Wish {
    pub(crate) fn identity(&self) -> Identity {
        match self.claim {
            Asked::Key(key) => Identity::Key { key, is_video: self.order >= FIRST_VIDEO },
            Asked::Fingerprint { .. } => {
                Identity::Fingerprint { caller: self.caller, order: self.order }
            }
        }
    }
}

/// One request of one client.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) wish: Wish,
    pub(crate) is_waiting: bool,
    pub(crate) received: Option<Received>,
}

/// The answer that a client received.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) at: Duration,
    pub(crate) answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A receipt of the gateway's reply.
    Receipt { status: u16, body: Bytes, micros: u64, is_replay: bool },
    /// A rejection, or an unknown outcome.
    Problem { code: &'static str, charged: Charged },
}

/// All clients, by number.
#[derive(Debug, Default)]
pub(crate) struct Clients(Vec<Client>);

/// Returns the purchase id that stands for a client.
pub(crate) fn name(client: usize) -> PurchaseId {
    PurchaseId(Uuid::from_u128(client as u128 + 1))
}

pub(crate) fn number(id: PurchaseId) -> usize {
    usize::try_from(id.0.as_u128() - 1).expect("named after a client")
}

impl Clients {
    pub(crate) fn enter(&mut self, wish: Wish) -> usize {
        self.0.push(Client { wish, is_waiting: true, received: None });
        self.0.len() - 1
    }

    pub(crate) fn all(&self) -> &[Client] {
        &self.0
    }

    pub(crate) fn wish(&self, id: PurchaseId) -> Wish {
        self.0[number(id)].wish
    }

    pub(crate) fn waiting(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|client| self.0[*client].is_waiting).collect()
    }

    /// Returns whether any client waits for a purchase.
    pub(crate) fn waits_for(&self, id: PurchaseId) -> bool {
        let wanted = self.wish(id);
        self.0.iter().any(|client| {
            let Wish { order, .. } = client.wish;
            client.is_waiting
                && order == wanted.order
                && client.wish.identity() == wanted.identity()
        })
    }

    pub(crate) fn record_answer(&mut self, client: usize, received: Received) {
        self.0[client].received = Some(received);
    }
}

/// A client's presence. It ends with its answer or when it disconnects.
pub(crate) struct Presence {
    pub(crate) world: World,
    pub(crate) client: usize,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.world.lock().clients.0[self.client].is_waiting = false;
    }
}
