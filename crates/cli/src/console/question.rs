//! A question to the person at the terminal.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::console::interrupt;
use crate::console::output::note;

/// Time between two checks for a signal.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Returns whether a question can be asked: stdin and stderr are a terminal.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question. Returns whether the answer is yes. A signal counts as a no, and so does no
/// answer within a time.
pub(crate) fn ask(question: &str, max_wait: Duration) -> bool {
    note!("{question} [y/N]");
    let begin = Instant::now();
    while begin.elapsed() < max_wait && !interrupt::is_set() {
        let stdin = io::stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
        // A signal interrupts it.
        if matches!(poll(&mut polled, Some(&POLL_INTERVAL)), Ok(count) if count > 0) {
            let mut answer = String::new();
            let _ = stdin.read_line(&mut answer);
            return matches!(answer.trim(), "y" | "Y" | "yes");
        }
    }
    false
}
