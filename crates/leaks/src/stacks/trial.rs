//! A trial of return probes on functions of lowtide itself: whether the kernel permits them,
//! whether they see all threads, what a hit costs, and whether a system call filter that does not
//! know them breaks the program.
//!
//! The cost of a hit depends on the instruction that the probe replaces: the kernel emulates some,
//! and executes others by a single step, which costs several times as much.

#![expect(
    unsafe_code,
    reason = "fork(2) and seccomp(2), for a trial that may end the process, and functions that begin with a certain instruction"
)]

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_probe::patience::OwnTime;
use lowtide_probe::proc::maps;
use lowtide_probe::proc::task::Thread;

use super::bpf::KernelSampler;
use super::refusal::NoStacks;

/// Number of calls of the function in a trial, in batches of equal size. The median batch is not
/// disturbed by other programs.
const CALLS: u64 = BATCHES * BATCH;
const BATCHES: u64 = 15;
const BATCH: u64 = 100;
/// Number of calls under a filter.
const CALLS_UNDER_FILTER: u64 = 50;
/// Maximum time for which the process of the trial under a filter may run or idle.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Number of the system call that a return probe makes on x86_64 (`uretprobe`, Linux 6.11).
const URETPROBE: u32 = 335;

/// A probed function. It returns three times its argument, with the lowest bit set.
type Probed = extern "C" fn(u64) -> u64;

/// The first instruction of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FirstInstruction {
    /// `push`.
    Push,
    /// `endbr64`, where indirect branches are tracked.
    EndBranch,
    /// Any other instruction.
    Other,
}

impl FirstInstruction {
    /// Decodes the first bytes of a function.
    pub(super) fn of(bytes: [u8; 4]) -> Self {
        match bytes {
            [0xf3, 0x0f, 0x1e, 0xfa] => Self::EndBranch,
            [0x50..=0x57, ..] | [0x41, 0x50..=0x57, ..] => Self::Push,
            _ => Self::Other,
        }
    }

    fn function(self) -> Probed {
        match self {
            Self::Push => probed::push,
            Self::EndBranch => probed::end_branch,
            Self::Other => probed::other,
        }
    }
}

/// The probed functions of lowtide.
#[cfg(target_arch = "x86_64")]
mod probed {
    use std::arch::naked_asm;

    #[unsafe(naked)]
    pub(super) extern "C" fn push(value: u64) -> u64 {
        naked_asm!("push rbp", "lea rax, [rdi + 2 * rdi]", "or rax, 1", "pop rbp", "ret")
    }

    #[unsafe(naked)]
    pub(super) extern "C" fn end_branch(value: u64) -> u64 {
        naked_asm!("endbr64", "lea rax, [rdi + 2 * rdi]", "or rax, 1", "ret")
    }

    #[unsafe(naked)]
    pub(super) extern "C" fn other(value: u64) -> u64 {
        naked_asm!("lea rax, [rdi + 2 * rdi]", "or rax, 1", "ret")
    }
}

/// Stacks are not supported on other processors.
#[cfg(not(target_arch = "x86_64"))]
mod probed {
    pub(super) extern "C" fn push(value: u64) -> u64 {
        value.wrapping_mul(3) | 1
    }

    pub(super) use push as end_branch;
    pub(super) use push as other;
}

/// Checks whether probes can be used on functions that start with an instruction, and returns the
/// time that a hit costs, in seconds.
pub(super) fn run(sampler: &mut KernelSampler, first: FirstInstruction) -> Result<f64, NoStacks> {
    let probed = first.function();
    let (file, offset) = place_of(probed).map_err(failed)?;
    // In a separate thread: kernels before 6.10 probe only the thread with the given TID.
    let in_thread = || {
        let thread = thread::Builder::new().spawn(move || time_of_batch(probed));
        thread.map_err(failed)?.join().map_err(|_| panicked())
    };
    let (without, _) = in_thread()?;
    let probes = sampler.at_returns(&file, &[offset], std::process::id());
    let probes = probes.map_err(|error| NoStacks::from_error(&error))?;
    sampler.allow(CALLS);
    let (with, is_right) = in_thread()?;
    sampler.stop();
    drop(probes);
    let mut returned = 0;
    sampler.drain(&mut |hit| returned += u64::from(hit.address & 1 == 1 && hit.stack.len() >= 8));
    if sampler.hits() < CALLS || returned == 0 {
        return Err(NoStacks::Kernel);
    }
    if !is_right {
        return Err(NoStacks::Failed("a probed function returned a wrong value".to_owned()));
    }
    Ok(with.saturating_sub(without).as_secs_f64() / BATCH as f64)
}

