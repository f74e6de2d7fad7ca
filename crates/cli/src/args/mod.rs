//! The command line.

#[cfg(test)]
mod documents;
pub(crate) mod help;
pub(crate) mod load_values;
pub(crate) mod typed;
pub(crate) mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, ColorChoice, Parser, Subcommand};
use clap_complete::Shell;
use lowtide_analysis::threshold::Threshold;
use lowtide_exporter::ListenAddress;
use lowtide_load::{LoadTarget, Rate};
use lowtide_policy::PolicyKind;
use lowtide_probe::patience::Patience;
use lowtide_report::inspection::Details;
use lowtide_study::Flags;

use crate::args::load_values::{IdleClose, named};
use crate::args::values::{
    AllocatorChoice, DEFAULT_INTERVAL, DEFAULT_LISTEN, DEFAULT_MAX_PAUSE, DEFAULT_TOP_INTERVAL,
    Deadline,
};
use crate::select::selector::{ProcessFilter, ProcessesOrFiles, Selector};
use crate::top::rows::{GroupKey, SortKey};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Heading of the flags of all verbs: after those of the verb itself.
const OF_ALL_VERBS: &str = "All verbs";

/// Memory rises with the load. lowtide shows why it does not fall again, and brings it down.
#[derive(Debug, Parser)]
#[command(name = "lowtide", version, styles = STYLES, max_term_width = 100, after_help = help::EXITS, disable_help_flag = true)]
pub(crate) struct Cli {
    /// Print data as JSON
    ///
    /// One object. A verb that has several, such as one for each process, prints each on its own
    /// line
    #[arg(long, global = true, help_heading = OF_ALL_VERBS)]
    pub(crate) json: bool,

    /// Colours: auto, always, never
    ///
    /// NO_COLOR and TERM=dumb are respected.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true, help_heading = OF_ALL_VERBS)]
    pub(crate) color: ColorChoice,

    /// Print help: -h the common flags, --help all, with examples
    #[arg(short, long, global = true, action = clap::ArgAction::Help, help_heading = OF_ALL_VERBS)]
    help: Option<bool>,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Demonstrate lowtide in about two minutes: an HTTP/2 server under five allocators and
    /// settings
    Demo(DemoArgs),
    /// Compare the memory that a command keeps under allocators, settings and policies
    Study(Box<StudyArgs>),
    /// Show the resident memory of a process by owner, without stopping it
    Inspect(InspectArgs),
    /// Release the free memory of a live process, in short pauses
    Release(ReleaseArgs),
    /// Start a command and keep its memory low; made for the entry point of a container
    Run(RunArgs),
    /// Keep the memory of live processes low, until Ctrl-C
    Attach(AttachArgs),
    /// Put a load on a server: up to a million requests in flight from one small process
    Load(Box<LoadArgs>),
    /// Find what grows in a process: blocks with their types and holders, or other memory by owner
    Leaks(LeaksArgs),
    /// Show the resident memory of a process by owner, live; q quits
    Watch(WatchArgs),
    /// Show the memory of all processes: how much is in use, and how much could be returned
    Top(TopArgs),
    /// Export the memory of all processes as metrics for Prometheus
    Exporter(ExporterArgs),
    /// Show records as charts and tables
    Report(ReportArgs),
    /// Print completions for a shell
    #[command(hide = true, after_long_help = help::COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(hide = true, after_long_help = help::MAN_HELP)]
    Man {
        /// Verb whose manual page is printed
        verb: Option<String>,
    },
    /// Stands between lowtide and the processes that it starts
    #[command(hide = true)]
    Keep,
    /// Reads a mapped file that may be on a file system which does not answer
    #[command(hide = true)]
    ReadMapped { pid: u32, start: u64, inode: u64 },
    /// The server of the demo
    #[command(hide = true)]
    DemoServer(DemoServerArgs),
}

impl Verb {
    /// Returns whether it reads live processes that the user names. `run` starts its command in any
    /// case.
    pub(crate) fn reads_processes(&self) -> bool {
        matches!(
            self,
            Self::Inspect(_)
                | Self::Release(_)
                | Self::Attach(_)
                | Self::Leaks(_)
                | Self::Watch(_)
                | Self::Top(_)
                | Self::Exporter(_)
        )
    }
}

