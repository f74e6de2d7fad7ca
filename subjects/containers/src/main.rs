//! The programs with which the post (studies/README.md) compares its servers: tokio tasks,
//! plain TCP connections and maps. Each is filled, emptied and dropped, round after round. After
//! each phase, the program waits for memory to fall, and then prints a line.
//!
//! ```text
//! subject-containers mode=tasks                   a million tasks, on one runtime for all rounds
//! subject-containers mode=tasks runtime=each      on a runtime per round
//! subject-containers mode=tcp [runtime=each]      connections, both ends in this process, as many as the
//!                                                 file limit allows
//! subject-containers mode=attempts                a million attempts to connect at once, whatever number succeeds
//! subject-containers mode=map                     HashMap<usize, usize>
//! subject-containers mode=map-of-vec              HashMap<usize, Vec<usize>>
//! subject-containers mode=dashmap                 DashMap<usize, usize>
//! subject-containers mode=one-stays               tasks, the last of which outlives the others
//! subject-containers mode=interleaved             tasks, every fourth of which outlives the others
//! subject-containers mode=sleepers                tasks, each of which ends by a sleep of its own
//! ```
//!
//! Other options: `count=` (a million), `rounds=` (3), `pause=` (ms before a phase is announced,
//! 1000), `until=` (the phase of the first round in which it stays). For sleepers: `spawn=inside`
//! (by a task of the runtime, as in the post), `state=` (bytes that each holds), `sleep=` (ms).

mod maps;
mod options;
mod runtimes;
mod stage;
mod tasks;
mod tcp;

use std::collections::HashMap;
use std::process::ExitCode;

use dashmap::DashMap;

use maps::Map;
use options::{Mode, Options};
use runtimes::Runtimes;
use stage::Stage;
use tasks::Long;

fn main() -> ExitCode {
    match Options::read(std::env::args().skip(1)).and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let mut stage = Stage::new(options);
    match options.mode {
        Mode::Tasks => tasks(&mut stage, options, Long::None)?,
        Mode::OneStays => tasks(&mut stage, options, Long::Last)?,
        Mode::Interleaved => tasks(&mut stage, options, Long::EveryFourth)?,
        Mode::Sleepers => {
            let runtimes = Runtimes::new(options.each)?;
            stage.rounds(options.count, |stage| tasks::sleepers(stage, &runtimes, options))?;
        }
        Mode::Tcp => {
            let (runtimes, count) = (Runtimes::new(options.each)?, tcp::allowed(options.count)?);
            stage.rounds(count, |stage| tcp::round(stage, &runtimes, count))?;
        }
        Mode::Attempts => {
            let runtimes = Runtimes::new(options.each)?;
            stage.rounds(options.count, |stage| tcp::attempts(stage, &runtimes, options))?;
        }
        Mode::Map => maps::<HashMap<usize, usize>>(&mut stage, options)?,
        Mode::MapOfVec => maps::<HashMap<usize, Vec<usize>>>(&mut stage, options)?,
        Mode::DashMap => maps::<DashMap<usize, usize>>(&mut stage, options)?,
    }
    stage.announce("over", "waits until it is ended");
    Stage::stay()
}

fn tasks(stage: &mut Stage, options: &Options, long: Long) -> Result<(), String> {
    let (runtimes, count) = (Runtimes::new(options.each)?, options.count);
    stage.rounds(count, |stage| tasks::round(stage, &runtimes, count, long))
}

fn maps<M: Map>(stage: &mut Stage, options: &Options) -> Result<(), String> {
    stage.rounds(options.count, |stage| {
        maps::round::<M>(stage, options.count);
        Ok(())
    })
}
