//! The effort that a walk may spend beyond visiting each chunk once.

/// Cost of one read of memory, in steps.
const READ: u64 = 64;
/// Initial effort of a walk, in steps: the cost of 256 Ki reads.
const INITIAL: u64 = 256 << 10 << 6;

/// The effort left for rereads, for searches, and for candidates that turn out not to be a heap.
///
/// A walk visits the resident pages of a heap once, and each chunk that it reaches for the first
/// time adds to this account. So the resident bytes bound the duration of a walk, whatever their
/// contents are, and even while the program writes to them.
#[derive(Debug)]
pub(super) struct Effort {
    left: u64,
}

impl Effort {
    pub(super) fn new() -> Self {
        Self { left: INITIAL }
    }

    /// Adds the effort for a chunk that was reached for the first time.
    #[inline]
    pub(super) fn earn(&mut self) {
        self.left = self.left.saturating_add(READ);
    }

    /// Subtracts the cost of steps and reads.
    #[inline]
    pub(super) fn spend(&mut self, steps: u64, reads: u64) {
        self.left = self.left.saturating_sub(steps + reads * READ);
    }

    /// Returns whether no effort is left.
    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Returns the effort left.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Resets the effort to an earlier value `left`, and subtracts the cost of the steps and reads
    /// since then, because they led to no result.
    pub(super) fn revoke(&mut self, left: u64, steps: u64, reads: u64) {
        self.left = left;
        self.spend(steps, reads);
    }
}
