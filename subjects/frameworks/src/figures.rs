//! The metrics of the server: a line per second, and its counters as JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use subject_common::{allocated_bytes, mib, replace, resident_bytes};

use crate::options::Options;

/// Interval at which the file of metrics is written. A line is printed after several intervals.
const STEP: Duration = Duration::from_millis(200);
const STEPS_PER_LINE: u64 = 5;

/// The counters of the post. Its "connections" are requests that are being handled.
#[derive(Clone, Default)]
pub(crate) struct Counters(Arc<Inner>);

#[derive(Default)]
struct Inner {
    requests: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

impl Counters {
    /// Counts a request that is being handled, until the result is dropped.
    pub(crate) fn begin(&self) -> Handled {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let now = 1 + self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        self.0.most_in_flight.fetch_max(now, Ordering::Relaxed);
        Handled(self.clone())
    }

    /// Returns all counters as JSON.
    pub(crate) fn json(&self) -> String {
        let [requests, in_flight, most_in_flight] = self.numbers();
        serde_json::json!({
            "requests": requests,
            "requests_in_flight": in_flight,
            "most_requests_in_flight": most_in_flight,
            "inner_memory_bytes": allocated_bytes(),
        })
        .to_string()
    }

    fn numbers(&self) -> [usize; 3] {
        let Inner { requests, in_flight, most_in_flight } = &*self.0;
        [requests, in_flight, most_in_flight].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// A request that is being handled.
pub(crate) struct Handled(Counters);

impl Drop for Handled {
    fn drop(&mut self) {
        self.0.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Monitors the server forever: prints a line per second, and updates the file of metrics. It has a
/// thread of its own, since some frameworks lack tokio's usual runtime.
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
    let [requests, in_flight, most_in_flight] = counters.numbers();
    format!(
        "ct: {requests}, conn: {in_flight}, max_conn: {most_in_flight}, inner_mem: {:.3}M, outer_mem: \
         {:.3}M",
        mib(allocated_bytes() as u64),
        mib(resident_bytes()),
    )
}