#[derive(Debug, Args)]
#[command(after_long_help = help::DEMO_HELP)]
pub(crate) struct DemoArgs {
    /// Number of requests in flight at once [default: depends on the memory of the machine]
    #[arg(long, value_name = "COUNT")]
    pub(crate) streams: Option<u32>,

    /// Number of trials of each treatment
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub(crate) repeat: u32,

    /// Directory of the record [default: lowtide-demo-DATE-TIME]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_long_help = help::INSPECT_HELP)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) targets: ProcessesOrFiles,

    /// Show each arena of the heap, its free blocks by size, and the settings in force
    #[arg(long)]
    pub(crate) arenas: bool,

    /// If several processes are selected, show the page of each instead of a line
    #[arg(long)]
    pub(crate) each: bool,

    /// Show all reasons of the verdict, each remedy in full with the setting that makes it
    /// permanent, and every row
    #[arg(long)]
    pub(crate) why: bool,

    /// Print what malloc_info(3) would print in the process, without calling it there (glibc)
    #[arg(long, hide_short_help = true, conflicts_with_all = ["arenas", "watch"])]
    pub(crate) malloc_info: bool,

    /// Show the blocks in use that pin fragmented memory, and what a release would return without
    /// them
    #[arg(long, conflicts_with = "malloc_info")]
    pub(crate) pins: bool,

    /// Show the memory in use by size of block, type and holder
    #[arg(long, conflicts_with = "malloc_info")]
    pub(crate) blocks: bool,

    /// Number of groups of blocks that --pins and --blocks show
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub(crate) top: usize,

    /// With --watch: show the code that allocates the blocks of --pins and --blocks
    ///
    /// Allocations are sampled with their stacks.
    #[arg(long)]
    pub(crate) stacks: bool,

    /// Maximum share of --watch during which the process has probes, which sample stacks
    #[arg(long, value_name = "SHARE", default_value = "1%", hide_short_help = true, value_parser = values::overhead)]
    pub(crate) overhead: f64,

    /// Like --stacks, but print only the stacks, in the format of flame graph tools: pinned bytes
    /// with --pins, bytes in use with --blocks
    #[arg(long, conflicts_with = "pprof", hide_short_help = true)]
    pub(crate) folded: bool,

    /// Like --stacks, and write the stacks to a file for pprof; the file must not exist
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) pprof: Option<PathBuf>,

    /// Repeat the inspection for this time: does RSS grow, and in what? Without a duration: live
    ///
    /// --pins and --blocks then distinguish blocks that are older. Without a duration, this is the
    /// live view of `lowtide watch`.
    #[arg(long, value_name = "DURATION", value_parser = values::inspect_watch)]
    pub(crate) watch: Option<Duration>,

    /// Also save what was found in a file, for another machine or a bug report
    ///
    /// The file has no content of memory. It must not exist.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["watch", "malloc_info"])]
    pub(crate) save: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) deadline: DeadlineArgs,
}

impl InspectArgs {
    /// Returns the patience of the whole verb.
    pub(crate) fn patience(&self) -> Patience {
        self.deadline.patience_of_verb(self.watch.unwrap_or_default())
    }

    pub(crate) fn details(&self) -> Details {
        Details { arenas: self.arenas, why: self.why }
    }
}

/// How long lowtide reads a process before it gives up.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeadlineArgs {
    /// Maximum time to read a process; for inspect and top --once, of all [default: 2s of waiting
    /// or 10s in total for each, and 1s more for each GiB of its anonymous memory]
    #[arg(long, value_name = "DURATION", hide_short_help = true, value_parser = values::deadline)]
    deadline: Option<Deadline>,
}

impl DeadlineArgs {
    /// Returns the patience with each process.
    pub(crate) fn patience(&self) -> Patience {
        let deadline = self.deadline.map(|deadline| deadline.time);
        Patience { deadline, ..Patience::default() }
    }

    /// Returns the patience with all processes together. `wanted` is the time that the user wants
    /// the verb to take in addition.
    pub(crate) fn patience_of_verb(&self, wanted: Duration) -> Patience {
        let end = self
            .deadline
            .and_then(|deadline| deadline.begin.checked_add(deadline.time.checked_add(wanted)?));
        Patience { end, ..self.patience() }
    }

