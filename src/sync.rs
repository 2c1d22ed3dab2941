//! Locks that survive a panic of a thread that held them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, also after a holder has panicked: every change under a lock is a single step, so what
/// it guards is whole.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
