//! Derives everything that looks random from one number, so that a run can be repeated.

/// Where ids, keys and turns of phrase come from.
pub(super) struct Seed([u8; 32]);

impl Seed {
    pub(super) fn new(seed: u64) -> Self {
        Self(blake3::derive_key("tollgate sandbox seed", &seed.to_le_bytes()))
    }

    /// `length` hexadecimal digits (at most 64) that belong to this `purpose` and `text`.
    pub(super) fn hex(&self, purpose: &str, text: &str, length: usize) -> String {
        let mut hex = self.hash(purpose, text).to_hex().to_string();
        hex.truncate(length);
        hex
    }

    /// One of `choices`, the same one for the same `purpose` and `text`.
    pub(super) fn pick<'a>(&self, purpose: &str, text: &str, choices: &[&'a str]) -> &'a str {
        let first = self.hash(purpose, text).as_bytes()[0];
        choices.get(usize::from(first) % choices.len().max(1)).copied().unwrap_or_default()
    }

    fn hash(&self, purpose: &str, text: &str) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        // The length keeps purpose and text apart.
        hasher.update(&(purpose.len() as u64).to_le_bytes());
        hasher.update(purpose.as_bytes());
        hasher.update(text.as_bytes());
        hasher.finalize()
    }
}
