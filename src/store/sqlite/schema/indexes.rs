//! The index that each purchase wrote, and that rare queries can do without.

pub(super) const DROPPED: &str = "
    -- Reports find purchases by their caller and time, also those of all callers.
    DROP INDEX purchases_at;
";
