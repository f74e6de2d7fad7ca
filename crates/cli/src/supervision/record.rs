//! The record of a supervision: the samples of its processes and the acts of its policy. It has the
//! format of a single trial, so that `lowtide report` draws it like any other.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lowtide_model::act::Act;
use lowtide_model::treatment::Treatment;
use lowtide_policy::PolicyKind;
use lowtide_probe::machine::{self, thread_cpu_s};
use lowtide_probe::sampler::{Attention, Sampler};
use lowtide_record::v1::{Event, Line};
use lowtide_record::{Recorder, SingleTrial};
use lowtide_supervise::recorded;

use crate::console::output::note;
use crate::failure::exit::Failure;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_millis(200);

/// The record of a supervision that is running.
#[derive(Debug)]
pub(crate) struct SupervisionRecord {
    trial: SingleTrial,
    end: Arc<AtomicBool>,
    /// The sampling thread, which returns its CPU time in seconds.
    sampling: Option<JoinHandle<f64>>,
}

impl SupervisionRecord {
    /// Checks that a record can be created, without creating it.
    pub(crate) fn check(path: &Path) -> Result<(), Failure> {
        let exists = path.symlink_metadata().is_ok();
        let error = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        if exists { Err(Failure::record_not_created(path, &error)) } else { Ok(()) }
    }

    /// Creates the record in a new file, and starts to sample.
    pub(crate) fn start(
        path: &Path,
        sampler: Sampler,
        policy: PolicyKind,
        command: Vec<String>,
    ) -> Result<Self, Failure> {
        let created = SingleTrial::create(path, &machine::detect(), INTERVAL);
        let mut trial = created.map_err(|error| Failure::record_not_created(path, &error))?;
        let treatment = Treatment::plain("unknown", None);
        trial.begin(Treatment { policy: policy.to_string(), ..treatment }, command);
        let end = Arc::new(AtomicBool::new(false));
        let (of_thread, ends) = (trial.recorder().clone(), Arc::clone(&end));
        let sampling = std::thread::Builder::new()
            .name("samples".to_owned())
            .spawn(move || sample(sampler, &of_thread, &ends))
            .map_err(|error| Failure::failed(format!("no thread could be started: {error}")))?;
        Ok(Self { trial, end, sampling: Some(sampling) })
    }

    /// Writes an act.
    pub(crate) fn act(&self, act: &Act) {
        let recorder = self.trial.recorder();
        recorder.write(&recorded(act, recorder.now()));
    }
}

/// Writes the last lines of the record whenever the supervision ends, even on an error.
impl Drop for SupervisionRecord {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        let sampling = self.sampling.take().and_then(|thread| thread.join().ok());
        let recorder = self.trial.recorder();
        if let Some(failure) = recorder.failure() {
            note!("lowtide: the record is incomplete: {failure}");
        }
        self.trial.end(recorder.now(), Event::Stop, sampling.unwrap_or(0.0), 0);
    }
}

/// Samples until the end. Returns the CPU time that this took, in seconds.
fn sample(mut sampler: Sampler, recorder: &Recorder, end: &AtomicBool) -> f64 {
    while !end.load(Ordering::Relaxed) {
        let Ok(tick) = sampler.tick(recorder.now(), Attention::Normal) else { break };
        tick.changed.into_iter().for_each(|process| recorder.write(&Line::Process(process)));
        recorder.write(&Line::Sample(tick.sample));
        tick.processes.into_iter().for_each(|one| recorder.write(&Line::ProcessSample(one)));
        tick.ended.into_iter().for_each(|process| recorder.write(&Line::ProcessEnd(process)));
        std::thread::sleep(INTERVAL);
    }
    thread_cpu_s()
}
