//! HotSpot's attach mechanism (`attachListener_posix.cpp`): a socket `.java_pidN` in `/tmp` of the
//! root of the process, where N is the PID in its own namespace.
//!
//! Each connection has one request: the version of the protocol, a command and three arguments,
//! each with a NUL at its end. The reply is a number, 0 on success, a line feed, and a text.
//!
//! HotSpot creates the socket when it receives SIGQUIT while a file `.attach_pidN` of its own user
//! is in `/tmp`. Without this file, or with `-XX:+DisableAttachMechanism`, it prints the stacks of
//! its threads instead.
//!
//! The process may be hostile: nothing is followed that is a symbolic link, files are created and
//! used as the user of the process, the socket must be that of the process itself, and replies are
//! bounded in size and time.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_probe::hotspot::Flags;
use lowtide_probe::mapped::directory_in_root;
use lowtide_probe::proc::status::Status;
use lowtide_probe::proc::task;
use lowtide_probe::target::Target;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Signal, pidfd_send_signal};

use super::exchange::{Exchange, NotAsked, Reply};
use super::user::{Entered, User};
use crate::checks::check_running;
use crate::error::{Abort, ReleaseError};
use crate::options::Options;
use crate::refusal::Refusal;

/// The directory of the socket and of the file, in the root of the process.
const DIRECTORY: &str = "/tmp";
/// Maximum time until HotSpot has created its socket, and interval between two attempts.
const MAX_START: Duration = Duration::from_secs(10);
const START_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time for a reply. A collection of a large heap takes minutes on a slow machine.
const MAX_REPLY: Duration = Duration::from_secs(300);
/// Name of the thread that handles signals, as far as the kernel keeps it, and of the one that
/// serves the socket.
const DISPATCHER: &str = "Signal Dispatch";
const LISTENER: &str = "Attach Listener";

/// The way to the HotSpot of a process.
#[derive(Debug)]
pub(super) struct Attach {
    directory: OwnedFd,
    user: User,
    pid: u32,
    /// PID in its own namespace.
    own_pid: u32,
    /// The loaded program, by addresses that change when it executes another one.
    image: (u64, u64),
    flags: Option<Flags>,
}

impl Attach {
    /// Checks the way from outside.
    ///
    /// # Errors
    /// Returns the reason why HotSpot cannot be reached, or must not be.
    pub(super) fn prepare(target: &Target, flags: Option<Flags>) -> Result<Self, Abort> {
        let status = target.status()?;
        let because = |why: String| Abort::from(Refusal::NoCollection { why, may_pass: false });
        if status.own_pid == 0 {
            return Err(because(
                "the kernel does not report its PID in its own namespace".to_owned(),
            ));
        }
        let directory = directory_in_root(target.pid, DIRECTORY)
            .map_err(|error| because(format!("{DIRECTORY} of its root cannot be used: {error}")))?;
        let image = target.stat()?.image;
        let (user, own_pid) = (User::of(&status), status.own_pid);
        let attach = Self { directory, user, pid: target.pid, own_pid, image, flags };
        if !attach.has_socket().map_err(NotAsked::into_abort)? {
            attach.check_signal(target).map_err(NotAsked::into_abort)?;
        }
        Ok(attach)
    }

