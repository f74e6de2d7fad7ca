//! The end of a process, seen from one that is not its parent.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lowtide_model::counters::ProcessBytes;
use rustix::ioctl::{Opcode, Updater, opcode};

use crate::proc::status::Status;
use crate::proc::{is_gone, reread};
use crate::target::Target;

/// PIDFD_GET_INFO (linux/pidfd.h, since 6.13).
const GET_INFO: Opcode = opcode::read_write::<PidfdInfo>(0xff, 11);
/// `PIDFD_INFO_EXIT`: the exit status, since 6.15, after its parent has reaped it.
const EXIT: u64 = 1 << 3;
/// Place of the exit status in `/proc/PID/stat`, counted from the field after the name, which is
/// the third (proc(5), `exit_code`).
const EXIT_CODE_FIELD: usize = 52 - 3;

/// `struct pidfd_info` in its first version.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// Files of a process that stay open until after its end.
#[derive(Debug)]
pub struct ExitReader {
    pidfd: Option<OwnedFd>,
    stat: File,
    status: File,
}

impl ExitReader {
    /// Opens the files of a process.
    ///
    /// # Errors
    /// Fails if it has ended, or if no more files can be opened.
    pub fn open(target: &Target) -> io::Result<Self> {
        Ok(Self {
            pidfd: target.pidfd().ok(),
            stat: target.file("stat")?,
            status: target.file("status")?,
        })
    }

    /// Returns the descriptor that becomes readable when the process ends; `None` on kernels before
    /// 5.3.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Reads its memory; `None` if it has ended, or has lost its memory already.
    ///
    /// # Errors
    /// Fails if `/proc` cannot be read for another reason.
    pub fn bytes(&self, buffer: &mut Vec<u8>) -> io::Result<Option<ProcessBytes>> {
        let status = match reread(&self.status, buffer) {
            Ok(text) => Status::parse(&text)?,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = status.memory();
        Ok((bytes != ProcessBytes::default()).then_some(bytes))
    }

    /// Returns whether it is ending, or will as soon as it runs: it has lost its memory, or SIGKILL
    /// waits for it. On a busy machine, that can take seconds after a kill.
    pub fn is_ending(&self, buffer: &mut Vec<u8>) -> bool {
        /// Bit of SIGKILL in a set of signals.
        const KILL: u64 = 1 << 8;
        let text = reread(&self.status, buffer);
        let Some(status) = text.ok().and_then(|text| Status::parse(&text).ok()) else {
            return true;
        };
        let signals = status.signals.pending | status.signals.pending_shared;
        let has_memory = status.rss_bytes() > 0 || status.swap_bytes > 0;
        signals & KILL != 0 || !has_memory || matches!(status.state, 'Z' | 'X')
    }

    /// Reads the exit status as the kernel keeps it (wait(2)); `None` if it has not ended, if its
    /// parent has reaped it and the kernel is older than 6.15, or if it may not be read.
    pub fn status(&self, buffer: &mut Vec<u8>) -> Option<u32> {
        let mut of_zombie = || {
            let text = reread(&self.stat, buffer).ok()?;
            let fields = text.get(text.rfind(')')? + 1..)?;
            let mut fields = fields.split_ascii_whitespace();
            let has_ended = matches!(fields.next()?, "Z" | "X");
            fields.nth(EXIT_CODE_FIELD - 1)?.parse().ok().filter(|_| has_ended)
        };
        // Zero is also what a reader sees that may not know it.
        let of_zombie = of_zombie();
        of_zombie.filter(|status| *status != 0).or_else(|| self.reaped_status()).or(of_zombie)
    }

    fn reaped_status(&self) -> Option<u32> {
        let mut info = PidfdInfo { mask: EXIT, ..PidfdInfo::default() };
        // SAFETY: `GET_INFO` is the number of PIDFD_GET_INFO, whose argument is a `struct
        // pidfd_info`; `PidfdInfo` has the layout of its first version, whose size is part of the
        // number, and which the kernel does not exceed.
        #[expect(unsafe_code, reason = "an ioctl that rustix does not have")]
        unsafe {
            let updater = Updater::<GET_INFO, PidfdInfo>::new(&mut info);
            rustix::ioctl::ioctl(self.pidfd.as_ref()?.as_fd(), updater).ok()?;
        }
        (info.mask & EXIT != 0).then_some(info.exit_code.cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn shell(script: &str) -> (Child, ExitReader) {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        (child, ExitReader::open(&target).unwrap())
    }

    #[test]
    fn the_exit_status_of_a_zombie_is_read() {
        for (script, status) in [("sleep 0.2; exit 3", 3 << 8), ("sleep 0.2; kill -11 $$", 11)] {
            let (mut child, reader) = shell(script);
            let mut buffer = Vec::new();
            assert!(reader.bytes(&mut buffer).unwrap().unwrap().rss() > 0);
            assert!(!reader.is_ending(&mut buffer));
            let read = lowtide_testing::until("the end", || reader.status(&mut buffer));
            assert_eq!(read & 0x7f7f, status, "{script}");
            assert_eq!(reader.bytes(&mut buffer).unwrap(), None);
            assert!(reader.is_ending(&mut buffer));
            child.wait().unwrap();
        }
    }

    #[test]
    fn after_its_parent_has_reaped_it_the_status_is_right_or_unknown() {
        let (mut child, reader) = shell("sleep 0.2; exit 5");
        child.wait().unwrap();
        let read = reader.status(&mut Vec::new());
        assert!(matches!(read, None | Some(0x500)), "{read:?}");
    }
}
