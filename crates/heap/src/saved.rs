//! A heap in a file: for tests, and to inspect a heap on another machine.
//!
//! The file is a line of JSON, followed by the deflated pages. Most pages are saved without their
//! contents, because a walk does not read the contents of blocks.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use miniz_oxide::{deflate, inflate};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::blocks::{Block, BlockVisitor};
use crate::memory::{Memory, Saved};
use crate::ptmalloc::HeapMapping;
use crate::ranges::joined;

/// A heap with all data that a walk needs.
#[derive(Debug, Clone)]
pub struct SavedHeap {
    /// The ranges in which the arenas may be.
    pub data: Vec<Range<u64>>,
    /// The mappings that may contain the heap.
    pub mappings: Vec<HeapMapping>,
    /// The saved memory.
    pub memory: Saved,
}

/// The reason why a file is not a valid saved heap.
#[derive(Debug, Error)]
pub enum SavedError {
    /// The first line is not a valid header.
    #[error("its first line is not the header of a saved heap: {0}")]
    SavedHeader(#[from] serde_json::Error),
    /// The pages are missing or damaged.
    #[error("its pages are damaged")]
    Pages,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedHeader {
    schema: String,
    data: Vec<Range<u64>>,
    mappings: Vec<HeapMapping>,
    /// Address and bytes of each block.
    blocks: Vec<(u64, u64)>,
}

const SCHEMA: &str = "lowtide.heap/1";
/// Maximum size of a saved heap, in bytes.
const MOST_BYTES: usize = 1 << 30;

impl SavedHeap {
    /// Serializes the heap.
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = SavedHeader {
            schema: SCHEMA.to_owned(),
            data: self.data.clone(),
            mappings: self.mappings.clone(),
            blocks: self.memory.blocks.iter().map(|(at, b)| (*at, b.len() as u64)).collect(),
        };
        let mut bytes = serde_json::to_vec(&header).unwrap_or_default();
        bytes.push(b'\n');
        let pages: Vec<u8> = self.memory.blocks.iter().flat_map(|(_, b)| b).copied().collect();
        bytes.extend(deflate::compress_to_vec(&pages, 9));
        bytes
    }

    /// Parses a saved heap.
    ///
    /// # Errors
    /// Fails if these are not the bytes of a saved heap.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SavedError> {
        let line = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
        let header: SavedHeader = serde_json::from_slice(&bytes[..line])?;
        let deflated = bytes.get(line + 1..).ok_or(SavedError::Pages)?;
        let pages = inflate::decompress_to_vec_with_limit(deflated, MOST_BYTES)
            .map_err(|_| SavedError::Pages)?;
        let mut rest = pages.as_slice();
        let mut memory = Saved::default();
        for (at, length) in header.blocks {
            let length = usize::try_from(length).map_err(|_| SavedError::Pages)?;
            let (block, tail) = rest.split_at_checked(length).ok_or(SavedError::Pages)?;
            memory.blocks.push((at, block.to_vec()));
            rest = tail;
        }
        Ok(Self { data: header.data, mappings: header.mappings, memory })
    }

    /// Returns the words that are not zero: the number of their block, and their offset in it, in
    /// bytes. Mostly, they are of the allocator's own structures.
    pub fn nonzero_words(&self) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        for (block, (_, bytes)) in self.memory.blocks.iter().enumerate() {
            let words = bytes.chunks_exact(8).enumerate();
            places.extend(words.filter(|(_, w)| **w != [0; 8]).map(|(word, _)| (block, word * 8)));
        }
        places
    }
}

/// Receives all blocks of a walk, so that a damaged heap cannot make it panic or hang while it
/// collects them.
#[derive(Debug)]
pub struct AnyBlocks;

impl BlockVisitor for AnyBlocks {
    fn wants(&self, _: u64) -> bool {
        true
    }

    fn blocks(&mut self, range: Range<u64>, blocks: &[Block]) {
        assert!(range.start <= range.end && blocks.iter().all(|block| range.contains(&block.at)));
    }