    /// Runs requests as the user of the process, in a thread of its own.
    ///
    /// # Errors
    /// Returns the reason why a request was not answered.
    pub(super) fn ask_all<T: Send>(
        &self,
        target: &Target,
        options: &Options,
        requests: impl FnOnce(&dyn Fn(&str) -> Result<Reply, NotAsked>) -> Result<T, NotAsked> + Send,
    ) -> Result<T, Abort> {
        let limit = options.patience.deadline.unwrap_or(MAX_REPLY);
        let interrupt = Arc::clone(&options.interrupt);
        let run = || {
            let entered = self.user.enter().map_err(|_| self.not_permitted())?;
            let _file = self.start(target, &entered, &interrupt)?;
            requests(&|command| {
                let stream = self.connect()?.ok_or_else(|| {
                    NotAsked::ForNow("it has closed its attach socket".to_owned())
                })?;
                Exchange { interrupt: &interrupt, until: Instant::now() + limit }
                    .ask(stream, command)
            })
        };
        let asked = thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, run);
            let thread = thread.map_err(|error| ReleaseError::Failed(error.to_string()))?;
            thread.join().map_err(|_| ReleaseError::Failed("internal error of lowtide".to_owned()))
        });
        asked?.map_err(NotAsked::into_abort)
    }

    fn not_permitted(&self) -> NotAsked {
        let needs = "running lowtide as the user of the process, or as root".to_owned();
        Abort::from(ReleaseError::NotPermitted { pid: self.pid, needs }).into()
    }

    fn socket_name(&self) -> String {
        format!(".java_pid{}", self.own_pid)
    }

    /// Returns whether there is a socket of the user of the process.
    fn has_socket(&self) -> Result<bool, NotAsked> {
        let name = self.socket_name();
        let stat = match statat(&self.directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(NotAsked::Because(format!(
                "{DIRECTORY}/{name} in its root is not a socket"
            )));
        }
        if !self.user.owns(stat.st_uid) {
            let why = format!("{DIRECTORY}/{name} in its root belongs to another user");
            return Err(NotAsked::Because(why));
        }
        Ok(true)
    }

    /// Connects to the socket; `None` if there is none, or nothing listens to it.
    fn connect(&self) -> Result<Option<UnixStream>, NotAsked> {
        if !self.has_socket()? {
            return Ok(None);
        }
        // By its descriptor: what has the name may have been replaced meanwhile.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = match openat(&self.directory, self.socket_name(), flags, Mode::empty()) {
            Ok(place) => place,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let address = SocketAddrUnix::new(format!("/proc/thread-self/fd/{}", place.as_raw_fd()))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED) => return Ok(None),
            Err(Errno::AGAIN) => {
                return Err(NotAsked::ForNow(
                    "too many connections wait at its attach socket".to_owned(),
                ));
            }
            Err(error) => return Err(error.into()),
        }
        match peer(&socket)? {
            pid if pid == self.pid => {}
            _ => {
                let name = self.socket_name();
                let why =
                    format!("{DIRECTORY}/{name} in its root is the socket of another process");
                return Err(NotAsked::Because(why));
            }
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(Some(stream))
    }

    /// Checks that SIGQUIT makes HotSpot create its socket, and does nothing else.
    fn check_signal(&self, target: &Target) -> Result<(), NotAsked> {
        let because = |why: &str| Err(NotAsked::Because(why.to_owned()));
        let status = target.status().map_err(Abort::from)?;
        let Some(flags) = self.flags else {
            return because(
                "it has no attach socket, and its settings cannot be read, so a signal that makes it create one \
                 could end it: jcmd PID VM.version, as its user, creates the socket",
            );
        };
        if flags.attach_disabled {
            return because("it does not permit it (-XX:+DisableAttachMechanism)");
        }
        // With -Xrs, HotSpot creates the socket when it starts.
        if flags.few_signals {
            return because(
                "its attach socket was removed from /tmp, and with -Xrs the signal that makes it create one would \
                 end it: restart it",
            );
        }
        let threads =
            task::threads(target.pid).map_err(|error| Abort::from(target.failed(error)))?;
        let has = |name: &str| {
            threads.iter().any(|thread| thread.stat().is_ok_and(|stat| stat.name == name))
        };
        if has(LISTENER) {
            return because(
                "its attach socket was removed from /tmp, and some versions print the stacks of all threads \
                 instead of creating another one",
            );
        }
        if !has_handler(&status) || !has(DISPATCHER) {
            return Err(NotAsked::ForNow(
                "it does not handle SIGQUIT, which would end it: it is still starting, or a library \
                 has removed the handler"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Makes HotSpot create its socket, if there is none to which something listens. The result
    /// removes the file when it is dropped.
    fn start(
        &self,
        target: &Target,
        entered: &Entered,
        interrupt: &AtomicBool,
    ) -> Result<Option<TriggerFile<'_>>, NotAsked> {
        if self.connect()?.is_some() {
            return Ok(None);
        }
        let pidfd = target.pidfd().map_err(|error| Abort::from(target.failed(error)))?;
        let file = TriggerFile::create(self)?;
        // As late as possible: a program that it executes, or a library, may have changed it.
        self.check_signal(target)?;
        check_running(target)?;
        if target.stat().map_err(Abort::from)?.image != self.image {
            return Err(Abort::from(ReleaseError::Replaced(self.pid)).into());
        }
        if !has_handler(&target.status().map_err(Abort::from)?) {
            return Err(NotAsked::ForNow("it no longer handles SIGQUIT".to_owned()));
        }
        entered.as_own(|| pidfd_send_signal(&pidfd, Signal::QUIT))??;
        let until = Instant::now() + MAX_START;
        while self.connect()?.is_none() {
            if Instant::now() >= until || !target.is_alive() {
                return Err(NotAsked::ForNow(format!(
                    "it has not created its attach socket within {} s",
                    MAX_START.as_secs()
                )));
            }
            if interrupt.load(Ordering::Relaxed) {
                return Err(Abort::from(ReleaseError::Interrupted).into());
            }
            thread::sleep(START_INTERVAL);
        }
        Ok(Some(file))
    }
}

/// Returns whether a process has a handler for SIGQUIT, which its first thread does not block.
fn has_handler(status: &Status) -> bool {
    let quit = 1_u64 << (Signal::QUIT.as_raw() - 1);
    status.signals.caught & quit != 0 && status.signals.ignored & quit == 0
}

/// Returns the PID of the process that listens to the other end of a socket; 0 if lowtide's
/// namespace does not contain it.
#[expect(unsafe_code, reason = "rustix has no representation of PID 0 here")]
fn peer(socket: &impl AsFd) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: `found` has the size in `length`, and the kernel writes no more than that.
    let done = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if done == 0 { Ok(found.pid.cast_unsigned()) } else { Err(io::Error::last_os_error()) }
}

/// The file that HotSpot looks for when it receives SIGQUIT.
struct TriggerFile<'a> {
    attach: &'a Attach,
    name: String,
    is_ours: bool,
}

