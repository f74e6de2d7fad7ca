//! The origin of a heap file, and the difference between two of them.

use serde::{Deserialize, Serialize};

use crate::ledger::{Owner, State, WalkedRuntime};
use crate::pins::BlockGroup;

/// Value of the `schema` of a [`HeapDifference`].
pub const DIFFERENCE_SCHEMA: &str = "lowtide.difference/1";

/// Where and when a heap file was written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// The version of lowtide that wrote it.
    pub lowtide: String,
    /// Time of the inspection, in seconds since 1970.
    pub unix_s: f64,
    /// The release of the kernel.
    pub kernel: Option<String>,
    /// The architecture of the processor.
    pub architecture: Option<String>,
    /// Size of a page, in bytes.
    pub page_bytes: u64,
    /// The mappings of the process, in order of address.
    pub mappings: Vec<SavedMapping>,
    /// What an ELF core shows of itself; `None` if the file is not one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreOrigin>,
}

/// An ELF core that was read. Which pages were resident is not in it: in an inspection of a core,
/// the values of resident memory are those of pages with content, which were resident or swapped
/// out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreOrigin {
    /// The signal that ended the process; `None` if none did.
    pub signal: Option<u32>,
    /// Bytes that were cut off.
    pub missing_bytes: u64,
    /// Bytes of writable or shared memory that were not written to the core: never used, or left
    /// out on request.
    pub left_out_bytes: u64,
    /// The part of them in shared memory.
    #[serde(default)]
    pub left_out_shared_bytes: u64,
    /// Whether it has private memory, which a `coredump_filter` may leave out.
    pub has_private_memory: bool,
}

impl CoreOrigin {
    /// Returns whether memory is missing that the process may have used, so that no verdict on the
    /// whole process is possible.
    pub fn is_partial(&self) -> bool {
        self.missing_bytes > 0 || !self.has_private_memory
    }
}

/// A mapping of a saved process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedMapping {
    /// Its addresses, in hexadecimal digits, as `/proc/PID/maps` has them.
    pub addresses: String,
    /// Its permissions, such as `rw-p`.
    pub permissions: String,
    /// Its name: a path, `[heap]`, or empty.
    pub name: String,
    /// Its size, in bytes.
    pub bytes: u64,
    /// Its resident bytes.
    pub resident_bytes: u64,
}

/// One of the two files of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedHeap {
    /// The path of the file.
    pub file: String,
    /// PID of the process.
    pub pid: u32,
    /// Its command line.
    pub command: Vec<String>,
    /// Time of the inspection, in seconds since 1970.
    pub unix_s: f64,
    /// RSS, in bytes.
    pub rss_bytes: u64,
}

/// The difference between two heap files.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeapDifference {
    /// Always [`DIFFERENCE_SCHEMA`].
    pub schema: &'static str,
    /// The first file.
    pub before: ComparedHeap,
    /// The second file.
    pub after: ComparedHeap,
    /// Change of RSS, in bytes. The rows of the ledger add up to it.
    pub difference_bytes: i64,
    /// Resident bytes by owner, of both.
    pub ledger: Vec<RowDifference>,
    /// The groups of blocks that differ most, the largest difference first.
    pub blocks: Vec<GroupDifference>,
    /// Sentences about the values.
    pub notes: Vec<String>,
}

/// The difference of a row of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RowDifference {
    /// The owner.
    pub owner: Owner,
    /// The runtime whose heap was walked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<WalkedRuntime>,
    /// The state of this memory; only in rows with a manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Bytes in the first file.
    pub before_bytes: u64,
    /// Bytes in the second file.
    pub after_bytes: u64,
    /// Change, in bytes.
    pub difference_bytes: i64,
    /// Whether one of the values is an estimate.
    pub estimated: bool,
}

/// The difference of a group of blocks of one size and type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupDifference {
    /// The allocator, if it is known.
    pub allocator: Option<String>,
    /// Size of a block, including the overhead of the allocator, in bytes.
    pub size_bytes: u64,
    /// The type of the blocks, if their content had it.
    #[serde(rename = "type")]
    pub block_type: Option<String>,
    /// What held most of the blocks, if it was searched for.
    pub holder: Option<String>,
    /// Number of blocks in the first file.
    pub before_blocks: u64,
    /// Number of blocks in the second file.
    pub after_blocks: u64,
    /// Change, in bytes.
    pub difference_bytes: i64,
    /// Whether the numbers are estimates, because a heap was sampled.
    pub estimated: bool,
}

impl GroupDifference {
    /// Returns the difference between two groups with the same key. One of them may be absent.
    pub fn new(before: Option<&BlockGroup>, after: Option<&BlockGroup>) -> Option<Self> {
        let of = after.or(before)?;
        let sum = |group: Option<&BlockGroup>| group.map_or((0, 0), |g| (g.blocks, g.bytes));
        let ((before_blocks, before_bytes), (after_blocks, after_bytes)) =
            (sum(before), sum(after));
        let holder = [after, before].into_iter().flatten().find_map(|group| group.holder.clone());
        Some(Self {
            allocator: of.allocator.clone(),
            size_bytes: of.size_bytes[0],
            block_type: of.block_type.clone(),
            holder,
            before_blocks,
            after_blocks,
            difference_bytes: difference(before_bytes, after_bytes),
            estimated: false,
        })
    }
}

/// Returns the change from one number of bytes to another.
pub fn difference(before_bytes: u64, after_bytes: u64) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    signed(after_bytes).saturating_sub(signed(before_bytes))
}
