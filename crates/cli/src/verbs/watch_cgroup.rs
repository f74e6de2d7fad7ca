//! `lowtide watch --cgroup`: the growth of what a cgroup is charged for, by row.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_analysis::growth::ChargeFollower;
use lowtide_model::cgroup::growth::SCHEMA;
use lowtide_model::cgroup::{CgroupCharge, ChargeReading};
use lowtide_probe::cgroup::{CgroupDirectory, CgroupError, read_charge};
use lowtide_probe::pressure::MemoryPressure;
use lowtide_report::cgroup::growth::{line, summary};

use crate::args::WatchArgs;
use crate::console::interrupt;
use crate::console::output::{Output, note};
use crate::failure::exit::{Exit, Failure};
use crate::select::container::failure;
use crate::shell::quoted;

/// Time between two checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The watch of a cgroup.
struct CgroupWatch {
    group: CgroupDirectory,
    begun: Instant,
    follower: ChargeFollower,
    latest: Option<ChargeReading>,
}

pub(super) fn run(path: &str, args: &WatchArgs, output: &Output) -> Result<Exit, Failure> {
    let group = CgroupDirectory::find(path).map_err(|error| failure(&error))?;
    let (follower, begun) = (ChargeFollower::default(), Instant::now());
    let mut watch = CgroupWatch { group, begun, follower, latest: None };
    let interrupt = interrupt::flag();
    let mut readings = 0;
    loop {
        let due = Instant::now() + args.interval;
        match read_charge(&watch.group) {
            Ok(charge) => watch.add(charge),
            Err(error @ CgroupError::Missing(_)) if readings > 0 => {
                note!("lowtide: {error}");
                break;
            }
            Err(error) => return Err(failure(&error)),
        }
        readings += 1;
        let is_last = args.looks.is_some_and(|most| readings >= most);
        if !watch.print(output)? || is_last || !wait_until(due, &interrupt) {
            break;
        }
    }
    watch.end(output)?;
    Ok(Exit::Done)
}

/// Waits until a point in time. Returns whether no signal came before.
fn wait_until(due: Instant, interrupt: &AtomicBool) -> bool {
    loop {
        let rest = due.saturating_duration_since(Instant::now());
        match interrupt.load(Ordering::Relaxed) {
            true => return false,
            false if rest.is_zero() => return true,
            false => thread::sleep(rest.min(POLL_INTERVAL)),
        }
    }
}

impl CgroupWatch {
    fn add(&mut self, charge: CgroupCharge) {
        let t_s = match self.latest {
            Some(_) => self.begun.elapsed().as_secs_f64(),
            None => 0.0,
        };
        self.follower.add(t_s, charge.clone());
        let mut growth = self.follower.growth();
        if let Some(growth) = &mut growth {
            let limit = MemoryPressure::nearest_limit_of(&self.group);
            growth.set_limit(limit.limit_bytes, limit.used_bytes, self.group.version);
        }
        let (path, version) = (self.group.path.clone(), self.group.version);
        self.latest = Some(ChargeReading { schema: SCHEMA, t_s, path, version, charge, growth });
    }

    /// Prints the latest reading. Returns whether stdout is still read.
    fn print(&self, output: &Output) -> Result<bool, Failure> {
        match &self.latest {
            None => Ok(true),
            Some(latest) if output.json => output.line_of(latest),
            Some(latest) => output.line(&line(latest, output.screen())),
        }
    }

    /// Prints the growth over the whole watch.
    fn end(&self, output: &Output) -> Result<(), Failure> {
        let summary = self.latest.as_ref().and_then(summary).filter(|_| !output.json);
        let Some(summary) = summary else { return Ok(()) };
        let next = format!("next: lowtide inspect --cgroup {}", quoted(&self.group.path));
        output.line(&(summary + &next)).map(drop)
    }
}
