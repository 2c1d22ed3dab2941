//! The promises of tollgate, each a module, kept over real sockets between a client and a gateway
//! that both do whatever a test wants.

mod a_panic_stays_where_it_happens;
mod at_the_edges;
mod browsers;
mod commands;
mod connections;
mod cross_site;
pub(crate) mod heads;
mod hostile;
mod jwt;
mod limits;
mod members;
mod nothing_bought_is_lost;
mod nothing_invalid_is_forwarded;
mod nothing_is_bought_twice;
mod nothing_is_sent_before_its_toll;
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
mod the_key_never_leaves;
mod the_window_holds;
mod transfers;
mod unknown_is_spent;
