//! `/proc/PID/status`.

use std::{fs, io};

use lowtide_model::counters::ProcessBytes;

use super::ParseError;

/// The used fields of `/proc/PID/status`, or of a thread's `status`
/// (Documentation/filesystems/proc.rst).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    /// State: `R`, `S`, `D`, `T`, `t`, `Z`, …; NUL if the text has none.
    pub state: char,
    /// PID of the process that the thread belongs to.
    pub process: u32,
    /// Thread ID of the tracer, in the reader's namespace; 0 if there is none, or if the reader
    /// cannot see it.
    pub tracer: u32,
    /// Real user ID.
    pub uid: u32,
    /// Effective user ID.
    pub effective_uid: u32,
    /// Effective group ID.
    pub effective_gid: u32,
    /// PID in its innermost PID namespace; 0 if the kernel does not report it.
    pub own_pid: u32,
    /// Anonymous resident bytes.
    pub anon_bytes: u64,
    /// Resident bytes of files.
    pub file_bytes: u64,
    /// Resident bytes of shared memory.
    pub shared_bytes: u64,
    /// Anonymous bytes in swap.
    pub swap_bytes: u64,
    /// Peak RSS (`VmHWM`), in bytes.
    pub peak_rss_bytes: u64,
    /// Address space, whether it is resident or not, in bytes: what RLIMIT_AS limits.
    pub address_space_bytes: u64,
    /// Private writable memory except stacks, whether it is resident or not, in bytes: what
    /// RLIMIT_DATA limits.
    pub data_bytes: u64,
    /// Size of its page tables, in bytes.
    pub page_tables_bytes: u64,
    /// Bytes of locked mappings (`mlock`, `mlockall`), resident or not.
    pub locked_bytes: u64,
    /// Bytes that a device may write to even after they are unmapped (RDMA).
    pub pinned_bytes: u64,
    /// Bytes in huge pages of the kernel's pool (hugetlb), which do not count as resident.
    pub hugetlb_bytes: u64,
    /// Signal sets.
    pub signals: Signals,
    /// Mode of the system call filter: 0 is none, 1 is strict, 2 is BPF programs (`SECCOMP_MODE_…`
    /// of include/uapi/linux/seccomp.h).
    pub seccomp: u32,
    /// Number of seccomp filters; `None` if the kernel does not report it (before 5.9).
    pub seccomp_filters: Option<u32>,
    /// Effective capabilities as a bit set (include/uapi/linux/capability.h).
    pub capabilities: u64,
    /// Number of voluntary context switches of the thread. The file of a process has those of its
    /// first thread.
    pub voluntary_switches: u64,
    /// Whether the thread has a shadow stack, against which the kernel and the processor check each
    /// return.
    pub shadow_stack: bool,
    /// Whether the process has excluded itself from transparent huge pages (`PR_SET_THP_DISABLE`).
    pub thp_disabled: bool,
}

/// Sets of signals; Bit 0 is signal 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signals {
    /// Signals sent to the thread and not yet delivered.
    pub pending: u64,
    /// Signals sent to the process and not yet delivered.
    pub pending_shared: u64,
    /// Signals blocked by the thread.
    pub blocked: u64,
    /// Signals ignored by the process.
    pub ignored: u64,
    /// Signals for which the process has a handler.
    pub caught: u64,
}

impl Status {
    /// Returns its memory by kind.
    pub fn memory(&self) -> ProcessBytes {
        ProcessBytes {
            anon: self.anon_bytes,
            file: self.file_bytes,
            shared: self.shared_bytes,
            swap: self.swap_bytes,
            tables: self.page_tables_bytes,
        }
    }

