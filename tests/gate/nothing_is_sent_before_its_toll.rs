//! Promise 3: nothing is sent before its toll is set aside, durably, against every budget that
//! applies to it.

mod budgets;
mod ledgers;

/// One ledger in memory, one in a file.
const STORES: [&str; 2] = ["store.url = \"memory\"", "store.url = \"sqlite:ledger.db\""];
