//! The window of memory that a walk has read last.

use crate::memory::{Memory, word_in};
use crate::residency::Residency;

/// Maximum number of bytes read at once.
const MOST: u64 = 256 << 10;
/// Maximum distance between chunks that are read together, in bytes.
const NEAR: u64 = 4 << 10;
/// Number of bytes read of a chunk further away: its head, and the head of the next chunk if it is
/// small.
const HEAD: u64 = 64;

/// Reads ahead as far as chunks lie close together.
pub(super) struct Window {
    start: u64,
    bytes: Vec<u8>,
    /// Number of bytes to read next.
    next: u64,
    /// Number of reads so far.
    reads: u64,
}

impl Window {
    pub(super) fn new() -> Self {
        Self { start: 0, bytes: Vec::new(), next: HEAD, reads: 0 }
    }

    /// Returns the number of reads so far.
    pub(super) fn reads(&self) -> u64 {
        self.reads
    }

    /// Forgets what was read, because it may have changed.
    pub(super) fn forget(&mut self) {
        self.bytes.clear();
        self.next = HEAD;
    }

    /// Returns the two words of a chunk's head: the size of a free chunk before it, and its own
    /// size with the flags.
    #[inline]
    pub(super) fn header<M: Memory>(
        &mut self,
        at: u64,
        memory: &M,
        residency: &mut Residency<'_, M>,
    ) -> Option<(u64, u64)> {
        match self.known(at) {
            Some(found) => Some(found),
            None => {
                self.load(at, memory, residency);
                self.known(at)
            }
        }
    }

    /// Returns `count` bytes from an address, if they were all read.
    pub(super) fn bytes(&self, at: u64, count: usize) -> Option<&[u8]> {
        let place = usize::try_from(at.checked_sub(self.start)?).ok()?;
        self.bytes.get(place..place.checked_add(count)?)
    }

    #[inline]
    fn known(&self, at: u64) -> Option<(u64, u64)> {
        let place = usize::try_from(at.wrapping_sub(self.start)).ok()?;
        let head = self.bytes.get(place..place.checked_add(16)?)?;
        Some((word_in(head, 0)?, word_in(head, 8)?))
    }

    #[cold]
    fn load<M: Memory>(&mut self, at: u64, memory: &M, residency: &mut Residency<'_, M>) {
        let end = self.start.saturating_add(self.bytes.len() as u64);
        let is_near = !self.bytes.is_empty() && at >= self.start && at < end.saturating_add(NEAR);
        self.next = if is_near { (self.next * 2).clamp(NEAR, MOST) } else { HEAD };
        self.start = at;
        self.bytes.clear();
        self.reads += 1;
        let Some(resident_until) = residency.end_of_run(at) else { return };
        let mut end = at.saturating_add(self.next);
        if is_near {
            // Reads up to the end of a page, because the next page may not be needed.
            end = end.next_multiple_of(NEAR);
        }
        let end = end.min(resident_until);
        self.bytes.resize(usize::try_from(end.saturating_sub(at)).unwrap_or(0), 0);
        let length = memory.read_resident(at, &mut self.bytes);
        self.bytes.truncate(length);
    }
}
