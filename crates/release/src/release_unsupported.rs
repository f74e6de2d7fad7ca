//! A release on a processor that the code in `remote` is not written for: the examination, and a refusal.

use std::time::Instant;

use lowtide_model::release::Release;
use lowtide_probe::target::Target;

use crate::dropped::DroppedRanges;
use crate::error::{Abort, ReleaseError};
use crate::examination::examine;
use crate::options::Options;
use crate::refusal::Refusal;

/// An operation on the target. There is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetStep {}

/// Refuses to release the memory of a process. A refusal is a result: see [`Release::outcome`].
///
/// # Errors
/// Fails if the process cannot be inspected, may not be traced, or ends meanwhile.
pub fn release(target: &Target, options: &Options) -> Result<Release, ReleaseError> {
    let begin = Instant::now();
    let (mut release, heap) = examine(target, options)?;
    let refusal = match heap {
        Ok(_) => Refusal::Machine,
        Err(Abort::Refused(refusal)) => refusal,
        Err(Abort::Failed(error)) => return Err(error),
    };
    refusal.enter(&mut release);
    release.elapsed_s = begin.elapsed().as_secs_f64();
    Ok(release)
}

/// Refuses like [`release`], and returns an empty sample as well.
///
/// # Errors
/// Fails like [`release`].
pub fn release_and_sample_dropped(
    target: &Target,
    options: &Options,
) -> Result<(Release, DroppedRanges), ReleaseError> {
    let none = DroppedRanges::new(rustix::param::page_size() as u64);
    release(target, options).map(|release| (release, none))
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
        let released = release_and_sample_dropped(&target, &Options::default());
        child.kill().unwrap();
        child.wait().unwrap();
        let (release, dropped) = released.unwrap();
        assert_eq!(release.outcome, ReleaseOutcome::Refused, "{release:?}");
        assert_eq!((release.hazard, release.may_pass), (Some(Hazard::Machine), Some(false)));
        assert!(release.reason.is_some_and(|reason| reason.contains("on x86-64 only")));
        assert_eq!(dropped.bytes(), 0);
    }
}