    /// Returns the time that the user has set.
    pub(crate) fn time(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.time)
    }
}

#[derive(Debug, Clone, Args)]
#[command(after_long_help = help::RELEASE_HELP)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) selector: Selector,

    /// Only report how much memory would be returned, how, and which thread would be used
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Make the runtime collect first (Java: GC.run); all its threads wait, without a bound
    #[arg(long)]
    pub(crate) collect: bool,

    /// Maximum pause of a thread, from 100us to 1s; methods trim and purge have no bound
    #[arg(long, value_name = "DURATION", default_value = DEFAULT_MAX_PAUSE, value_parser = values::max_pause)]
    pub(crate) max_pause: Duration,

    /// Permit --method purge, whose pause has no bound
    #[arg(long, hide_short_help = true)]
    pub(crate) unbounded: bool,

    /// How to return memory
    #[arg(long, hide_short_help = true, value_name = "METHOD", default_value = "auto")]
    pub(crate) method: MethodChoice,

    /// Permit a version of the allocator that was not tested
    #[arg(long, hide_short_help = true)]
    pub(crate) untested: bool,

    /// If a release is refused for a reason that may be temporary, retry for this time
    #[arg(long, value_name = "DURATION", value_parser = values::release_wait)]
    pub(crate) wait: Option<Duration>,

    /// Release the memory of the selected processes without a confirmation
    #[arg(long)]
    pub(crate) yes: bool,

    /// Wait for this time, then report how much memory has come back; Ctrl-C ends the wait
    #[arg(long, value_name = "DURATION", conflicts_with = "dry_run", value_parser = values::release_watch)]
    pub(crate) watch: Option<Duration>,

    #[command(flatten)]
    pub(crate) deadline: DeadlineArgs,
}

/// How to return memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MethodChoice {
    /// The best method for the allocator: chunks
    Auto,
    /// Range by range, each under a lock that is held for a bounded time
    Chunks,
    /// malloc_trim, which holds each arena's lock without a bound; for comparison
    Trim,
    /// The purge function of jemalloc, mimalloc or gperftools; for comparison; requires --unbounded
    Purge,
}

/// When and how memory is released; the same for `run` and `attach`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PolicyArgs {
    /// When to release memory: adaptive, pressure or periodic=30s
    ///
    /// With `run`, also freed=1GiB or none; with --black-box, also none.
    #[arg(short, long, value_name = "POLICY", default_value = "adaptive", value_parser = values::policy)]
    pub(crate) policy: PolicyKind,

    /// Longest pause of a thread, from 100us to 1s
    ///
    /// A busy machine or the kernel can exceed it.
    #[arg(long, value_name = "DURATION", default_value = DEFAULT_MAX_PAUSE, value_parser = values::max_pause)]
    pub(crate) max_pause: Duration,

    /// Maximum CPU time of all releases together, as a share of a core (`adaptive` and `pressure`)
    #[arg(long, hide_short_help = true, value_name = "SHARE", default_value = "0.5%", value_parser = values::budget)]
    pub(crate) budget: f64,

    /// Append a JSON line to this file for each release, also if it was refused or held back
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    /// Write metrics to this file, for node_exporter's textfile collector
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub(crate) textfile: Option<PathBuf>,

    /// Write a record of samples and releases, for `lowtide report`
    ///
    /// The file must not exist. With `attach`, only for a single PID.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Record in this directory what each process holds, for `lowtide report DIR` after a kill
    ///
    /// It shows what the process held when the kernel killed it for lack of memory, or at another
    /// end.
    #[arg(long, value_name = "DIR")]
    pub(crate) black_box: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_long_help = help::RUN_HELP)]
pub(crate) struct RunArgs {
    /// The allocator: glibc, jemalloc, mimalloc, mimalloc2, tcmalloc, or NAME=/path/to/lib.so
    #[arg(short, long, value_name = "ALLOCATOR")]
    pub(crate) allocator: Option<String>,

