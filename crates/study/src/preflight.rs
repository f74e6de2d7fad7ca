//! Checks for obstacles to every trial, before hours are spent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::error::Obstacle;
use crate::plan::Plan;
use crate::ready::Ready;

/// Maximum time to wait until the port of an earlier run is free: after `kill -9`, its keepers
/// still end the processes that it started.
const PORT_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Checks everything that does not depend on the set-up. An interrupt ends the wait for a port.
///
/// # Errors
/// Fails at the first obstacle.
pub(crate) fn before_set_up(plan: &Plan, interrupt: &AtomicBool) -> Result<(), Obstacle> {
    if let Some(needed) = plan.open_files {
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        if needed > limit {
            return Err(Obstacle::OpenFiles { needed, limit });
        }
    }
    // With --prepare, that command may end the process that answers; each trial checks again after
    // it.
    match (&plan.timeline.ready, &plan.settings.prepare) {
        (Some(ready), None) => wait_until_free(ready, plan.settings.resume, interrupt),
        _ => Ok(()),
    }
}

fn wait_until_free(
    ready: &Ready,
    is_resumed: bool,
    interrupt: &AtomicBool,
) -> Result<(), Obstacle> {
    let deadline = Instant::now() + if is_resumed { PORT_TIMEOUT } else { Duration::ZERO };
    while answers(ready) {
        if interrupt.load(Ordering::Relaxed) || Instant::now() >= deadline {
            return Err(Obstacle::PortInUse(ready.to_string()));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns whether something answers at the address of a subject before it is started.
pub(crate) fn answers(ready: &Ready) -> bool {
    matches!(ready, Ready::Tcp(_) | Ready::Http(_)) && ready.attempt().is_ok()
}

/// Checks the results of the set-up.
///
/// # Errors
/// Fails at the first program that does not exist.
pub(crate) fn after_set_up(plan: &Plan) -> Result<(), Obstacle> {
    match plan.missing_program() {
        Some(program) => Err(Obstacle::NotMade(program.to_owned())),
        None => plan.check_shell_commands(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_port_can_be_interrupted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ready = Ready::Tcp(listener.local_addr().unwrap().to_string());
        let waited = |interrupted| wait_until_free(&ready, interrupted, &interrupted.into());
        let begin = Instant::now();
        assert!(matches!(waited(true), Err(Obstacle::PortInUse(_))));
        assert!(matches!(waited(false), Err(Obstacle::PortInUse(_))));
        assert!(begin.elapsed() < PORT_TIMEOUT);
    }
}