impl<'a> TriggerFile<'a> {
    fn create(attach: &'a Attach) -> Result<Self, NotAsked> {
        let name = format!(".attach_pid{}", attach.own_pid);
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(&attach.directory, &name, flags, Mode::RUSR | Mode::WUSR);
        match made {
            Ok(_) => Ok(Self { attach, name, is_ours: true }),
            // Of another client, or one that was killed.
            Err(Errno::EXIST) => {
                let stat = statat(&attach.directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                match is_file && attach.user.owns(stat.st_uid) {
                    true => Ok(Self { attach, name, is_ours: false }),
                    false => Err(NotAsked::Because(format!(
                        "{DIRECTORY}/{name} in its root is not a file of its user"
                    ))),
                }
            }
            Err(error) => Err(NotAsked::Because(format!(
                "no file can be created in {DIRECTORY} of its root: {error}"
            ))),
        }
    }
}

impl Drop for TriggerFile<'_> {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = unlinkat(&self.attach.directory, &self.name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::MAX_SHOWN;
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    /// Returns the way to a process that is this one, whose `/tmp` is `directory`.
    fn to_ourselves(directory: &std::path::Path) -> Attach {
        let status = Status::own().unwrap();
        let directory = std::fs::File::open(directory).unwrap().into();
        let (user, pid) = (User::of(&status), std::process::id());
        Attach { directory, user, pid, own_pid: 7, image: (0, 0), flags: None }
    }

    fn why(asked: Result<impl Sized, NotAsked>) -> String {
        match asked.err().expect("a reason") {
            NotAsked::Because(why) | NotAsked::ForNow(why) => why,
            NotAsked::Aborted(abort) => abort.to_string(),
        }
    }

