//! What the settings promise, in tables of good and bad.
