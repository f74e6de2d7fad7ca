//! The command line.

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, ColorChoice, Parser, Subcommand};
use clap_complete::Shell;
use lowtide_exporter::ListenAddress;
use lowtide_policy::PolicyKind;
use lowtide_study::Flags;

use crate::selector::{ProcessFilter, Selector};
use crate::top::rows::{GroupKey, SortKey};
use crate::values::{
    self, AllocatorChoice, DEFAULT_INTERVAL, DEFAULT_LISTEN, DEFAULT_MAX_PAUSE,
    DEFAULT_TOP_INTERVAL, TypedDuration,
};
use crate::verbs::exporter::GroupByChoice;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Memory rises with the load. lowtide shows why it does not fall again, and brings it down.
#[derive(Debug, Parser)]
#[command(name = "lowtide", version, styles = STYLES, max_term_width = 100, after_help = EXITS)]
pub(crate) struct Cli {
    /// Print data as JSON: one object; with `report` and several records, one object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// When to use colours; NO_COLOR and TERM=dumb are respected
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const EXITS: &str = "\
Exit codes: 0 done, 1 failed, 2 usage, 3 not permitted, 4 the target is gone, 5 refused, \
99 a threshold given with --fail-on or --baseline was crossed, 130 interrupted. `run` ends like its \
command; its own failures are 125, 126 and 127.";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Demonstrate lowtide in about two minutes: an HTTP/2 server under five treatments
    Demo(DemoArgs),
    /// Compare the memory that a command keeps under allocators, settings and policies
    Study(Box<StudyArgs>),
    /// Show the resident memory of a process by owner, without stopping it
    Inspect(InspectArgs),
    /// Release the free memory of a live process, in pauses too short to notice
    Release(ReleaseArgs),
    /// Start a command and keep its memory low; made for the entry point of a container
    Run(RunArgs),
    /// Keep the memory of live processes low, until Ctrl-C
    Attach(AttachArgs),
    /// Put a load on a server: up to a million requests in flight from one small process
    Load(Box<LoadArgs>),
    /// Find growing blocks in the heap of a process, their types and their holders
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
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man {
        /// A verb, for its own page
        verb: Option<String>,
    },
    /// Stands between lowtide and the processes that it starts
    #[command(hide = true)]
    Keep,
    /// The server of the demo
    #[command(hide = true)]
    DemoServer(DemoServerArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Number of requests in flight at once [default: by the memory of the machine]
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
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) selector: Selector,

    /// Show each arena of the heap, its free blocks by size, and the settings in force
    #[arg(long)]
    pub(crate) arenas: bool,

    /// Print what malloc_info(3) would print in the process, without calling it there (glibc)
    #[arg(long, conflicts_with_all = ["arenas", "watch"])]
    pub(crate) malloc_info: bool,

    /// Repeat the inspection for this time, and judge whether memory in use grows
    #[arg(long, value_name = "DURATION", value_parser = values::inspect_watch)]
    pub(crate) watch: Option<TypedDuration>,
}

#[derive(Debug, Clone, Args)]
#[command(after_long_help = RELEASE_HELP)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) selector: Selector,

    /// Only report how much memory would be returned, how, and which thread would be used
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Maximum pause of a thread, from 100us to 1s; methods trim and purge have no bound
    #[arg(long, value_name = "DURATION", default_value = DEFAULT_MAX_PAUSE, value_parser = values::max_pause)]
    pub(crate) max_pause: TypedDuration,

    /// Permit --method purge, whose pause has no bound
    #[arg(long)]
    pub(crate) unbounded: bool,

    /// How memory is returned
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    pub(crate) method: MethodChoice,

    /// Permit a version of the allocator that was not tested
    #[arg(long)]
    pub(crate) untested: bool,

    /// If a release is refused for a reason that may pass, retry for this time
    #[arg(long, value_name = "DURATION", value_parser = values::release_wait)]
    pub(crate) wait: Option<TypedDuration>,

    /// Release the memory of the selected processes without a confirmation
    #[arg(long)]
    pub(crate) yes: bool,

    /// Wait for this time, then report how much memory has come back; Ctrl-C ends the wait
    #[arg(long, value_name = "DURATION", conflicts_with = "dry_run", value_parser = values::release_watch)]
    pub(crate) watch: Option<TypedDuration>,
}

