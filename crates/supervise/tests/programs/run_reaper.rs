//! A process with a reaper: `run_reaper POLICY COMMAND...`. POLICY selects the action of the policy
//! process.
//!
//! The policy process and the reaper print the number of allocations that the reaper has made so
//! far.
//!
//! `run_reaper signals` is a service: it prints each signal that it receives, with the value, and
//! ends at SIGTERM.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lowtide_supervise::reaper::{self, Policy, PolicyContext, ReaperError, ServiceCommand};

/// The system's allocator, with a count of allocations.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "an allocator")]
// SAFETY: each call is passed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller observes the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller observes the contract of this function.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let mut words = std::env::args_os().skip(1);
    let mode = words.next().unwrap().into_string().unwrap();
    let command: Vec<OsString> = words.collect();
    match &*mode {
        "signals" => print_signals(),
        "threads" => std::thread::scope(|scope| {
            scope.spawn(|| run("none", &command)).join().unwrap();
        }),
        _ => run(&mode, &command),
    }
}

fn run(mode: &str, command: &[OsString]) {
    let service =
        ServiceCommand::new(command, &[("REAPER_TEST".into(), "set".into())], &[]).unwrap();
    let policy = |context: PolicyContext| {
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        let PolicyContext { service, failures, .. } = context;
        if mode != "quiet" {
            eprintln!("policy: service {service} failures {failures} allocations {allocations}");
        }
        be_policy(mode)
    };
    let policy = Policy { run: &policy, is_first_victim: mode != "recorder" };
    let policy = (mode != "none").then_some(policy);
    let result = reaper::run(&service, policy);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    match result {
        Ok(end) => {
            if !matches!(mode, "none" | "quiet") {
                eprintln!("end: allocations {allocations}");
            }
            end.pass_on()
        }
        Err(error) => fail(&error),
    }
}

fn fail(error: &ReaperError) -> ! {
    eprintln!("run_reaper: {error}");
    std::process::exit(error.code().into())
}

fn be_policy(mode: &str) -> u8 {
    match mode {
        "idle" | "quiet" | "recorder" => {}
        "done" => return 0,
        "panic" => panic!("as requested"),
        "abort" => std::process::abort(),
        "deaf" => ignore_sigterm(),
        "polite" => return wait_for_sigterm(),
        _ => return 2,
    }
    // After a failed test, no process ends the policy, so it ends by itself.
    std::thread::sleep(Duration::from_secs(600));
    0
}

#[expect(unsafe_code, reason = "a disposition, which std does not have")]
fn ignore_sigterm() {
    // SAFETY: no code runs for an ignored signal.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    eprintln!("deaf");
}

/// Returns some time after SIGTERM, like a policy that has to finish its work.
#[expect(unsafe_code, reason = "a wait for signals, which std does not have")]
fn wait_for_sigterm() -> u8 {
    let all = block_all();
    eprintln!("polite");
    // SAFETY: the set is initialized; the information is not needed.
    while unsafe { libc::sigwaitinfo(&raw const all, std::ptr::null_mut()) } != libc::SIGTERM {}
    std::thread::sleep(Duration::from_millis(100));
    eprintln!("policy: has finished");
    0
}

/// Blocks all signals, and returns them.
#[expect(unsafe_code, reason = "a signal mask, which std does not have")]
fn block_all() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: zeros are a valid set, which sigfillset changes and sigprocmask reads.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
        all.assume_init()
    }
}

#[expect(unsafe_code, reason = "a wait for signals, which std does not have")]
fn print_signals() {
    let all = block_all();
    println!("ready {}", std::process::id());
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set is initialized, and the kernel writes `info`, which is valid when zeroed.
        // The value of a signal from sigqueue is a number, and is not read otherwise.
        let (signal, value) = unsafe {
            let signal = libc::sigwaitinfo(&raw const all, info.as_mut_ptr());
            let info = info.assume_init();
            let is_queued = info.si_code == libc::SI_QUEUE;
            (signal, if is_queued { info.si_value().sival_ptr.addr() } else { 0 })
        };
        println!("{signal} {value}");
        if signal == libc::SIGTERM {
            return;
        }
    }
}
