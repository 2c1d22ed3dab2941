//! What measures real time. These tests run alone, and assert lower bounds and ratios only.

mod connections;
mod drain;
mod handshakes;
