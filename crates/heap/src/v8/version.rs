//! The places of fields in each version of V8 whose heap is walked.
//!
//! The names of fields are those of V8's `src/heap`: `BasicMemoryChunk`, `MemoryChunkMetadata`,
//! `BaseSpace`, `Space`, `SemiSpace`, `SemiSpaceNewSpace`. Each row was compared with
//! `v8.getHeapSpaceStatistics()` of a program with this version (`tests/v8.rs`).

/// The fields of one version of V8. Places are offsets in bytes.
#[derive(Debug)]
pub(super) struct Version {
    /// The version.
    pub(super) name: &'static str,
    /// The fields that describe a chunk.
    pub(super) fields: &'static Fields,
    /// The place of the chunk's node of the list of its space, among the same fields: the next
    /// chunk, then the previous one (`list_node_`).
    pub(super) node: u64,
    /// The place in a space of the first and the last chunk (`memory_chunk_list_`).
    pub(super) list: u64,
    /// The place in a semi-space of the chunk that is allocated from (`current_page_`).
    pub(super) current: u64,
    /// The distance from the first semi-space to the end of the memory that was taken from the
    /// current chunk (`SemiSpaceNewSpace::allocation_top_`), if this version has it.
    pub(super) allocation_top: Option<u64>,
    /// The names of the spaces, by their number (`AllocationSpace`).
    pub(super) spaces: &'static [&'static str],
}

/// The fields that describe a chunk.
#[derive(Debug)]
pub(super) struct Fields {
    /// Whether they are outside of the chunk, whose second word is their address. Otherwise, the
    /// chunk begins with them.
    pub(super) are_outside: bool,
    /// Size of the chunk, in bytes.
    pub(super) size: u64,
    /// The address of the heap.
    pub(super) heap: u64,
    /// The addresses of its objects: start and end.
    pub(super) area: [u64; 2],
    /// Bytes of objects.
    pub(super) allocated: u64,
    /// The address of its space.
    pub(super) owner: u64,
    /// Flags, in the chunk in any case.
    pub(super) flags: u64,
}

const fn inside(size: u64, flags: u64, shift: u64) -> Fields {
    Fields {
        are_outside: false,
        size,
        heap: 16 + shift,
        area: [24 + shift, 32 + shift],
        allocated: 40 + shift,
        owner: 64 + shift,
        flags,
    }
}

/// Up to 11.x.
static HEADER: Fields = inside(0, 8, 0);
/// 12.4, where the fields are a part of their own, but still in the chunk.
static SEPARATE: Fields = inside(16, 0, 8);
/// From 12.9 on.
static METADATA: Fields = Fields {
    are_outside: true,
    size: 48,
    heap: 64,
    area: [72, 56],
    allocated: 24,
    owner: 80,
    flags: 0,
};

pub(super) const READ_ONLY: &str = "read_only_space";
pub(super) const NEW: &str = "new_space";
pub(super) const OLD: &str = "old_space";
const CODE: &str = "code_space";
const MAP: &str = "map_space";
const SHARED: &str = "shared_space";
const TRUSTED: &str = "trusted_space";
const SHARED_TRUSTED: &str = "shared_trusted_space";
const NEW_LARGE: &str = "new_large_object_space";
const LARGE: &str = "large_object_space";
const CODE_LARGE: &str = "code_large_object_space";
const SHARED_LARGE: &str = "shared_large_object_space";
const SHARED_TRUSTED_LARGE: &str = "shared_trusted_large_object_space";
const TRUSTED_LARGE: &str = "trusted_large_object_space";

static SPACES_OF_10_2: [&str; 8] = [READ_ONLY, OLD, CODE, MAP, LARGE, CODE_LARGE, NEW_LARGE, NEW];
static SPACES_OF_10_8: [&str; 10] =
    [READ_ONLY, OLD, CODE, MAP, SHARED, NEW, LARGE, CODE_LARGE, NEW_LARGE, SHARED_LARGE];
static SPACES_OF_11: [&str; 9] =
    [READ_ONLY, NEW, OLD, CODE, SHARED, NEW_LARGE, LARGE, CODE_LARGE, SHARED_LARGE];
static SPACES_OF_12_4: [&str; 11] = [
    READ_ONLY,
    NEW,
    OLD,
    CODE,
    SHARED,
    TRUSTED,
    NEW_LARGE,
    LARGE,
    CODE_LARGE,
    SHARED_LARGE,
    TRUSTED_LARGE,
];
static SPACES_OF_12_9: [&str; 13] = [
    READ_ONLY,
    NEW,
    OLD,
    CODE,
    SHARED,
    TRUSTED,
    SHARED_TRUSTED,
    NEW_LARGE,
    LARGE,
    CODE_LARGE,
    SHARED_LARGE,
    SHARED_TRUSTED_LARGE,
    TRUSTED_LARGE,
];

const fn version(
    name: &'static str,
    fields: &'static Fields,
    [node, list, current]: [u64; 3],
    allocation_top: Option<u64>,
    spaces: &'static [&'static str],
) -> Version {
    Version { name, fields, node, list, current, allocation_top, spaces }
}

/// The versions: those of Node.js 18 to 26, and Deno 2.9.
pub(super) static VERSIONS: [Version; 10] = [
    version("10.2", &HEADER, [232, 168, 256], None, &SPACES_OF_10_2),
    version("10.8", &HEADER, [232, 40, 136], None, &SPACES_OF_10_8),
    version("11.3", &HEADER, [264, 40, 136], None, &SPACES_OF_11),
    version("11.8", &HEADER, [240, 40, 144], None, &SPACES_OF_11),
    version("12.4", &SEPARATE, [264, 40, 136], None, &SPACES_OF_12_4),
    version("12.9", &METADATA, [280, 40, 136], Some(312), &SPACES_OF_12_9),
    version("13.6", &METADATA, [264, 40, 112], Some(320), &SPACES_OF_12_9),
    version("14.1", &METADATA, [272, 40, 112], Some(256), &SPACES_OF_12_9),
    version("14.6", &METADATA, [256, 40, 96], Some(224), &SPACES_OF_12_9),
    version("15.0", &METADATA, [256, 32, 88], Some(208), &SPACES_OF_12_9),
];

impl Version {
    /// Returns the number of bytes from the first field of a chunk up to the end of the last.
    pub(super) fn described_bytes(&self) -> usize {
        self.node as usize + 16
    }

    /// Returns the number of bytes of a space that are read.
    pub(super) fn space_bytes(&self) -> usize {
        self.current.max(self.list + 8).max(self.allocation_top.unwrap_or(0)) as usize + 8
    }
}
