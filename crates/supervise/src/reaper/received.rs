//! A signal that the reaper has received, and whether it is forwarded to the service.

use libc::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH, SIGXCPU, c_int,
};

/// The sender of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// The kernel itself.
    Kernel,
    /// A process, 0 for one outside this PID namespace.
    Process(libc::pid_t),
    /// A timer or another object of a process.
    Other,
}

/// A signal that was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    pub(super) number: c_int,
    pub(super) sender: Sender,
    /// The value that the sender has queued with the signal.
    pub(super) value: Option<libc::sigval>,
}

/// The processes between which a signal is forwarded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addressees {
    pub(super) us: libc::pid_t,
    pub(super) service: libc::pid_t,
    /// Whether the reaper is the leader of its session.
    pub(super) leads_session: bool,
}

impl Received {
    /// Returns whether the signal must be forwarded: it is meant for the service, which has not
    /// received it yet.
    pub(super) fn is_for_service(&self, addressees: Addressees) -> bool {
        match (self.number, self.sender) {
            // The reaper handles the end of its own children.
            (SIGCHLD, _) => false,
            // A shell continues the whole group. If the signal were forwarded late, it would undo
            // the next stop.
            (SIGCONT, _) if !addressees.leads_session && addressees.us != 1 => false,
            // Signals that the reaper causes itself (SIGPIPE of a message), and signals that the
            // service has sent to its whole group.
            (_, Sender::Process(pid)) => pid != addressees.us && pid != addressees.service,
            // The terminal sends these to the whole foreground group.
            (SIGINT | SIGQUIT | SIGWINCH | SIGTSTP | SIGTTIN | SIGTTOU, Sender::Kernel) => false,
            // A hangup of the terminal goes to the session leader alone.
            (SIGHUP | SIGCONT, Sender::Kernel) => addressees.leads_session,
            // The limit of the reaper's CPU time. The service has its own.
            (SIGXCPU, Sender::Kernel) => false,
            // For instance, the SIGALRM of a timer that was set before this process was started.
            (_, Sender::Kernel | Sender::Other) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use libc::{SIGALRM, SIGPIPE, SIGTERM};

    use super::*;

    const MEMBER: Addressees = Addressees { us: 10, service: 11, leads_session: false };
    const LEADER: Addressees = Addressees { us: 1, service: 2, leads_session: true };

    fn is_forwarded(number: c_int, sender: Sender, addressees: Addressees) -> bool {
        Received { number, sender, value: None }.is_for_service(addressees)
    }

    #[test]
    fn a_signal_from_another_process_is_forwarded() {
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGWINCH, SIGTSTP] {
            assert!(is_forwarded(signal, Sender::Process(12), MEMBER));
            assert!(is_forwarded(signal, Sender::Process(0), LEADER));
        }
    }

    #[test]
    fn sigcont_is_forwarded_only_by_pid_1_or_a_session_leader() {
        let init = Addressees { us: 1, service: 2, leads_session: false };
        assert!(is_forwarded(SIGCONT, Sender::Process(0), init));
        assert!(is_forwarded(SIGCONT, Sender::Process(12), LEADER));
        assert!(!is_forwarded(SIGCONT, Sender::Process(12), MEMBER));
    }

    #[test]
    fn a_signal_from_the_terminal_is_not_forwarded() {
        for signal in [SIGINT, SIGQUIT, SIGWINCH, SIGTSTP] {
            assert!(!is_forwarded(signal, Sender::Kernel, MEMBER));
            assert!(!is_forwarded(signal, Sender::Kernel, LEADER));
        }
    }

    #[test]
    fn a_hangup_is_forwarded_only_by_a_session_leader() {
        assert!(is_forwarded(SIGHUP, Sender::Kernel, LEADER));
        assert!(!is_forwarded(SIGHUP, Sender::Kernel, MEMBER));
    }

    #[test]
    fn a_signal_from_the_reaper_itself_or_the_service_is_not_forwarded() {
        assert!(!is_forwarded(SIGPIPE, Sender::Process(10), MEMBER));
        assert!(!is_forwarded(SIGTERM, Sender::Process(11), MEMBER));
        assert!(!is_forwarded(SIGCHLD, Sender::Process(12), MEMBER));
    }

    #[test]
    fn the_signal_of_an_inherited_timer_is_forwarded() {
        assert!(is_forwarded(SIGALRM, Sender::Kernel, MEMBER));
    }
}
