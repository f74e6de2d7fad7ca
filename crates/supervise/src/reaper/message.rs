//! Messages of a process that does not allocate.

use std::fmt::{self, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::end::ChildEnd;
use super::signals;

/// Maximum size of a message in bytes. The longest one has 137.
const MESSAGE_BYTES: usize = 160;

/// Reports on stderr that the policy process has failed, and after which pause it is restarted.
pub(super) fn policy_failed(end: ChildEnd, pause: Option<Duration>) {
    let mut message = Message { bytes: [0; MESSAGE_BYTES], length: 0 };
    // Only a message that is too long fails. The part that fits is printed.
    let _ = match end {
        ChildEnd::Exited(code) => {
            write!(message, "lowtide: the policy process exited with code {code}")
        }
        ChildEnd::Signalled(n) => {
            write!(message, "lowtide: the policy process was ended by signal {n}")
        }
    };
    let _ = match pause {
        Some(pause) => writeln!(message, "; it starts again in {} s", pause.as_secs()),
        None => writeln!(
            message,
            "; it does not start again: the command continues, and no more memory is released"
        ),
    };
    message.print();
}

struct Message {
    bytes: [u8; MESSAGE_BYTES],
    length: usize,
}

impl Message {
    /// Writes to stderr, unless the write would block: a reader that has stopped must not stop the
    /// reaper.
    fn print(&self) {
        let stderr = rustix::stdio::stderr();
        let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
        let is_ready = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1);
        if is_ready && let Some(bytes) = self.bytes.get(..self.length) {
            signals::without_terminal_stop(|| {
                let _ = rustix::io::write(stderr, bytes);
            });
        }
    }
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length.saturating_add(text.len());
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_truncated_after_the_last_part_that_fits() {
        let mut message = Message { bytes: [0; MESSAGE_BYTES], length: 0 };
        assert!(write!(message, "{}{}", "a".repeat(100), "b".repeat(61)).is_err());
        assert_eq!(message.length, 100);
        assert!(message.write_str(&"c".repeat(60)).is_ok());
        assert_eq!(message.length, MESSAGE_BYTES);
    }
}