/// Calls the function, and returns the median time of a batch, and whether all results were
/// correct.
fn time_of_batch(probed: Probed) -> (Duration, bool) {
    let mut is_right = true;
    let mut times: Vec<Duration> = (0..BATCHES)
        .map(|_| {
            let begin = Instant::now();
            is_right &= (0..BATCH).all(|n| black_box(probed)(n) == n.wrapping_mul(3) | 1);
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    (times[times.len() / 2], is_right)
}

/// Returns whether a process survives probes under a filter that fails the system call of return
/// probes, like a filter that does not know this call.
pub(super) fn survives_filter(sampler: &mut KernelSampler) -> Result<bool, NoStacks> {
    let (file, offset) = place_of(probed::push).map_err(failed)?;
    let (reader, writer) = rustix::pipe::pipe().map_err(|error| failed(error.into()))?;
    let filter = filter();
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the child makes only calls that are safe after a fork of a multithreaded process: it
    // allocates nothing, takes no lock, and ends by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: see above. `program` and `reader` are copies of those of the parent, and valid.
        unsafe { child(&reader, &program) }
    }
    if pid < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    let probes = sampler.at_returns(&file, &[offset], pid as u32);
    sampler.allow(CALLS_UNDER_FILTER);
    drop(reader);
    let reported = File::from(writer).write_all(&[1]);
    let ended = wait(pid);
    sampler.stop();
    let probes = probes.map_err(|error| NoStacks::from_error(&error))?;
    drop(probes);
    sampler.drain(&mut |_| {});
    reported.map_err(failed)?;
    Ok(ended == Some(0) && sampler.hits() >= CALLS_UNDER_FILTER)
}

/// Runs the child: waits for a byte, installs the filter, calls the function, and exits.
///
/// # Safety
/// Must run in a child of a fork.
unsafe fn child(reader: &OwnedFd, program: &libc::sock_fprog) -> ! {
    let mut byte = 0_u8;
    // SAFETY: the calls take numbers, and addresses of values that outlive them. None of them
    // allocates or takes a lock.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1);
        let is_filtered = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, program) == 0;
        let is_right = (0..CALLS_UNDER_FILTER)
            .all(|n| black_box::<Probed>(probed::push)(n) == n.wrapping_mul(3) | 1);
        libc::_exit(i32::from(!(is_filtered && is_right)));
    }
}

/// Returns a filter that fails one system call with EPERM, and allows all others.
fn filter() -> [libc::sock_filter; 4] {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    [
        // The number of the call is the first word of `struct seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, URETPROBE)
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ]
}

/// Waits for a child, and returns its exit code. Returns `None` if the child was killed by a
/// signal, or timed out.
fn wait(pid: i32) -> Option<i32> {
    let mut own = OwnTime::new(Thread { pid: pid.cast_unsigned(), tid: pid.cast_unsigned() });
    let mut status = 0;
    loop {
        // SAFETY: it writes only to `status`; the child is ours, and only this function waits for
        // it.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if own.total() < MAX_WAIT => thread::sleep(Duration::from_millis(1)),
            0 => {
                // SAFETY: the child has not been reaped yet, so its PID is still its own.
                unsafe {
                    libc::kill(pid, libc::SIGKILL);
                    libc::waitpid(pid, &raw mut status, 0);
                }
                return None;
            }
            _ => return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        }
    }
}

/// Returns the file that contains a function, and the function's offset in it.
fn place_of(function: Probed) -> io::Result<(File, u64)> {
    let at = function as *const () as u64;
    let mut text = String::new();
    File::open("/proc/self/maps")?.read_to_string(&mut text)?;
    let maps = maps::parse(&text).map_err(io::Error::other)?;
    let mapping = maps.iter().find(|mapping| mapping.contains(at));
    let mapping = mapping.ok_or_else(|| io::Error::other("its own code is not mapped"))?;
    Ok((File::open("/proc/self/exe")?, at - mapping.start + mapping.offset))
}

fn failed(error: io::Error) -> NoStacks {
    NoStacks::Failed(error.to_string())
}

fn panicked() -> NoStacks {
    NoStacks::Failed("the trial panicked".to_owned())
}

/// Held by each test that calls a probed function: tests run beside each other in one process,
/// whose calls are counted.
#[cfg(test)]
pub(super) static PROBED_BY_A_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::super::bpf::Attachment;
    use super::*;

    #[test]
    #[ignore = "needs root, for probes"]
    fn a_sampler_counts_only_returns_in_its_target_process() {
        let _alone = PROBED_BY_A_TEST.lock();
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (file, offset) = place_of(probed::push).unwrap();
        for attachment in Attachment::ALL {
            let [own, others] = [(); 2].map(|()| KernelSampler::load(attachment).unwrap());
            let probes = [
                own.at_returns(&file, &[offset], std::process::id()).unwrap(),
                others.at_returns(&file, &[offset], other.id()).unwrap(),
            ];
            own.allow(CALLS);
            others.allow(CALLS);
            time_of_batch(probed::push);
            assert_eq!((own.hits(), others.hits()), (CALLS, 0), "{attachment:?}");
            drop(probes);
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn trial_functions_begin_with_the_instruction_that_they_represent() {
        use FirstInstruction::{EndBranch, Other, Push};
        use std::os::unix::fs::FileExt;
        for first in [Push, EndBranch, Other] {
            let (file, offset) = place_of(first.function()).unwrap();
            let mut bytes = [0; 4];
            file.read_exact_at(&mut bytes, offset).unwrap();
            assert_eq!(FirstInstruction::of(bytes), first, "{bytes:x?}");
            assert_eq!(first.function()(7), 21);
        }
    }
}
