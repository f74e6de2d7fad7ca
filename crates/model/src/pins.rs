//! The blocks that pin fragmented memory: what `lowtide inspect --pins` prints.

use serde::{Deserialize, Serialize};

use crate::leaks::LeakStack;

/// The kind of the members of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PinKind {
    /// Blocks that the program has.
    Blocks,
    /// Free blocks in the caches of threads.
    Cached,
    /// All groups that are not listed.
    Other,
    /// Memory of the allocator itself, memory that could not be read, and locked memory.
    Fixed,
}

/// Whether blocks are older than a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockAge {
    /// When the watch began, there was a block at the same address, with the same content at its
    /// beginning.
    BeforeWatch,
    /// When the watch began, there was no block at the same address.
    SinceWatch,
    /// When the watch began, there was a block at the same address, with other content: it was
    /// replaced, or has changed.
    Unknown,
}

/// Blocks that pin memory, and what a release would return without them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PinGroup {
    /// Its kind.
    pub kind: PinKind,
    /// The allocator; `null` for a group that is not of blocks.
    pub allocator: Option<String>,
    /// The smallest and the largest size of a block, including the overhead of the allocator.
    pub size_bytes: Option<[u64; 2]>,
    /// The type of the blocks, if their content has it.
    #[serde(rename = "type")]
    pub block_type: Option<String>,
    /// Whether they are older than the watch; `null` without one.
    pub age: Option<BlockAge>,
    /// What holds most of the blocks, if it was searched for.
    pub holder: Option<String>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of pages that they hold: of the kernel, or of the allocator if it returns only whole
    /// ones.
    pub pages: u64,
    /// The share of the group in the pinned memory: the free bytes of a page are divided among the
    /// groups on it by their bytes.
    pub pinned_bytes: u64,
    /// Resident bytes of the pages that only this group holds.
    pub gain_bytes: u64,
    /// The part of them that is free now.
    pub gain_free_bytes: u64,
    /// Resident bytes of the pages that only this group and those before it hold.
    pub gain_with_previous_bytes: u64,
    /// Whether the values are estimates.
    pub estimated: bool,
    /// What would cure it; `null` if no remedy is known.
    pub remedy: Option<String>,
    /// The stacks by which blocks of these sizes and this type were allocated during the watch, and
    /// are still in use, the most frequent first; empty without samples.
    pub stacks: Vec<LeakStack>,
}

/// Groups that pin memory together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PinSet {
    /// The groups, as indices of [`Pins::groups`].
    pub groups: Vec<usize>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Resident bytes of the pages that only these groups hold.
    pub gain_bytes: u64,
    /// The part of them that is free now.
    pub gain_free_bytes: u64,
    /// Lower bound of the memory that a release returns after these groups are freed; `null` if
    /// the caches of the allocator have no known bound.
    pub gain_at_least_bytes: Option<u64>,
    /// Resident bytes of the pages that only these groups and the caches of threads hold: upper
    /// bound of this memory, besides structures of the allocator that it returns with it.
    pub gain_at_most_bytes: u64,
    /// What would cure it, in sentences.
    pub remedies: Vec<String>,
}

/// Blocks in use of one size and type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockGroup {
    /// The allocator; `null` for blocks with pages of their own in a process with several
    /// allocators, and for the group of all other blocks.
    pub allocator: Option<String>,
    /// The smallest and the largest size of a block, including the overhead of the allocator.
    pub size_bytes: [u64; 2],
    /// The type of the blocks, if their content has it.
    #[serde(rename = "type")]
    pub block_type: Option<String>,
    /// Whether they are older than the watch; `null` without one.
    pub age: Option<BlockAge>,
    /// What holds most of the blocks.
    pub holder: Option<String>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes, resident or not.
    pub bytes: u64,
    /// Their part of all blocks in use, by bytes.
    pub share: f64,
    /// The stacks by which blocks of this size and type were allocated during the watch, and are
    /// still in use, the most frequent first; empty without samples.
    pub stacks: Vec<LeakStack>,
    /// Bytes that the program has reserved in them and does not use; `null` if it is not known.
    pub spare_bytes: Option<u64>,
    /// Bytes that were not used for some time; `null` if it is not known.
    pub idle_bytes: Option<u64>,
}

