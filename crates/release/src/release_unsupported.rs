//! A release on a processor that the code in `remote` is not written for: the examination, and a
//! refusal.

use std::marker::PhantomData;
use std::time::Instant;

use lowtide_model::release::Release;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::target::Target;

use crate::dropped::DroppedRanges;
use crate::error::{Abort, ReleaseError};
use crate::examination::{Examined, ExaminedHeap, examine};
use crate::options::Options;
use crate::refusal::Refusal;
use crate::target_code::TargetCode;

/// An operation on the target. There is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetStep {}

/// Refuses to release the memory of a process. A refusal is a result: see [`Release::outcome`].
///
/// # Errors
/// Fails if the process cannot be inspected, may not be traced, or ends meanwhile.
pub fn release(target: &Target, options: &Options) -> Result<Release, ReleaseError> {
    PreparedRelease::prepare(target, options)?.run().map(|(release, _)| release)
}

/// Refuses every process: no thread of it can be borrowed on this processor.
pub(crate) fn check_threads(_: &Target, _: &[Mapping], _: &TargetCode) -> Result<(), Abort> {
    Err(Refusal::Machine.into())
}

/// A refusal of a process that was examined.
#[derive(Debug)]
pub struct PreparedRelease<'a> {
    begin: Instant,
    release: Release,
    found: Examined,
    of: PhantomData<&'a Target>,
}

impl<'a> PreparedRelease<'a> {
    /// Examines a process.
    ///
    /// # Errors
    /// Fails if the process cannot be inspected, or ends meanwhile.
    pub fn prepare(target: &'a Target, options: &'a Options) -> Result<Self, ReleaseError> {
        let begin = Instant::now();
        let found = examine(target, options, None)?.into_iter().next();
        let ExaminedHeap { release, found, .. } = found.ok_or(ReleaseError::Interrupted)?;
        Ok(Self { begin, release, found, of: PhantomData })
    }

    /// Returns whether it will touch the process: never.
    pub fn will_act(&self) -> bool {
        false
    }

    /// Returns the CPU time that it has used, in seconds.
    pub fn cpu_s(&self) -> f64 {
        self.release.cpu_s
    }

    /// Refuses like [`release`], and returns an empty sample as well.
    ///
    /// # Errors
    /// Fails like [`release`].
    pub fn run(self) -> Result<(Release, DroppedRanges), ReleaseError> {
        let refusal = match self.found {
            Ok(_) => Refusal::Machine,
            Err(Abort::Refused(refusal)) => refusal,
            Err(Abort::Failed(error)) => return Err(error),
        };
        let mut release = self.release;
        refusal.enter(&mut release);
        release.elapsed_s = self.begin.elapsed().as_secs_f64();
        Ok((release, DroppedRanges::new(rustix::param::page_size() as u64)))
    }
}

/// Refuses like [`release`], and never calls `observe`.
///
/// # Errors
/// Fails like [`release`].
pub fn release_observed(
    target: &Target,
    options: &Options,
    _observe: &mut (dyn FnMut(TargetStep) + Send),
) -> Result<Release, ReleaseError> {
    release(target, options)
}

#[cfg(test)]
mod tests {
    use lowtide_model::release::{Hazard, ReleaseOutcome};

    use super::*;

    #[test]
    fn the_refusal_on_an_unsupported_processor_names_the_required_one() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        let options = Options::default();
        let released = PreparedRelease::prepare(&target, &options).and_then(PreparedRelease::run);
        child.kill().unwrap();
        child.wait().unwrap();
        let (release, dropped) = released.unwrap();
        assert_eq!(release.outcome, ReleaseOutcome::Refused, "{release:?}");
        assert_eq!((release.hazard, release.may_pass), (Some(Hazard::Machine), Some(false)));
        assert!(release.reason.is_some_and(|reason| reason.contains("x86-64 or aarch64")));
        assert_eq!(dropped.bytes(), 0);
    }
}
