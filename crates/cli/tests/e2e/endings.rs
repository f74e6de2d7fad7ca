//! Every long-running verb ends when its terminal is closed, on every signal, and with its target.

use std::net::TcpListener;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{processes_with, unique_seconds, until};
use crate::terminal::{Keys, Terminal, heeds_signals};
use crate::watch::Subject;

/// The event that ends lowtide.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// The terminal is closed, which sends SIGHUP.
    Closed,
    /// A signal arrives while the terminal accepts no output.
    Stalled,
    /// A signal.
    By(Signal),
}

const ENDINGS: [Ending; 6] = [
    Ending::Closed,
    Ending::Stalled,
    Ending::By(Signal::INT),
    Ending::By(Signal::TERM),
    Ending::By(Signal::HUP),
    Ending::By(Signal::QUIT),
];

#[test]
fn every_verb_ends_when_its_terminal_closes_or_a_signal_arrives() {
    // A server that accepts connections and never responds.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", mute.local_addr().unwrap());
    for ending in ENDINGS {
        let home = tempfile::tempdir().unwrap();
        let (subject, released) = (Subject::hoard(), Subject::hoard());
        let (pid, released) = (subject.pid(), released.pid());
        let (record, seconds) = (home.path().join("study"), unique_seconds());
        let record = record.to_str().unwrap();
        // The verb, its arguments, and a text that it shows once it is running.
        let verbs: [(&str, &[&str], &str); 6] = [
            ("watch", &[&pid], "hoard:"),
            ("watch", &["--json", &pid], "hoard"),
            ("inspect", &["--watch", "10m", &pid], ""),
            ("release", &["--watch", "10m", &released], ""),
            ("load", &[&url, "-z", "10m"], ""),
            ("study", &["-a", "glibc", "-o", record, "--", "sleep", &seconds], "recording to"),
        ];
        for (verb, arguments, shown) in verbs {
            let keys = match ending {
                Ending::Stalled => Keys::Stalled,
                Ending::Closed | Ending::By(_) => Keys::Control,
            };
            let mut terminal = Terminal::start(verb, arguments, keys);
            match (verb, ending) {
                (_, Ending::Closed | Ending::By(_)) if !shown.is_empty() => terminal.is_sent(shown),
                _ => until("its handlers", || heeds_signals(&terminal.child).then_some(())),
            }
            match ending {
                Ending::Closed => terminal.close(),
                Ending::Stalled => {
                    kill_process(Pid::from_child(&terminal.child), Signal::TERM).unwrap();
                }
                Ending::By(signal) => {
                    kill_process(Pid::from_child(&terminal.child), signal).unwrap();
                }
            }
            until(&format!("the end of {verb} {arguments:?} by {ending:?}"), || {
                terminal.child.try_wait().unwrap()
            });
        }
        until("the end of the subject", || processes_with(&seconds).is_empty().then_some(()));
    }
}

#[test]
fn a_verb_ends_when_its_target_ends() {
    for (verb, arguments) in [
        ("watch", &[][..]),
        ("watch", &["--json"]),
        ("inspect", &["--watch", "10m"]),
        ("release", &["--watch", "10m"]),
    ] {
        let mut subject = Subject::hoard();
        let pid = subject.pid();
        let arguments = [arguments, &[pid.as_str()]].concat();
        let mut terminal = Terminal::start(verb, &arguments, Keys::Control);
        until("its handlers", || heeds_signals(&terminal.child).then_some(()));
        subject.end();
        until(&format!("the end of {verb} {arguments:?}"), || terminal.child.try_wait().unwrap());
    }
}
