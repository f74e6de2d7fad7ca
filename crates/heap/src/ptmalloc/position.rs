//! The position of a walk, the earlier ones to which it returns, and its errors.

use super::stretch_tally::StretchTally;

/// Distance between two checkpoints of the walk, in bytes.
const STRIDE: u64 = 64 << 10;
/// Maximum number of checkpoints. The further back they are, the further apart.
const CHECKPOINTS: usize = 32;
/// Maximum number of returns to a checkpoint without progress. After that, the walk skips the
/// position.
const MOST_RETURNS: u64 = 100;

/// The state of a walk at a position.
#[derive(Clone)]
pub(super) struct Position {
    pub(super) at: u64,
    /// The second word of the chunk at this position, if it has been read.
    pub(super) head: Option<u64>,
    pub(super) account: StretchTally,
    pub(super) suspects: usize,
}

/// Earlier positions of a walk, the first of which stays.
pub(super) struct Checkpoints {
    positions: Vec<Position>,
    /// The address of the next checkpoint.
    next: u64,
}

impl Checkpoints {
    pub(super) fn new(first: &Position) -> Self {
        Self { positions: vec![first.clone()], next: first.at.saturating_add(STRIDE) }
    }

    /// Adds a checkpoint if the last one is far enough away.
    #[inline]
    pub(super) fn pass(&mut self, position: &Position) {
        if position.at >= self.next {
            self.add(position);
            self.next = position.at.saturating_add(STRIDE);
        }
    }

    /// Adds a checkpoint. If there are too many, every second one of the older ones is dropped.
    fn add(&mut self, position: &Position) {
        if self.positions.len() >= CHECKPOINTS {
            let mut place = 0;
            self.positions.retain(|_| {
                place += 1;
                place > CHECKPOINTS * 3 / 4 || place % 2 == 1
            });
        }
        self.positions.push(position.clone());
    }

    /// Drops the last checkpoint but for the first, and returns to the one before.
    pub(super) fn go_back(&mut self, position: &mut Position) {
        if self.positions.len() > 1 {
            self.positions.pop();
        }
        if let Some(earlier) = self.positions.last() {
            *position = earlier.clone();
        }
        position.head = None;
        self.next = position.at.saturating_add(STRIDE);
    }
}

/// The errors of a walk so far.
#[derive(Default)]
pub(super) struct Trouble {
    last: Option<u64>,
    /// The farthest position with an error.
    farthest: u64,
    /// Number of returns since the last progress.
    returns: u64,
    pub(super) gaps: u32,
}

impl Trouble {
    /// Returns whether a position differs from that of the previous error.
    pub(super) fn is_new_at(&mut self, at: u64) -> bool {
        if at > self.farthest {
            self.farthest = at;
            self.returns = 0;
        }
        self.last.replace(at) != Some(at)
    }

    pub(super) fn may_return(&mut self) -> bool {
        self.returns += 1;
        self.last = None;
        self.returns <= MOST_RETURNS
    }

    pub(super) fn begin_anew(&mut self) {
        self.last = None;
        self.returns = 0;
    }
}
