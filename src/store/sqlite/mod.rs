//! The store over SQLite, in memory or in a file that survives a crash of the process; what is dear
//! survives a power cut.

mod audit;
mod begin;
mod books;
mod column;
mod counters;
mod fault;
mod file;
mod handle;
mod identity;
mod jobs;
mod lock;
mod members;
mod purchases;
mod reader;
mod replies;
mod report;
mod schema;
mod step;
mod unread;
mod window;
mod writer;

pub use begin::Opening;
pub use fault::{Holder, OpenError};
pub use handle::{Answer, Store, Tap, Verb};
