//! Guarantee 3: nothing is sent before its price is set aside, durably, against every budget that
//! applies to it.

mod budgets;
mod ledgers;