/// How memory is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MethodChoice {
    /// The best method for the allocator, which currently is chunks
    Auto,
    /// Range by range, each under a lock that is held for a bounded time
    Chunks,
    /// malloc_trim, which holds each arena's lock without a bound; for comparison
    Trim,
    /// The purge function of jemalloc, mimalloc or gperftools; for comparison, with --unbounded
    Purge,
}

impl MethodChoice {
    /// Returns the name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Chunks => "chunks",
            Self::Trim => "trim",
            Self::Purge => "purge",
        }
    }
}

const RELEASE_HELP: &str = "\
Only free memory is released: memory in use and the program stay as they are. If
a process could come to harm, lowtide refuses to release its memory, and prints
the reason. If nothing would be returned, nothing is done.

Exit codes: 0 released, nothing to release, or a dry run; 1 the release stopped
early, or failed; 2 usage; 3 not permitted; 4 the process is gone; 5 refused.
For several processes, the worst of their codes, in the order 1, 2, 3, 5, 4.
--json prints one object for each process, also if its release was refused; with
a selector or --subprocesses, a final object for all of them together.

Examples:
  lowtide release 4711
  lowtide release 4711 --dry-run
  lowtide release 4711 --max-pause 500us --watch 60s
  lowtide release --cgroup /system.slice/app.service --wait 30s --yes";

/// When and how memory is released; the same for `run` and `attach`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PolicyArgs {
    /// When memory is released: adaptive, pressure or periodic=30s; with `run`, also freed=1GiB or none
    #[arg(short, long, value_name = "POLICY", default_value = "adaptive", value_parser = values::policy)]
    pub(crate) policy: PolicyKind,

    /// Longest pause of a thread of the process, from 100us to 1s; a busy machine or the kernel can exceed it
    #[arg(long, value_name = "DURATION", default_value = DEFAULT_MAX_PAUSE, value_parser = values::max_pause)]
    pub(crate) max_pause: TypedDuration,

    /// Share of a core for the releases of adaptive and pressure, on average over all processes
    #[arg(long, value_name = "SHARE", default_value = "0.5%", value_parser = values::budget)]
    pub(crate) budget: f64,

    /// Append a JSON line to this file for each release, and for each that was refused or held back
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    /// Write metrics to this file, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE")]
    pub(crate) textfile: Option<PathBuf>,

    /// Write a record of samples and releases, for `lowtide report`; the file must not exist. `attach`
    /// records one PID
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_long_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// The allocator: glibc, jemalloc, mimalloc, mimalloc2, tcmalloc, or NAME=/path/to/lib.so
    #[arg(short, long, value_name = "ALLOCATOR")]
    pub(crate) allocator: Option<String>,

    /// A setting of the allocator, such as glibc/arena_max=2 (`lowtide study --help` lists the presets), or
    /// 'ALLOCATOR/LABEL: NAME=VALUE' for a variable
    #[arg(short, long, value_name = "TUNE")]
    pub(crate) tune: Option<String>,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Where processes may not be traced, make them call malloc_trim, whose pause has no bound
    #[arg(long)]
    pub(crate) unbounded: bool,

    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

const RUN_HELP: &str = "\
The command runs as if it had been started directly. A second process of lowtide
observes the command and all of its descendants, and releases their free memory
when the policy decides so. If that process fails or is killed, the command
continues.

Policies:
  adaptive        when the load has fallen or memory is short, if the gain is
                  worth the cost
  pressure        when memory is short, by stalls and by the limit of the cgroup
  periodic=30s    at a fixed interval
  freed=1GiB      each time that the process has freed this many bytes; preloads
                  a small library
  none            never

The memory of glibc, jemalloc, mimalloc and gperftools is released.

Exit codes: that of the command; 128 + N if signal N ended it; 125 if lowtide
failed, 126 if the command could not be started, 127 if it was not found.

Examples:
  lowtide run -- ./server
  lowtide run -t glibc/arena_max=2 -p periodic=5m -- ./server --port 8080
  lowtide run --log /var/log/lowtide.jsonl --max-pause 500us -- python3 app.py

