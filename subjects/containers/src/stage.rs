//! The phases of a round, announced for whoever watches.

use std::time::Duration;

use subject_common::{mib, resident_bytes};

use crate::options::Options;

/// For how long a phase lasts once it is announced: long enough to be read.
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

    /// All rounds, each with so many elements.
    pub(crate) fn rounds(
        &mut self,
        count: usize,
        round: impl Fn(&Self) -> Result<(), String>,
    ) -> Result<(), String> {
        std::thread::sleep(READ); // what there is before the first round should be read as well
        self.announce("started", &format!("{}, {count} at a time", self.options.mode.name()));
        for number in 1..=self.options.rounds {
            self.round = number;
            round(self)?;
        }
        Ok(())
    }

    /// Lets memory fall for a while, and then prints a line and takes the phase as the process's name, which a
    /// script can wait for. Stays there for ever where that was asked for.
    pub(crate) fn announce(&self, phase: &str, detail: &str) {
        std::thread::sleep(self.options.pause);
        let round = self.round;
        println!("{phase}: round {round}, {detail}, {:.1} MiB resident", mib(resident_bytes()));
        // The name is for convenience; without it the line is still there.
        let _ = std::fs::write("/proc/self/comm", phase);
        if self.options.until.as_deref() == Some(phase) {
            Self::stay();
        }
        std::thread::sleep(READ);
    }

    /// Does nothing for ever.
    pub(crate) fn stay() -> ! {
        loop {
            std::thread::park();
        }
    }
}
