//! The mapped files of a process, opened so that the process cannot mislead the opener.
//!
//! A process chooses the names of its mappings, and what exists at these paths later: another file,
//! a FIFO that blocks `open` forever, a device, a symbolic link into the opener's root. This module
//! opens regular files only, and only the file that is mapped.
//!
//! A file on a network or of a FUSE server can take seconds for each read. Of those that a
//! process maps, little is read, and a thread waits little for them, so that one process does not
//! delay the inspection of others; and another process reads them ([`read_remote_files_by`]).

mod remote;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, open, openat};

pub(crate) use remote::shared_memory_device;
pub use remote::{read_remote_files_by, serve};

use crate::abandoned;
use crate::mounts::{is_local_mount, located_mount};
use crate::proc::maps::{FileId, Mapping};
use remote::{RemoteFile, VisibleFileSystems};

/// Magic numbers of file systems whose files have another device number in `maps` than for `stat`
/// (linux/magic.h): btrfs gives each subvolume its own, overlayfs shows the lower file.
const OTHER_DEVICE: [i64; 2] = [0x9123_683e, 0x794c_7630];

/// Magic numbers of remote file systems and of FUSE (linux/magic.h; those of SMB and Ceph are in
/// their own sources).
const REMOTE: [i64; 8] = [
    0x6573_5546, // FUSE
    0x6969,      // NFS
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x517b,      // SMB
    0x00c3_6400, // Ceph
    0x0102_1997, // 9p
    0x5346_414f, // AFS
];

/// Maximum number of bytes that are read of the remote files of a process within
/// [`REMOTE_PERIOD`], by all threads.
const MAX_REMOTE_BYTES: u64 = 1 << 20;
const REMOTE_PERIOD: Duration = Duration::from_secs(60);

/// Maximum time for which a thread waits for remote file systems, in total, unless another one
/// abandons it.
const MAX_REMOTE_TIME: Duration = Duration::from_secs(2);

/// The processes of which remote files were read: the time of the first read, and the number of
/// bytes that may still be read.
static REMOTE_BYTES: Mutex<BTreeMap<u32, (Instant, u64)>> = Mutex::new(BTreeMap::new());

/// Passes the number of bytes that may be read of the remote files of a process to a function.
fn with_remote_bytes<T>(pid: u32, act: impl FnOnce(&mut u64) -> T) -> T {
    let mut all = REMOTE_BYTES.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|_, (begin, _)| begin.elapsed() < REMOTE_PERIOD);
    let (_, left) = all.entry(pid).or_insert_with(|| (Instant::now(), MAX_REMOTE_BYTES));
    act(left)
}

thread_local! {
    /// The rest of that time; `None` for a thread that another one abandons.
    static REMOTE_TIME: Cell<Option<Duration>> = const { Cell::new(Some(MAX_REMOTE_TIME)) };

    /// The process whose files it has opened last, and the file systems that this one sees.
    static FILE_SYSTEMS: RefCell<Option<(u32, VisibleFileSystems)>> = const { RefCell::new(None) };
}

/// The file systems that may be asked for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Those of this machine: not those on a network or of a FUSE server.
    Local,
    /// All.
    Anywhere,
}

/// Whether remote files are left unread.
static IS_LOCAL_ONLY: AtomicBool = AtomicBool::new(false);

/// Reads what the recognition of local files needs once and a seccomp filter may forbid later.
pub(crate) fn prepare() {
    remote::shared_memory_device();
}

/// Leaves remote files unread from now on, in all threads: for views of many processes, which one
/// slow file system would delay.
pub fn read_local_files_only() {
    IS_LOCAL_ONLY.store(true, Ordering::Relaxed);
}

/// Lets this thread wait for remote file systems for any time, because another thread bounds its
/// work.
pub(crate) fn wait_for_remote_files() {
    REMOTE_TIME.set(None);
}

