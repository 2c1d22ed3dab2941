//! What measures real time. These tests run alone, and assert lower bounds and ratios only.

mod connections;
mod drain;
mod handshakes;

/// Returns the result of the first attempt for which the machine was fast enough. Times of settings
/// are multiplied by its argument, which grows.
fn in_time<T>(what: &str, attempt: impl FnMut(u64) -> Option<T>) -> T {
    let result = [1, 3, 9, 27].into_iter().find_map(attempt);
    result.unwrap_or_else(|| panic!("never in time: {what}"))
}
