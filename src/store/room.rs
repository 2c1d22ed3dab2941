//! Bounds what a store keeps besides the purchases themselves.

/// How much a store may hold; where it is full, the replies whose time comes next go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Replies kept for replay.
    pub replies: usize,
    /// Their bodies' bytes, all together.
    pub reply_bytes: usize,
    /// Purchases that a store in memory remembers after their end.
    pub ended: usize,
    /// Pages of 4 KiB that a store on disk may take; `None` is as much as the disk has.
    pub pages: Option<u32>,
}

impl Default for Room {
    /// A week of replies at 60 a minute is 604,800 of them; before that, their bytes bound them.
    fn default() -> Self {
        Self { replies: 1_000_000, reply_bytes: 512 << 20, ended: 250_000, pages: None }
    }
}