/// Asks for something of a remote file, within the time that this thread may wait for such files.
fn in_time<T>(ask: impl FnOnce(Option<Instant>) -> io::Result<T>) -> io::Result<T> {
    let time = REMOTE_TIME.get();
    if time == Some(Duration::ZERO) {
        return Err(too_slow());
    }
    let begin = Instant::now();
    let answer = ask(time.map(|time| begin + time));
    REMOTE_TIME.set(time.map(|time| time.saturating_sub(begin.elapsed())));
    answer
}

/// A file that a process has mapped.
#[derive(Debug)]
pub struct MappedFile {
    opened: Opened,
    /// The process that has mapped it, if it is remote.
    remote_of: Option<u32>,
}

#[derive(Debug)]
enum Opened {
    Here(File),
    Elsewhere(RemoteFile),
}

impl MappedFile {
    /// Returns the file, of which any number of bytes can be read.
    ///
    /// # Errors
    /// Fails if it is remote, and so only open in the process that reads it for lowtide.
    pub fn file(&self) -> io::Result<&File> {
        match &self.opened {
            Opened::Here(file) => Ok(file),
            Opened::Elsewhere(_) => Err(io::Error::other("it is on a network or FUSE file system")),
        }
    }

    /// Returns its size in bytes.
    ///
    /// # Errors
    /// Fails if its file system does not answer.
    pub fn size(&self) -> io::Result<u64> {
        match &self.opened {
            Opened::Here(file) => Ok(file.metadata()?.len()),
            Opened::Elsewhere(file) => in_time(|end| file.size(end)),
        }
    }

    /// Reads bytes at an offset. Returns their number, which is less than the size of the buffer at
    /// the end of the file.
    ///
    /// # Errors
    /// Fails if they cannot be read, if too much was read of remote files of the process, or if
    /// this thread has waited too long for such files.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(pid) = self.remote_of.filter(|_| !bytes.is_empty()) else {
            return self.read_any_at(bytes, offset);
        };
        let wanted = bytes.len() as u64;
        let granted = with_remote_bytes(pid, |left| {
            let granted = wanted.min(*left);
            *left -= granted;
            granted
        });
        if granted == 0 {
            return Err(too_much());
        }
        let read = self.read_any_at(&mut bytes[..granted as usize], offset);
        let unread = granted - read.as_ref().map_or(0, |read| *read as u64);
        with_remote_bytes(pid, |left| *left = (*left + unread).min(MAX_REMOTE_BYTES));
        read
    }

    fn read_any_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.opened {
            Opened::Here(file) => file.read_at(bytes, offset),
            Opened::Elsewhere(file) => in_time(|end| file.read_at(bytes, offset, end)),
        }
    }

    /// Reads the bytes at an offset until a buffer is full or the file ends. Returns the number of
    /// bytes that were read, and the error that ended it: an error of [`read_at`](Self::read_at).
    pub(crate) fn fill_at(&self, bytes: &mut [u8], offset: u64) -> (usize, io::Result<()>) {
        let mut length = 0;
        while length < bytes.len() {
            match self.read_at(&mut bytes[length..], offset.saturating_add(length as u64)) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (length, Err(error)),
            }
        }
        (length, Ok(()))
    }

    /// Fills a buffer with the bytes at an offset.
    ///
    /// # Errors
    /// Fails as [`read_at`](Self::read_at) does, and at the end of the file.
    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let (length, read) = self.fill_at(bytes, offset);
        read?;
        if length < bytes.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

/// A file of this machine.
impl From<File> for MappedFile {
    fn from(file: File) -> Self {
        Self { opened: Opened::Here(file), remote_of: None }
    }
}

fn too_much() -> io::Error {
    io::Error::other(
        "it is on a network or FUSE file system, of which lowtide reads at most 1 MiB for a process \
         within a minute",
    )
}

fn too_slow() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "its network or FUSE file system does not answer in time",
    )
}

