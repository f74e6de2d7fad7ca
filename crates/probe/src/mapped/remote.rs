//! Files on network and FUSE file systems, read by a process of their own.
//!
//! The type of a file system is read from the lists of mounts, because a FUSE server may not answer
//! `statfs`. A file system that is in no list, such as one whose mount was detached, counts as
//! remote, unless it is on a block device or is the kernel's own for shared memory.
//!
//! Linux cannot end a thread that waits for a FUSE server which has accepted its request and does
//! not answer it (`request_wait_answer` in fs/fuse/dev.c), nor the process of that thread. So
//! another process opens and reads such a file. lowtide waits for the answers in a pipe, for a
//! bounded time.
//!
//! A request is an offset and a length, two numbers of 8 bytes; with length 0, it asks for the size
//! of the file. An answer is a byte (0: success), the number of bytes that follow, and these bytes:
//! the data or the size; or an error message. Before any request, the reader sends one answer:
//! whether it could open the file.

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::io::Errno;

use super::{Reach, open_here, too_slow};
use crate::mounts::{self, Mounts};
use crate::proc::maps::{self, FileId, Mapping};

/// Maximum length of one answer, in bytes.
const MAX_ANSWER: usize = 256 << 10;

/// Readers that had not ended when their file was dropped.
static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

static READER: OnceLock<fn() -> Command> = OnceLock::new();

/// Reads remote files in processes that this command starts, from now on. With the arguments PID,
/// START and INODE of a mapping (decimal), it must call [`serve`].
pub fn read_remote_files_by(command: fn() -> Command) {
    let _ = READER.set(command);
}

/// Returns the command that reads remote files, if there is one.
pub(super) fn reader() -> Option<fn() -> Command> {
    READER.get().copied()
}

/// The file systems that a process and lowtide see.
#[derive(Debug)]
pub(super) struct VisibleFileSystems {
    of_process: Mounts,
    /// Read for the first device.
    of_lowtide: OnceCell<Mounts>,
}

impl VisibleFileSystems {
    /// Reads the mounts that a process sees.
    pub(super) fn read(pid: u32) -> Self {
        Self { of_process: Mounts::read(pid), of_lowtide: OnceCell::new() }
    }

    /// Returns whether the file system of a device is remote, or may be. On kernels before 6.8, a
    /// mapped file of an overlay shows the device of its layer, which a container need not see.
    pub(super) fn is_remote(&self, device: (u32, u32)) -> bool {
        let of_lowtide = || self.of_lowtide.get_or_init(|| Mounts::read(std::process::id()));
        let is_known_local = || device.0 != 0 || shared_memory_device() == Some(device);
        let known = mounts::is_remote(device, [of_lowtide(), &self.of_process]);
        known.unwrap_or_else(|| !is_known_local())
    }
}

/// Returns the device of the kernel's own mount of shared memory (memfd, System V, `/dev/zero`),
/// which no list of mounts contains. The first call needs `memfd_create`.
pub(crate) fn shared_memory_device() -> Option<(u32, u32)> {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let find = || {
        let file = memfd_create("lowtide", MemfdFlags::CLOEXEC).ok()?;
        Some(FileId::of_stat(&fstat(file).ok()?).device)
    };
    *DEVICE.get_or_init(find)
}

/// A remote file, which another process has open. Dropping this ends that process.
#[derive(Debug)]
pub(super) struct RemoteFile(Mutex<Connection>);

#[derive(Debug)]
struct Connection {
    /// The reader, until it is dropped.
    child: Option<Child>,
    requests: ChildStdin,
    answers: ChildStdout,
    /// Whether an answer did not come in time. It may still come: nothing else can be asked.
    is_late: bool,
}