    /// A setting of the allocator, such as glibc/arena_max=2 (`lowtide study --help` lists the
    /// presets), or 'ALLOCATOR/LABEL: NAME=VALUE' for an environment variable
    #[arg(short, long, value_name = "TUNE")]
    pub(crate) tune: Option<String>,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// If tracing is forbidden, make the processes call malloc_trim, whose pause has no bound
    #[arg(long)]
    pub(crate) unbounded: bool,

    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
#[command(after_long_help = help::ATTACH_HELP)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) selector: Selector,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// The allocators to act on, separated by commas: glibc, musl, jemalloc, mimalloc, gperftools;
    /// or all
    #[arg(long, value_name = "LIST", default_value = "glibc,musl", value_parser = values::allocators)]
    pub(crate) allocators: AllocatorChoice,

    /// Leave out selected processes with less RSS than this [default: 256MiB with --all, else 0]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) min_rss: Option<u64>,

    /// Only report what the policy would release
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// With --all, also read programs and libraries on network and FUSE file systems: 1MiB for each
    /// process
    #[arg(long, hide_short_help = true)]
    pub(crate) remote_files: bool,
}

#[derive(Debug, Args)]
#[command(after_long_help = help::TOP_HELP)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) filter: ProcessFilter,

    /// Print the table once, when all processes have been inspected, or after 20 s
    #[arg(long)]
    pub(crate) once: bool,

    /// The column to order by, largest first
    #[arg(long, value_name = "COLUMN", default_value = "reclaimable")]
    pub(crate) sort: SortKey,

    /// Grouping: a line for each process, or for all processes that share this property
    #[arg(long, value_name = "PROPERTY", default_value = "process")]
    pub(crate) by: GroupKey,

    /// Time between two readings of RSS, at least 100ms
    #[arg(short, long, value_name = "DURATION", default_value = DEFAULT_TOP_INTERVAL, value_parser = values::watch_interval)]
    pub(crate) interval: Duration,

    #[command(flatten)]
    pub(crate) deadline: DeadlineArgs,
}

/// The values of `--group-by`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum GroupByChoice {
    /// The path of the program
    Exe,
    /// The short name
    Comm,
    /// The memory cgroup
    Cgroup,
    /// The Kubernetes pod, by its UID
    Pod,
}

impl From<GroupByChoice> for lowtide_exporter::GroupBy {
    fn from(choice: GroupByChoice) -> Self {
        match choice {
            GroupByChoice::Exe => Self::Exe,
            GroupByChoice::Comm => Self::Comm,
            GroupByChoice::Cgroup => Self::Cgroup,
            GroupByChoice::Pod => Self::Pod,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_long_help = help::EXPORTER_HELP)]
pub(crate) struct ExporterArgs {
    #[command(flatten)]
    pub(crate) filter: ProcessFilter,

    /// Where to listen: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_LISTEN, value_parser = values::listen, conflicts_with = "textfile")]
    pub(crate) listen: ListenAddress,

    /// File with TLS and passwords, in the web configuration format of Prometheus
    #[arg(long, value_name = "FILE", conflicts_with = "textfile")]
    pub(crate) web_config: Option<PathBuf>,

    /// Do not listen; write the metrics to this file every 15 s, for node_exporter's textfile
    /// collector
    #[arg(long, value_name = "FILE")]
    pub(crate) textfile: Option<PathBuf>,

    /// Property by which processes are grouped
    #[arg(long, value_name = "PROPERTY", default_value = "exe")]
    pub(crate) group_by: GroupByChoice,

    /// Maximum number of groups; all others are counted together as `other`
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) max_groups: u32,

    /// CPU time that the exporter may use, as a share of a core
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = values::budget)]
    pub(crate) budget: f64,

    /// Also read programs and libraries on network and FUSE file systems: 1MiB for each process
    #[arg(long)]
    pub(crate) remote_files: bool,
}

#[derive(Debug, Args)]
#[command(after_long_help = help::WATCH_HELP)]
pub(crate) struct WatchArgs {
    /// A process
    #[arg(value_name = "PID", value_parser = crate::select::selector::one_pid, required_unless_present = "cgroup")]
    pub(crate) pid: Option<u32>,

