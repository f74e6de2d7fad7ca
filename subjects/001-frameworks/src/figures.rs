//! What the server tells of itself: a line each second, and its counters as JSON.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::allocator;
use crate::options::Options;

/// How often the file of figures is written: a line is printed every so many times.
const STEP: Duration = Duration::from_millis(200);
const STEPS_PER_LINE: u64 = 5;

/// The counters of the document. What it calls connections are requests that are being handled.
#[derive(Clone, Default)]
pub(crate) struct Counters(Arc<Inner>);

#[derive(Default)]
struct Inner {
    requests: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

impl Counters {
    /// A request is being handled, until what it gives is dropped.
    pub(crate) fn begin(&self) -> Handled {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let now = 1 + self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        self.0.most_in_flight.fetch_max(now, Ordering::Relaxed);
        Handled(self.clone())
    }

    /// All of them, as JSON.
    pub(crate) fn json(&self) -> String {
        let [requests, in_flight, most_in_flight] = self.numbers();
        serde_json::json!({
            "requests": requests,
            "requests_in_flight": in_flight,
            "most_requests_in_flight": most_in_flight,
            "inner_memory_bytes": allocator::allocated(),
        })
        .to_string()
    }

    fn numbers(&self) -> [usize; 3] {
        let Inner { requests, in_flight, most_in_flight } = &*self.0;
        [requests, in_flight, most_in_flight].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// One request that is being handled.
pub(crate) struct Handled(Counters);

impl Drop for Handled {
    fn drop(&mut self) {
        self.0.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Watches the server for ever: prints a line each second, and keeps the file of figures. It has a thread of
/// its own, since not every framework has tokio's usual runtime.
pub(crate) fn monitor(counters: &Counters, options: &Options) -> ! {
    for step in 0_u64.. {
        if step % STEPS_PER_LINE == 0 {
            println!("{} {}, {}", options.framework.name(), step / STEPS_PER_LINE, line(counters));
        }
        if let Some(file) = &options.figures
            && let Err(error) = replace(file, &counters.json())
        {
            eprintln!("{}: {error}", file.display());
        }
        std::thread::sleep(STEP);
    }
    unreachable!("nobody counts that far")
}

fn line(counters: &Counters) -> String {
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    let [requests, in_flight, most_in_flight] = counters.numbers();
    format!(
        "ct: {requests}, conn: {in_flight}, max_conn: {most_in_flight}, inner_mem: {:.3}M, outer_mem: \
         {:.3}M",
        mib(allocator::allocated() as u64),
        mib(resident_bytes()),
    )
}

/// What is resident, by the kernel's account; 0 where it cannot be read.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Whoever reads the file finds it whole.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let mut beside = file.to_owned().into_os_string();
    beside.push(".new");
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, file)
}
