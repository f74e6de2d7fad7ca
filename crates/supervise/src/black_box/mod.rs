//! The black box: records what each process and its memory cgroup hold, so that it is known after
//! the kernel has killed it.
//!
//! What counts is recorded before the edge: the kernel warns of nothing, and there is no time for a
//! walk between the kill and the end. So a thread reads counters through open files, the more often
//! the closer a process is to a limit, and another one inspects each process that has changed.
//!
//! - `recorder`: the loop, on a thread with a real-time priority where that is permitted.
//! - `recorded`: one process with its ring (`lowtide_record::black_box`).
//! - `pace`: how often a process is read.
//! - `ledgers`: when a process is inspected; `ledger_thread`: the thread that does it, and that
//!   keeps the free ranges for a release before a limit.
//! - `kept`: what a ring never loses.
//! - `groups`: memory cgroups; `members`: their processes; `group_kills`: kills of others in them.
//! - `verdict`: why a process has ended; `kernel_log`: what the kernel says of it.

mod group_kills;
mod groups;
mod kept;
mod kernel_log;
mod ledger_thread;
mod ledgers;
mod members;
mod pace;
mod recorded;
mod recorder;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lowtide_model::act::Act;
use lowtide_policy::Headroom;
use lowtide_probe::pressure::MemoryPressure;
use lowtide_probe::proc::status::Status;
use lowtide_probe::proc::task::Thread;
use lowtide_record::black_box::{HeadLine, MAX_BYTES, Store};
use lowtide_release::KeptWalk;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};

use recorder::BlackBoxRecorder;

/// Maximum number of commands that wait for the thread.
const MAX_COMMANDS: usize = 10_000;

/// Receives notices.
pub type NoticeReceiver = Box<dyn Fn(Notice<'_>) + Send>;

/// News from a black box.
#[derive(Debug, Clone, Copy)]
pub enum Notice<'a> {
    /// Something is not recorded.
    Problem(&'a str),
    /// The kernel has killed a recorded process for lack of memory.
    OomKill {
        /// Its PID.
        pid: u32,
        /// Its command line.
        command: &'a str,
        /// Its short name.
        program: &'a str,
        /// The file of the directory that shows what the process held.
        file: &'a str,
    },
    /// The kernel has killed processes of a cgroup for lack of memory, and no recorded process is
    /// known to be one of them.
    GroupOomKill {
        /// The path of the cgroup.
        cgroup: &'a str,
        /// Their number.
        count: u64,
        /// PID and short name of those that the kernel log names.
        victims: &'a [(u32, &'a str)],
        /// PID of a recorded process of the cgroup.
        pid: u32,
        /// The file of the directory that shows what this one held.
        file: &'a str,
    },
}

/// The size of a black box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoxSize {
    /// Outside of the cgroups that are recorded: 64 MiB, of which each process has 1 MiB.
    Full,
    /// Under the limit that is recorded: 4 MiB, of which each process has 512 KiB. The pages of its
    /// files count against the limit too.
    Small,
}

impl BoxSize {
    /// Returns the size of a ring, and that of all of them, in bytes.
    fn bytes(self) -> (usize, u64) {
        match self {
            Self::Full => (1 << 20, MAX_BYTES),
            Self::Small => (512 << 10, 4 << 20),
        }
    }
}

/// A black box that is recording.
#[derive(Debug)]
pub struct BlackBox {
    handle: BlackBoxHandle,
    thread: Option<JoinHandle<()>>,
}

/// Tells a black box what to record.
#[derive(Debug, Clone)]
pub struct BlackBoxHandle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    commands: Mutex<Vec<Command>>,
    end: AtomicBool,
    /// The processes that will soon reach a limit.
    alarms: Mutex<BTreeMap<u32, Alarm>>,
    /// The thread that waits for alarms; 0 if none has waited yet.
    waiting: AtomicU32,
    /// Becomes readable when there are alarms.
    wake: OwnedFd,
}