    /// A control group: the growth of what it is charged for. Its path as in /proc/PID/cgroup, its
    /// directory, or the PID of a process in it
    #[arg(long, value_name = "PATH|PID", value_parser = crate::select::selector::cgroup, conflicts_with_all = ["pid", "output", "log"])]
    pub(crate) cgroup: Option<String>,

    /// Time between two samples, at least 100ms; inspections can be further apart, because they use
    /// at most a tenth of a CPU
    #[arg(short, long, value_name = "DURATION", default_value = DEFAULT_INTERVAL, value_parser = values::watch_interval)]
    pub(crate) interval: Duration,

    /// Number of inspections [default: until the process ends]
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) looks: Option<u64>,

    /// Keep the samples and inspections as a record, for `lowtide report`; the file must not exist
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Show the policy at work: follow the log that `lowtide run` or `lowtide attach` writes to
    /// this file
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_long_help = help::LEAKS_HELP)]
pub(crate) struct LeaksArgs {
    /// A process
    #[arg(value_name = "PID", value_parser = crate::select::selector::one_pid)]
    pub(crate) pid: u32,

    /// Age from which a block in use is a survivor; only the growth of survivors is judged
    /// [default: half of the run]
    #[arg(long, value_name = "DURATION", value_parser = values::leaks_older)]
    pub(crate) older: Option<Duration>,

    /// Maximum number of groups of blocks in the report
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub(crate) top: usize,

    /// Time between two snapshots [default: 5s, growing to 2m]
    #[arg(long, value_name = "DURATION", value_parser = values::leaks_every)]
    pub(crate) every: Option<Duration>,

    /// Time from the first snapshot to the last [default: until Ctrl-C]
    #[arg(long, value_name = "DURATION", value_parser = values::leaks_duration)]
    pub(crate) duration: Option<Duration>,

    /// Show the text that blocks begin with; it may hold secrets
    #[arg(long)]
    pub(crate) content: bool,

    /// Fail if the stacks of allocations cannot be taken; without this flag, they are taken only if
    /// permitted
    #[arg(long, conflicts_with = "no_stacks")]
    pub(crate) stacks: bool,

    /// Take no stacks: the process is only read
    #[arg(long)]
    pub(crate) no_stacks: bool,

    /// Maximum share of the run during which the process has probes, which sample stacks
    #[arg(long, value_name = "SHARE", default_value = "1%", hide_short_help = true, value_parser = values::overhead)]
    pub(crate) overhead: f64,

    /// Print only the stacks, in the format of flame graph tools, with the bytes of each
    #[arg(long, conflicts_with = "no_stacks")]
    pub(crate) folded: bool,

    /// Write the stacks to a file for pprof; the file must not exist
    #[arg(long, value_name = "FILE", conflicts_with = "no_stacks")]
    pub(crate) pprof: Option<PathBuf>,

    /// Keep the report of each snapshot as a record, for `lowtide report`; the file must not exist
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) deadline: DeadlineArgs,
}

#[derive(Debug, Args)]
#[command(after_long_help = help::LOAD_HELP)]
pub(crate) struct LoadArgs {
    /// The server: http://HOST:PORT/PATH, https://…, tcp:HOST:PORT or tls:HOST:PORT
    ///
    /// tcp: and tls: are bare connections (--rate, --hold). With several URLs, each round uses the
    /// next one.
    #[arg(required = true, value_name = "URL", value_parser = load_values::target)]
    pub(crate) urls: Vec<LoadTarget>,

    /// Number of connections
    #[arg(short, long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,

    /// Maximum number of requests in flight on each connection [default: 1]
    ///
    /// More than one requires HTTP/2.
    #[arg(short = 'm', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) streams: Option<u32>,

    /// Number of requests in a round [default: connections × streams: one burst]
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,

    /// Send for this time instead of -n, and wait for the responses to the requests in flight
    #[arg(short = 'z', long, value_name = "DURATION", value_parser = named("-z", load_values::duration_above_zero("-z 30s")))]
    pub(crate) duration: Option<Duration>,

    /// Send at a constant rate, independent of the responses: 100/s, 30/m
    ///
    /// Latency then counts from the time at which a request was due. Bare connections are opened at
    /// this rate; without it, all at once.
    #[arg(long, value_name = "RATE", value_parser = named("--rate", load_values::rate))]
    pub(crate) rate: Option<Rate>,

    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rounds: u32,

