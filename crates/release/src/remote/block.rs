//! What is written to the target and read from it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{Remote, Step, failed};
use crate::checks::Abort;
use crate::stub::numbers::OFF_HEARTBEAT;
use crate::stub::{BLOCK_BYTES, CODE_BYTES};

impl Remote<'_> {
    /// Writes to the target, from the end backwards, a page at a time: where pages are missing, nothing
    /// below them is written.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Abort> {
        (self.observe)(Step::Write);
        let mut end = at + bytes.len() as u64;
        while end > at {
            let begin = at.max((end - 1) & !4095);
            let part = &bytes[(begin - at) as usize..(end - at) as usize];
            self.memory.write_all_at(part, begin).map_err(|error| self.failed(error))?;
            end = begin;
        }
        Ok(())
    }

    /// Writes to the shared block, which must be mapped, and within it: nothing else of the target is ours.
    pub(crate) fn write_block(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Abort> {
        let place = self.place.ok_or_else(|| failed("nothing was mapped yet"))?;
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > BLOCK_BYTES) {
            return Err(failed("it would have written outside of its own block"));
        }
        self.write(place + CODE_BYTES + offset, bytes)
    }

    pub(crate) fn put(&mut self, offset: u64, word: u64) -> Result<(), Abort> {
        self.write_block(offset, &word.to_le_bytes())
    }

    pub(crate) fn put_half(&mut self, offset: u64, half: u64) -> Result<(), Abort> {
        self.write_block(offset, &(half as u32).to_le_bytes())
    }

    pub(crate) fn get(&self, offset: u64) -> Option<u64> {
        self.word(self.place? + CODE_BYTES + offset)
    }

    pub(crate) fn half(&self, offset: u64) -> Option<u64> {
        let at = self.place? + CODE_BYTES + offset;
        let mut bytes = [0; 4];
        self.memory.read_exact_at(&mut bytes, at).ok()?;
        Some(u32::from_le_bytes(bytes).into())
    }

    pub(crate) fn read_block(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        let place = self.place?;
        self.memory.read_exact_at(bytes, place + CODE_BYTES + offset).ok()
    }

    pub(super) fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Returns a handle of the target's memory and the address of the heartbeat in it, for another thread of lowtide.
    pub(crate) fn heartbeat(&self) -> io::Result<(File, u64)> {
        let place = self.place.unwrap_or(0);
        Ok((self.memory.try_clone()?, place + CODE_BYTES + OFF_HEARTBEAT))
    }
}
