//! Searches for leaks during a watch, on a thread of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_leaks::evidence::Search;
use lowtide_leaks::finder::LeakFinder;
use lowtide_leaks::schedule::Schedule;
use lowtide_model::leaks::LeakReport;
use lowtide_probe::target::{Target, TargetError};

/// Time between two checks for a request.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of groups in a report.
const TOP: usize = 20;

/// A search for leaks. Dropping it ends the search.
pub(crate) struct LeakWatch {
    reports: Receiver<Result<LeakReport, TargetError>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Whether a search for pointers is requested.
    is_sought: AtomicBool,
}

impl LeakWatch {
    /// Starts to take snapshots of a process.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn start(target: Target) -> io::Result<Self> {
        let (sender, reports) = channel();
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().spawn(move || {
            if let Err(error) = watch(&target, &of_thread, &sender) {
                let _ = sender.send(Err(error));
            }
        })?;
        Ok(Self { reports, shared })
    }

    /// Requests a search for pointers, which takes a few seconds.
    pub(crate) fn seek(&self) {
        self.shared.is_sought.store(true, Ordering::Relaxed);
    }

    /// Returns the latest report, if there is a new one since the last call.
    pub(crate) fn latest(&self) -> Option<Result<LeakReport, TargetError>> {
        self.reports.try_iter().last()
    }
}

impl Drop for LeakWatch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

fn watch(
    target: &Target,
    shared: &Shared,
    sender: &Sender<Result<LeakReport, TargetError>>,
) -> Result<(), TargetError> {
    let mut finder = LeakFinder::open(target)?;
    let begin = Instant::now();
    while !shared.is_over.load(Ordering::Relaxed) {
        let at = Instant::now();
        let look = finder.look((at - begin).as_secs_f64())?;
        if sender.send(Ok(finder.report(None, TOP))).is_err() {
            break;
        }
        let cost = Duration::try_from_secs_f64(look.cpu_s).unwrap_or_default();
        let next = at + Schedule::default().interval(at - begin, cost);
        while Instant::now() < next && !shared.is_over.load(Ordering::Relaxed) {
            if shared.is_sought.swap(false, Ordering::Relaxed) {
                finder.seek(None, &Search::new(&shared.is_over))?;
                let _ = sender.send(Ok(finder.report(None, TOP)));
            }
            thread::sleep(POLL_INTERVAL.min(next.saturating_duration_since(Instant::now())));
        }
    }
    Ok(())
}