In a container: ENTRYPOINT [\"/lowtide\", \"run\", \"--\"]";

#[derive(Debug, Args)]
#[command(after_long_help = ATTACH_HELP)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) selector: Selector,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// The allocators to act on, separated by commas: glibc, jemalloc, mimalloc, gperftools; or all
    #[arg(long, value_name = "LIST", default_value = "glibc", value_parser = values::allocators)]
    pub(crate) allocators: AllocatorChoice,

    /// Leave out selected processes with less RSS [default: 256MiB with --all, else 0]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) min_rss: Option<u64>,

    /// Only report what the policy would release
    #[arg(long)]
    pub(crate) dry_run: bool,
}

const ATTACH_HELP: &str = "\
`attach` ends when the named processes have ended, or by Ctrl-C or SIGTERM, and
leaves nothing in them. With a selector, it also supervises processes that match
later, and does not end by itself. If the memory of a process cannot be released
safely, this is reported once, with the reason. Processes of lowtide itself are
left out; with --all also PID 1, and processes that the OOM killer must not kill
(oom_score_adj below -900).

`lowtide run --help` describes the policies. --log FILE, or --json on stdout,
writes one JSON line for each release.

Exit codes: 0 the processes have ended, or Ctrl-C; 1 failed; 2 usage; 3 not
permitted; 4 no such process.

Examples:
  lowtide attach 4711
  lowtide attach --cgroup /system.slice/app.service --log /var/log/lowtide.jsonl
  lowtide attach --all --min-rss 1GiB --dry-run";

#[derive(Debug, Args)]
#[command(after_long_help = TOP_HELP)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) filter: ProcessFilter,

    /// Print the table once, when all processes have been inspected, or after 20 s
    #[arg(long)]
    pub(crate) once: bool,

    /// The column to order by, largest first
    #[arg(long, value_name = "COLUMN", default_value = "reclaimable")]
    pub(crate) sort: SortKey,

    /// What a line shows: a process, or all processes that share this property
    #[arg(long, value_name = "PROPERTY", default_value = "process")]
    pub(crate) by: GroupKey,

    /// Time between two readings of RSS, at least 100ms
    #[arg(short, long, value_name = "DURATION", default_value = DEFAULT_TOP_INTERVAL, value_parser = values::watch_interval)]
    pub(crate) interval: TypedDuration,
}

const TOP_HELP: &str = "\
RSS and names appear at once. The other metrics need an inspection of the process,
which does not stop it; the largest processes come first. Later inspections use
5 % of a core on average. A process is not read again after a read blocks for 5 s.

On a terminal, s orders by the next column, b groups, / filters, Enter watches a
process, r releases its free memory after a confirmation, q quits. Otherwise the
table is printed once; --json without --once prints an object after each interval.

Exit codes: 0 done; 1 failed; 2 usage; 4 no process matches; 130 interrupted (--once).

Examples:
  lowtide top
  lowtide top --once --by exe --sort rss
  lowtide top --cgroup /system.slice --json --once";

#[derive(Debug, Args)]
#[command(after_long_help = EXPORTER_HELP)]
pub(crate) struct ExporterArgs {
    #[command(flatten)]
    pub(crate) filter: ProcessFilter,

    /// Where to listen: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_LISTEN, value_parser = values::listen, conflicts_with = "textfile")]
    pub(crate) listen: ListenAddress,

    /// File with TLS and passwords, in the web configuration format of Prometheus
    #[arg(long, value_name = "FILE", conflicts_with = "textfile")]
    pub(crate) web_config: Option<PathBuf>,

    /// Do not listen; write the metrics to this file every 15 s, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE")]
    pub(crate) textfile: Option<PathBuf>,

    /// Property by which processes are grouped
    #[arg(long, value_name = "PROPERTY", default_value = "exe")]
    pub(crate) group_by: GroupByChoice,

    /// Maximum number of groups; all others are counted together as `other`
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) max_groups: u32,

    /// CPU time, as a share of a core
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = values::budget)]
    pub(crate) budget: f64,
}

const EXPORTER_HELP: &str = "\
Metrics are at /metrics, in the text format of Prometheus or, if the client asks for
it, of OpenMetrics. /healthz returns `ok`. A scrape never waits for an inspection:
lowtide_inspection_age_seconds is the age of the values. Without a selector, all
processes are exported.