/// The blocks in use of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct BlockCensus {
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes, resident or not.
    pub bytes: u64,
    /// Whether the values are estimates.
    pub estimated: bool,
    /// The groups, most bytes first; the last one is of all other blocks.
    pub groups: Vec<BlockGroup>,
    /// Sentences about the values.
    pub notes: Vec<String>,
    /// CPU time in seconds.
    pub cpu_s: f64,
}

/// What pins the fragmented memory of a process, in a few groups: for records.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PinSummary {
    /// Free resident bytes on pages that something holds.
    pub pinned_bytes: u64,
    /// Whether the values are estimates.
    pub estimated: bool,
    /// The groups of blocks with the largest shares, the largest first.
    pub groups: Vec<PinShare>,
}

/// The share of a group of blocks in the pinned memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PinShare {
    /// The size of a block in bytes, including the overhead of the allocator.
    pub size_bytes: u64,
    /// The type of the blocks, if their content has it.
    #[serde(rename = "type")]
    pub block_type: Option<String>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their share.
    pub pinned_bytes: u64,
}

impl PinSummary {
    /// Maximum number of groups.
    pub const MAX_GROUPS: usize = 5;

    /// Summarizes the first groups.
    pub fn new(pins: &Pins) -> Self {
        let share = |group: &PinGroup| {
            Some(PinShare {
                size_bytes: group.size_bytes?[0],
                block_type: group.block_type.clone(),
                blocks: group.blocks,
                bytes: group.bytes,
                pinned_bytes: group.pinned_bytes,
            })
        };
        Self {
            pinned_bytes: pins.pinned_bytes,
            estimated: pins.estimated,
            groups: pins.groups.iter().filter_map(share).take(Self::MAX_GROUPS).collect(),
        }
    }
}

/// The blocks in use of a process, in a few groups: for records.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSummary {
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes, resident or not.
    pub bytes: u64,
    /// Whether the values are estimates.
    pub estimated: bool,
    /// The groups with the most bytes, the largest first.
    pub groups: Vec<BlockShare>,
}

/// The blocks in use of one size and type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockShare {
    /// The size of a block in bytes, including the overhead of the allocator.
    pub size_bytes: u64,
    /// The type of the blocks, if their content has it.
    #[serde(rename = "type")]
    pub block_type: Option<String>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes, resident or not.
    pub bytes: u64,
}

impl BlockSummary {
    /// Maximum number of groups.
    pub const MAX_GROUPS: usize = 16;

    /// Summarizes the first groups of one size.
    pub fn new(census: &BlockCensus) -> Self {
        let mut groups: Vec<BlockShare> = Vec::new();
        for group in census.groups.iter().filter(|g| g.size_bytes[0] == g.size_bytes[1]) {
            let (size_bytes, block_type) = (group.size_bytes[0], group.block_type.clone());
            // Blocks of two allocators are one group here.
            let known = groups
                .iter_mut()
                .find(|known| (known.size_bytes, &known.block_type) == (size_bytes, &block_type));
            match known {
                Some(known) => {
                    known.blocks += group.blocks;
                    known.bytes += group.bytes;
                }
                None => groups.push(BlockShare {
                    size_bytes,
                    block_type,
                    blocks: group.blocks,
                    bytes: group.bytes,
                }),
            }
        }
        groups.truncate(Self::MAX_GROUPS);
        let BlockCensus { blocks, bytes, estimated, .. } = *census;
        Self { blocks, bytes, estimated, groups }
    }
}

/// The blocks that pin the fragmented memory of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Pins {
    /// Free resident bytes on pages that something holds.
    pub pinned_bytes: u64,
    /// Free resident bytes on pages that nothing holds: the next release returns them.
    pub reclaimable_bytes: u64,
    /// The part of the pinned bytes on pages with so many groups that no small set frees them.
    pub crowded_bytes: u64,
    /// Resident bytes of the heap that could not be read, or changed too fast.
    pub unread_bytes: u64,
    /// Number of blocks in use that were read.
    pub blocks: u64,
    /// The part of the heap that was read: less than 1 for a heap with very many blocks.
    pub read_share: f64,
    /// Whether all values are estimates.
    pub estimated: bool,
    /// The groups, the largest share first.
    pub groups: Vec<PinGroup>,
    /// Sets of groups with a large joint gain. Each contains the sets before it.
    pub sets: Vec<PinSet>,
    /// Sentences about the values.
    pub notes: Vec<String>,
    /// CPU time in seconds.
    pub cpu_s: f64,
}
