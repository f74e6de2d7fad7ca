//! The command line that runs a verb again with the same arguments, for one process: `sudo lowtide
//! inspect 7`.

use crate::args::{InspectArgs, LeaksArgs, MethodChoice, ReleaseArgs, WatchArgs};
use crate::values::{DEFAULT_INTERVAL, DEFAULT_MAX_PAUSE, DEFAULT_OVERHEAD, DEFAULT_TOP};

/// Returns the command line of an inspection.
pub(crate) fn inspect(args: &InspectArgs) -> String {
    let mut words = vec!["lowtide inspect".to_owned()];
    if args.arenas {
        words.push("--arenas".to_owned());
    }
    if args.malloc_info {
        words.push("--malloc-info".to_owned());
    }
    words.extend(args.watch.iter().map(|time| format!("--watch {time}")));
    words.extend(args.selector.words());
    words.join(" ")
}

/// Returns the command line of a live view.
pub(crate) fn watch(args: &WatchArgs) -> String {
    let mut words = vec!["lowtide watch".to_owned()];
    if args.interval.to_string() != DEFAULT_INTERVAL {
        words.push(format!("--interval {}", args.interval));
    }
    words.extend(args.looks.iter().map(|looks| format!("--looks {looks}")));
    words.extend(args.output.iter().map(|path| format!("--output {}", path.display())));
    words.extend(args.log.iter().map(|path| format!("--log {}", path.display())));
    words.push(args.pid.to_string());
    words.join(" ")
}

/// Returns the command line of a search for leaks.
pub(crate) fn leaks(args: &LeaksArgs) -> String {
    let mut words = vec!["lowtide leaks".to_owned()];
    words.extend(args.older.iter().map(|time| format!("--older {time}")));
    words.extend(args.every.iter().map(|time| format!("--every {time}")));
    words.extend(args.duration.iter().map(|time| format!("--duration {time}")));
    if args.top != DEFAULT_TOP {
        words.push(format!("--top {}", args.top));
    }
    let flags = [
        (args.content, "--content"),
        (args.stacks, "--stacks"),
        (args.no_stacks, "--no-stacks"),
        (args.folded, "--folded"),
    ];
    words.extend(flags.iter().filter(|flag| flag.0).map(|flag| flag.1.to_owned()));
    if args.overhead != DEFAULT_OVERHEAD {
        words.push(format!("--overhead {}%", args.overhead * 100.0));
    }
    words.extend(args.pprof.iter().map(|path| format!("--pprof {}", path.display())));
    words.extend(args.output.iter().map(|path| format!("--output {}", path.display())));
    words.push(args.pid.to_string());
    words.join(" ")
}

/// Returns the command line of a release from one of the selected processes.
pub(crate) fn release(args: &ReleaseArgs, pid: u32) -> String {
    let mut words = vec!["lowtide release".to_owned()];
    let flags = [
        (args.dry_run, "--dry-run"),
        (args.unbounded, "--unbounded"),
        (args.untested, "--untested"),
    ];
    words.extend(flags.iter().filter(|flag| flag.0).map(|flag| flag.1.to_owned()));
    if args.max_pause.to_string() != DEFAULT_MAX_PAUSE {
        words.push(format!("--max-pause {}", args.max_pause));
    }
    if args.method != MethodChoice::Auto {
        words.push(format!("--method {}", args.method.name()));
    }
    words.extend(args.wait.iter().map(|time| format!("--wait {time}")));
    words.extend(args.watch.iter().map(|time| format!("--watch {time}")));
    words.push(pid.to_string());
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use clap::Parser;

    #[test]
    fn the_command_to_rerun_keeps_all_options_and_names_one_pid() {
        let again =
            |words: &str, pid| match Cli::parse_from(format!("lowtide release {words}").split(' '))
                .verb
            {
                Verb::Release(args) => release(&args, pid),
                other => panic!("{other:?}"),
            };
        for words in [
            "7",
            "--dry-run 7",
            "--unbounded --untested --max-pause 500us --method purge --wait 5s --watch 60s 7",
        ] {
            assert_eq!(again(words, 7), format!("lowtide release {words}"));
        }
        assert_eq!(again("7 8 9", 8), "lowtide release 8");
    }
}