impl Shared {
    fn new() -> io::Result<Self> {
        Ok(Self {
            commands: Mutex::default(),
            end: AtomicBool::new(false),
            alarms: Mutex::default(),
            waiting: AtomicU32::new(0),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Wakes the supervision for a process. On a busy machine, an ordinary thread could wait for a
    /// processor until it is too late.
    fn raise(&self, pid: u32, alarm: Alarm) {
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        alarms.insert(pid, alarm);
        match self.waiting.load(Ordering::Relaxed) {
            0 => {}
            tid => lowtide_release::prefer_thread(tid),
        }
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// A process that will soon reach a limit.
#[derive(Debug, Clone)]
pub(crate) struct Alarm {
    /// What is used of the limit.
    pub(crate) headroom: Headroom,
    /// Its free memory at the last inspection, for a release that does not have to search for it.
    pub(crate) walk: Option<Arc<KeptWalk>>,
}

/// What the supervision tells the thread.
#[derive(Debug)]
enum Command {
    /// The processes that are supervised now.
    Processes(BTreeSet<u32>),
    /// An act of a policy.
    Act(Box<Act>),
}

impl BlackBox {
    /// Starts to record in a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// Fails if the directory cannot be written to, if other users may change it, or if another
    /// lowtide writes it.
    pub fn start(
        path: &Path,
        size: BoxSize,
        policy: String,
        report: NoticeReceiver,
    ) -> io::Result<Self> {
        let (ring_bytes, max_bytes) = size.bytes();
        let store = Store::open(path, ring_bytes, max_bytes)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let template = HeadLine {
            lowtide: env!("CARGO_PKG_VERSION").to_owned(),
            unix_s: now.as_secs_f64(),
            machine_bytes: MemoryPressure::of_this_machine().limit_bytes,
            policy,
            ..HeadLine::default()
        };
        let handle = BlackBoxHandle(Arc::new(Shared::new()?));
        let recorder = BlackBoxRecorder::new(store, Arc::clone(&handle.0), report, template);
        let run = move || {
            lowtide_release::prefer_this_thread();
            if size == BoxSize::Full {
                stay_in_memory();
            }
            recorder.run();
        };
        let thread = std::thread::Builder::new().name("black box".to_owned()).spawn(run)?;
        Ok(Self { handle, thread: Some(thread) })
    }

    /// Returns a handle for the supervision.
    pub fn handle(&self) -> BlackBoxHandle {
        self.handle.clone()
    }
}

/// Keeps the pages of this process from being swapped out, as far as they are touched. Where the
/// size of locked memory is limited, nothing is locked: later allocations would fail.
fn stay_in_memory() {
    /// `CAP_IPC_LOCK` (include/uapi/linux/capability.h).
    const IPC_LOCK: u64 = 1 << 14;
    let status = Status::read(std::process::id());
    let may_lock_all = status.is_ok_and(|status| status.capabilities & IPC_LOCK != 0)
        || getrlimit(Resource::Memlock).current.is_none();
    if may_lock_all {
        let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
        let _ = mlockall(flags);
    }
}

/// Ends the recording, and keeps all rings.
impl Drop for BlackBox {
    fn drop(&mut self) {
        self.handle.0.end.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl BlackBoxHandle {
    /// Sets the processes that are recorded. One that is missing is recorded until it ends.
    pub(crate) fn set_processes(&self, pids: &BTreeSet<u32>) {
        self.send(Command::Processes(pids.clone()));
    }

    /// Records an act of a policy.
    pub fn act(&self, act: &Act) {
        self.send(Command::Act(Box::new(act.clone())));
    }

    /// Waits for a time. An alarm or a signal ends the wait.
    pub(crate) fn wait(&self, time: Duration) {
        self.0.waiting.store(Thread::current().tid, Ordering::Relaxed);
        let mut polled = [PollFd::new(&self.0.wake, PollFlags::IN)];
        let Ok(time) = Timespec::try_from(time) else { return };
        if poll(&mut polled, Some(&time)).is_ok_and(|ready| ready > 0) {
            let _ = rustix::io::read(&self.0.wake, &mut [0; 8]);
        }
    }

    /// Takes the processes that will soon reach a limit.
    pub(crate) fn alarms(&self) -> BTreeMap<u32, Alarm> {
        std::mem::take(&mut *self.0.alarms.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn send(&self, command: Command) {
        let mut commands = self.0.commands.lock().unwrap_or_else(PoisonError::into_inner);
        if commands.len() < MAX_COMMANDS {
            commands.push(command);
        }
    }
}