    fn ask(attach: &Attach, interrupt: &AtomicBool, limit: Duration) -> Result<Reply, NotAsked> {
        let stream = attach.connect()?.expect("a listener");
        Exchange { interrupt, until: Instant::now() + limit }.ask(stream, "GC.run")
    }

    /// Listens to the socket, and answers one request.
    fn answer(home: &std::path::Path, reply: Vec<u8>) -> thread::JoinHandle<Vec<u8>> {
        let listener = UnixListener::bind(home.join(".java_pid7")).unwrap();
        thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut request = vec![0; 16];
            client.read_exact(&mut request).unwrap();
            let _ = client.write_all(&reply);
            request
        })
    }

    #[test]
    fn a_request_has_a_version_a_command_and_three_arguments() {
        let home = tempfile::tempdir().unwrap();
        let server = answer(home.path(), b"0\nCommand executed successfully\n".to_vec());
        let reply = ask(&to_ourselves(home.path()), &AtomicBool::new(false), MAX_REPLY).unwrap();
        assert_eq!(reply, Reply { code: 0, text: "Command executed successfully".to_owned() });
        assert_eq!(server.join().unwrap(), b"1\0jcmd\0GC.run\0\0\0");
    }

    #[test]
    fn replies_are_bounded() {
        let home = tempfile::tempdir().unwrap();
        let server = answer(home.path(), [b"0\n".to_vec(), vec![b'x'; 8 << 20]].concat());
        let reply = ask(&to_ourselves(home.path()), &AtomicBool::new(false), MAX_REPLY).unwrap();
        assert_eq!(reply.text.len(), MAX_SHOWN);
        server.join().unwrap();
    }

    #[test]
    fn a_process_that_does_not_answer_is_left_after_the_time_or_an_interrupt() {
        let home = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(home.path().join(".java_pid7")).unwrap();
        let attach = to_ourselves(home.path());
        let late = why(ask(&attach, &AtomicBool::new(false), Duration::ZERO));
        assert!(late.contains("not answered GC.run in time"), "{late}");
        let interrupted = why(ask(&attach, &AtomicBool::new(true), MAX_REPLY));
        assert!(interrupted.contains("interrupted"), "{interrupted}");
    }

    #[test]
    fn only_a_socket_of_the_process_itself_is_used() {
        let home = tempfile::tempdir().unwrap();
        let attach = to_ourselves(home.path());
        let place = home.path().join(".java_pid7");
        assert!(attach.connect().unwrap().is_none(), "there is none");
        let listener = UnixListener::bind(&place).unwrap();
        assert!(attach.connect().unwrap().is_some());
        let of_another = Attach { pid: std::process::id() + 1, ..to_ourselves(home.path()) };
        let other = why(of_another.connect());
        assert!(other.contains("the socket of another process"), "{other}");
        drop(listener);
        assert!(attach.connect().unwrap().is_none(), "nothing listens");
        let real = home.path().join("real");
        std::fs::rename(&place, &real).unwrap();
        std::os::unix::fs::symlink(&real, &place).unwrap();
        let link = why(attach.connect());
        assert!(link.contains("is not a socket"), "{link}");
    }

    #[test]
    fn the_file_for_the_signal_is_removed_only_if_it_was_created() {
        let home = tempfile::tempdir().unwrap();
        let attach = to_ourselves(home.path());
        let place = home.path().join(".attach_pid7");
        drop(TriggerFile::create(&attach).map_err(|error| format!("{error:?}")).unwrap());
        assert!(!place.exists());
        std::fs::write(&place, "").unwrap();
        drop(TriggerFile::create(&attach).map_err(|error| format!("{error:?}")).unwrap());
        assert!(place.exists(), "it is another client's");
        std::fs::remove_file(&place).unwrap();
        std::os::unix::fs::symlink("elsewhere", &place).unwrap();
        let link = why(TriggerFile::create(&attach));
        assert!(link.contains("not a file of its user"), "{link}");
        assert!(!home.path().join("elsewhere").exists());
    }
}
