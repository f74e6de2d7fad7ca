//! Captures the output of a program: writes it to a file of the record, passes its lines on, and
//! keeps the last ones for the error message of a failure.

use lowtide_record::{Recorder, files};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of lines that an error message shows, and of bytes that are kept for them.
const TAIL_LINES: usize = 8;
const TAIL_BYTES: usize = 8 << 10;
/// Maximum length of a line, in bytes: the listener gets only its beginning.
const MAX_LINE: usize = 64 << 10;
/// Bytes per read.
const CHUNK: usize = 64 << 10;
/// Maximum size of the file, in bytes: a program may never stop printing.
const MAX_KEPT: usize = 64 << 20;

/// Receives every line, and the time at which it was printed.
pub(crate) type LineListener = Box<dyn FnMut(&str, Instant) + Send>;

/// The end of a program's output.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutputTail(Arc<Mutex<VecDeque<u8>>>);

impl OutputTail {
    pub(crate) fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let surplus = (kept.len() + new.len()).saturating_sub(TAIL_BYTES);
        let surplus = surplus.min(kept.len());
        kept.drain(..surplus);
        kept.extend(new);
    }

    /// Returns the last lines as the end of a sentence, or a remark that there are none.
    pub(crate) fn quoted(&self) -> String {
        self.lines().unwrap_or("; it printed nothing".to_owned())
    }

    /// Returns the last lines as the end of a sentence, if there are any.
    pub(crate) fn lines(&self) -> Option<String> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(kept.make_contiguous());
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        if last.is_empty() {
            return None;
        }
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let shown = last.iter().map(|line| {
            let line: String = line.trim_end().chars().map(printable).take(300).collect();
            format!("\n    {line}")
        });
        Some(format!("; it printed:{}", shown.collect::<String>()))
    }
}

/// The thread that captures the output of a program.
#[derive(Debug)]
pub(crate) struct Capture(JoinHandle<()>);

impl Capture {
    /// Waits until no process can print any more, or until `timeout`: a process that could not be
    /// ended still can.
    pub(crate) fn finish(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while !self.0.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Captures the output of a program until no process can print any more.
///
/// # Errors
/// Fails if the file cannot be created.
pub(crate) fn capture(
    mut from: impl Read + Send + 'static,
    log: &Path,
    recorder: &Recorder,
    listener: Option<LineListener>,
) -> std::io::Result<(OutputTail, Capture)> {
    let mut file = files::create(log)?;
    let path = log.to_owned();
    let recorder = recorder.clone();
    let tail = OutputTail::default();
    let remembered = tail.clone();
    let thread = std::thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        let mut lines = listener.map(LineReader::new);
        let mut room = MAX_KEPT;
        loop {
            let length = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let at = Instant::now();
            let bytes = &chunk[..length];
            let kept = &bytes[..length.min(room)];
            room -= kept.len();
            if let Err(error) = file.write_all(kept) {
                recorder.fail(format!("{}: {error}", path.display()));
            }
            remembered.push(bytes);
            if let Some(lines) = &mut lines {
                lines.hear(bytes, at);
            }
        }
        if let Some(lines) = &mut lines {
            lines.end();
        }
    });
    Ok((tail, Capture(thread)))
}

/// Splits the output into lines.
struct LineReader {
    listener: LineListener,
    /// The start of an incomplete line.
    begun: Vec<u8>,
}

impl LineReader {
    fn new(listener: LineListener) -> Self {
        Self { listener, begun: Vec::new() }
    }

    fn hear(&mut self, bytes: &[u8], at: Instant) {
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            let room = MAX_LINE - self.begun.len();
            self.begun.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.emit(at);
            }
        }
    }

    /// Handles the last line, which may lack a newline.
    fn end(&mut self) {
        if !self.begun.is_empty() {
            self.emit(Instant::now());
        }
    }

    fn emit(&mut self, at: Instant) {
        (self.listener)(String::from_utf8_lossy(&self.begun).trim_end(), at);
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn lines_are_assembled_regardless_of_chunk_boundaries() {
        let (sender, heard) = mpsc::channel();
        let mut lines =
            LineReader::new(Box::new(move |line, _| sender.send(line.to_owned()).unwrap()));
        let at = Instant::now();
        for part in ["on", "e\ntwo\r\n\nth", "ree"] {
            lines.hear(part.as_bytes(), at);
        }
        lines.hear(&vec![b'x'; 3 * MAX_LINE], at);
        lines.hear(b"\n", at);
        lines.hear(b"last", at);
        lines.end();
        drop(lines);
        let heard: Vec<String> = heard.iter().collect();
        assert_eq!(heard[..3], ["one", "two", ""]);
        assert!(heard[3].starts_with("threexxx") && heard[3].len() == MAX_LINE);
        assert_eq!(heard[4], "last");
    }

    #[test]
    fn only_the_last_lines_of_the_output_are_kept() {
        let tail = OutputTail::default();
        assert_eq!(tail.quoted(), "; it printed nothing");
        for number in 0..5000 {
            tail.push(format!("line {number}\n").as_bytes());
        }
        assert!(tail.0.lock().unwrap().len() <= TAIL_BYTES);
        let quoted = tail.quoted();
        assert!(quoted.starts_with("; it printed:\n    line 4992\n"), "{quoted}");
        assert!(quoted.ends_with("line 4999"), "{quoted}");
    }
}
