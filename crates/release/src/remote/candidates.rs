//! Which of a process's threads can be borrowed, told from outside: nothing is stopped for it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

use lowtide_heap::memory::{Memory, word};
use lowtide_probe::inspect::Target;
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task::{self, Doing, SystemCall, Thread};

use super::time_asleep::TimeAsleep;
use super::wait::{MaskAt, Timeout, Wait};
use super::{files, frame};
use crate::refusal::LASTING;

/// glibc's own handlers, for cancelling threads and for changing users (`SIGCANCEL`, `SIGSETXID`): both
/// are for all threads, and none of them waits in one.
const INTERNAL: u64 = 3 << 31;
/// How far up a stack is looked for a handler's frame, in bytes.
const FARTHEST: u64 = 1 << 20;

/// A thread that can be borrowed.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// The thread.
    pub thread: Thread,
    /// The call in which it waits.
    pub call: SystemCall,
    /// What is known of that call.
    pub wait: Wait,
    /// How its calls are filtered.
    pub seccomp: u32,
    /// How long it has been asleep, if a restart of the call would restart its timeout.
    pub asleep: Option<TimeAsleep>,
    /// The timeout itself, if it is in memory: seconds and nanoseconds.
    pub timespec: Option<[u64; 2]>,
    /// The signals that the call blocks while it waits, where those are others than the thread's.
    pub wait_mask: Option<u64>,
    /// Whether a signal may come to it that the process has a handler for.
    pub may_handle: bool,
    /// The mapping that its stack is in, where nothing else tells that there is room on it.
    pub unguarded: Option<Range<u64>>,
    /// The less, the rather it is taken.
    rank: u32,
}

/// What a look at the threads gave.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// Those that can be borrowed, the best first.
    pub found: Vec<Candidate>,
    /// How many threads there are.
    pub threads: usize,
    /// Why the others cannot, and how many.
    pub others: BTreeMap<String, usize>,
}

impl Candidates {
    /// Why there is none.
    pub(crate) fn why(&self) -> String {
        let most = self.others.iter().max_by_key(|(_, count)| **count);
        most.map_or_else(|| "they have ended".to_owned(), |(why, _)| why.clone())
    }
}

/// What is known of a process that does not change while its threads are looked at.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    /// The process.
    pub target: &'a Target,
    /// Its memory.
    pub memory: &'a LiveMemory,
    /// Its mappings.
    pub maps: &'a [Mapping],
    /// Its heap: a stack that lies there may have anything below it.
    pub heap: &'a [Range<u64>],
    /// The code of its C library.
    pub code: &'a [Range<u64>],
    /// Where handlers of signals return to.
    pub restorers: &'a [u64],
}

