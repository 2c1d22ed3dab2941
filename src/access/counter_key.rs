//! Keys of per-caller counters. Callers share counters when there are too many of them.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::IpAddr;

use crate::ledger::Caller;

/// The prefix lengths of shared IPv4 and IPv6 networks.
const NARROW_PREFIX: (u32, u32) = (16, 32);
/// There are about 66,000 networks of this width.
const WIDE_PREFIX: (u32, u32) = (8, 16);
/// Subjects have no network, so they share by hash.
const SUBJECT_GROUPS: u64 = 1_024;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CounterKey {
    Caller(Caller),
    /// All new callers from a network with this prefix length.
    Network(IpAddr, (u32, u32)),
    Subjects(u64),
}

impl CounterKey {
    /// Returns the key of a caller's counter. A caller with a counter of its own keeps it.
    ///
    /// From `shared_from` counters on, new callers share one per network, and from twice as many on,
    /// one per wider network.
    pub fn new<T>(
        caller: &Caller,
        counters: &HashMap<Self, T, impl BuildHasher>,
        shared_from: usize,
    ) -> Self {
        let own = Self::Caller(caller.clone());
        if counters.len() < shared_from || counters.contains_key(&own) {
            return own;
        }
        let bits = if counters.len() < 2 * shared_from { NARROW_PREFIX } else { WIDE_PREFIX };
        match caller {
            Caller::Subject(subject) => {
                Self::Subjects(counters.hasher().hash_one(subject) % SUBJECT_GROUPS)
            }
            // The operator bounds the number of members and links.
            Caller::Address(_) | Caller::Member(_) | Caller::Link(_) => {
                caller.network(bits).map_or(own, |network| Self::Network(network, bits))
            }
        }
    }
}
