//! A search for leaks that ends even if reading the process blocks.

use std::sync::atomic::AtomicBool;

use lowtide_leaks::finder::LeakFinder;
use lowtide_probe::patience::patiently;
use lowtide_probe::target::{Target, TargetError};

/// A finder that works in threads of its own.
pub(crate) struct PatientFinder {
    pid: u32,
    /// Absent once reading the process has blocked.
    finder: Option<LeakFinder>,
}

impl PatientFinder {
    /// Opens the memory of a process.
    pub(crate) fn open(target: &Target) -> Result<Self, TargetError> {
        Ok(Self { pid: target.pid, finder: Some(LeakFinder::open(target)?) })
    }

    /// Returns the finder; `None` once reading the process has blocked.
    pub(crate) fn get(&self) -> Option<&LeakFinder> {
        self.finder.as_ref()
    }

    /// Works with the finder in a thread of its own, which is given up if reading the process blocks.
    pub(crate) fn patiently<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut LeakFinder) -> Result<T, TargetError> + Send + 'static,
    ) -> Result<T, TargetError> {
        let blocked = || TargetError::Blocked(self.pid);
        let mut finder = self.finder.take().ok_or_else(blocked)?;
        let done = patiently(&AtomicBool::new(false), move || {
            let done = work(&mut finder);
            (finder, done)
        });
        let (finder, done) = done.map_err(|_| blocked())?;
        self.finder = Some(finder);
        done
    }
}
