//! The text after the options in the long help of each verb: rules, exit codes, examples.

pub(crate) const EXITS: &str = "\
Exit codes: 0 done, 1 failed, 2 usage, 3 not permitted, 4 the target is gone, 5 refused, \
99 a threshold given with --fail-on or --baseline was crossed, 130 interrupted. `run` ends like its \
command; its own failures are 125, 126 and 127.";

pub(crate) const RELEASE_HELP: &str = "\
Only free memory is released: memory in use and the program stay as they are. If
a release could damage a process, lowtide refuses it, and prints the reason. If
nothing would be returned, nothing is done. While the file /run/lowtide.hold exists
(or the file in LOWTIDE_HOLD), every release is refused.

--collect makes HotSpot (Java) run GC.run first, as jcmd does, and then
System.trim_native_heap if it has that. All threads of the program wait for the
collection, without a bound. It is refused where it could harm the process, such as
with -XX:+DisableAttachMechanism. No other runtime can be asked from outside.

Exit codes: 0 released, nothing to release, or a dry run; 1 the release stopped
early, or failed; 2 usage; 3 not permitted; 4 the process is gone; 5 refused.
For several processes, the worst of their codes: 1 is worst, then 2, 3, 5 and 4.
--json prints one object for each process, even if its release was refused; with
--exe, --comm, --cgroup, --all or --subprocesses, also a final object for all.

Examples:
  lowtide release 4711
  lowtide release 4711 --dry-run
  lowtide release 4711 --max-pause 500us --watch 60s
  lowtide release 4711 --collect
  lowtide release --cgroup /system.slice/app.service --wait 30s --yes";

pub(crate) const RUN_HELP: &str = "\
The command runs as if it had been started directly. A second process of lowtide
observes the command and all of its descendants, and releases their free memory
when the policy decides so. If that process fails or is killed, the command
continues.

Policies:
  adaptive        when the load has fallen, when memory no longer grows under load,
                  or when memory is short (see pressure); in each case only if
                  the gain is worth the cost
  pressure        when memory is short: tasks wait for it, or the cgroup is near
                  its limit
  periodic=30s    at a fixed interval
  freed=1GiB      each time that the process has freed this many bytes; preloads
                  a small library
  none            never

The memory of glibc, musl, jemalloc, mimalloc and gperftools is released. While
the file /run/lowtide.hold exists (or the file in LOWTIDE_HOLD), nothing is
released.

Exit codes: that of the command; 128 + N if signal N ended it; 125 if lowtide
failed, 126 if the command could not be started, 127 if it was not found.

Examples:
  lowtide run -- ./server
  lowtide run -t glibc/arena_max=2 -p periodic=5m -- ./server --port 8080
  lowtide run --log /var/log/lowtide.jsonl --max-pause 500us -- python3 app.py