impl RemoteFile {
    /// Opens the file that is mapped. Its file system must answer until `end`.
    pub(super) fn open(
        mut command: Command,
        pid: u32,
        mapping: &Mapping,
        end: Option<Instant>,
    ) -> io::Result<Self> {
        let numbers = [u64::from(pid), mapping.start, mapping.file.inode];
        command.args(numbers.map(|number| number.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        reap();
        let mut connection = Connection { child: Some(child), requests, answers, is_late: false };
        connection.answer(end)?;
        Ok(Self(Mutex::new(connection)))
    }

    /// Returns its size in bytes.
    pub(super) fn size(&self, end: Option<Instant>) -> io::Result<u64> {
        let bytes = self.ask(0, 0, end)?;
        let size = bytes.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(u64::from_le_bytes(size))
    }

    /// Reads bytes at an offset, maybe fewer than the size of the buffer. Returns their number.
    pub(super) fn read_at(
        &self,
        bytes: &mut [u8],
        offset: u64,
        end: Option<Instant>,
    ) -> io::Result<usize> {
        let length = bytes.len().min(MAX_ANSWER);
        let found = self.ask(offset, length as u64, end)?;
        let length = found.len().min(length);
        bytes[..length].copy_from_slice(&found[..length]);
        Ok(length)
    }

    fn ask(&self, offset: u64, length: u64, end: Option<Instant>) -> io::Result<Vec<u8>> {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if connection.is_late {
            return Err(too_slow());
        }
        connection.requests.write_all(&[offset, length].map(u64::to_le_bytes).concat())?;
        connection.answer(end)
    }
}

impl Connection {
    fn answer(&mut self, end: Option<Instant>) -> io::Result<Vec<u8>> {
        let mut head = [0; 9];
        self.fill(&mut head, end)?;
        let [tag, length @ ..] = head;
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_ANSWER {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        self.fill(&mut bytes, end)?;
        match tag {
            0 => Ok(bytes),
            _ => Err(io::Error::other(String::from_utf8_lossy(&bytes).into_owned())),
        }
    }

    /// Fills a buffer with a part of an answer.
    fn fill(&mut self, mut bytes: &mut [u8], end: Option<Instant>) -> io::Result<()> {
        while !bytes.is_empty() {
            let rest = end.map(|end| end.saturating_duration_since(Instant::now()));
            let rest = rest.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
            let mut events = [PollFd::new(&self.answers, PollFlags::IN)];
            match poll(&mut events, rest.as_ref()) {
                Ok(0) => {
                    self.is_late = true;
                    return Err(too_slow());
                }
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            match self.answers.read(bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => bytes = &mut bytes[read..],
            }
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        /// Maximum time to wait for the end of the reader, in ms. One that waits for its file
        /// system ends later.
        const STEPS: u32 = 20;
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill();
        for _ in 0..STEPS {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }
}

/// Removes the readers that have ended meanwhile from the table of processes.
fn reap() {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

/// Answers requests for a mapped file, until the input ends.
///
/// # Errors
/// Fails if the output is closed.
pub fn serve(
    pid: u32,
    start: u64,
    inode: u64,
    mut requests: impl Read,
    mut answers: impl Write,
) -> io::Result<()> {
    let mut send = |answer: io::Result<Vec<u8>>| {
        let (tag, bytes) = match answer {
            Ok(bytes) => (0, bytes),
            Err(error) => (1, error.to_string().into_bytes()),
        };
        let length = (bytes.len() as u64).to_le_bytes();
        answers.write_all(&[&[tag], &length[..], &bytes].concat())?;
        answers.flush()
    };
    let file = match find(pid, start, inode) {
        Ok(file) => file,
        Err(error) => return send(Err(error)),
    };
    send(Ok(Vec::new()))?;
    let mut request = [[0; 8]; 2];
    while requests.read_exact(request.as_flattened_mut()).is_ok() {
        let [offset, length] = request.map(u64::from_le_bytes);
        send(match length {
            0 => file.size().map(|size| size.to_le_bytes().to_vec()),
            _ => {
                let mut bytes = vec![0; length.min(MAX_ANSWER as u64) as usize];
                file.read_at(&mut bytes, offset).map(|read| {
                    bytes.truncate(read);
                    bytes
                })
            }
        })?;
    }
    Ok(())
}

fn find(pid: u32, start: u64, inode: u64) -> io::Result<super::MappedFile> {
    let text = io::BufReader::new(File::open(format!("/proc/{pid}/maps"))?);
    let is_it = |mapping: &Mapping| (mapping.start, mapping.file.inode) == (start, inode);
    let found = maps::read(text).find(|mapping| mapping.as_ref().map_or(true, is_it));
    open_here(pid, &found.ok_or_else(super::another)??, Reach::Anywhere)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_by_requests() {
        let own = std::process::id();
        let maps = maps::read(&*std::fs::read("/proc/self/maps").unwrap())
            .collect::<io::Result<Vec<_>>>()
            .unwrap();
        let program = maps.iter().find(|mapping| mapping.has_file()).unwrap();
        let requests = [[1_u64, 3], [0, 0]].map(|words| words.map(u64::to_le_bytes).concat());
        let mut answers = Vec::new();
        let (start, inode) = (program.start, program.file.inode);
        serve(own, start, inode, &*requests.concat(), &mut answers).unwrap();
        let answer = |bytes: &[u8]| [&[0][..], &(bytes.len() as u64).to_le_bytes(), bytes].concat();
        let size = std::fs::metadata("/proc/self/exe").unwrap().len().to_le_bytes();
        assert_eq!(answers, [answer(b""), answer(b"ELF"), answer(&size)].concat());

        answers.clear();
        serve(own, start, inode + 1, &*requests.concat(), &mut answers).unwrap();
        let message = String::from_utf8_lossy(&answers).into_owned();
        assert!(answers[0] == 1 && message.contains("another file now"), "{message}");
    }

    #[test]
    fn a_file_system_that_nobody_sees_counts_as_remote() {
        let of_process = Mounts::parse(
            "22 1 254:0 / / rw - ext4 /dev/root rw\n\
             23 22 0:21 / /shm rw - tmpfs tmpfs rw\n\
             24 22 0:50 / /mnt rw - fuse.sshfs x rw\n\
             25 22 8:1 / /usb rw - fuseblk x rw\n\
             26 22 0:52 / /above rw - overlay overlay ro,lowerdir=/mnt/x:/usr\n\
             27 22 0:53 / /other rw - overlay overlay ro,lowerdir=/usr\n",
        );
        let seen = VisibleFileSystems { of_process, of_lowtide: Mounts::default().into() };
        for (device, is_remote) in [
            ((254, 0), false),
            ((0, 21), false),
            ((0, 50), true),
            ((8, 1), true),
            ((0, 52), true),
            ((0, 53), false),
            // A mount that was detached.
            ((0, 51), true),
            // A layer of an overlay.
            ((259, 3), false),
        ] {
            assert_eq!(seen.is_remote(device), is_remote, "{device:?}");
        }
    }

    #[test]
    fn memory_without_a_mount_is_local() {
        let own = VisibleFileSystems::read(std::process::id());
        let memory = shared_memory_device().unwrap();
        assert!(!own.is_remote(memory));
        let program = std::fs::metadata("/proc/self/exe").unwrap();
        let device = crate::proc::maps::FileId::from_metadata(&program).device;
        assert!(!own.is_remote(device));
    }
}
