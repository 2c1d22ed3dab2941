//! Keeps the documents true: what they list is what the code has, and what they tell people to type works.

mod generated;
mod lists;
mod proof;
mod references;
mod security;
mod settings;
mod texts;
mod walk;
