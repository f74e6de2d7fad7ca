//! A search for leaks that ends even if reading the process blocks.

use std::sync::atomic::AtomicBool;

use lowtide_leaks::finder::LeakFinder;
use lowtide_probe::patience::Patience;
use lowtide_probe::target::{Target, TargetError};

/// A finder that works in threads of its own.
pub(crate) struct PatientFinder {
    target: Target,
    /// Absent once reading the process has blocked.
    finder: Option<LeakFinder>,
}

impl PatientFinder {
    /// Opens the memory of a process.
    pub(crate) fn open(target: &Target) -> Result<Self, TargetError> {
        let finder = Some(LeakFinder::open(target)?);
        let target = target.try_clone().map_err(|error| target.failed(error))?;
        Ok(Self { target, finder })
    }

    /// Returns the finder; `None` once reading the process has blocked.
    pub(crate) fn get(&self) -> Option<&LeakFinder> {
        self.finder.as_ref()
    }

    /// Works with the finder in a thread of its own, which is given up if reading the process takes
    /// too long.
    pub(crate) fn patiently<T: Send + 'static>(
        &mut self,
        patience: Patience,
        work: impl FnOnce(&mut LeakFinder) -> Result<T, TargetError> + Send + 'static,
    ) -> Result<T, TargetError> {
        let pid = self.target.pid;
        let mut finder = self.finder.take().ok_or(TargetError::Blocked(pid))?;
        let done = patience.work_on(&self.target, &AtomicBool::new(false), move || {
            let done = work(&mut finder);
            (finder, done)
        });
        let (finder, done) = done.map_err(|given_up| given_up.error(pid))?;
        self.finder = Some(finder);
        done
    }
}
