//! Finds the threads of a process that can be borrowed, from outside: no thread is stopped for it.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use lowtide_heap::memory::{Memory, word};
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::mounts::stat_local;
use lowtide_probe::proc::is_gone;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::status::Status;
use lowtide_probe::proc::task::{self, Doing, SystemCall, Thread};
use lowtide_probe::target::Target;
use rustix::fs::FileType;

use super::frame::MAX_CHAIN_BYTES;
use super::time_asleep::TimeAsleep;
use super::wait::{MaskAt, Timeout, Wait};
use super::{PREDICTION_TIMEOUT, files};
use crate::arch::{RED_ZONE, RELEASES_ONLY_GLIBC, has_frame};
use crate::error::Abort;
use crate::reasons::Reasons;
use crate::refusal::{Refusal, SOCKET_TIMEOUT, SOCKET_UNKNOWN, STATIC_TIMEOUT};
use crate::target_code::TargetCode;

/// Signals that glibc handles itself, to cancel threads and to change users (`SIGCANCEL`,
/// `SIGSETXID`). They go to all threads, and no thread waits in their handlers.
const GLIBC_SIGNALS: u64 = 3 << 31;
/// The personality of a thread that maps our block as executable too
/// (include/uapi/linux/personality.h). It has memory that is both writable and executable only by
/// its own doing, never by ours.
const READ_IMPLIES_EXEC: u64 = 0x040_0000;
/// Maximum part of a stack that is searched for a handler's frame, in bytes.
const MAX_STACK_BYTES: u64 = 1 << 20;

/// A thread that can be borrowed.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// The thread.
    pub thread: Thread,
    /// The call in which it waits.
    pub call: SystemCall,
    /// The wait that this call is.
    pub wait: Wait,
    /// Its seccomp filters.
    pub filters: Filters,
    /// Time for which it has been asleep, if a restart of the call would restart its timeout.
    pub asleep: Option<TimeAsleep>,
    /// The timeout itself, if it is in memory: seconds and nanoseconds.
    pub timespec: Option<[u64; 2]>,
    /// The signals that the call blocks while it waits, if they differ from the thread's own.
    pub wait_mask: Option<u64>,
    /// Whether a signal handler may run in it.
    pub may_handle: bool,
    /// The mapping of its stack, if it is not certain that there is room on that.
    pub unguarded: Option<Range<u64>>,
    /// Candidates with lower ranks are preferred.
    rank: u32,
}

/// The seccomp filters of a thread, as far as its `status` shows them. A thread gets further ones,
/// and never loses any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filters {
    /// Its seccomp mode.
    pub mode: u32,
    /// Their number; `None` before Linux 5.9.
    count: Option<u32>,
}

impl Filters {
    pub(super) fn of(status: &Status) -> Self {
        Self { mode: status.seccomp, count: status.seccomp_filters }
    }
}

/// The result of inspecting all threads.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// The threads that can be borrowed, the best first.
    pub found: Vec<Candidate>,
    /// Number of threads.
    pub threads: usize,
    /// The reasons why others cannot, and how many threads each applies to.
    pub others: Reasons,
}

impl Candidates {
    /// Returns the refusal of a process without a thread that can be borrowed, with the most
    /// frequent reason.
    pub(crate) fn refusal(&self) -> Refusal {
        let without_reason = match self.threads {
            0 => "its threads could not be listed",
            _ => "none of them owns the memory to release",
        };
        let why = self.others.most_frequent().unwrap_or(without_reason).to_owned();
        Refusal::NoThread { threads: self.threads, why }
    }
}

/// Checks that a thread of a process can be borrowed. One that runs may wait a moment later, so
/// several attempts are made.
///
/// # Errors
/// Fails if none can be borrowed, or if the process cannot be read.
pub(crate) fn check_borrowable(
    target: &Target,
    maps: &[Mapping],
    code: &TargetCode,
) -> Result<(), Abort> {
    let memory = ProcessMemory::open(target.pid).map_err(|error| target.failed(error))?;
    let inspector = ThreadInspector {
        target,
        memory: &memory,
        maps,
        heap: &[],
        code,
        only_outside_allocator: false,
        will_map: true,
    };
    let begin = Instant::now();
    loop {
        let candidates = inspector.candidates(&|_| true);
        if !candidates.found.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > PREDICTION_TIMEOUT {
            return Err(candidates.refusal().into());
        }
        std::thread::sleep(retry_after(begin.elapsed()));
    }
}

