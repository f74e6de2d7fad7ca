//! The metrics of the server: a line per second as in the post, and its counters as JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lowtide_tokio::Keeper;
use subject_common::{allocated_bytes, mib, replace, resident_bytes};
use tokio::runtime::Handle;

use crate::allocator;
use crate::options::Options;
use crate::runtime::Rolling;

/// Minimum resident memory for replacing a runtime without tasks, in MiB.
const THRESHOLD_MIB: u64 = 20;
/// Interval at which the file of metrics is written. A line of the post is printed after
/// several intervals.
const STEP: Duration = Duration::from_millis(200);
const STEPS_PER_LINE: u64 = 5;

/// The counters of the post. Its "connections" are requests that are being handled.
#[derive(Clone)]
pub(crate) struct Counters(Arc<Inner>);

struct Inner {
    requests: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    connections: AtomicUsize,
    refreshes: AtomicU64,
    /// Duration of the last refresh, in nanoseconds.
    refresh_ns: AtomicU64,
    rolling: Rolling,
    keeper: Option<Keeper>,
}

impl Counters {
    pub(crate) fn new(rolling: Rolling, keeper: Option<Keeper>) -> Self {
        Self(Arc::new(Inner {
            requests: AtomicUsize::default(),
            in_flight: AtomicUsize::default(),
            most_in_flight: AtomicUsize::default(),
            connections: AtomicUsize::default(),
            refreshes: AtomicU64::default(),
            refresh_ns: AtomicU64::default(),
            rolling,
            keeper,
        }))
    }

    /// Counts a request that is being handled, until the result is dropped.
    pub(crate) fn begin(&self) -> Handled<'_> {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let now = 1 + self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        self.0.most_in_flight.fetch_max(now, Ordering::Relaxed);
        Handled(self)
    }

    /// Counts an open connection, until the result is dropped.
    pub(crate) fn connect(&self) -> Connected {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        Connected(self.clone())
    }

    /// Returns all counters as JSON.
    pub(crate) fn json(&self) -> String {
        let number = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let mut figures = serde_json::json!({
            "requests": number(&self.0.requests),
            "requests_in_flight": number(&self.0.in_flight),
            "most_requests_in_flight": number(&self.0.most_in_flight),
            "connections": number(&self.0.connections),
            "inner_memory_bytes": allocated_bytes(),
            "alive_tasks": self.0.rolling.alive_tasks(),
            "refreshes": self.0.refreshes.load(Ordering::Relaxed),
            "refresh_ms": self.0.refresh_ns.load(Ordering::Relaxed) as f64 / 1e6,
        });
        if let Some(keeper) = &self.0.keeper {
            let kept = keeper.metrics();
            figures["recycled_connections"] = kept.recycled_connections.into();
            figures["releases"] = kept.releases.into();
            figures["returned_bytes"] = kept.returned_bytes.into();
        }
        figures.to_string()
    }
}

/// A request that is being handled.
pub(crate) struct Handled<'a>(&'a Counters);

impl Drop for Handled<'_> {
    fn drop(&mut self) {
        self.0.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An open connection.
pub(crate) struct Connected(Counters);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Monitors the server forever: replaces its runtime if that is enabled, prints the post's line
/// each second, and updates the file of metrics.
pub(crate) async fn monitor(counters: Counters, rolling: Rolling, options: Options) {
    let mut interval = tokio::time::interval(STEP);
    for step in 0_u64.. {
        interval.tick().await;
        if step % STEPS_PER_LINE == 0 {
            println!("{}", line(step / STEPS_PER_LINE, &counters, &rolling, options.refresh));
        }
        if let Some(file) = &options.figures
            && let Err(error) = replace(file, &counters.json())
        {
            eprintln!("{}: {error}", file.display());
        }
    }
}

fn line(second: u64, counters: &Counters, rolling: &Rolling, refresh: bool) -> String {
    let number = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let outer = resident_bytes();
    let tasks = rolling.alive_tasks();
    let refreshed = if refresh && tasks == 0 && outer > THRESHOLD_MIB << 20 {
        counters.0.refreshes.fetch_add(1, Ordering::Relaxed);
        match rolling.refresh() {
            Ok(cost) => {
                let ns = u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX);
                counters.0.refresh_ns.store(ns, Ordering::Relaxed);
                let name = allocator::NAME;
                format!(", refresh runtime on {name} until {THRESHOLD_MIB}M! cost {cost:?}")
            }
            Err(error) => format!(", the runtime could not be refreshed: {error}"),
        }
    } else {
        String::new()
    };
    format!(
        "axum {second}, ct: {}, conn: {}, max_conn: {}, inner_mem: {:.3}M, outer_mem: {:.3}M, main_rt: \
         {}, global_rt: {tasks}{refreshed}",
        number(&counters.0.requests),
        number(&counters.0.in_flight),
        number(&counters.0.most_in_flight),
        mib(allocated_bytes() as u64),
        mib(outer),
        Handle::current().metrics().num_alive_tasks(),
    )
}
