//! The policy of a treatment during a trial: a separate thread supervises the subject, as `lowtide
//! attach` does.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use lowtide_model::act::Act;
use lowtide_policy::PolicyKind;
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::tree::descendants_of;
use lowtide_record::Recorder;
use lowtide_supervise::{DEFAULT_BUDGET, Observer, Scope, Supervisor, SupervisorOptions, recorded};

/// The supervision of a subject.
#[derive(Debug)]
pub(super) struct Supervision {
    interrupt: Arc<AtomicBool>,
    /// The thread; it returns the CPU time that it used, in seconds.
    thread: JoinHandle<f64>,
}

impl Supervision {
    /// Starts to supervise all descendants of a process.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(super) fn start(policy: PolicyKind, root: u32, recorder: Recorder) -> io::Result<Self> {
        let interrupt = Arc::new(AtomicBool::new(false));
        let options = SupervisorOptions {
            black_box: None,
            policy,
            max_pause: lowtide_release::Options::default().max_pause,
            budget: DEFAULT_BUDGET,
            dry_run: false,
            allocators: None,
            filter_family: None,
            interrupt: Arc::clone(&interrupt),
        };
        let builder = std::thread::Builder::new().name("policy".to_owned());
        let thread = builder.spawn(move || {
            let mut acts = RecordedActs { recorder };
            let scope = Scope::of_selection(move || Some(descendants_of(root)));
            let mut supervisor = Supervisor::new(options, scope, &mut acts);
            supervisor.run();
            supervisor.releases_cpu_s() + thread_cpu_s()
        })?;
        Ok(Self { interrupt, thread })
    }

    /// Ends the supervision. Returns the CPU time that it used, in seconds.
    pub(super) fn stop(self) -> f64 {
        self.interrupt.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(0.0)
    }
}

/// Writes acts to the record of a trial.
struct RecordedActs {
    recorder: Recorder,
}

impl Observer for RecordedActs {
    fn act(&mut self, _: &str, act: &Act) {
        self.recorder.write(&recorded(act, self.recorder.now()));
    }
}