    /// Reads the status of a process.
    ///
    /// # Errors
    /// Fails if it cannot be read, or the process has ended.
    pub fn read(pid: u32) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{pid}/status"))?;
        Ok(Self::parse(&String::from_utf8_lossy(&text))?)
    }

    /// Parses the text. A process without memory of its own (a zombie, a kernel thread) has no
    /// memory lines; their values are zero.
    ///
    /// # Errors
    /// Fails if an expected number is missing in a line.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut status = Self::default();
        let signals = &mut status.signals;
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let bytes = match key {
                "RssAnon" => &mut status.anon_bytes,
                "RssFile" => &mut status.file_bytes,
                "RssShmem" => &mut status.shared_bytes,
                "VmSize" => &mut status.address_space_bytes,
                "VmData" => &mut status.data_bytes,
                "VmHWM" => &mut status.peak_rss_bytes,
                "VmSwap" => &mut status.swap_bytes,
                "VmPTE" => &mut status.page_tables_bytes,
                "VmLck" => &mut status.locked_bytes,
                "VmPin" => &mut status.pinned_bytes,
                "HugetlbPages" => &mut status.hugetlb_bytes,
                _ => {
                    match key {
                        "State" => status.state = value.trim_start().chars().next().unwrap_or('\0'),
                        "Tgid" => status.process = number(key, value)? as u32,
                        "TracerPid" => status.tracer = number(key, value)? as u32,
                        "Uid" => {
                            status.uid = number(key, value)? as u32;
                            status.effective_uid = second_number(key, value)? as u32;
                        }
                        "Gid" => status.effective_gid = second_number(key, value)? as u32,
                        // One per namespace, from the reader's inwards.
                        "NSpid" => status.own_pid = last_number(key, value)? as u32,
                        "CapEff" => status.capabilities = mask(key, value)?,
                        "SigPnd" => signals.pending = mask(key, value)?,
                        "ShdPnd" => signals.pending_shared = mask(key, value)?,
                        "SigBlk" => signals.blocked = mask(key, value)?,
                        "SigIgn" => signals.ignored = mask(key, value)?,
                        "SigCgt" => signals.caught = mask(key, value)?,
                        "Seccomp" => status.seccomp = number(key, value)? as u32,
                        "Seccomp_filters" => {
                            status.seccomp_filters = Some(number(key, value)? as u32);
                        }
                        "voluntary_ctxt_switches" => {
                            status.voluntary_switches = number(key, value)?;
                        }
                        "THP_enabled" => status.thp_disabled = number(key, value)? == 0,
                        "x86_Thread_features" => {
                            status.shadow_stack =
                                value.split_ascii_whitespace().any(|feature| feature == "shstk");
                        }
                        _ => {}
                    }
                    continue;
                }
            };
            *bytes = number(key, value)? * 1024;
        }
        Ok(status)
    }

    /// Reads the status of the calling thread.
    ///
    /// # Errors
    /// Fails if `/proc` cannot be read.
    pub fn own() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/thread-self/status")?;
        Self::parse(&text).map_err(io::Error::other)
    }

    /// Returns the sum of all resident bytes.
    pub fn rss_bytes(&self) -> u64 {
        self.anon_bytes.saturating_add(self.file_bytes).saturating_add(self.shared_bytes)
    }

    /// Returns whether it is stopped by a signal or by a tracer.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

fn no_number(key: &str) -> ParseError {
    ParseError { file: "status", what: format!("{key} has no number") }
}

fn last_number(key: &str, value: &str) -> Result<u64, ParseError> {
    number(key, value.split_ascii_whitespace().next_back().unwrap_or_default())
}

fn second_number(key: &str, value: &str) -> Result<u64, ParseError> {
    number(key, value.split_ascii_whitespace().nth(1).unwrap_or_default())
}

fn mask(key: &str, value: &str) -> Result<u64, ParseError> {
    u64::from_str_radix(value.trim_ascii(), 16).map_err(|_| no_number(key))
}

