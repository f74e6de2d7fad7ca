//! Files that lowtide creates, perhaps as root and in a directory that other users may write to. No symbolic
//! link is followed, only regular files are written to, and other users cannot read them (0640).

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};

const MODE: u32 = 0o640;
const MODE_FOR_ALL: u32 = 0o644;

/// Returns the options for a file of lowtide. Opening one follows no symbolic link and never blocks.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    // The flags of open(2) are the same bits in both types.
    options.mode(MODE).custom_flags(flags.bits().cast_signed());
    options
}

/// Creates a file, or truncates an existing one.
///
/// # Errors
/// Fails if it cannot be created, or if it exists and is not a regular file.
pub fn create(path: &Path) -> io::Result<File> {
    let file = regular(options().write(true).create(true).open(path)?)?;
    file.set_len(0)?;
    Ok(file)
}

/// Creates a file that does not exist yet.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if the path exists; otherwise fails if the file cannot be created.
pub fn create_new(path: &Path) -> io::Result<File> {
    options().write(true).create_new(true).open(path)
}

/// Opens a file to append to it, and creates it if it does not exist.
///
/// # Errors
/// Fails if it cannot be opened, or is not a regular file.
pub fn open_append(path: &Path) -> io::Result<File> {
    regular(options().append(true).create(true).open(path)?)
}

/// Opens a file to read it.
///
/// # Errors
/// Fails if it cannot be opened, or is not a regular file.
pub fn open_read(path: &Path) -> io::Result<File> {
    regular(options().read(true).open(path)?)
}

/// Returns whether users other than the owner may replace files in the directory of a file.
pub fn is_in_shared_directory(path: &Path) -> io::Result<bool> {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let meta = fs::metadata(directory.unwrap_or(Path::new(".")))?;
    Ok(meta.permissions().mode() & WRITABLE_BY_OTHERS != 0)
}

/// Returns an error if the file is not a regular file.
pub(crate) fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// Writes a whole file. The old contents stay until the new contents are complete. Without `replace`, the
/// file must not exist yet.
///
/// # Errors
/// Fails if it cannot be written; [`io::ErrorKind::AlreadyExists`] if the path exists and may not be
/// replaced.
pub fn write_whole(path: &Path, bytes: &[u8], replace: bool) -> io::Result<()> {
    write(path, bytes, replace, MODE, File::sync_all)
}

/// Writes a whole file like [`write_whole`], and replaces an existing file. All users may read it, as far as
/// the umask permits: programs that read metrics have users of their own. It does not wait for the disk.
///
/// # Errors
/// If it cannot be written, or something other than a regular file exists there.
pub fn replace_for_all(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, true, MODE_FOR_ALL, |_| Ok(()))
}

fn write(
    path: &Path,
    bytes: &[u8],
    replace: bool,
    mode: u32,
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(_) if !replace => return Err(io::ErrorKind::AlreadyExists.into()),
        Ok(found) if !found.is_file() => return Err(not_regular()),
        _ => {}
    }
    let part = part_of(path);
    let written = options()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&part)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| sync(&file)))
        .and_then(|()| put(&part, path, replace));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// Renames the complete file to its final name.
fn put(part: &Path, path: &Path, replace: bool) -> io::Result<()> {
    if replace {
        return fs::rename(part, path);
    }
    match renameat_with(CWD, part, CWD, path, RenameFlags::NOREPLACE) {
        // The file system does not support this atomically.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            fs::hard_link(part, path)?;
            fs::remove_file(part)
        }
        done => Ok(done?),
    }
}

/// Returns the name of a file while it is being written.
fn part_of(path: &Path) -> std::path::PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn not_regular() -> io::Error {
    io::Error::other("the path is not a regular file")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_replaced_only_on_request_and_atomically() {
        let home = tempfile::tempdir().unwrap();
        let page = home.path().join("page.html");
        write_whole(&page, b"one", false).unwrap();
        let error = write_whole(&page, b"two", false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&page).unwrap(), b"one");
        write_whole(&page, b"two", true).unwrap();
        assert_eq!(fs::read(&page).unwrap(), b"two");
        assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn symbolic_links_and_fifos_are_rejected() {
        let home = tempfile::tempdir().unwrap();
        let [victim, link, fifo] = ["victim", "link", "fifo"].map(|name| home.path().join(name));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &link).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(CWD, &fifo, kind, rustix::fs::Mode::RWXU, 0).unwrap();
        for path in [&link, &fifo] {
            assert!(create(path).is_err(), "{path:?}");
            assert!(open_read(path).is_err(), "{path:?}");
            for replace in [false, true] {
                assert!(write_whole(path, b"new", replace).is_err(), "{path:?}");
            }
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }
}