The exporter only reads. At startup, it installs a seccomp filter that forbids
ptrace, writing to other processes, and executing programs. To read the processes
of other users, it requires CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.

Exit codes: 0 Ctrl-C or SIGTERM; 1 failed; 2 usage; 3 not permitted.

Examples:
  lowtide exporter
  lowtide exporter --listen 0.0.0.0:9797 --web-config web-config.yml --group-by cgroup
  lowtide exporter --textfile /var/lib/prometheus/node-exporter/lowtide.prom";

#[derive(Debug, Args)]
#[command(after_long_help = WATCH_HELP)]
pub(crate) struct WatchArgs {
    /// A process
    #[arg(value_name = "PID", value_parser = crate::selector::pid)]
    pub(crate) pid: u32,

    /// Time between two samples, at least 100ms; inspections may wait longer, so that they take at most a
    /// tenth of the time
    #[arg(short, long, value_name = "DURATION", default_value = DEFAULT_INTERVAL, value_parser = values::watch_interval)]
    pub(crate) interval: TypedDuration,

    /// Number of inspections [default: until the process ends]
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) looks: Option<u64>,

    /// Keep the samples and inspections as a record, for `lowtide report`; the file must not exist
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Show the policy at work: follow the log that `lowtide run` or `lowtide attach` writes to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_long_help = LEAKS_HELP)]
pub(crate) struct LeaksArgs {
    /// A process
    #[arg(value_name = "PID", value_parser = crate::selector::pid)]
    pub(crate) pid: u32,

    /// Minimum age of a block to count as a survivor [default: half of the run]
    #[arg(long, value_name = "DURATION", value_parser = values::leaks_older)]
    pub(crate) older: Option<TypedDuration>,

    /// Maximum number of groups of blocks in the report
    #[arg(long, value_name = "COUNT", default_value_t = values::DEFAULT_TOP)]
    pub(crate) top: usize,

    /// Time between two snapshots [default: 5s, growing to 2m]
    #[arg(long, value_name = "DURATION", value_parser = values::leaks_every)]
    pub(crate) every: Option<TypedDuration>,

    /// Time from the first snapshot to the last [default: until Ctrl-C]
    #[arg(long, value_name = "DURATION", value_parser = values::leaks_duration)]
    pub(crate) duration: Option<TypedDuration>,

    /// Show the text that blocks begin with; it may hold secrets
    #[arg(long)]
    pub(crate) content: bool,

    /// Fail if the stacks of allocations cannot be taken; otherwise, they are taken if that is permitted
    #[arg(long, conflicts_with = "no_stacks")]
    pub(crate) stacks: bool,

    /// Take no stacks: the process is only read
    #[arg(long)]
    pub(crate) no_stacks: bool,

    /// Maximum share of the time in which the process has probes, for stacks
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = values::overhead)]
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
}

#[derive(Debug, Args)]
#[command(after_long_help = LOAD_HELP)]
pub(crate) struct LoadArgs {
    /// The server: http://HOST:PORT/PATH, https://…, or, for bare connections, tcp:HOST:PORT or
    /// tls:HOST:PORT. With several URLs, each round uses the next one
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<String>,

    /// Number of connections
    #[arg(short, long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,

    /// Maximum number of requests in flight on each connection; more than one requires HTTP/2 [default: 1]
    #[arg(short = 'm', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) streams: Option<u32>,

    /// Number of requests in a round [default: connections × streams: one burst]
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,

    /// Send for this time instead, and wait for the responses to the requests in flight
    #[arg(short = 'z', long, value_name = "DURATION")]
    pub(crate) duration: Option<String>,

    /// Send at a constant rate, independent of the responses: 100/s, 30/m; latency then counts from the
    /// time at which a request was due
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<String>,

    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rounds: u32,

    /// Time between two rounds
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub(crate) pause: String,

    /// Send requests during the pauses, at this rate; they are counted separately
    #[arg(long, value_name = "RATE")]
    pub(crate) between_rounds: Option<String>,

    /// Maximum time to wait for a response, and to open a connection
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pub(crate) timeout: String,

    /// In a pause, close connections that have been idle for this time; `never` keeps them open
    #[arg(long, value_name = "DURATION|never", default_value = "1s")]
    pub(crate) idle_close: String,

