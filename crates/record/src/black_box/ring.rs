//! A ring on disk: one file of a fixed size, whose older half is overwritten by the newest frames.
//!
//! The writer fills one half and then the other. When it enters a half, it first writes the state
//! that the caller keeps: what the process is, and its most important ledgers. So each half can be
//! read alone, and whatever ends the writer, the other half is complete. The space is allocated at
//! the beginning, so that a disk that becomes full later loses nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};

use super::frame::{ALIGNMENT, encode};

/// A ring that is being written.
#[derive(Debug)]
pub struct RingWriter {
    file: File,
    half_bytes: usize,
    /// The half that is being filled: 0 or 1.
    half: usize,
    /// Place of the next frame in the half.
    offset: usize,
    sequence: u64,
}

impl RingWriter {
    /// Starts a ring of this size in an empty file.
    ///
    /// # Errors
    /// Fails if there is not enough space.
    pub fn new(file: File, bytes: usize) -> io::Result<Self> {
        let half_bytes = bytes / 2 / ALIGNMENT * ALIGNMENT;
        match fallocate(&file, FallocateFlags::empty(), 0, (half_bytes * 2) as u64) {
            // The file system cannot reserve space: the file grows as it is written.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self { file, half_bytes, half: 0, offset: 0, sequence: 1 })
    }

    /// Writes a frame. If it does not fit into the rest of the half, writes `state` at the start of
    /// the other half, and then the frame. A frame that fits nowhere is left out.
    ///
    /// # Errors
    /// Fails if it cannot be written. The frames before it stay readable.
    pub fn write<'s>(
        &mut self,
        payload: &[u8],
        state: impl FnOnce() -> Vec<&'s [u8]>,
    ) -> io::Result<()> {
        let Some(frame) = encode(self.sequence, payload) else { return Ok(()) };
        if self.offset + frame.len() > self.half_bytes {
            self.half = 1 - self.half;
            self.offset = 0;
            for kept in state() {
                let frame = encode(self.sequence, kept);
                // The state leaves at least half of the room to the frames after it.
                let fits = |frame: &Vec<u8>| self.offset + frame.len() <= self.half_bytes / 2;
                if let Some(frame) = frame.filter(fits) {
                    self.append(&frame)?;
                }
            }
        }
        // The state has taken sequence numbers.
        match encode(self.sequence, payload) {
            Some(frame) if self.offset + frame.len() <= self.half_bytes => self.append(&frame),
            _ => Ok(()),
        }
    }

    /// Writes everything to the disk, in a thread of its own: a disk may be slow.
    pub fn sync(self) {
        let sync = move || drop(self.file.sync_data());
        // Without the thread, the kernel writes the pages later.
        let _ = std::thread::Builder::new().name("sync".to_owned()).spawn(sync);
    }

    fn append(&mut self, frame: &[u8]) -> io::Result<()> {
        let place = self.half * self.half_bytes + self.offset;
        self.file.write_all_at(frame, place as u64)?;
        self.offset += frame.len();
        self.sequence += 1;
        Ok(())
    }
}
