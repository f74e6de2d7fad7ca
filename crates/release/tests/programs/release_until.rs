//! Releases a process, and kills itself at a step: `release_until PID STEP MAX_PAUSE_US`. It prints
//! the step before that. If there are fewer steps, it succeeds. If both are under seccomp filters,
//! they must have inherited them from the same process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use lowtide_model::release::ReleaseOutcome;
use lowtide_probe::target::Target;
use lowtide_release::Options;
use lowtide_release::testing::release_observed;
use rustix::process::{Signal, kill_process};

fn main() {
    let numbers: Vec<u32> = std::env::args().skip(1).map(|word| word.parse().unwrap()).collect();
    let [pid, step, max_pause_us] = numbers[..] else { panic!("PID STEP MAX_PAUSE_US") };
    let max_pause = Duration::from_micros(max_pause_us.into());
    let shares_inherited_filters = true;
    let options = Options {
        max_pause,
        untested: true,
        shares_inherited_filters,
        min_privileged_age: Duration::ZERO,
        ..Options::default()
    };
    let release = loop {
        let mut count = 0;
        let result = release_observed(&Target::open(pid).unwrap(), &options, &mut |now| {
            if count == step {
                println!("at {now:?}");
                kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
            }
            count += 1;
        });
        let release = result.unwrap();
        // On a busy machine, no thread may wait for a moment, or the one that owns the memory gets
        // its turn too late. Without a step to reach, one attempt is enough.
        if release.may_pass != Some(true) || step == u32::MAX {
            break release;
        }
    };
    assert_eq!(release.outcome, ReleaseOutcome::Released, "{release:?}");
}
