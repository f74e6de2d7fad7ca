//! Spaces: V8's own records of its chunks, and the areas from which threads allocate.

use std::ops::Range;

use super::chunk::ALIGNMENT;
use super::version::{self, Version};
use crate::memory::{Memory, each_word, word_in};

/// Maximum distance of an isolate's allocation areas before its heap, in bytes: both are parts of
/// the isolate.
const BEFORE_HEAP: u64 = 80 << 10;

/// A space, as V8 describes it.
#[derive(Debug, Clone)]
pub(super) struct Space {
    /// Its name in `v8.getHeapSpaceStatistics()`.
    pub(super) name: &'static str,
    /// The address of the heap of its isolate.
    pub(super) heap: u64,
    /// Bytes of its chunks.
    pub(super) committed_bytes: u64,
    /// The descriptions of its first and its last chunk.
    pub(super) ends: [u64; 2],
    /// The description of the chunk that a semi-space is allocated from.
    pub(super) current: u64,
    /// The end of what was taken from this chunk.
    pub(super) allocation_top: Option<u64>,
}

impl Space {
    /// Reads the space at an address; `None` if there is none.
    pub(super) fn read(memory: &impl Memory, version: &Version, at: u64) -> Option<Self> {
        let mut bytes = vec![0; version.space_bytes()];
        let is_address = at != 0 && at.is_multiple_of(8);
        let length = if is_address { memory.read(at, &mut bytes) } else { 0 };
        let word = |place: u64| word_in(&bytes[..length], place as usize);
        // `{ vtable, heap_, id_ (a byte or an int), committed_, … }`
        let name = version.spaces.get((word(16)? & 0xffff_ffff) as usize)?;
        let (table, heap) = (word(0)?, word(8)?);
        (table != 0 && table.is_multiple_of(8) && heap != 0).then_some(())?;
        Some(Self {
            name,
            heap,
            committed_bytes: word(24)?,
            ends: [word(version.list)?, word(version.list + 8)?],
            // A space that is not a semi-space may be shorter.
            current: word(version.current).unwrap_or(0),
            allocation_top: version.allocation_top.and_then(word),
        })
    }

    /// Returns whether it is a half of the new space.
    pub(super) fn is_new(&self) -> bool {
        self.name == version::NEW
    }

    /// Returns whether each of its chunks has one large object.
    pub(super) fn is_of_large_objects(&self) -> bool {
        self.name.ends_with("large_object_space")
    }

    /// Returns whether its list has at least two chunks, which proves the version of V8.
    pub(super) fn proves_version(&self, memory: &impl Memory, version: &Version) -> bool {
        let node = |at: u64| {
            let mut bytes = [0; 16];
            let is_read = memory.read(at.checked_add(version.node)?, &mut bytes) == bytes.len();
            is_read.then_some([word_in(&bytes, 0)?, word_in(&bytes, 8)?])
        };
        let [first, last] = self.ends;
        let is_list = || {
            let [next, before_first] = node(first)?;
            let [after_last, _] = node(last)?;
            let [_, back] = node(next)?;
            Some(before_first == 0 && after_last == 0 && back == first)
        };
        first != last && is_list() == Some(true)
    }
}

/// The areas from which the thread of an isolate allocates next, without a lock
/// (`LinearAllocationArea`): `{ start, top, limit }`.
#[derive(Debug, Default)]
pub(super) struct AllocationAreas {
    /// That of the new space: the memory between top and limit.
    pub(super) young: Option<Range<u64>>,
    /// That of the old space.
    pub(super) old: Option<Range<u64>>,
}

impl AllocationAreas {
    /// Finds the areas of an isolate, which are before its heap: `current` is the chunk of the new
    /// space that is allocated from, and `is_old` returns whether an address is in old space.
    pub(super) fn find(
        memory: &impl Memory,
        heap: u64,
        current: Option<&Range<u64>>,
        is_old: impl Fn(u64) -> bool,
    ) -> Self {
        let mut found = Self::default();
        let mut last = [(0, 0); 2];
        each_word(memory, heap.saturating_sub(BEFORE_HEAP)..heap, |at, word| {
            let [(first_at, start), (_, top)] = last;
            last = [last[1], (at, word)];
            let is_area = first_at + 16 == at
                && (start | top | word).is_multiple_of(8)
                && start <= top
                && top <= word
                && word - start <= ALIGNMENT;
            if is_area && current.is_some_and(|area| area.start <= start && word <= area.end) {
                found.young.get_or_insert(top..word);
            } else if is_area && is_old(start) && is_old(word.saturating_sub(1)) {
                found.old.get_or_insert(top..word);
            }
            found.young.is_none() || found.old.is_none()
        });
        found
    }
}
