//! What a program prints: kept in a file of the record, searched for announcements, and its last
//! lines remembered for the sentence that says why it failed.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::recorder::Recorder;

/// How many lines are remembered.
const TAIL_LINES: usize = 8;
/// A longer line is cut there when it is searched or shown.
const LONGEST_LINE: u64 = 64 << 10;
/// What is kept of a program that never stops printing.
const MOST_KEPT: u64 = 64 << 20;

/// The last lines that a program printed.
#[derive(Debug, Clone, Default)]
pub struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        let printable = line.chars().map(|c| if c.is_control() { ' ' } else { c });
        lines.push_back(printable.take(300).collect());
    }

    /// The lines, as the end of a sentence; says so when there are none.
    pub fn quoted(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown: Vec<String> =
            lines.iter().filter(|l| !l.trim().is_empty()).map(|l| format!("\n    {l}")).collect();
        if shown.is_empty() {
            "; it printed nothing".to_owned()
        } else {
            format!("; it printed:{}", shown.concat())
        }
    }
}

/// A thread that keeps what a program prints.
#[derive(Debug)]
pub struct Keeping(JoinHandle<()>);

impl Keeping {
    /// Waits until nobody can print any more, but not for ever: a process that could not be ended
    /// still could.
    pub fn finish(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while !self.0.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Reads what a program prints until nobody can print any more. `announce` is shown every line and
/// the moment at which it came.
///
/// # Errors
/// When the file cannot be made.
pub fn keep(
    from: impl Read + Send + 'static,
    log: &Path,
    recorder: &Recorder,
    mut announce: impl FnMut(&str, Instant) + Send + 'static,
) -> std::io::Result<(Tail, Keeping)> {
    let mut file = File::create(log)?;
    let path = log.to_owned();
    let recorder = recorder.clone();
    let tail = Tail::default();
    let remembered = tail.clone();
    let thread = std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        let mut kept = 0;
        loop {
            line.clear();
            match from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(length) => kept += length as u64,
            }
            let at = Instant::now();
            if kept <= MOST_KEPT
                && let Err(error) = file.write_all(&line)
            {
                recorder.fail(format!("{}: {error}", path.display()));
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            remembered.push(text);
            announce(text, at);
        }
    });
    Ok((tail, Keeping(thread)))
}