    /// Keep the connections open for this time after the last round
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(crate) linger: String,

    /// The method [default: GET, or POST with a body]
    #[arg(short = 'X', long, value_name = "METHOD", help_heading = "Requests")]
    pub(crate) method: Option<String>,

    /// A header: 'NAME: VALUE' (repeatable)
    #[arg(short = 'H', long, value_name = "HEADER", help_heading = "Requests")]
    pub(crate) header: Vec<String>,

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
    #[arg(long, value_name = "SIZE", help_heading = "Requests")]
    pub(crate) body_size: Option<String>,

    /// Use HTTP/1.1, with one request at a time on a connection
    #[arg(long, conflicts_with = "http2", help_heading = "Requests")]
    pub(crate) http1: bool,

    /// Use HTTP/2; without TLS, with prior knowledge
    #[arg(long, help_heading = "Requests")]
    pub(crate) http2: bool,

    /// Trust any certificate
    #[arg(short = 'k', long, help_heading = "Requests")]
    pub(crate) insecure: bool,

    /// Open connections at this rate [default: all at once]
    #[arg(long, value_name = "RATE", help_heading = "Bare connections (tcp:, tls:)")]
    pub(crate) ramp: Option<String>,

    /// Hold the connections for this time once all are open, before they are closed [default: 10s]
    #[arg(long, value_name = "DURATION", help_heading = "Bare connections (tcp:, tls:)")]
    pub(crate) hold: Option<String>,

    /// Keep a record of the progress, ten times a second; the file must not exist
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Exit with 99 if a round crosses this, such as failed_ratio>0.01, latency_s.p99>500ms or
    /// requests_per_s<1000 (repeatable)
    #[arg(long, value_name = "EXPR")]
    pub(crate) fail_on: Vec<String>,
}

const LOAD_HELP: &str = "\
The protocol is HTTP/1.1 or HTTP/2. For https:, the server chooses. For http:,
it is HTTP/2 with prior knowledge if -m asks for more than one stream, which
only HTTP/2 supports; else HTTP/1.1.

Counts: requests = succeeded + failed. A request succeeds if its response is
complete, with a status below 400. Different bodies are counted, up to 100 of
them. Without --rate, a request counts from the time at which it is sent. A lost
connection is opened again while requests are left; after three in a row without
any response, it is given up for the round.

Latency covers the requests that succeeded. If some timed out, a second line
includes them, each with the time from when it was sent (with --rate: due) until
it was given up; in JSON, this is latency_with_timeouts_s.

--fail-on compares a metric of each round with a number. Metrics: requests,
succeeded, failed, failed_ratio (failed / requests), timed_out, requests_per_s,
sent_s, completed_s, peak_in_flight, distinct_responses, closed_while_held,
client_peak_rss_bytes; mean, p50, p90, p99, p999 and max of latency_s and of
latency_with_timeouts_s.

Exit codes: 0 done, even if every request failed (use --fail-on 'failed_ratio>0'
to change that); 1 no connection could be made; 2 usage; 99 a threshold given
with --fail-on was crossed; 130 ended by Ctrl-C, with the results so far.

Examples:
  lowtide load 'http://127.0.0.1:3000/?expire=20000' -m 125000         a million at once
  lowtide load http://127.0.0.1:8080/ -c 50 -z 30s                     50 at a time, for 30 s
  lowtide load https://localhost:8443/ -k -m 100 -n 100000 --rounds 3  three rounds
  lowtide load http://127.0.0.1:8080/ --rate 500/s -z 1m               500 a second
  lowtide load tls:localhost:8443 -k -c 3000 --ramp 100/s --hold 30s   3,000 connections
  lowtide load http://127.0.0.1:8080/ --fail-on 'failed_ratio>0.01'    a check for CI";

const LEAKS_HELP: &str = "\
lowtide reads the heap several times, and recognises each block by its address,
its size and a hash of its first 48 bytes. The process is not stopped. At the
end, all of its memory is searched twice for pointers.

Verdicts on the blocks of a size:
  lost         they accumulate, and are unreachable: a leak
  growing      they accumulate, and are reachable or may be: a leak, or an
               unbounded cache
  filling      their growth slows down, the older ones are freed, or the process
               used more memory before
  lost before  memory from before the first snapshot is unreachable
  level        no block size grows
  too early    not watched for long enough

