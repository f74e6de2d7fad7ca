//! The phases of a round, announced for observers.

use std::time::Duration;

use subject_common::{mib, resident_bytes};
use tokio::runtime::Runtime;

use crate::options::Options;

/// Time that a phase lasts after it was announced: long enough to be sampled.
const READ: Duration = Duration::from_millis(400);

/// Announces phases, each after a pause.
pub(crate) struct Stage<'a> {
    options: &'a Options,
    round: usize,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(options: &'a Options) -> Self {
        Self { options, round: 0 }
    }

    /// Runs all rounds, each with `count` elements.
    pub(crate) fn rounds(
        &mut self,
        count: usize,
        round: impl Fn(&Self) -> Result<(), String>,
    ) -> Result<(), String> {
        std::thread::sleep(READ); // the state before the first round should be sampled as well
        self.announce("started", &format!("{}, {count} at a time", self.options.mode.name()));
        for number in 1..=self.options.rounds {
            self.round = number;
            round(self)?;
        }
        Ok(())
    }

    /// Waits for memory to fall, prints a line, and uses the phase as the name of the process, so
    /// that a script can wait for it. Stays there forever if that was requested.
    pub(crate) fn announce(&self, phase: &str, detail: &str) {
        std::thread::sleep(self.options.pause);
        let round = self.round;
        println!("{phase}: round {round}, {detail}, {:.1} MiB resident", mib(resident_bytes()));
        // The name is for convenience. Without it, the line is still printed.
        let _ = std::fs::write("/proc/self/comm", phase);
        if self.options.until.as_deref() == Some(phase) {
            Self::stay();
        }
        std::thread::sleep(READ);
    }

    /// Drops the runtime of a round, if the round has one of its own, and announces that.
    pub(crate) fn drop_runtime(&self, own: Option<Runtime>, detail: &str) {
        if own.is_some() {
            drop(own);
            self.announce("dropped", detail);
        }
    }

    /// Waits forever.
    pub(crate) fn stay() -> ! {
        loop {
            std::thread::park();
        }
    }
}
