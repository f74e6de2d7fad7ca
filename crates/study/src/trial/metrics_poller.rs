//! The thread that polls a subject's own metrics during a trial.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lowtide_record::Recorder;
use lowtide_record::v1::{Line, SubjectMetrics};

use crate::metrics_source::MetricsSource;

/// Minimum time between two requests to an address: answering is additional work for the subject.
const MIN_URL_INTERVAL: Duration = Duration::from_secs(1);

/// The running thread.
#[derive(Debug)]
pub(super) struct MetricsPoller {
    /// Dropped to end the thread.
    stop: Sender<()>,
    thread: JoinHandle<PollResult>,
}

/// The outcome of all polls.
#[derive(Debug, Default)]
struct PollResult {
    successes: u64,
    last_failure: Option<String>,
}

impl MetricsPoller {
    /// Starts the thread.
    pub(super) fn start(source: MetricsSource, recorder: Recorder, interval: Duration) -> Self {
        let interval = match source {
            MetricsSource::Url(_) => interval.max(MIN_URL_INTERVAL),
            MetricsSource::File(_) => interval,
        };
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut result = PollResult::default();
            loop {
                let t_s = recorder.now();
                match source.read() {
                    Ok(values) => {
                        result.successes += 1;
                        recorder.write(&Line::Figures(SubjectMetrics { t_s, values }));
                    }
                    Err(reason) => result.last_failure = Some(reason),
                }
                if stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    return result;
                }
            }
        });
        Self { stop, thread }
    }

    /// Ends the thread. Returns the reason if no poll succeeded.
    pub(super) fn stop(self) -> Option<String> {
        drop(self.stop);
        let result = self.thread.join().unwrap_or_default();
        result.last_failure.filter(|_| result.successes == 0)
    }
}
