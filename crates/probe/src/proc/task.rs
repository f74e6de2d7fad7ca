//! `/proc/PID/task`: the threads of a process and their activity.

use std::fs;
use std::io;
use std::time::Duration;

use super::stat::Stat;
use super::status::Status;
use super::{ParseError, is_gone};

/// A thread of a process, by its IDs. It holds no reference: a thread can end, and its ID can be
/// reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// PID of the process.
    pub pid: u32,
    /// Thread ID. The first thread's is the PID.
    pub tid: u32,
}

impl Thread {
    /// Returns the calling thread.
    pub fn current() -> Self {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        Self { pid: std::process::id(), tid }
    }
}

/// The activity of a thread, from `/proc/PID/task/TID/syscall`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It was running or runnable when it was sampled; nothing else is known.
    Running,
    /// It waits outside a system call: for a page, or because it was stopped.
    Outside {
        /// Stack pointer.
        stack_pointer: u64,
        /// Address of the next instruction.
        instruction_pointer: u64,
    },
    /// It waits in a system call.
    In(SystemCall),
}

/// A system call in which a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemCall {
    /// Number, in the table of the call's ABI. A thread that uses `int $0x80` in a 64-bit process
    /// uses the i386 table, which cannot be detected here.
    pub number: u32,
    /// Arguments.
    pub args: [u64; 6],
    /// Stack pointer.
    pub stack_pointer: u64,
    /// Address of the instruction after the call.
    pub instruction_pointer: u64,
}

impl SystemCall {
    /// Returns the arguments that the call has. The registers of the others keep what the program
    /// had in them. Calls in which threads wait long are known (`SYSCALL_DEFINE` in Linux); all six
    /// are returned for any other.
    pub fn arguments(&self) -> &[u64] {
        const FUTEX_WAIT: u64 = 0;
        const FUTEX_COMMAND: u64 = 0x7f;
        let count = match i64::from(self.number) {
            libc::SYS_nanosleep | libc::SYS_rt_sigsuspend => 2,
            libc::SYS_read | libc::SYS_readv | libc::SYS_write | libc::SYS_writev => 3,
            libc::SYS_accept | libc::SYS_connect | libc::SYS_recvmsg | libc::SYS_sendmsg => 3,
            libc::SYS_clock_nanosleep | libc::SYS_wait4 | libc::SYS_accept4 => 4,
            libc::SYS_rt_sigtimedwait => 4,
            libc::SYS_futex if self.args[1] & FUTEX_COMMAND == FUTEX_WAIT => 4,
            libc::SYS_ppoll | libc::SYS_waitid => 5,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_pause => 0,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => 3,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => 4,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => 5,
            _ => 6,
        };
        &self.args[..count]
    }
}

/// Returns the threads of a process, the first one first.
///
/// # Errors
/// Fails if it has ended, or may not be inspected.
pub fn threads(pid: u32) -> io::Result<Vec<Thread>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let tid = task?.file_name().to_str().and_then(|name| name.parse().ok());
        found.extend(tid.map(|tid| Thread { pid, tid }));
    }
    Ok(found)
}

