//! The guarantees of tollgate, each a module, kept over real sockets between a client and a gateway
//! that both do whatever a test wants.

mod account;
mod browsers;
mod commands;
mod connection_limits;
mod connections;
mod cross_site;
mod edge_cases;
mod full_disk;
pub(crate) mod heads;
mod hostile_clients;
mod invalid_requests_are_not_forwarded;
mod job_polling;
mod jwt;
mod jwt_subjects;
mod limits;
mod log;
mod members;
mod metrics;
mod money_is_held_before_anything_is_sent;
mod nothing_bought_is_lost;
mod nothing_is_bought_twice;
mod on_sale;
mod openai;
mod operations;
mod packaging;
mod panics;
mod pictures;
mod purchase_ids;
mod refusal_logging;
mod reload;
mod replay_memory;
mod startup;
mod the_key_stays_here;
mod the_rate_limit_holds;
mod unknown_counts_as_spent;
mod video_downloads;