    /// Time between two rounds
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = named("--pause", load_values::duration))]
    pub(crate) pause: Duration,

    /// Send requests during the pauses, at this rate; they are counted separately
    #[arg(long, value_name = "RATE", hide_short_help = true, value_parser = named("--between-rounds", load_values::rate))]
    pub(crate) between_rounds: Option<Rate>,

    /// Maximum time to wait for a response, and to open a connection
    #[arg(long, hide_short_help = true, value_name = "DURATION", default_value = "60s", value_parser = named("--timeout", load_values::timeout))]
    pub(crate) timeout: Duration,

    /// In a pause, close connections that have been idle for this time; `never` keeps them open
    #[arg(long, value_name = "DURATION|never", default_value = "1s", hide_short_help = true, value_parser = named("--idle-close", load_values::idle_close))]
    pub(crate) idle_close: IdleClose,

    /// Keep the connections open for this time after the last round; bare connections: once all are
    /// open, in each round [default: 0s; bare connections: 10s]
    #[arg(long, value_name = "DURATION", hide_short_help = true, value_parser = named("--hold", load_values::duration_above_zero("--hold 10s")))]
    pub(crate) hold: Option<Duration>,

    /// The method [default: GET, or POST with a body]
    #[arg(short = 'X', long, value_name = "METHOD", help_heading = "Requests", value_parser = named("-X", load_values::method))]
    pub(crate) method: Option<String>,

    /// A header: 'NAME: VALUE' (repeatable)
    #[arg(short = 'H', long, value_name = "HEADER", help_heading = "Requests", value_parser = named("-H", load_values::header))]
    pub(crate) header: Vec<(String, String)>,

    /// The body, or @FILE
    #[arg(
        short,
        long,
        value_name = "BODY",
        conflicts_with = "body_size",
        help_heading = "Requests"
    )]
    pub(crate) data: Option<String>,

    /// Size of a generated body, such as 64KiB
    #[arg(long, value_name = "SIZE", help_heading = "Requests", hide_short_help = true, value_parser = named("--body-size", load_values::body_size))]
    pub(crate) body_size: Option<u64>,

    /// Use HTTP/1.1, with one request at a time on a connection
    #[arg(long, conflicts_with = "http2", help_heading = "Requests")]
    pub(crate) http1: bool,

    /// Use HTTP/2; for an http: URL, with prior knowledge
    #[arg(long, help_heading = "Requests")]
    pub(crate) http2: bool,

    /// Trust any certificate
    #[arg(short = 'k', long, help_heading = "Requests")]
    pub(crate) insecure: bool,

    /// Keep a record of the progress, with ten samples a second; the file must not exist
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Exit with 99 if a round crosses this threshold, such as failed_ratio>0.01 (repeatable)
    #[arg(long, value_name = "EXPR", value_parser = named("--fail-on", load_values::threshold))]
    pub(crate) fail_on: Vec<Threshold>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoServerArgs {
    /// Where to listen
    pub(crate) address: std::net::SocketAddr,
}

#[derive(Debug, Args)]
#[command(after_long_help = help::STUDY_HELP)]
pub(crate) struct StudyArgs {
    /// A study file; flags override it
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: Option<PathBuf>,

    /// The command under study
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,

    #[command(flatten)]
    pub(crate) flags: Flags,

    /// Give the command the variables of this process that allocators, loaders and runtimes read
    #[arg(long, value_name = "PID", help_heading = "Trials", hide_short_help = true)]
    pub(crate) env_from: Option<u32>,

    /// Also give it this variable of that process, whose value the record then has (repeatable)
    #[arg(
        long,
        value_name = "NAME",
        requires = "env_from",
        help_heading = "Trials",
        hide_short_help = true
    )]
    pub(crate) env: Vec<String>,

    /// Value of a parameter of the study file (repeatable)
    #[arg(
        long,
        value_name = "NAME=VALUE",
        requires = "file",
        help_heading = "Results",
        hide_short_help = true
    )]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_long_help = help::REPORT_HELP)]