In a container: ENTRYPOINT [\"/lowtide\", \"run\", \"--\"]";

pub(crate) const ATTACH_HELP: &str = "\
`attach` ends when the named processes have ended, or by Ctrl-C or SIGTERM, and
leaves nothing in them. With --exe, --comm, --cgroup or --all, it also supervises
processes that match later, and does not end by itself. If the memory of a
process cannot be released safely, this is reported once, with the reason. While
the file /run/lowtide.hold exists (or the file in LOWTIDE_HOLD), nothing is released.
Processes of lowtide itself are left out; with --all also PID 1, and processes
that the OOM killer must not kill (oom_score_adj below -900).

`lowtide run --help` describes the policies. --log FILE, or --json on stdout,
writes one JSON line for each release.

Exit codes: 0 the processes have ended, or Ctrl-C; 1 failed; 2 usage; 3 not
permitted; 4 no such process.

Examples:
  lowtide attach 4711
  lowtide attach --cgroup /system.slice/app.service --log /var/log/lowtide.jsonl
  lowtide attach --all --min-rss 1GiB --dry-run";

pub(crate) const TOP_HELP: &str = "\
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

pub(crate) const EXPORTER_HELP: &str = "\
Metrics are at /metrics, in the text format of Prometheus or, if the client asks for
it, of OpenMetrics. /healthz returns `ok` and the age of inspections, or status 503.
A scrape never waits for an inspection: lowtide_inspection_age_seconds is the age of
the values. Without --exe, --comm or --cgroup, all processes are exported.

The exporter only reads. At startup, it installs a seccomp filter that forbids
ptrace, writing to other processes, and executing programs. To read the processes
of other users, it requires CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.

Exit codes: 0 Ctrl-C or SIGTERM; 1 failed; 2 usage; 3 not permitted.

Examples:
  lowtide exporter
  lowtide exporter --listen 0.0.0.0:9797 --web-config web-config.yml --group-by cgroup
  lowtide exporter --textfile /var/lib/prometheus/node-exporter/lowtide.prom";

pub(crate) const LOAD_HELP: &str = "\
The protocol is HTTP/1.1 or HTTP/2. For https:, the server chooses. For http:,
it is HTTP/2 with prior knowledge if -m asks for more than one stream, which
only HTTP/2 supports; else HTTP/1.1.

Counts: requests = succeeded + failed. A request succeeds if its response is
complete, with a status below 400. The number of distinct response bodies
is counted, up to 100. Without --rate, the latency of a request counts from the
time at which it is sent. A lost connection is opened again while requests are
left. If it is lost three times in a row without any response, it is not opened
again in this round.

Latency covers the requests that succeeded. If requests timed out, a second line
includes them (JSON: latency_with_timeouts_s). Their latency is the time from
sending the request (with --rate: from when it was due) until the timeout.

--fail-on compares a metric of each round with a number. Metrics: requests,
succeeded, failed, failed_ratio (failed / requests), timed_out, requests_per_s,
sent_s, completed_s, peak_in_flight, distinct_responses, closed_while_held,
client_peak_rss_bytes; mean, p50, p90, p99, p999 and max of latency_s and of
latency_with_timeouts_s. sent_s and completed_s are the times from the start of
the round to the last request sent and the last response.

Exit codes: 0 done, even if every request failed (use --fail-on 'failed_ratio>0'
to change that); 1 no connection could be made; 2 usage; 99 a threshold given
with --fail-on was crossed; 130 ended by Ctrl-C, with the results so far.

Examples:
  lowtide load 'http://127.0.0.1:3000/?expire=20000' -m 125000         a million at once
  lowtide load http://127.0.0.1:8080/ -c 50 -z 30s                     50 at a time, for 30 s
  lowtide load https://localhost:8443/ -k -m 100 -n 100000 --rounds 3  three rounds
  lowtide load http://127.0.0.1:8080/ --rate 500/s -z 1m               500 a second
  lowtide load tls:localhost:8443 -k -c 3000 --rate 100/s --hold 30s   3,000 connections
  lowtide load http://127.0.0.1:8080/ --fail-on 'failed_ratio>0.01'    a check for CI";

pub(crate) const LEAKS_HELP: &str = "\
lowtide reads the heap several times, and recognises each block by its address,
its size and a hash of its first 48 bytes. The process is not stopped. At the
end, all of its memory is searched twice for pointers.

Verdicts:
  lost         blocks of a size accumulate, and are unreachable: a leak
  growing      they accumulate, or a single block grows, and they may be
               reachable: a leak, or an unbounded cache
  backlog      older ones are freed, but their number rises: probably a queue
               that fills faster than it drains
  filling      their growth slows down, or the older ones are freed, or the
               process once used more memory than now, or they only become
               resident
  elsewhere    memory grows that is not in the blocks of a heap: the first sentence
               says in what, and the next step divides it
  lost before  memory from before the first snapshot is unreachable
  level        neither RSS nor the number of blocks of a size grows
  too early    not watched for long enough, or RSS grew, but not steadily

Stacks show where growing blocks are allocated. They are sampled by probes on
the allocation functions, in short windows: 1 % of the time (--overhead), and at most
20,000 allocations a window. They require Linux 5.8 or newer, CAP_BPF and
CAP_PERFMON, or before Linux 6.10 CAP_SYS_ADMIN. A program with Go code or shadow
stacks is read, but no stacks are taken.

lowtide reads the blocks of glibc, musl, jemalloc, mimalloc, gperftools'
tcmalloc and CPython. For other processes, it reports the growth of each owner.
A heap of more than 2.5 million blocks is sampled: counts and rates are then
estimates, with a 95 % confidence interval of each rate.

Examples:
  lowtide leaks 4711 --duration 2m
  lowtide leaks 4711 --older 10m --top 10 --output leaks.jsonl
  lowtide leaks 4711 --duration 10m --folded
  lowtide leaks 4711 --duration 10m --no-stacks --json";

pub(crate) const WATCH_HELP: &str = "\
Keys:
  q, Ctrl-C     quit; Esc: back, or quit
  p, space      freeze the display; sampling and recording continue
  a             the arenas of the heap: scroll with j, k, arrows, PgUp, PgDn, Home, End
  l             blocks that accumulate from now on (`lowtide leaks`); s finds what points to them
  +, -          longer or shorter interval
  ?             help

`watch` ends when the process ends, when its terminal closes, or on a signal. If
stdout is not a terminal, or with --json, it prints a line for each inspection.

With --log, the view marks each release on the chart and sums up the releases of
the process since the start of the log. The printed lines, the JSON and the record
contain the releases since the watch started. The log contains the PIDs that its
writer sees: to follow the log of a container, run `lowtide watch` inside the
container.

With --cgroup, it prints a line for each reading of what a control group is charged
for, with the rows that changed most since the first reading. `kept` is the charge
without page cache and kernel objects that the kernel drops before it kills. At the
end, it prints the growth by row, and when the limit is reached.

Examples:
  lowtide watch 4711
  lowtide watch 4711 --log /var/log/lowtide.jsonl
  lowtide watch 4711 --looks 60 --output night.jsonl
  lowtide watch 4711 --json --interval 10s
  lowtide watch --cgroup /system.slice/app.service";

pub(crate) const STUDY_HELP: &str = "\
Presets (-t). Write NAME=VALUE to replace the default value shown:
  glibc/trim_threshold          65536 B: the free top of the heap is returned when it is larger
                                than this; mmap_threshold then no longer adapts
  glibc/mmap_threshold          65536 B: minimum size of a block with its own mapping
  glibc/tcache_count            0: number of freed blocks of each size that a thread keeps
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

--env-from takes: GLIBC_TUNABLES, MALLOC_*, *MALLOC_CONF, MIMALLOC_*, TCMALLOC_*,
LD_PRELOAD (without allocators), LD_LIBRARY_PATH, PYTHON*, R_*, RUBY*,
NODE_OPTIONS, JAVA_TOOL_OPTIONS, JDK_*, PATH, LANG and LC_*. A copy of a service
with all of its variables would also have its passwords, and act in its name.

Examples:
  lowtide study -- python3 job.py
  lowtide study --env-from 4711 -- ./worker --once
  lowtide study -a glibc,jemalloc -t glibc/arena_max=2 --repeat 6 \\
      --ready tcp:127.0.0.1:8080 --load 'wrk -c 200 -d 20s http://127.0.0.1:8080/' -- ./server
  lowtide study studies/python-httpx.toml --set contexts=2000

Two versions (--against) are compared pair by pair, and the report has a verdict:
worse, better, the same within the noise, or not resolved. --fail-on worse is
crossed if settled memory has surely grown; docs/gate.md has the rule, and an
action for GitHub:
  lowtide study --against './old --port 8080' --fail-on worse \\
      --ready tcp:127.0.0.1:8080 --load ./load.sh -- ./new --port 8080

Studies that take hours print progress and the remaining time to stderr. --resume
continues an interrupted study. The parts of a study can run separately, on one
machine or on several (in a Slurm array, in an indexed Job of Kubernetes). A part
consists of whole repeats. Each repeat has every treatment once, in the same order
as in the whole study:
  lowtide study night.toml --repeat 12 --output night --resume
  lowtide study night.toml --repeat 12 --output part-1 --resume --shard 1/4
  lowtide report part-1 part-2 part-3 part-4";

pub(crate) const DEMO_HELP: &str = "\
Each trial starts a new server, sends one burst of requests, and samples RSS until
3 s after it. The record is in the directory of --output.

Exit codes: 0 done; 1 failed; 2 usage; 130 interrupted.

Examples:
  lowtide demo
  lowtide demo --streams 10000 --repeat 1
  lowtide demo --output first-demo";

pub(crate) const INSPECT_HELP: &str = "\
The process is read from outside: no thread stops, and nothing in it changes.
A FILE that --save wrote takes the place of a process, and so does an ELF core,
which does not show what was resident. Of two files, the difference is shown.

With --cgroup alone, the memory that counts towards the limit of the cgroup comes
first, by kind: also what belongs to no process.

Exit codes: 0 done; 1 failed; 2 usage; 3 not permitted; 4 the process or cgroup is
gone; 130 interrupted. For several processes, the worst of their codes.

Examples:
  lowtide inspect 4711
  lowtide inspect 4711 --arenas
  lowtide inspect 4711 --pins
  lowtide inspect 4711 --blocks --top 20
  lowtide inspect 4711 --pins --watch 1m --folded
  lowtide inspect 4711 --watch 10m
  lowtide inspect 4711 --save app.heap
  lowtide inspect app.heap --pins
  lowtide inspect ./core.4711 --blocks
  lowtide inspect monday.heap friday.heap
  lowtide inspect --cgroup /system.slice/app.service --json";

pub(crate) const REPORT_HELP: &str = "\
Without an option, the tables and a chart are printed. A record is a directory that
`study` or `demo` wrote, or a file that another command wrote with `--output`.

Exit codes: 0 done; 1 failed; 2 usage.

Examples:
  lowtide report lowtide-demo-2026-11-25-120000
  lowtide report --html report.html before after
  lowtide report --svg chart.svg --chart course record
  lowtide report --csv - record";

pub(crate) const COMPLETIONS_HELP: &str = "\
bash loads the script from /etc/bash_completion.d, zsh from a directory of $fpath
under the name _lowtide, fish from ~/.config/fish/completions/lowtide.fish.

Examples:
  lowtide completions bash
  lowtide completions zsh
  lowtide completions fish";

pub(crate) const MAN_HELP: &str = "\
`lowtide man | man -l -` shows the page.

Examples:
  lowtide man
  lowtide man inspect
  lowtide man study";
