//! The guarantees of tollgate, each a module, kept over real sockets between a client and a gateway
//! that both do whatever a test wants.

mod a_panic_stays_where_it_happens;
mod at_the_edges;
mod browsers;
mod commands;
mod connections;
mod cross_site;
pub(crate) mod heads;
mod hostile;
mod invalid_requests_are_not_forwarded;
mod jwt;
mod limits;
mod members;
mod money_is_held_before_anything_is_sent;
mod nothing_bought_is_lost;
mod nothing_is_bought_twice;
mod one_poll_for_all;
mod openai;
mod operations;
mod patience;
mod refusals;
mod reload;
mod replays;
mod starting;
mod subjects;
mod the_account;
mod the_key_stays_here;
mod the_rate_limit_holds;
mod transfers;
mod unknown_counts_as_spent;