pub(crate) struct ReportArgs {
    /// Directories of records, or single files in them. Parts of one study (--shard) are combined;
    /// other records are overlaid. The record of a load is overlaid on the records of the same
    /// time. Or a single file of lowtide leaks --output or lowtide inspect --save, or the directory
    /// of a black box
    #[arg(required = true, value_name = "RECORD")]
    pub(crate) records: Vec<PathBuf>,

    /// Write a self-contained HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write the charts as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Write the charts as PNG
    #[arg(long, value_name = "FILE")]
    pub(crate) png: Option<PathBuf>,

    /// Charts that --svg and --png draw [default: all]
    #[arg(long, value_name = "CHART", value_delimiter = ',', hide_default_value = true)]
    pub(crate) chart: Vec<Chart>,

    /// Write the tables as Markdown; to stdout without FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) markdown: Option<PathBuf>,

    /// Write every sample as CSV; to stdout without FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) csv: Option<PathBuf>,

    /// Overwrite existing files
    #[arg(long)]
    pub(crate) force: bool,
}

/// A chart of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Chart {
    /// All treatments over time, in one chart
    Course,
    /// Baseline, peak and settled
    Bars,
    /// Each treatment over time, in a chart of its own
    Panels,
}

#[cfg(test)]
mod tests {
    use super::documents::is_understood;
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_help_lists_the_variables_that_a_study_takes() {
        for pattern in lowtide_study::TAKEN {
            assert!(help::STUDY_HELP.contains(pattern), "{pattern}");
        }
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// Returns the lines of a text that start with `lowtide `, with continuation lines joined.
    fn commands(text: &str) -> Vec<String> {
        let joined = text.replace("\\\n", " ");
        let lines = joined.lines().map(str::trim_start).filter(|l| l.starts_with("lowtide "));
        lines.map(str::to_owned).collect()
    }

    /// Width of a help, in columns: `max_term_width`, at which clap breaks lines where stdout is no
    /// terminal.
    const WIDTH: usize = 100;

    /// Returns the verbs that users see, by their names.
    fn verbs() -> Vec<clap::Command> {
        let mut all = Cli::command().term_width(WIDTH);
        all.build();
        all.get_subcommands()
            .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
            .cloned()
            .collect()
    }

    #[test]
    fn the_short_help_of_each_verb_has_at_most_40_lines_at_80_columns() {
        const MAX_LINES: usize = 40;
        for verb in verbs() {
            let help = verb.clone().term_width(80).render_help().to_string();
            let lines = help.lines().count();
            assert!(lines <= MAX_LINES, "{}: {lines} lines\n{help}", verb.get_name());
        }
    }

    #[test]
    fn the_flags_of_all_verbs_are_last() {
        for mut verb in verbs() {
            let help = verb.render_help().to_string();
            let (own, common) = help.split_once("\nAll verbs:\n").unwrap();
            let count =
                |text: &str| text.lines().filter(|l| l.trim_start().starts_with('-')).count();
            assert_eq!(count(common), 3, "{}: {common}", verb.get_name());
            assert!(count(own) > 0 && !own.contains("--json"), "{}", verb.get_name());
        }
    }

    #[test]
    fn the_long_help_of_each_verb_ends_with_three_examples_or_more() {
        for verb in verbs() {
            let help = verb.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let examples = help.split_once("Examples:\n").map_or("", |(_, examples)| examples);
            let examples = commands(examples);
            let own = examples.iter().filter(|line| line.contains(verb.get_name()));
            assert!(own.count() >= 3, "{}: {examples:?}", verb.get_name());
            for line in &examples {
                // What it does follows after several spaces.
                is_understood(line.split("  ").next().unwrap_or_default());
            }
            assert_eq!(help.lines().find(|line| line.chars().count() > WIDTH), None);
        }
    }

    #[test]
    fn the_help_names_every_preset() {
        for preset in lowtide_study::PRESETS {
            let name = format!("{}/{}", preset.allocator, preset.name);
            let likewise = name.replace("mimalloc2", "mimalloc");
            assert!(
                help::STUDY_HELP.contains(&name) || help::STUDY_HELP.contains(&likewise),
                "{name}"
            );
        }
    }
}
