//! Tells what went wrong with the file, and whether to trust it afterwards.

use rusqlite::ErrorCode;

use crate::store::Unavailable;

/// Why a step or a commit did not happen.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Rolled back; the next one may succeed: a lock that was held too long.
    Passing(Unavailable),
    /// Rolled back for want of room, which something smaller may find.
    Full(Unavailable),
    /// What is on the disk is not known any more: nothing is written until a restart has read it anew.
    /// (A failed fsync is never tried again: the system may have dropped the pages.)
    Lasting(Unavailable),
}

impl Fault {
    pub(super) fn unavailable(&self) -> Unavailable {
        match self {
            Self::Passing(why) | Self::Full(why) | Self::Lasting(why) => why.clone(),
        }
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        let why = Unavailable(error.to_string().into());
        match error.sqlite_error_code() {
            Some(
                ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase,
            ) => Self::Lasting(why),
            Some(ErrorCode::DiskFull) => Self::Full(why),
            Some(_) | None => Self::Passing(why),
        }
    }
}

impl From<Unavailable> for Fault {
    fn from(why: Unavailable) -> Self {
        Self::Passing(why)
    }
}