Stacks show where growing blocks are allocated. They are sampled by probes on
the allocation functions, in short windows: at most 1 % of the time, and 20,000
allocations a window. They require CAP_BPF and CAP_PERFMON, and Linux 5.8 or
newer. A program with Go code or shadow stacks is only read.

Supported: glibc, jemalloc, mimalloc, gperftools' tcmalloc and CPython's
objects. A heap of more than 2.5 million blocks is sampled: counts and rates are
then estimates, with a 95 % confidence interval of each rate.

Examples:
  lowtide leaks 4711 --duration 2m
  lowtide leaks 4711 --older 10m --top 10 --output leaks.jsonl
  lowtide leaks 4711 --duration 10m --folded
  lowtide leaks 4711 --duration 10m --no-stacks --json";

const WATCH_HELP: &str = "\
Keys:
  q, Ctrl-C     quit; Esc: back, or quit
  p, space      freeze the display; sampling and recording continue
  a             the arenas of the heap: scroll with j, k, arrows, PgUp, PgDn, Home, End
  l             the growing blocks from now on, as in `lowtide leaks`; s searches for holders
  +, -          longer or shorter interval
  ?             help

`watch` ends with the process, with its terminal, or by a signal. If stdout is not
a terminal, or with --json, it prints a line for each inspection instead.

With --log, the view marks each release on the chart and sums up the releases of
the process since the start of the log. Lines, JSON and the record contain the
releases since the watch started. The log contains the PIDs that its writer sees:
to follow the log of a container, run `lowtide watch` inside the container.

Examples:
  lowtide watch 4711
  lowtide watch 4711 --log /var/log/lowtide.jsonl
  lowtide watch 4711 --looks 60 --output night.jsonl
  lowtide watch 4711 --json --interval 10s";

#[derive(Debug, Args)]
pub(crate) struct DemoServerArgs {
    /// Where to listen
    pub(crate) address: std::net::SocketAddr,
}

#[derive(Debug, Args)]
#[command(after_long_help = STUDY_HELP)]
pub(crate) struct StudyArgs {
    /// A study file; flags override it
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: Option<PathBuf>,

    /// The command under study
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,

    #[command(flatten)]
    pub(crate) flags: Flags,

    /// Value of a parameter of the study file (repeatable)
    #[arg(long, value_name = "NAME=VALUE", requires = "file", help_heading = "Results")]
    pub(crate) set: Vec<String>,
}

const STUDY_HELP: &str = "\
Presets (-t), each with a value of your own by NAME=VALUE:
  glibc/trim_threshold          65536 B: free memory at the top of the heap that is returned;
                                fixes mmap_threshold
  glibc/mmap_threshold          65536 B: minimum size of a block with its own mapping
  glibc/tcache_count            0: freed blocks of each size that each thread keeps
  glibc/arena_max               1: number of arenas for all threads
  jemalloc/background_thread    returns memory that was free for 1000 ms, also while idle
  mimalloc/purge_delay          0 ms: time until a free page is returned (mimalloc2 likewise)
  tcmalloc/aggressive_decommit  1: every span is returned as soon as it is free
  tcmalloc/release_rate         10: rate at which free spans are returned, 0 to 10

The commands of --load, --prepare and --cleanup find LOWTIDE_TRIAL,
LOWTIDE_TREATMENT, LOWTIDE_REPEAT, LOWTIDE_RECORD, LOWTIDE (this program) and,
once the subject runs, LOWTIDE_SUBJECT_PID in their environment. If a load prints
a lowtide.load/1 object, the report shows its metrics. If a load writes its
samples to the file LOWTIDE_LOAD_SAMPLES, as `lowtide load` does, the report
shows its requests in flight.

Examples:
  lowtide study -- python3 job.py
  lowtide study -a glibc,jemalloc -t glibc/arena_max=2 --repeat 6 \\
      --ready tcp:127.0.0.1:8080 --load 'wrk -c 200 -d 20s http://127.0.0.1:8080/' -- ./server
  lowtide study studies/python-httpx.toml --set contexts=2000