    fn large(&mut self, _: Block) {}

    fn unknown(&mut self, _: Range<u64>) {}

    fn is_free(&mut self, _: u64) {}
}

/// Records which pages are read, so that only these are saved with their contents.
#[derive(Debug)]
pub struct MemoryRecorder<'m, M> {
    memory: &'m M,
    read: RefCell<BTreeSet<u64>>,
}

impl<'m, M: Memory> MemoryRecorder<'m, M> {
    /// Creates a recorder that reads from some memory.
    pub fn new(memory: &'m M) -> Self {
        Self { memory, read: RefCell::default() }
    }

    /// Saves the resident pages of the data and the mappings. Pages that were not read are saved as
    /// zeros.
    pub fn save(&self, data: &[Range<u64>], mappings: &[HeapMapping]) -> SavedHeap {
        let page = self.memory.page_bytes();
        let read = self.read.borrow();
        // A library's data continues in an anonymous mapping.
        let mut ranges: Vec<_> =
            data.iter().chain(mappings.iter().map(|m| &m.range)).cloned().collect();
        ranges.sort_unstable_by_key(|r| r.start);
        let mut blocks: Vec<(u64, Vec<u8>)> = Vec::new();
        for run in joined(ranges).into_iter().flat_map(|range| self.memory.resident(range)) {
            let mut block = vec![0; usize::try_from(run.end - run.start).unwrap_or(0)];
            for (number, bytes) in block.chunks_mut(page as usize).enumerate() {
                let at = run.start + number as u64 * page;
                if read.contains(&(at / page)) {
                    self.memory.read(at, bytes);
                }
            }
            blocks.push((run.start, block));
        }
        SavedHeap { data: data.to_vec(), mappings: mappings.to_vec(), memory: Saved::new(blocks) }
    }

    fn remember(&self, address: u64, length: usize) {
        let page = self.memory.page_bytes();
        let last = address.saturating_add(length as u64).saturating_sub(1) / page;
        self.read.borrow_mut().extend(address / page..=last);
    }
}

impl<M: Memory> Memory for MemoryRecorder<'_, M> {
    fn page_bytes(&self) -> u64 {
        self.memory.page_bytes()
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let length = self.memory.read(address, buffer);
        self.remember(address, length);
        length
    }

    fn read_resident(&self, address: u64, buffer: &mut [u8]) -> usize {
        let length = self.memory.read_resident(address, buffer);
        self.remember(address, length);
        length
    }

    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.memory.resident(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_heap_is_read_back_with_unread_pages_empty() {
        let memory = Saved::new(vec![(0x1000, vec![7; 4096]), (0x4000, vec![9; 8192])]);
        let recorder = MemoryRecorder::new(&memory);
        recorder.read(0x4ffc, &mut [0; 8]);
        let mappings = [HeapMapping { range: 0x4000..0x6000, is_brk: true }];
        let saved = recorder.save(&[0x1000..0x2000, 0x3000..0x5000], &mappings);
        let read = SavedHeap::from_bytes(&saved.to_bytes()).unwrap();
        assert_eq!(read.mappings, mappings);
        // A page that was not read is present, and empty.
        assert_eq!(read.memory.blocks, [(0x1000, vec![0; 4096]), (0x4000, vec![9; 8192])]);
    }

    #[test]
    fn an_invalid_saved_heap_is_rejected() {
        assert!(matches!(SavedHeap::from_bytes(b"{}"), Err(SavedError::SavedHeader(_))));
        let mut bytes = SavedHeap {
            data: Vec::new(),
            mappings: Vec::new(),
            memory: Saved::new(vec![(0, vec![1; 4096])]),
        }
        .to_bytes();
        bytes.truncate(bytes.len() - 4);
        assert!(matches!(SavedHeap::from_bytes(&bytes), Err(SavedError::Pages)));
    }
}
