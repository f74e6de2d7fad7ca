//! The thread that asks a subject for its own figures while the trial goes on.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lowtide_record::Recorder;
use lowtide_record::v1::{Line, SubjectMetrics};

use crate::figures::Source;

/// An address is not asked more often: answering is work that the subject would not have otherwise.
const LEAST_FOR_URL: Duration = Duration::from_secs(1);

/// A running thread.
#[derive(Debug)]
pub(super) struct Telling {
    /// Dropped to have it end.
    stop: Sender<()>,
    thread: JoinHandle<Told>,
}

/// What came of asking.
#[derive(Debug, Default)]
struct Told {
    times: u64,
    last_failure: Option<String>,
}

impl Telling {
    /// Begins to ask.
    pub(super) fn start(source: Source, recorder: Recorder, interval: Duration) -> Self {
        let interval = match source {
            Source::Url(_) => interval.max(LEAST_FOR_URL),
            Source::File(_) => interval,
        };
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut told = Told::default();
            loop {
                let t_s = recorder.now();
                match source.read() {
                    Ok(values) => {
                        told.times += 1;
                        recorder.write(&Line::Figures(SubjectMetrics { t_s, values }));
                    }
                    Err(reason) => told.last_failure = Some(reason),
                }
                if stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    return told;
                }
            }
        });
        Self { stop, thread }
    }

    /// Ends it. Gives the reason when it never heard anything.
    pub(super) fn stop(self) -> Option<String> {
        drop(self.stop);
        let told = self.thread.join().unwrap_or_default();
        told.last_failure.filter(|_| told.times == 0)
    }
}