fn number(key: &str, value: &str) -> Result<u64, ParseError> {
    value
        .split_ascii_whitespace()
        .next()
        .and_then(|v| v.parse().ok())
        .filter(|n| *n < u64::MAX >> 10)
        .ok_or_else(|| no_number(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_components_of_rss_are_parsed_in_bytes() {
        let text = "Name:\tx\nUid:\t1000\t1001\t1001\t1001\nVmRSS:\t  30 kB\nRssAnon:\t  10 kB\n\
            RssFile:\t  18 kB\nRssShmem:\t   2 kB\nVmSwap:\t   7 kB\nThreads:\t1\n";
        let status = Status::parse(text).unwrap();
        assert_eq!(status.rss_bytes(), 30 << 10);
        assert_eq!((status.uid, status.swap_bytes), (1000, 7 << 10));
    }

    /// Text from Linux 6.18, for a thread in a container on a processor with shadow stacks.
    const THREAD: &str = "Name:\tS: x\nState:\tt (tracing stop)\nTgid:\t70\nPid:\t71\n\
        TracerPid:\t4242\nUid:\t0\t0\t0\t0\nNStgid:\t70\t7\t1\nNSpid:\t71\t8\t2\n\
        VmLck:\t      12 kB\nHugetlbPages:\t    2048 kB\nSigQ:\t0/96365\n\
        SigPnd:\t0000000000000001\nShdPnd:\t0000000000000002\nSigBlk:\tfffffffe7ffbfeff\n\
        SigIgn:\t0000000000001000\nSigCgt:\t8000000000000000\nSeccomp:\t2\n\
        Seccomp_filters:\t3\nx86_Thread_features:\tshstk wrss \nx86_Thread_features_locked:\t\n\
        voluntary_ctxt_switches:\t99\nnonvoluntary_ctxt_switches:\t1\n";

    #[test]
    fn the_tracer_seccomp_and_signal_state_of_a_thread_are_parsed() {
        let status = Status::parse(THREAD).unwrap();
        assert_eq!((status.state, status.is_stopped(), status.tracer), ('t', true, 4242));
        assert_eq!((status.process, status.own_pid), (70, 2));
        assert_eq!((status.seccomp, status.voluntary_switches), (2, 99));
        assert_eq!(status.seccomp_filters, Some(3));
        let before = Status::parse(&THREAD.replace("Seccomp_filters:\t3\n", "")).unwrap();
        assert_eq!((before.seccomp, before.seccomp_filters), (2, None));
        assert_eq!((status.locked_bytes, status.hugetlb_bytes), (12 << 10, 2 << 20));
        let signals = status.signals;
        assert_eq!((signals.pending, signals.pending_shared), (1, 2));
        assert_eq!(signals.blocked, 0xffff_fffe_7ffb_feff);
        assert_eq!((signals.ignored, signals.caught), (1 << 12, 1 << 63));
    }

    #[test]
    fn a_shadow_stack_that_is_only_locked_does_not_count_as_enabled() {
        assert!(Status::parse(THREAD).unwrap().shadow_stack);
        let locked = "x86_Thread_features:\t\nx86_Thread_features_locked:\tshstk wrss \n";
        assert!(!Status::parse(locked).unwrap().shadow_stack);
    }

    #[test]
    fn our_own_status_is_read() {
        let status = Status::own().unwrap();
        assert_eq!(status.state, 'R');
        assert_ne!(status.own_pid, 0);
    }

    #[test]
    fn the_rss_of_a_kernel_thread_is_zero() {
        assert_eq!(Status::parse("Name:\tkthreadd\nThreads:\t1\n").unwrap().rss_bytes(), 0);
    }

    #[test]
    fn a_missing_or_invalid_number_is_an_error() {
        assert!(Status::parse("RssAnon:\n").is_err());
        assert!(Status::parse("RssAnon: 99999999999999999999 kB\n").is_err());
        assert!(Status::parse("SigBlk:\tx\n").is_err());
        assert!(Status::parse("NSpid:\t\n").is_err());
    }

    proptest! {
        #[test]
        fn the_parser_does_not_panic_on_arbitrary_text(
            text in "((State|NSpid|SigBlk|VmLck|Uid|Seccomp|x86_Thread_features):\\PC{0,20}\n){0,9}"
        ) {
            let _ = Status::parse(&text);
        }
    }
}