/// Inspects the threads of a process, by facts that do not change meanwhile.
#[derive(Debug)]
pub(crate) struct ThreadInspector<'a> {
    /// The process.
    pub target: &'a Target,
    /// Its memory.
    pub memory: &'a ProcessMemory,
    /// Its mappings.
    pub maps: &'a [Mapping],
    /// Its heap: a stack in there may have anything below it.
    pub heap: &'a [Range<u64>],
    /// Its code.
    pub code: &'a TargetCode,
    /// Whether only threads are wanted that cannot be inside an allocator.
    pub only_outside_allocator: bool,
    /// Whether the thread will map memory.
    pub will_map: bool,
}

impl ThreadInspector<'_> {
    /// Inspects all threads that are wanted.
    pub(crate) fn candidates(&self, is_wanted: &dyn Fn(&Thread) -> bool) -> Candidates {
        let threads = task::threads(self.target.pid).unwrap_or_default();
        let mut all = Candidates { threads: threads.len(), ..Candidates::default() };
        for thread in threads.into_iter().filter(is_wanted) {
            match self.candidate(thread) {
                Ok(candidate) => all.found.push(candidate),
                Err(why) => all.others.add(why),
            }
        }
        all.found.sort_by_key(|candidate| candidate.rank);
        all
    }

    /// Checks whether a thread can be borrowed; the error is the reason why not.
    fn candidate(&self, thread: Thread) -> Result<Candidate, String> {
        let unread = |error: io::Error| match is_gone(&error) {
            true => "it has ended".to_owned(),
            false => format!("its state cannot be read ({error})"),
        };
        let call = match thread.doing().map_err(unread)? {
            Doing::In(call) => call,
            Doing::Running => return Err("it runs, and does not wait for anything".to_owned()),
            Doing::Outside { .. } => return Err("it waits outside of a system call".to_owned()),
        };
        let status = thread.status().map_err(unread)?;
        if status.is_stopped() {
            return Err("it is stopped".to_owned());
        }
        if RELEASES_ONLY_GLIBC && status.seccomp != 0 {
            return Err("it has a seccomp filter".to_owned());
        }
        if self.will_map && thread.personality().map_err(unread)? & READ_IMPLIES_EXEC != 0 {
            return Err("all memory that it maps is executable (READ_IMPLIES_EXEC)".to_owned());
        }
        let wait = wait_in(&call)?;
        if self.only_outside_allocator && wait.may_be_in_allocator() {
            return Err(format!("it waits in {}, maybe for a lock of its allocator", wait.name));
        }
        if let Some(file) = wait.file {
            self.can_wait_on(thread, file)?;
        }
        let handled = status.signals.caught & !GLIBC_SIGNALS;
        // Even if no signal is handled now: the handler that runs may have been the last one.
        if self.is_in_handler(call.stack_pointer) {
            return Err("it is inside the handler of a signal".to_owned());
        }
        let unguarded = self.room(call.stack_pointer)?;
        let (asleep, timespec) = self.timeout(thread, &call, &wait)?;
        let wait_mask = self.wait_mask(&wait)?;
        let may_handle = handled & !status.signals.blocked != 0;
        // Signals go to the first thread, and it often accepts the requests.
        let rank = u32::from(may_handle)
            + 2 * u32::from(wait.gives_up)
            + 4 * u32::from(thread.tid == thread.pid)
            + 8 * u32::from(asleep.is_some());
        let filters = Filters::of(&status);
        Ok(Candidate {
            thread,
            call,
            wait,
            filters,
            asleep,
            timespec,
            wait_mask,
            may_handle,
            unguarded,
            rank,
        })
    }

    /// Returns the signal mask that applies during a wait, if it has one of its own.
    fn wait_mask(&self, wait: &Wait) -> Result<Option<u64>, String> {
        let read = |at| {
            let unread = || "it waits with a signal mask that cannot be read".to_owned();
            word(self.memory, at).ok_or_else(unread)
        };
        match wait.mask {
            None => Ok(None),
            Some(MaskAt::Address(at)) => read(at).map(Some),
            Some(MaskAt::Indirect(at)) => match read(at)? {
                0 => Ok(None),
                at => read(at).map(Some),
            },
        }
    }

    /// Checks that a wait for this file can be restarted.
    fn can_wait_on(&self, thread: Thread, file: u64) -> Result<(), String> {
        let path = format!("/proc/{}/task/{}/fd/{file}", thread.pid, thread.tid);
        let name =
            std::fs::read_link(&path).map(|l| l.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with("socket:") {
            return match files::has_receive_timeout(self.target, file) {
                Ok(false) => Ok(()),
                Ok(true) => Err(SOCKET_TIMEOUT.to_owned()),
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    Err(SOCKET_UNKNOWN.to_owned())
                }
                Err(_) => Err("it waits for a socket that cannot be inspected".to_owned()),
            };
        }
        // A FIFO with a name may be on a file system that does not answer.
        let is_fifo = || {
            stat_local(thread.pid, Path::new(&path))
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
        };
        let is_known = name.starts_with("pipe:")
            || name.starts_with("/dev/pts/")
            || name.starts_with("anon_inode:") && !name.contains("fuse")
            || is_fifo();
        if is_known { Ok(()) } else { Err("it reads from a file or a device".to_owned()) }
    }

    /// Returns whether a handler's frame is on a stack: then the thread was interrupted at an
    /// arbitrary instruction.
    pub(crate) fn is_in_handler(&self, stack_pointer: u64) -> bool {
        self.stack(stack_pointer).is_none_or(|words| has_frame(&words, &self.code.restorers))
    }

    /// Returns whether a thread may return to code in a range: it is there; or an address in the
    /// range is on its stack, because a signal handler was called from there; or it runs all the
    /// time, and its state is unknown.
    pub(crate) fn may_be_returned_to(&self, range: &Range<u64>) -> bool {
        const MAX_ATTEMPTS: usize = 100;
        const POLL_INTERVAL: Duration = Duration::from_millis(5);
        let mut threads = match task::threads(self.target.pid) {
            Ok(threads) => threads,
            Err(error) => return !is_gone(&error),
        };
        for _ in 0..MAX_ATTEMPTS {
            // A handler may run on a stack of its own: the words of the other one are not seen.
            let is_in_handler = |sp| self.is_in_handler(sp);
            threads.retain(|thread| !self.is_away(*thread, range, is_in_handler));
            if threads.is_empty() {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Returns whether a thread waits outside of a range, and no address on its stack leads back to
    /// it.
    pub(crate) fn is_elsewhere(&self, thread: Thread, range: &Range<u64>) -> bool {
        self.is_away(thread, range, |_| false)
    }

    /// The same, unless `may_return` is true of its stack pointer.
    fn is_away(
        &self,
        thread: Thread,
        range: &Range<u64>,
        may_return: impl Fn(u64) -> bool,
    ) -> bool {
        match thread.doing() {
            // A thread that has ended. One whose state cannot be read may be anywhere.
            Err(error) => is_gone(&error),
            Ok(doing) => {
                let is_outside = |sp| !self.is_on_stack(sp, range) && !may_return(sp);
                doing.instruction_pointer().is_some_and(|at| !range.contains(&at))
                    && doing.stack_pointer().is_some_and(is_outside)
            }
        }
    }

    /// Returns whether a word on a stack is in a range.
    fn is_on_stack(&self, stack_pointer: u64, range: &Range<u64>) -> bool {
        self.stack(stack_pointer).is_none_or(|words| words.iter().any(|word| range.contains(word)))
    }

    /// Returns the words on a stack up to its end; `None` if they cannot all be read. For a stack
    /// whose end is unknown, returns only the nearest ones.
    fn stack(&self, stack_pointer: u64) -> Option<Vec<u64>> {
        let stack = self.mapping(stack_pointer)?;
        let from = stack_pointer - stack_pointer % 8;
        let end = stack.end.min(from.saturating_add(MAX_STACK_BYTES));
        if end < stack.end && stack.name == "[stack]" {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(end - from).unwrap_or(0)];
        // A page that was never written has only zeros, and must not be touched. One that is
        // swapped out is read: the thread needs it as soon as it wakes.
        for pages in self.memory.pages(from..end).ok()? {
            let (start, until) = (pages.range.start.max(from), pages.range.end.min(end));
            let part = bytes.get_mut((start - from) as usize..(until - from) as usize)?;
            if self.memory.read_resident(start, part) != part.len() {
                return None;
            }
        }
        let words = bytes.chunks_exact(8);
        Some(words.map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect())
    }

    /// Returns the mapping that contains an address.
    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let place = self.maps.partition_point(|m| m.end <= address);
        self.maps.get(place).filter(|m| m.contains(address))
    }

    /// Checks that there is room below a stack pointer for a frame chain. Returns the mapping if
    /// only the stopped thread can confirm that this is its stack.
    fn room(&self, stack_pointer: u64) -> Result<Option<Range<u64>>, String> {
        let unknown = || "it runs on a stack that may not have enough room".to_owned();
        let place = self.maps.partition_point(|m| m.end <= stack_pointer);
        let stack = self.maps.get(place).filter(|m| m.contains(stack_pointer));
        let stack = stack.ok_or_else(unknown)?;
        let is_plain = stack.permissions.starts_with("rw-p") && !stack.has_file();
        let is_heap =
            stack.name == "[heap]" || self.heap.iter().any(|area| area.contains(&stack_pointer));
        let lowest = stack_pointer.saturating_sub(MAX_CHAIN_BYTES + RED_ZONE);
        if !is_plain || is_heap || lowest < stack.start {
            return Err(unknown());
        }
        // From outside it is unknown whether the mapping below is this stack's guard.
        Ok((stack.name != "[stack]").then_some(stack.start..stack.end))
    }

    /// Measures a timeout that would restart with the call.
    fn timeout(
        &self,
        thread: Thread,
        call: &SystemCall,
        wait: &Wait,
    ) -> Result<(Option<TimeAsleep>, Option<[u64; 2]>), String> {
        if matches!(wait.timeout, Timeout::Kept | Timeout::Updated(..)) {
            return Ok((None, None));
        }
        if !self.code.library_calls.contain(call.instruction_pointer) {
            let why = match self.code.library_calls.are_known() {
                true => "it waits with a timeout outside of the C library",
                false => STATIC_TIMEOUT,
            };
            return Err(why.to_owned());
        }
        let unknown = || "it waits with a timeout whose remaining time is unknown".to_owned();
        let asleep = TimeAsleep::measure(thread).ok_or_else(unknown)?;
        let timespec = match wait.timeout {
            Timeout::Timespec(_, at) => {
                let words = (word(self.memory, at), word(self.memory, at.wrapping_add(8)));
                let (Some(seconds), Some(nanoseconds)) = words else { return Err(unknown()) };
                Some([seconds, nanoseconds])
            }
            _ => None,
        };
        Ok((Some(asleep), timespec))
    }
}

/// Minimum and maximum time between two attempts to borrow a thread.
const MIN_RETRY: Duration = Duration::from_millis(1);
const MAX_RETRY: Duration = Duration::from_millis(10);
/// Time since the first attempt, as a multiple of the time until the next: an attempt reads a score
/// of files, and the first ones are the most likely to succeed.
const RETRY_DIVISOR: u32 = 20;

/// Calls in which a thread can wait for long, and in which none is borrowed, by their numbers.
const OTHER_CALLS: [(libc::c_long, &str); 22] = [
    (libc::SYS_clone, "clone"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_fcntl, "fcntl"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_flock, "flock"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_io_getevents, "io_getevents"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_mq_timedsend, "mq_timedsend"),
    (libc::SYS_msgsnd, "msgsnd"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_recvmmsg, "recvmmsg"),
    (libc::SYS_sendfile, "sendfile"),
    (libc::SYS_sendmmsg, "sendmmsg"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_splice, "splice"),
    (libc::SYS_write, "write"),
    (libc::SYS_writev, "writev"),
];

/// Returns the wait that a system call is; the error is the reason why it is none that can be
/// restarted.
fn wait_in(call: &SystemCall) -> Result<Wait, String> {
    Wait::from_call(call.number.into(), &call.args).ok_or_else(|| {
        let number = call.number;
        if i64::from(number) == libc::SYS_restart_syscall {
            return "it continues a wait that was interrupted (restart_syscall), and its remaining time is unknown"
                .to_owned();
        }
        let name = OTHER_CALLS.iter().find(|(other, _)| *other == i64::from(number));
        let name = name.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned());
        format!("it is in the system call {name}, in which a release uses no thread")
    })
}

/// Returns the time until the next attempt, from the time since the first.
pub(super) fn retry_after(elapsed: Duration) -> Duration {
    (elapsed / RETRY_DIVISOR).clamp(MIN_RETRY, MAX_RETRY)
}
