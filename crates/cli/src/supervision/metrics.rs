//! The metrics of `run` and `attach`, which acts and kills change.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use lowtide_supervise::Textfile;

use crate::console::output::note;

/// A file with metrics. Copies share it.
#[derive(Debug, Clone)]
pub(super) struct MetricsFile(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    textfile: Textfile,
    has_failed: bool,
}

impl MetricsFile {
    pub(super) fn new(textfile: Textfile) -> Self {
        Self(Arc::new(Mutex::new(State { textfile, has_failed: false })))
    }

    /// Changes the metrics. Reports an error, unless the last change failed too.
    pub(super) fn change(&self, change: impl FnOnce(&mut Textfile) -> io::Result<()>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut state.textfile);
        let had_failed = std::mem::replace(&mut state.has_failed, changed.is_err());
        if let Err(error) = changed
            && !had_failed
        {
            note!("lowtide: the metrics could not be written: {error}");
        }
    }
}
