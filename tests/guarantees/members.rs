//! Callers who are known: who is let in, as whom, for how long, and what is theirs alone.

mod admins;
mod audit;
mod budgets;
mod credentials;
mod groups;
mod logins;
mod manage;
mod process;
mod reports;
mod separation;
mod streams;

const MEMBERS: &str = "access.mode = \"members\"\n";