/// Reads the code of a mapping from its file. Returns the bytes, and whether they are all: the file
/// may be unreadable, and the largest programs are not read.
pub fn code_of(pid: u32, mapping: &Mapping) -> (Vec<u8>, bool) {
    const MAX_BYTES: usize = 32 << 20;
    let none = (Vec::new(), false);
    let Some(size) = usize::try_from(mapping.size()).ok().filter(|size| *size <= MAX_BYTES) else {
        return none;
    };
    let Ok(file) = open_mapped(pid, mapping) else { return none };
    let mut bytes = vec![0; size];
    // The file may end within the last page.
    let (length, read) = file.fill_at(&mut bytes, mapping.offset);
    bytes.truncate(length);
    (bytes, read.is_ok())
}

/// Opens the file that is mapped, even if its path now leads to another one.
///
/// # Errors
/// Fails if it cannot be found, is not a regular file, or was replaced by another one; if it is
/// remote, and such files are left unread; or if reads of too many files do not end.
pub fn open_mapped(pid: u32, mapping: &Mapping) -> io::Result<MappedFile> {
    if abandoned::is_short_of_threads() {
        return Err(io::Error::other("too many reads of other files are still blocked"));
    }
    let is_local_only = IS_LOCAL_ONLY.load(Ordering::Relaxed);
    let mut reach = Reach::Local;
    if is_on_remote_device(pid, mapping) {
        if is_local_only {
            return Err(left_unread());
        }
        if with_remote_bytes(pid, |left| *left) == 0 {
            return Err(too_much());
        }
        if let Some(command) = remote::reader() {
            let opened = in_time(|end| RemoteFile::open(command(), pid, mapping, end))?;
            return Ok(MappedFile { opened: Opened::Elsewhere(opened), remote_of: Some(pid) });
        }
        reach = Reach::Anywhere;
    }
    let file = open_here(pid, mapping, reach)?;
    if file.remote_of.is_some() && is_local_only { Err(left_unread()) } else { Ok(file) }
}

/// Opens the file that is mapped, if it is on a disk of this machine.
///
/// # Errors
/// Like [`open_mapped`], and if it is remote.
pub(crate) fn open_local(pid: u32, mapping: &Mapping) -> io::Result<File> {
    if is_on_remote_device(pid, mapping) {
        return Err(left_unread());
    }
    match open_here(pid, mapping, Reach::Local)? {
        MappedFile { opened: Opened::Here(file), remote_of: None } => Ok(file),
        _ => Err(left_unread()),
    }
}

/// Opens the file that is mapped, in this process.
fn open_here(pid: u32, mapping: &Mapping, reach: Reach) -> io::Result<MappedFile> {
    let place = by_range(pid, mapping).or_else(|_| by_path(pid, mapping, reach))?;
    // A FUSE server need not implement this.
    let is_remote =
        fstatfs(&place).map_or(true, |found| REMOTE.contains(&(found.f_type & 0xffff_ffff)));
    let remote_of = is_remote.then_some(pid);
    Ok(MappedFile { opened: Opened::Here(reopen(&place)?), remote_of })
}

fn left_unread() -> io::Error {
    io::Error::other("it is on a network or FUSE file system (--remote-files)")
}

/// Returns whether the file system of a mapped file is remote, or may be.
fn is_on_remote_device(pid: u32, mapping: &Mapping) -> bool {
    FILE_SYSTEMS.with_borrow_mut(|known| {
        if known.as_ref().is_none_or(|(process, _)| *process != pid) {
            *known = None;
        }
        let (_, seen) = known.get_or_insert_with(|| (pid, VisibleFileSystems::read(pid)));
        seen.is_remote(mapping.file.device)
    })
}

