//! Seccomp filters, as far as they are visible from outside: their mode and their number.

use lowtide_probe::proc::status::Status;

use crate::options::Options;
use crate::refusal::Refusal;

/// Checks the threads' seccomp modes, before any thread is stopped: a release is impossible if
/// every thread is in strict mode, or under filters that may not be read and are not those of
/// lowtide.
///
/// # Errors
/// Fails if it is.
pub(crate) fn check_filters(threads: &[Status], options: &Options) -> Result<(), Refusal> {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    if threads.is_empty() || threads.iter().any(|status| status.seccomp == 0) {
        return Ok(());
    }
    if threads.iter().all(|status| status.seccomp == libc::SECCOMP_MODE_STRICT) {
        return Err(Refusal::Seccomp { call: "mmap" });
    }
    let why = match Status::own() {
        Ok(own) if own.seccomp != 0 && options.shares_inherited_filters => {
            let shared: Vec<_> = threads.iter().map(|status| are_shared(&own, status)).collect();
            match shared.iter().find_map(|shared| shared.err()) {
                Some(why) if shared.iter().all(Result::is_err) => why,
                _ => return Ok(()),
            }
        }
        Ok(own) if own.seccomp != 0 => "lowtide itself has a filter",
        Ok(own) if own.capabilities & CAP_SYS_ADMIN == 0 => "lowtide lacks CAP_SYS_ADMIN",
        _ => return Ok(()),
    };
    Err(Refusal::SeccompUnread { why: why.to_owned() })
}

/// Checks that two threads have the same filters, if they inherited theirs from the same process;
/// the error is the reason why this is not certain.
///
/// # Errors
/// Fails unless both are in filter mode and have the same number of filters.
pub(crate) fn are_shared(own: &Status, other: &Status) -> Result<(), &'static str> {
    match (own.seccomp_filters, other.seccomp_filters) {
        (None, _) | (_, None) => Err("this kernel, before 5.9, does not count filters"),
        _ if [own, other].iter().any(|status| status.seccomp != libc::SECCOMP_MODE_FILTER) => {
            Err("its filters are not those of lowtide")
        }
        (own, other) if own == other => Ok(()),
        _ => Err("its filters differ from those of lowtide"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_shared_only_in_filter_mode_with_equal_known_counts() {
        let filtered =
            |seccomp_filters| Status { seccomp: 2, seccomp_filters, ..Status::default() };
        assert_eq!(are_shared(&filtered(Some(2)), &filtered(Some(2))), Ok(()));
        for (own, other) in [
            (filtered(Some(2)), filtered(Some(3))),
            (filtered(Some(2)), filtered(Some(1))),
            (filtered(None), filtered(None)),
            (filtered(Some(2)), filtered(None)),
            (filtered(Some(0)), Status { seccomp: 0, ..filtered(Some(0)) }),
            (filtered(Some(1)), Status { seccomp: 1, ..filtered(Some(1)) }),
        ] {
            assert!(are_shared(&own, &other).is_err(), "{own:?} {other:?}");
        }
    }
}
