//! A process that writes the exporter's files.
//!
//! The exporter reads processes as a user that may not write files, and its seal does not permit
//! that either. A text file is therefore written by another process, which reads no processes: it
//! has no capability, and a seal of its own. The same process removes the file of a Unix socket at
//! the end. It ends when the exporter ends, for whatever reason.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use lowtide_record::files::replace_for_all;

use crate::privileges::become_owner;
use crate::seal::{Role, seal};

/// Maximum size of a text file, in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// A file of the exporter.
#[derive(Debug)]
pub enum OwnFile {
    /// A text file, which is replaced by the content of each message.
    Text(PathBuf),
    /// A Unix socket, which is removed at the end if there was a message.
    Socket(PathBuf),
}

impl OwnFile {
    fn path(&self) -> &Path {
        let (Self::Text(path) | Self::Socket(path)) = self;
        path
    }

    /// Returns its directory.
    fn directory(&self) -> &Path {
        match self.path().parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }
}

/// The process that writes a file. When this is dropped, the process ends, and a socket is removed.
#[derive(Debug)]
pub struct FileProcess {
    stream: UnixStream,
}

impl FileProcess {
    /// Starts the process. This process must have one thread.
    ///
    /// # Errors
    /// Fails if the process cannot be started, or cannot give up its privileges.
    pub fn start(file: &OwnFile) -> io::Result<Self> {
        let (own, other) = UnixStream::pair()?;
        if fork()? == 0 {
            drop(own);
            let end = run(file, other);
            std::process::exit(i32::from(end.is_err()));
        }
        drop(other);
        let mut process = Self { stream: own };
        // The answer to no message: whether it has started.
        process.answer()?;
        Ok(process)
    }

    /// Sends a message: the content of a text file, or the fact that the socket exists.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or if the process has ended.
    pub fn send(&mut self, content: &[u8]) -> io::Result<()> {
        self.stream.write_all(&(content.len() as u64).to_le_bytes())?;
        self.stream.write_all(content)?;
        self.answer()
    }

    /// Waits for the answer: the text of an error, or nothing.
    fn answer(&mut self) -> io::Result<()> {
        match receive(&mut self.stream)?.as_deref() {
            Some([]) => Ok(()),
            Some(error) => Err(io::Error::other(String::from_utf8_lossy(error).into_owned())),
            None => Err(io::Error::other("the process that writes the file has ended")),
        }
    }
}

impl Drop for FileProcess {
    fn drop(&mut self) {
        // It has removed its file when it closes its end.
        let _ = self.stream.shutdown(Shutdown::Write);
        let _ = self.stream.read(&mut [0]);
    }
}

/// Forks this process. Returns 0 in the new process.
#[expect(unsafe_code, reason = "std has no fork")]
fn fork() -> io::Result<libc::pid_t> {
    // SAFETY: `become_owner` checks that the new process was forked by the only thread, so no lock
    // of the C library or of Rust's is held by a thread that does not exist there.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

/// Ignores the signals that end the exporter: this process ends after it.
#[expect(unsafe_code, reason = "std cannot ignore signals")]
fn ignore_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: no handler of this process is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Serves the exporter until it ends.
fn run(file: &OwnFile, mut exporter: UnixStream) -> io::Result<()> {
    ignore_signals();
    let restricted =
        become_owner(file.directory()).and_then(|()| seal(Role::Files).map_err(io::Error::other));
    answer(&mut exporter, &restricted)?;
    restricted?;
    let mut has_message = false;
    while let Some(content) = receive(&mut exporter)? {
        has_message = true;
        let done = match file {
            OwnFile::Text(path) => replace_for_all(path, &content),
            OwnFile::Socket(_) => Ok(()),
        };
        answer(&mut exporter, &done)?;
    }
    match file {
        OwnFile::Socket(path) if has_message => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

fn answer(stream: &mut UnixStream, result: &io::Result<()>) -> io::Result<()> {
    let text = result.as_ref().err().map(io::Error::to_string).unwrap_or_default();
    stream.write_all(&(text.len() as u64).to_le_bytes())?;
    stream.write_all(text.as_bytes())
}

/// Receives a message: its length in 8 bytes, and its content. Returns `None` if the other process
/// has ended.
fn receive(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        done => done?,
    }
    let length = u64::from_le_bytes(length);
    if length > MAX_BYTES {
        return Err(io::Error::other("the metrics exceed the maximum size of a text file"));
    }
    let mut content = Vec::new();
    (&*stream).take(length).read_to_end(&mut content)?;
    match content.len() as u64 == length {
        true => Ok(Some(content)),
        false => Ok(None),
    }
}