impl Surroundings<'_> {
    /// Looks at all threads.
    pub(crate) fn candidates(&self) -> Candidates {
        let threads = task::threads(self.target.pid).unwrap_or_default();
        let mut all = Candidates { threads: threads.len(), ..Candidates::default() };
        for thread in threads {
            match self.candidate(thread) {
                Ok(candidate) => all.found.push(candidate),
                Err(why) => *all.others.entry(why).or_default() += 1,
            }
        }
        all.found.sort_by_key(|candidate| candidate.rank);
        all
    }

    fn candidate(&self, thread: Thread) -> Result<Candidate, String> {
        let ended = |_| "it has ended".to_owned();
        let call = match thread.doing().map_err(ended)? {
            Doing::In(call) => call,
            Doing::Running => return Err("it runs, and does not wait for anything".to_owned()),
            Doing::Outside { .. } => return Err("it waits outside of a system call".to_owned()),
        };
        let status = thread.status().map_err(ended)?;
        if status.is_stopped() {
            return Err("it is stopped".to_owned());
        }
        let wait = Wait::of(call.number.into(), &call.args).ok_or_else(|| {
            format!("it is in system call {}, in which none is borrowed", call.number)
        })?;
        if let Some(file) = wait.file {
            self.can_wait_on(thread, file)?;
        }
        let handled = status.signals.caught & !INTERNAL;
        // Even where there is none now: one that runs may have been the last.
        if self.is_in_handler(call.stack_pointer) {
            return Err("it is inside the handler of a signal".to_owned());
        }
        let unguarded = self.room(call.stack_pointer)?;
        let (asleep, timespec) = self.timeout(thread, &call, &wait)?;
        let unread = || "it waits with signals that cannot be read".to_owned();
        let wait_mask = match wait.mask {
            None => None,
            Some(MaskAt::Address(at)) => Some(word(self.memory, at).ok_or_else(unread)?),
            Some(MaskAt::Indirect(at)) => match word(self.memory, at).ok_or_else(unread)? {
                0 => None,
                at => Some(word(self.memory, at).ok_or_else(unread)?),
            },
        };
        let may_handle = handled & !status.signals.blocked != 0;
        // The first thread is the one that signals go to, and often the one that requests come to.
        let rank = u32::from(may_handle)
            + 2 * u32::from(wait.gives_up)
            + 4 * u32::from(thread.tid == thread.pid)
            + 8 * u32::from(asleep.is_some());
        let seccomp = status.seccomp;
        Ok(Candidate {
            thread,
            call,
            wait,
            seccomp,
            asleep,
            timespec,
            wait_mask,
            may_handle,
            unguarded,
            rank,
        })
    }

    /// Whether a file that a thread waits for lets the wait be begun again.
    fn can_wait_on(&self, thread: Thread, file: u64) -> Result<(), String> {
        let path = format!("/proc/{}/task/{}/fd/{file}", thread.pid, thread.tid);
        let name =
            std::fs::read_link(&path).map(|l| l.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with("socket:") {
            let handle: BorrowedFd<'_> = self.target.handle();
            return match files::receive_timeout(handle, file) {
                Some(false) => Ok(()),
                Some(true) => Err(LASTING.to_owned()),
                None => Err("it waits for a socket that cannot be looked at".to_owned()),
            };
        }
        let is_fifo = std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo());
        let is_known = is_fifo
            || name.starts_with("/dev/pts/")
            || name.starts_with("anon_inode:") && !name.contains("fuse");
        if is_known { Ok(()) } else { Err("it reads from a file or a device".to_owned()) }
    }

    /// Whether a handler's frame is on a stack: then the thread was interrupted anywhere.
    pub(crate) fn is_in_handler(&self, stack_pointer: u64) -> bool {
        self.stack(stack_pointer).is_none_or(|words| has_frame(&words, self.restorers))
    }

    /// Whether a thread may come back to code in a range: it is there, or an address of it is on its stack,
    /// because a signal's handler was called from there; or it runs, and nobody can tell.
    pub(crate) fn may_be_returned_to(&self, range: &Range<u64>) -> bool {
        const TRIES: usize = 100;
        let mut threads = task::threads(self.target.pid).unwrap_or_default();
        for _ in 0..TRIES {
            threads.retain(|thread| !self.is_elsewhere(*thread, range));
            if threads.is_empty() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Whether a thread waits elsewhere, and no address on its stack leads back to a range.
    pub(crate) fn is_elsewhere(&self, thread: Thread, range: &Range<u64>) -> bool {
        match thread.doing() {
            Err(_) => true,
            Ok(doing) => {
                doing.instruction_pointer().is_some_and(|at| !range.contains(&at))
                    && doing.stack_pointer().is_some_and(|sp| !self.is_on_stack(sp, range))
            }
        }
    }

    /// Whether a word on a stack is in a range.
    fn is_on_stack(&self, stack_pointer: u64, range: &Range<u64>) -> bool {
        self.stack(stack_pointer).is_none_or(|words| words.iter().any(|word| range.contains(word)))
    }

    /// The words on a stack, up to its end; `None` where they cannot all be seen. Of a stack whose end nothing
    /// tells, only those that are near.
    fn stack(&self, stack_pointer: u64) -> Option<Vec<u64>> {
        let stack = self.mapping(stack_pointer)?;
        let from = stack_pointer - stack_pointer % 8;
        let end = stack.end.min(from.saturating_add(FARTHEST));
        if end < stack.end && stack.name == "[stack]" {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(end - from).unwrap_or(0)];
        // Pages that are swapped out, or were never written to, are read as well: they are its own stack.
        if self.memory.read_resident(from, &mut bytes) != bytes.len() {
            return None;
        }
        let words = bytes.chunks_exact(8);
        Some(words.map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect())
    }

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let place = self.maps.partition_point(|m| m.end <= address);
        self.maps.get(place).filter(|m| m.contains(address))
    }

    /// Whether there is room below a stack pointer for what is written there. Gives the mapping, where only
    /// the thread itself can tell that this is its stack.
    fn room(&self, stack_pointer: u64) -> Result<Option<Range<u64>>, String> {
        let unknown = || "it runs on a stack that is not known to have room".to_owned();
        let place = self.maps.partition_point(|m| m.end <= stack_pointer);
        let stack = self.maps.get(place).filter(|m| m.contains(stack_pointer));
        let stack = stack.ok_or_else(unknown)?;
        let is_plain = stack.permissions.starts_with("rw-p") && !stack.has_file();
        let is_heap =
            stack.name == "[heap]" || self.heap.iter().any(|area| area.contains(&stack_pointer));
        let lowest = stack_pointer.saturating_sub(frame::MOST_BYTES + frame::RED_ZONE);
        if !is_plain || is_heap || lowest < stack.start {
            return Err(unknown());
        }
        // Whether what lies below is this stack's guard, nobody can tell from outside.
        Ok((stack.name != "[stack]").then_some(stack.start..stack.end))
    }

    /// What is known of a time-out that would begin anew.
    fn timeout(
        &self,
        thread: Thread,
        call: &SystemCall,
        wait: &Wait,
    ) -> Result<(Option<TimeAsleep>, Option<[u64; 2]>), String> {
        if matches!(wait.timeout, Timeout::Kept | Timeout::Updated(..)) {
            return Ok((None, None));
        }
        // What a function of the C library gives a call is nobody's any more behind it; elsewhere, an
        // argument may be used again.
        if !self.code.iter().any(|code| code.contains(&call.instruction_pointer)) {
            return Err("it waits with a time-out outside of the C library".to_owned());
        }
        let unknown = || "it waits with a time-out of which nobody tells what is left".to_owned();
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

/// Whether a handler's frame is among the words of a stack. Where it returns to is not enough: that stands,
/// too, in what `sigaction` has told the kernel, and such a call may have left it on the stack.
fn has_frame(words: &[u64], restorers: &[u64]) -> bool {
    /// Behind that word: where `cs` and `ss` are in a `struct ucontext` (uc_mcontext's 19th word).
    const SEGMENTS: usize = 1 + 5 + 18;
    const USER_CODE_64: u64 = 0x33;
    let is_frame = |place: usize| {
        words.get(place + SEGMENTS).is_none_or(|segments| segments & 0xffff == USER_CODE_64)
    };
    words.iter().enumerate().any(|(place, word)| restorers.contains(word) && is_frame(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_more_than_a_place_to_return_to() {
        const RESTORE: u64 = 0x7f12_3456_7890;
        let has = |words: &[u64]| has_frame(words, &[RESTORE]);
        let mut words = [1; 60];
        assert!(!has(&words));
        words[10] = RESTORE;
        assert!(!has(&words));
        words[10 + 24] = 0x002b_0000_0000_0033;
        assert!(has(&words));
        // What cannot be seen may be one.
        assert!(has(&words[..20]));
    }
}
