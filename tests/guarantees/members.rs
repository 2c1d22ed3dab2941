//! Callers who are known: who is let in, as whom, for how long, and what is theirs alone.

mod admins;
mod audit;
mod budget_requests;
mod budgets;
mod credentials;
mod groups;
mod logins;
mod manage;
mod manage_groups;
mod process;
mod reports;
mod separation;
mod streams;
mod unknown_outcomes;

const MEMBERS: &str = "access.mode = \"members\"\n";