/// Returns the threads of a process that run code of its program: not those of io_uring, nor those
/// that have ended.
///
/// # Errors
/// Fails if the process has ended, or if a thread cannot be read.
pub fn program_threads(pid: u32) -> io::Result<Vec<Thread>> {
    let mut found = Vec::new();
    for thread in threads(pid)? {
        match thread.stat() {
            Ok(stat) if stat.is_io_worker() || stat.has_ended() => {}
            Ok(_) => found.push(thread),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl Thread {
    /// Returns its activity. Requires permission to trace it.
    ///
    /// # Errors
    /// Fails if it has ended, or may not be traced.
    pub fn doing(&self) -> io::Result<Doing> {
        Ok(Doing::parse(&self.read("syscall")?)?)
    }

    /// Reads its own `status`.
    ///
    /// # Errors
    /// Fails if it has ended, or may not be inspected.
    pub fn status(&self) -> io::Result<Status> {
        Ok(Status::parse(&self.read("status")?)?)
    }

    /// Reads its own `stat`.
    ///
    /// # Errors
    /// Fails if it has ended, or may not be inspected.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(Stat::parse(&self.read("stat")?)?)
    }

    /// Reads its personality (`personality(2)`, a bit set). Requires permission to trace it.
    ///
    /// # Errors
    /// Fails if it has ended, or may not be traced.
    pub fn personality(&self) -> io::Result<u64> {
        let text = self.read("personality")?;
        let what = || format!("`{}` is not a valid personality", text.trim());
        let error = |_| ParseError { file: "personality", what: what() };
        Ok(u64::from_str_radix(text.trim(), 16).map_err(error)?)
    }

    /// Returns how often it has begun to run on a processor; `None` if the kernel does not report
    /// it, or if it has ended.
    pub fn turns(&self) -> Option<u64> {
        self.schedule(2)
    }

    /// Returns the time it has run on a processor; `None` if the kernel does not report it, or if
    /// it has ended.
    pub fn ran(&self) -> Option<Duration> {
        self.schedule(0).map(Duration::from_nanos)
    }

    /// Returns the time it has waited for a processor; `None` if the kernel does not report it, or
    /// if it has ended.
    pub fn waited(&self) -> Option<Duration> {
        self.schedule(1).map(Duration::from_nanos)
    }

    /// Returns a number of its `schedstat`, by position (Documentation/scheduler/sched-stats.rst):
    /// two times in nanoseconds, and a count.
    fn schedule(&self, place: usize) -> Option<u64> {
        self.read("schedstat").ok()?.split_ascii_whitespace().nth(place)?.parse().ok()
    }

    fn read(&self, file: &str) -> io::Result<String> {
        let bytes = fs::read(format!("/proc/{}/task/{}/{file}", self.pid, self.tid))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Doing {
    /// Parses the text: `running`; or -1, the stack pointer and the instruction pointer; or a
    /// number, six arguments and the two pointers (fs/proc/base.c, `proc_pid_syscall`).
    ///
    /// # Errors
    /// Fails if it has none of these forms.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let error =
            || ParseError { file: "syscall", what: format!("`{text}` is not a valid system call") };
        let mut words = text.split_ascii_whitespace();
        let first = words.next().ok_or_else(error)?;
        if first == "running" {
            return Ok(Self::Running);
        }
        let mut hex = || {
            let digits = words.next().and_then(|word| word.strip_prefix("0x"));
            digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or_else(error)
        };
        if first == "-1" {
            return Ok(Self::Outside { stack_pointer: hex()?, instruction_pointer: hex()? });
        }
        let number = first.parse().map_err(|_| error())?;
        let mut args = [0; 6];
        for arg in &mut args {
            *arg = hex()?;
        }
        let (stack_pointer, instruction_pointer) = (hex()?, hex()?);
        Ok(Self::In(SystemCall { number, args, stack_pointer, instruction_pointer }))
    }

    /// Returns the stack pointer if it is known.
    pub fn stack_pointer(&self) -> Option<u64> {
        match self {
            Self::Running => None,
            Self::Outside { stack_pointer, .. } => Some(*stack_pointer),
            Self::In(call) => Some(call.stack_pointer),
        }
    }

    /// Returns the address of the next instruction if it is known.
    pub fn instruction_pointer(&self) -> Option<u64> {
        match self {
            Self::Running => None,
            Self::Outside { instruction_pointer, .. } => Some(*instruction_pointer),
            Self::In(call) => Some(call.instruction_pointer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    fn ourselves() -> Thread {
        let link = fs::read_link("/proc/thread-self").unwrap();
        let tid = link.file_name().unwrap().to_str().unwrap().parse().unwrap();
        Thread { pid: std::process::id(), tid }
    }

    #[test]
    fn all_three_forms_of_the_syscall_file_are_parsed() {
        assert_eq!(Doing::parse("running\n").unwrap(), Doing::Running);
        assert_eq!(
            Doing::parse("-1 0x7ffe0010 0x7f0020\n").unwrap(),
            Doing::Outside { stack_pointer: 0x7ffe_0010, instruction_pointer: 0x7f_0020 }
        );
        let text =
            "232 0x3 0x7ffe10 0x20 0xffffffffffffffff 0x0 0x8 0x7fff0a257ac8 0x7fca08f8d2ad\n";
        let Doing::In(call) = Doing::parse(text).unwrap() else { panic!("{text}") };
        assert_eq!((call.number, call.args), (232, [3, 0x7f_fe10, 0x20, u64::MAX, 0, 8]));
        assert_eq!(call.stack_pointer, 0x7fff_0a25_7ac8);
        assert_eq!(call.instruction_pointer, 0x7fca_08f8_d2ad);
    }

    #[test]
    fn a_truncated_or_invalid_line_is_an_error() {
        for text in
            ["", "-1 0x1", "0 0x1 0x2 0x3 0x4 0x5 0x6 0x7", "-2 0x1 0x2", "0 1 2 3 4 5 6 7 8"]
        {
            assert!(Doing::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_thread_that_is_blocked_in_recvfrom_is_reported_in_that_system_call() {
        let (mut near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
        let descriptor = far.as_raw_fd() as u64;
        let (sender, receiver) = mpsc::channel();
        let waiting = std::thread::spawn(move || {
            sender.send(ourselves()).unwrap();
            let _ = far.read(&mut [0; 8]);
        });
        let thread = receiver.recv().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let call = loop {
            match thread.doing().unwrap() {
                // Sockets are read with recvfrom: 45 on x86-64, 207 on aarch64.
                Doing::In(call) if call.args[0] == descriptor => break call,
                doing => assert!(Instant::now() < deadline, "{doing:?}"),
            }
            std::thread::yield_now();
        };
        assert!([45, 207].contains(&call.number), "{call:?}");
        assert_eq!(call.args[2], 8);
        assert!(thread.stat().unwrap().state == 'S' && thread.status().unwrap().state == 'S');
        assert!(threads(thread.pid).unwrap().contains(&thread));
        near.write_all(b"x").unwrap();
        waiting.join().unwrap();
        assert!(threads(thread.pid).unwrap().first().is_some_and(|first| first.tid == thread.pid));
    }

    #[test]
    fn the_calling_thread_is_in_a_system_call_and_an_unknown_thread_is_gone() {
        let thread = ourselves();
        assert!(matches!(thread.doing().unwrap(), Doing::In(_)));
        assert!(super::super::is_gone(&Thread { tid: u32::MAX, ..thread }.status().unwrap_err()));
        assert!(threads(u32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn the_parser_does_not_panic_on_arbitrary_text(text in "(running|-?[0-9]{0,12}|0x[0-9a-f]{0,20}|[ \\PC]){0,12}") {
            let _ = Doing::parse(&text);
        }
    }
}
