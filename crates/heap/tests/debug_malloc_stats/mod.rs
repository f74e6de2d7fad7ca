//! The output of CPython's `sys._debugmallocstats()`.

use lowtide_heap::pymalloc::Heap;

/// Maximum number of blocks that CPython may allocate and free while it prints.
const BLOCKS: u64 = 8;

/// The numbers that it prints.
#[derive(Debug, Default)]
pub(crate) struct DebugMallocStats {
    /// Size of a block in bytes, number of pools, of blocks in use, and of free blocks.
    sizes: Vec<[u64; 4]>,
    arenas: u64,
    unused_pools: u64,
    allocated_bytes: u64,
}

impl DebugMallocStats {
    pub(crate) fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let line = line.replace(',', "");
            let words: Vec<&str> = line.split_whitespace().collect();
            let numbers: Vec<u64> = words.iter().map_while(|word| word.parse().ok()).collect();
            let last = words.last().and_then(|word| word.parse().ok()).unwrap_or(0);
            if line.starts_with("# arenas allocated current") {
                found.arenas = last;
            } else if line.starts_with("# bytes in allocated blocks") {
                found.allocated_bytes = last;
            } else if line.contains(" unused pools * ") {
                found.unused_pools = numbers[0];
            } else if let [_, bytes, pools, used, free] = numbers[..] {
                found.sizes.push([bytes, pools, used, free]);
            }
        }
        assert!(found.arenas > 0 && !found.sizes.is_empty(), "no statistics: {text}");
        found
    }

    /// Compares the numbers with a walked heap. CPython itself allocates or frees a few blocks
    /// after it has counted.
    pub(crate) fn assert_equal(&self, heap: &Heap, name: &str) {
        assert_eq!(heap.arenas, self.arenas, "{name}: arenas");
        assert_eq!(heap.free_pools, self.unused_pools, "{name}: unused pools");
        let sizes: Vec<u64> = heap.sizes.keys().copied().collect();
        let expected: Vec<u64> = self.sizes.iter().map(|size| size[0]).collect();
        assert_eq!(sizes, expected, "{name}: sizes of blocks");
        let mut moved = 0;
        for [bytes, pools, used, free] in &self.sizes {
            let found = heap.sizes[bytes];
            assert_eq!(found.pools, *pools, "{name}: pools of {bytes}");
            assert_eq!(found.used_blocks + found.free_blocks, used + free, "{name}: {bytes}");
            moved += found.used_blocks.abs_diff(*used);
        }
        assert!(moved <= BLOCKS, "{name}: {moved} blocks are not as CPython counted them");
        let difference = heap.allocated_bytes().abs_diff(self.allocated_bytes);
        assert!(difference <= BLOCKS * 512, "{name}: {difference} bytes");
    }
}