/// Opens it by its addresses, which requires `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`.
fn by_range(pid: u32, mapping: &Mapping) -> io::Result<OwnedFd> {
    let range = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    Ok(open(range, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens it by its path: in `maps`, no part of a path is a symbolic link. It begins at the root of
/// the process, or, if the process has another one in the same namespace (`chroot`), at that of
/// lowtide.
fn by_path(pid: u32, mapping: &Mapping, reach: Reach) -> io::Result<OwnedFd> {
    let within = |root| {
        let place = in_root(root, &mapping.name, reach)?;
        if is_same(&place, mapping.file)? { Ok(place) } else { Err(another()) }
    };
    within(pid).or_else(|error| within(std::process::id()).map_err(|_| error))
}

/// Reads at most `most` bytes of a file in the root of a process. The file must belong to its user
/// or to root.
///
/// # Errors
/// Fails if a part of the path is a symbolic link or on a remote file system. Fails if the file is
/// not a regular file, or belongs to another user.
pub fn read_in_root(pid: u32, path: &str, user: u32, most: u64) -> io::Result<Vec<u8>> {
    let place = located_in_root(pid, path)?;
    let owner = fstat(&place)?.st_uid;
    if owner != user && owner != 0 {
        return Err(io::Error::other("it belongs to another user"));
    }
    let mut bytes = Vec::new();
    reopen(&place)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a directory in the root of a process, as a place in which files are looked up.
///
/// # Errors
/// Fails if a part of the path is a symbolic link or on a remote file system, or if it is not a
/// directory.
pub fn directory_in_root(pid: u32, path: &str) -> io::Result<OwnedFd> {
    let place = located_in_root(pid, path)?;
    match FileType::from_raw_mode(fstat(&place)?.st_mode) {
        FileType::Directory => Ok(place),
        _ => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Locates a file in the root of a process, without opening it. No FUSE server is asked for
/// anything.
///
/// # Errors
/// Fails if a part of the path is a symbolic link or on a remote file system.
pub(crate) fn located_in_root(pid: u32, path: &str) -> io::Result<OwnedFd> {
    in_root(pid, path, Reach::Local)
}

/// Locates a file in the root of a process. Symbolic links are not followed.
fn in_root(pid: u32, path: &str, reach: Reach) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut place = open(format!("/proc/{pid}/root"), flags | OFlags::DIRECTORY, Mode::empty())?;
    let mut mount = None;
    check(pid, &place, &mut mount, reach)?;
    // Part by part, as `openat2` would with RESOLVE_NO_SYMLINKS: its flags are in memory, where the
    // seccomp filter of the exporter cannot check that a file is opened for reading. And a part
    // that is another mount is known before anything is looked up in it.
    for part in path.split('/').filter(|part| !part.is_empty()) {
        if part == ".." {
            return Err(io::Error::other("its path contains `..`"));
        }
        place = openat(&place, part, flags | OFlags::NOFOLLOW, Mode::empty())?;
        check(pid, &place, &mut mount, reach)?;
        if FileType::from_raw_mode(fstat(&place)?.st_mode) == FileType::Symlink {
            return Err(io::Error::other("its path contains a symbolic link"));
        }
    }
    Ok(place)
}

/// Checks that the file system of a located file may be asked for something. `known` is the mount
/// that was checked last, whose files are still open.
fn check(pid: u32, place: &OwnedFd, known: &mut Option<u64>, reach: Reach) -> io::Result<()> {
    if reach == Reach::Anywhere {
        return Ok(());
    }
    let mount = located_mount(place).ok_or_else(another)?;
    if *known != Some(mount) && !is_local_mount(pid, mount) {
        let why =
            "its path leads to a network or FUSE file system, or to one that no process shows";
        return Err(io::Error::other(why));
    }
    *known = Some(mount);
    Ok(())
}

fn is_same(place: &OwnedFd, wanted: FileId) -> io::Result<bool> {
    let stat = fstat(place)?;
    let FileId { device, inode } = FileId::of_stat(&stat);
    let has_device = device == wanted.device || OTHER_DEVICE.contains(&fstatfs(place)?.f_type);
    Ok(inode == wanted.inode && has_device)
}

/// Opens a located file for reading. Opening anything but a regular file can block or have side
/// effects.
pub(crate) fn reopen(place: impl AsFd) -> io::Result<File> {
    let place = place.as_fd();
    if FileType::from_raw_mode(fstat(place)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(open(format!("/proc/self/fd/{}", place.as_raw_fd()), flags, Mode::empty())?.into())
}

fn another() -> io::Error {
    io::Error::other("its path leads to another file now")
}

#[cfg(test)]
mod tests {
    use rustix::fs::CWD;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::proc::maps::Permissions;

    /// Returns a mapping with the name of a file at a path.
    fn mapping(path: &Path, file: FileId) -> Mapping {
        Mapping {
            start: 0x1000,
            end: 0x2000,
            permissions: Permissions::parse("r-xp").unwrap(),
            offset: 0,
            file,
            name: path.to_string_lossy().into_owned(),
        }
    }

    fn id_of(path: &Path) -> FileId {
        FileId::from_metadata(&path.metadata().unwrap())
    }

    fn opened(path: &Path, file: FileId) -> Result<MappedFile, String> {
        open_mapped(std::process::id(), &mapping(path, file)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_at_a_path_is_opened_only_if_it_is_the_mapped_file() {
        let directory = tempfile::tempdir().unwrap();
        let [library, other] = ["library", "other"].map(|name| directory.path().join(name));
        std::fs::write(&library, "library").unwrap();
        std::fs::write(&other, "other").unwrap();
        let id = id_of(&library);
        let opened_file = opened(&library, id).unwrap();
        assert_eq!(FileId::from_metadata(&opened_file.file().unwrap().metadata().unwrap()), id);
        assert_eq!(opened(&other, id).unwrap_err(), "its path leads to another file now");
    }

    #[test]
    fn little_is_read_of_the_remote_files_of_a_process_by_all_threads() {
        let file = |pid| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(8 << 20).unwrap();
            MappedFile { remote_of: pid, ..MappedFile::from(file) }
        };
        // No PIDs.
        let [process, other] = [u32::MAX, u32::MAX - 1].map(Some);
        let read = |file: &MappedFile, length| file.read_exact_at(&mut vec![0; length], 0);
        read(&file(process), 1 << 19).unwrap();
        std::thread::spawn(move || read(&file(process), 1 << 19).unwrap()).join().unwrap();
        let error = read(&file(process), 1).unwrap_err().to_string();
        assert!(error.contains("at most 1 MiB"), "{error}");
        assert!(read(&file(process), 0).is_ok());
        read(&file(other), 1 << 20).unwrap();
        read(&file(None), 8 << 20).unwrap();
    }

    #[test]
    fn what_a_read_of_a_remote_file_does_not_return_can_be_read_later() {
        let pid = u32::MAX - 2;
        let file = tempfile::tempfile().unwrap();
        file.set_len(10).unwrap();
        let file = MappedFile { remote_of: Some(pid), ..MappedFile::from(file) };
        assert_eq!(file.read_at(&mut [0; 1000], 0).unwrap(), 10);
        assert_eq!(with_remote_bytes(pid, |left| *left), MAX_REMOTE_BYTES - 10);
    }

    #[test]
    fn a_fifo_in_place_of_a_library_is_an_error_and_does_not_block() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("x.so (deleted)");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        // Not even if the FIFO has reused its inode number.
        assert_eq!(opened(&fifo, id_of(&fifo)).unwrap_err(), "it is not a regular file");
    }

    #[test]
    fn a_device_is_not_opened() {
        let null = Path::new("/dev/null");
        assert_eq!(opened(null, id_of(null)).unwrap_err(), "it is not a regular file");
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("library");
        std::fs::write(&library, "library").unwrap();
        let link = directory.path().join("link");
        symlink(&library, &link).unwrap();
        symlink(directory.path(), directory.path().join("here")).unwrap();
        for path in [link, directory.path().join("here/library")] {
            let error = opened(&path, id_of(&library)).unwrap_err();
            assert!(error.contains("symbolic link"), "{error}");
        }
    }
}
