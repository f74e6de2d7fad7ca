//! A running program that counts the blocks that it loses and keeps.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use lowtide_analysis::leaks::survivors;
use lowtide_leaks::evidence::Search;
use lowtide_leaks::finder::LeakFinder;
use lowtide_leaks::stacks::sampler::StackSampler;
use lowtide_model::leaks::LeakReport;
use lowtide_probe::target::Target;
use lowtide_testing::Running;
use serde_json::Value;

/// Time between two queries of a program.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The counts of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Truth {
    pub(crate) lost: u64,
    pub(crate) kept: u64,
    pub(crate) steps: u64,
    pub(crate) seconds: f64,
}

pub(crate) struct Subject {
    child: Running,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Subject {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Self { child: child.into(), to, from }
    }

    pub(crate) fn ask(&mut self) -> Truth {
        writeln!(self.to).unwrap();
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        let counts: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        let count = |key: &str| counts[key].as_u64().unwrap_or(0);
        Truth {
            lost: count("lost"),
            kept: count("kept"),
            steps: count("steps"),
            seconds: counts["seconds"].as_f64().unwrap(),
        }
    }

    pub(crate) fn target(&self) -> Target {
        Target::open(self.child.id()).unwrap()
    }

    /// Waits until the program has done `steps` steps.
    pub(crate) fn wait_for(&mut self, steps: u64) -> Truth {
        loop {
            let truth = self.ask();
            if truth.steps >= steps {
                return truth;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Watches it for some snapshots, with `steps` steps between them, and searches for pointers.
    /// Returns the report, and the smallest and largest numbers of blocks that it can have lost,
    /// and additionally kept, in the time of the survivors.
    pub(crate) fn watch(&mut self, looks: usize, steps: u64, max_blocks: usize) -> Watched {
        self.watch_with(looks, steps, max_blocks, None)
    }

    /// Watches it in the same way, with stacks. `sampler` takes them.
    pub(crate) fn watch_with(
        &mut self,
        looks: usize,
        steps: u64,
        max_blocks: usize,
        sampler: Option<StackSampler>,
    ) -> Watched {
        let target = self.target();
        let mut finder = LeakFinder::with_max_blocks(&target, max_blocks).unwrap();
        let mut next = self.ask().steps;
        let (mut times, mut truths): (Vec<f64>, Vec<[Truth; 2]>) = (Vec::new(), Vec::new());
        let mut first = None;
        for _ in 0..looks {
            let before = self.wait_for(next);
            let t_s = before.seconds - *first.get_or_insert(before.seconds);
            let look = finder.look(t_s).unwrap();
            let after = self.ask();
            if look.is_whole {
                times.push(t_s);
                truths.push([before, after]);
            }
            next = after.steps + steps;
        }
        let older_s = times.last().unwrap() / 2.0;
        let samples = sampler.map(|sampler| sampler.finish().unwrap());
        let interrupt = AtomicBool::new(false);
        let count_calls = Some(Duration::from_secs(2));
        let search = Search {
            samples: samples.as_ref(),
            count_calls,
            notes_registers: true,
            // On a busy machine, the searches that must agree take longer.
            time: Duration::from_secs(60),
            ..Search::new(&interrupt)
        };
        finder.seek(Some(older_s), &search).unwrap();
        let last = usize::from(survivors(&times, older_s).end - 1);
        let range = |of: fn(&Truth) -> u64| {
            let least = of(&truths[last][0]).saturating_sub(of(&truths[0][1]));
            [least, of(&truths[last][1]).saturating_sub(of(&truths[0][0]))]
        };
        let (lost, kept) = (range(|truth| truth.lost), range(|truth| truth.kept));
        let seconds = times[last];
        let lost_before = [truths[0][0].lost, truths[0][1].lost];
        Watched { report: finder.report(Some(older_s), 100), lost, kept, lost_before, seconds }
    }
}

/// The result of a watch.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) report: LeakReport,
    /// The minimum and maximum number of blocks that it can have lost in the time of the survivors.
    pub(crate) lost: [u64; 2],
    /// The same for the blocks that it keeps.
    pub(crate) kept: [u64; 2],
    /// The number of blocks that it had lost before the first snapshot.
    pub(crate) lost_before: [u64; 2],
    /// The time of the survivors, in seconds.
    pub(crate) seconds: f64,
}

/// Compiles the subject into a directory, with flags.
pub(crate) fn compile(directory: &Path, flags: &[&str]) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/subject.c");
    let program = directory.join("subject");
    lowtide_testing::compile(&program, flags.iter().chain(&["-pthread", source]));
    program
}
