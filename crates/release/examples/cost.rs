//! Releases a process once, and prints the cost for lowtide itself.
//!
//!     cargo run --release -p lowtide-release --example cost -- PID

#![allow(clippy::unwrap_used, reason = "an example that cannot continue has failed")]

use std::fs;

use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::target::Target;
use lowtide_release::{Options, PreparedRelease};

fn main() {
    let pid = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap();
    let options = Options { untested: true, ..Options::default() };
    let target = Target::open(pid).unwrap();
    let prepared = PreparedRelease::prepare(&target, &options).unwrap();
    let (released, dropped) = prepared.run().unwrap();
    println!(
        "{:?} {} of {} MiB, {} passes, {:.3} s, CPU {:.3} s of {:.3} s, {:?}",
        released.outcome,
        released.returned_bytes >> 20,
        released.predicted_bytes >> 20,
        released.passes,
        released.elapsed_s,
        released.cpu_s,
        cpu_s(),
        released.reason,
    );
    let begin = thread_cpu_s();
    let back = dropped.came_back(&target).unwrap();
    let checked_ms = (thread_cpu_s() - begin) * 1e3;
    println!(
        "{} MiB dropped, {back:?}, checked in {checked_ms:.1} ms of CPU",
        dropped.bytes() >> 20
    );
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let kept = ["VmHWM", "RssAnon", "RssFile"];
    status
        .lines()
        .filter(|line| kept.iter().any(|k| line.starts_with(k)))
        .for_each(|line| println!("{line}"));
}

fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
