//! How much a walk may do beyond going over each chunk once.

/// What one read of memory costs.
const READ: u64 = 64;
/// What a walk of any heap may spend: a quarter of a million reads.
const INITIAL: u64 = 256 << 10 << 6;

/// The effort that is left for reading places again, for searches, and for what may turn out to be no heap.
///
/// A walk goes over the resident pages of a heap once, and each chunk that it reaches for the first time adds
/// to this account. So a walk ends within a bound that follows from the resident bytes, whatever is written in
/// them, and also while it is being written.
#[derive(Debug)]
pub(super) struct Effort {
    left: u64,
}

impl Effort {
    pub(super) fn new() -> Self {
        Self { left: INITIAL }
    }

    /// Adds what a chunk that was reached for the first time is worth.
    #[inline]
    pub(super) fn earn(&mut self) {
        self.left = self.left.saturating_add(READ);
    }

    /// Pays for some steps and reads.
    #[inline]
    pub(super) fn spend(&mut self, steps: u64, reads: u64) {
        self.left = self.left.saturating_sub(steps + reads * READ);
    }

    /// Whether nothing is left.
    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// What is left.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Takes back what was earned and spent since `left` was left, and pays for it: it led nowhere.
    pub(super) fn revoke(&mut self, left: u64, steps: u64, reads: u64) {
        self.left = left;
        self.spend(steps, reads);
    }
}
