//! A value outside of the database that follows its transactions.

use std::cell::Cell;

#[derive(Default)]
pub(super) struct Tracked<T> {
    current: Cell<T>,
    committed: Cell<T>,
}

impl<T: Copy> Tracked<T> {
    pub(super) fn get(&self) -> T {
        self.current.get()
    }

    pub(super) fn set(&self, value: T) {
        self.current.set(value);
    }

    pub(super) fn commit(&self) {
        self.committed.set(self.current.get());
    }

    pub(super) fn roll_back(&self) {
        self.current.set(self.committed.get());
    }
}
