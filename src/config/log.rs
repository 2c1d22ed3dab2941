//! `[log]`: what is logged, and how.

use tracing::Level;

use super::read::{Section, section};
use super::value::Parsed;

section! {
    #[derive(Copy, PartialEq, Eq)]
    pub struct LogConfig {
        /// If not set, text on a terminal, else JSON.
        pub is_json: Option<bool> = text("format", format, None),
        pub level: Level = text("level", level, Level::INFO),
    }
}

fn format(text: &str) -> Parsed<Option<bool>> {
    match text {
        "auto" => Ok(None),
        "json" => Ok(Some(true)),
        "text" => Ok(Some(false)),
        _ => Err("expected \"auto\", \"text\" or \"json\"".into()),
    }
}

fn level(text: &str) -> Parsed<Level> {
    let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    let level = levels.into_iter().find(|level| level.as_str().to_ascii_lowercase() == text);
    level.ok_or("expected \"error\", \"warn\", \"info\", \"debug\" or \"trace\"".into())
}
