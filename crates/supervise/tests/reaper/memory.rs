//! Memory requirements of the reaper.

use rustix::process::Signal;

use crate::support::{Reaper, send, until_true};

/// Returns the number of allocations in a line of `run_reaper`.
fn allocations(line: &str) -> u32 {
    line.rsplit_once("allocations ").unwrap().1.parse().unwrap()
}

#[test]
fn the_reaper_allocates_nothing_after_startup() {
    let script =
        "trap 'echo got' USR1; trap 'exit 0' TERM; for i in $(seq 50); do (sleep 0.1 &); done
        echo ready; while :; do sleep 0.05; done";
    let mut reaper = Reaper::script("idle", script);
    let at_start = allocations(&reaper.error("policy: "));
    assert_eq!(reaper.line(), "ready");
    reaper.send(Signal::USR1);
    assert_eq!(reaper.line(), "got");
    until_true("reaping", || reaper.children().len() == 1);
    send(reaper.policy(), Signal::KILL);
    assert_eq!(allocations(&reaper.error("policy: ")), at_start);
    reaper.send(Signal::USR1);
    assert_eq!(reaper.line(), "got");
    reaper.send(Signal::TERM);
    assert_eq!(allocations(&reaper.error("end: ")), at_start);
    assert!(reaper.wait().success());
}