Studies that take hours print progress and the remaining time to stderr. --resume
continues an interrupted study. Parts of a study run one by one, on one machine or
on several (in a Slurm array, in an indexed Job). A part consists of whole
repeats, with every treatment once in each, in the order of the whole study:
  lowtide study night.toml --repeat 12 --output night --resume
  lowtide study night.toml --repeat 12 --output part-1 --resume --shard 1/4
  lowtide report part-1 part-2 part-3 part-4";

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Directories of records, or single files in them. Parts of one study (--shard) are combined; other
    /// records are overlaid. The record of a load is overlaid on the records of the same time
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
    /// All treatments over time
    Course,
    /// Baseline, peak and settled
    Bars,
    /// Each treatment over time
    Panels,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_line_of_a_help_is_broken_in_two() {
        /// `max_term_width`, at which clap breaks lines where stdout is no terminal.
        const WIDTH: usize = 100;
        for help in [STUDY_HELP, WATCH_HELP, RELEASE_HELP, LOAD_HELP, RUN_HELP, ATTACH_HELP] {
            let long = help.lines().find(|line| line.chars().count() > WIDTH);
            assert_eq!(long, None);
        }
    }

    /// Every line of the documents that begins with `lowtide `, continued lines joined.
    fn commands(text: &str) -> Vec<String> {
        let joined = text.replace("\\\n", " ");
        let lines = joined.lines().map(str::trim_start).filter(|l| l.starts_with("lowtide "));
        lines.map(str::to_owned).collect()
    }

    /// The lines of the blocks of shell commands of a document.
    fn shell_blocks(text: &str) -> String {
        let blocks = text.split("\n```").skip(1).step_by(2);
        let commands = blocks.filter_map(|block| block.strip_prefix("sh\n"));
        commands.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_command_in_the_readme_and_in_the_help_is_understood() {
        let readme = commands(&shell_blocks(include_str!("../../../README.md")));
        assert!(readme.len() >= 4, "{readme:?}");
        let helps =
            [STUDY_HELP, WATCH_HELP, RELEASE_HELP, LOAD_HELP, RUN_HELP, ATTACH_HELP].map(commands);
        assert!(helps.iter().all(|lines| !lines.is_empty()), "{helps:?}");
        for line in readme.into_iter().chain(helps.into_iter().flatten()) {
            is_understood(&line);
        }
    }

    /// Holds that a line can be parsed, with a number in the place of `PID` and `$!`.
    fn is_understood(line: &str) {
        let words: Vec<String> = shlex::split(line)
            .unwrap_or_default()
            .into_iter()
            .map(
                |word| {
                    if ["PID", "$!"].contains(&word.as_str()) { "4242".to_owned() } else { word }
                },
            )
            .collect();
        if let Err(error) = Cli::try_parse_from(&words) {
            panic!("{line}: {error}");
        }
    }

    #[test]
    fn every_command_in_the_documents_and_in_the_studies_is_understood() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut count = 0;
        for directory in ["docs", "docs/documents", "docs/upstream", "studies"] {
            for entry in std::fs::read_dir(root.join(directory)).unwrap() {
                let path = entry.unwrap().path();
                if !path.extension().is_some_and(|e| e == "md" || e == "toml") {
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let is_document = path.extension().is_some_and(|e| e == "md");
                let text = if is_document { shell_blocks(&text) } else { text };
                // In the head of a study they are comments, and a remark may follow behind two spaces.
                let bare: Vec<&str> =
                    text.lines().map(|line| line.trim_start_matches(['#', ' '])).collect();
                let text = bare.join("\n").replace("target/release/lowtide", "lowtide");
                for line in commands(&text.replace(" \\\n", "\\\n")) {
                    let command = line.split("  ").next().unwrap_or_default();
                    is_understood(command.split(" #").next().unwrap_or_default().trim_end());
                    count += 1;
                }
            }
        }
        assert!(count >= 25, "{count}");
    }

    #[test]
    fn the_help_names_every_preset() {
        for preset in lowtide_study::PRESETS {
            let name = format!("{}/{}", preset.allocator, preset.name);
            let likewise = name.replace("mimalloc2", "mimalloc");
            assert!(STUDY_HELP.contains(&name) || STUDY_HELP.contains(&likewise), "{name}");
        }
    }
}
