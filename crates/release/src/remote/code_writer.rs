//! Writing our code to its page in the target, which is mapped without the right to write.
//!
//! The kernel's setting `proc_mem.force_override` (Linux 6.12) decides which writes it permits:
//! with `always`, any by `/proc/PID/mem`; with `ptrace`, only if the writer traces the thread whose
//! `mem` it is; with `never`, none. Writes by `PTRACE_POKEDATA` do not depend on it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::TargetStep;
use super::borrow::ThreadBorrower;
use super::stopped_thread::StoppedThread;
use crate::error::Abort;

/// Time since the stop of a thread after which no further word is written: the rest needs another
/// stop.
const MAX_STOP: Duration = Duration::from_micros(300);
/// Minimum number of words that are written in one stop.
const MIN_WORDS: usize = 16;
/// Bytes of a word.
const WORD: usize = 8;

impl ThreadBorrower<'_> {
    /// Writes our code to an address, while a thread is stopped: in one stop, or, if the kernel
    /// permits words only, in as many as needed.
    ///
    /// # Errors
    /// Fails if no thread can be stopped, or if the page is not there.
    pub(super) fn write_code(&mut self, at: u64, code: &[u8]) -> Result<(), Abort> {
        let mut written = 0;
        while written < code.len() {
            let (from, rest) = (at + written as u64, &code[written..]);
            written += self.pause(&[], |borrower, stopped| {
                borrower.io.observe(TargetStep::Write);
                let part = stopped.write_code(from, rest, borrower.words_only);
                let part = part.map_err(|error| borrower.io.failed(error))?;
                borrower.words_only |= part.by_words;
                Ok(part.bytes)
            })?;
        }
        Ok(())
    }
}

/// A part of the code that was written.
struct WrittenPart {
    bytes: usize,
    by_words: bool,
}

impl StoppedThread {
    /// Writes as much of the code as one stop permits.
    fn write_code(&self, at: u64, code: &[u8], words_only: bool) -> io::Result<WrittenPart> {
        if !words_only {
            let path = format!("/proc/{}/task/{}/mem", self.thread.pid, self.thread.tid);
            let memory = OpenOptions::new().write(true).open(path)?;
            match memory.write_all_at(code, at) {
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {}
                written => {
                    return written.map(|()| WrittenPart { bytes: code.len(), by_words: false });
                }
            }
        }
        let mut bytes = 0;
        for (n, part) in code.chunks(WORD).enumerate() {
            if n >= MIN_WORDS && self.since.elapsed() >= MAX_STOP {
                break;
            }
            // The page has only zeros after the code.
            let mut word = [0; WORD];
            word[..part.len()].copy_from_slice(part);
            self.tracee.poke(at + bytes as u64, u64::from_le_bytes(word))?;
            bytes += part.len();
        }
        Ok(WrittenPart { bytes, by_words: true })
    }
}
