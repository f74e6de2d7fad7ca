//! One verb on each of the selected processes.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::console::output::Output;
use crate::failure::exit::{Exit, Failure};
use crate::select::group::Group;
use crate::select::selector::{Selected, Selector};

/// The result for one process.
pub(crate) type Outcome = Result<Exit, Failure>;

/// Runs a verb on each process in turn, prints the failures of all but a single process, adds up
/// the totals in `group`, and returns the worst exit code. An error of `verb` itself ends the loop:
/// nothing can be printed any more.
pub(crate) fn each_process(
    selector: &Selector,
    selected: &[Selected],
    group: &mut Group,
    interrupt: &AtomicBool,
    output: &Output,
    mut verb: impl FnMut(u32, &mut Group) -> Result<Outcome, Failure>,
) -> Outcome {
    let mut worst = Exit::Done;
    for process in selected {
        if interrupt.load(Ordering::Relaxed) {
            worst = Exit::Interrupted;
            break;
        }
        if !selector.still_means(process) {
            continue;
        }
        let exit = match verb(process.pid, group)? {
            Ok(exit) => exit,
            // A selected process may have ended since. This is an error only if it was selected by
            // PID.
            Err(failure)
                if failure.exit() == Exit::Gone && !selector.pids.contains(&process.pid) =>
            {
                continue;
            }
            Err(failure) if selected.len() == 1 && !selector.is_group() => return Err(failure),
            Err(failure) => {
                group.add_unreadable();
                output.fail(&failure);
                failure.exit()
            }
        };
        worst = worst.or(exit);
    }
    Ok(worst)
}
