//! The processes that a verb acts on: PIDs, or filters that select processes.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Args;
use lowtide_probe::cgroup::{CgroupDirectory, path_of};
use lowtide_probe::process::ProcReader;
use lowtide_probe::selection::{Selection, with_descendants};
use lowtide_survey::ScanFilter;

use crate::console::output::Output;
use crate::failure::exit::{Exit, Failure};
use crate::shell::quoted;

/// Processes by number, or by what they are.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Selector {
    /// Processes
    #[arg(
        value_name = "PID", value_parser = pid, conflicts_with_all = ["exe", "comm", "cgroup", "all"],
        required_unless_present_any = ["exe", "comm", "cgroup", "all"],
    )]
    pub(crate) pids: Vec<u32>,

    #[command(flatten)]
    filter: ProcessFilter,
}

/// Processes, or heap files in their place.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ProcessesOrFiles {
    /// Processes, or files that --save wrote, or ELF cores
    #[arg(
        value_name = "PID|FILE", value_parser = process_or_file, conflicts_with_all = ["exe", "comm", "cgroup", "all"],
        required_unless_present_any = ["exe", "comm", "cgroup", "all"],
    )]
    named: Vec<ProcessOrFile>,

    #[command(flatten)]
    filter: ProcessFilter,
}

/// A process by its PID, or a file.
#[derive(Debug, Clone)]
enum ProcessOrFile {
    Process(u32),
    File(PathBuf),
}

impl ProcessesOrFiles {
    /// Returns the files.
    pub(crate) fn files(&self) -> Vec<&Path> {
        let files = self.named.iter().filter_map(|named| match named {
            ProcessOrFile::File(path) => Some(path.as_path()),
            ProcessOrFile::Process(_) => None,
        });
        files.collect()
    }

    /// Returns the processes.
    pub(crate) fn selector(&self) -> Selector {
        let pid = |named: &ProcessOrFile| match named {
            ProcessOrFile::Process(pid) => Some(*pid),
            ProcessOrFile::File(_) => None,
        };
        let pids = self.named.iter().filter_map(pid).collect();
        Selector { pids, filter: self.filter.clone() }
    }
}

/// Parses a PID, the name of a process, or the path of a file. A path contains a slash, has a name
/// as heap files and cores have (`a.heap`, `a.core`, `core.7`), or is that of a file while no
/// process has this name.
fn process_or_file(text: &str) -> Result<ProcessOrFile, String> {
    let file = || ProcessOrFile::File(PathBuf::from(text));
    let is_named_as_file =
        text.starts_with("core.") || [".heap", ".core"].iter().any(|end| text.ends_with(end));
    if text.contains('/') || is_named_as_file {
        return Ok(file());
    }
    match pid(text) {
        Err(_) if Path::new(text).is_file() => Ok(file()),
        found => found.map(ProcessOrFile::Process),
    }
}

/// Processes by what they are.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ProcessFilter {
    /// All processes that run this program
    #[arg(long, value_name = "PATH")]
    exe: Option<PathBuf>,

    /// All processes of this name (ps -o comm)
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    comm: Option<String>,

    /// All processes in this control group or below it
    ///
    /// Its path as in /proc/PID/cgroup, its directory, or the PID of a process in it.
    #[arg(long, value_name = "PATH|PID", value_parser = cgroup)]
    cgroup: Option<String>,

    /// All processes
    #[arg(long, conflicts_with_all = ["exe", "comm", "cgroup"])]
    all: bool,

    /// Also select all descendants of these processes
    #[arg(long)]
    subprocesses: bool,
}

/// Returns the start time of a process, in clock ticks since boot; `None` if it has ended.
fn began(pid: u32) -> Option<u64> {
    ProcReader::open(pid).ok().flatten().map(|(process, _)| process.start_ticks)
}

/// Parses a PID, or the name of the only process that has it, of a verb for several processes.
pub(crate) fn pid(text: &str) -> Result<u32, String> {
    pid_or(text, |several| {
        let name = quoted(text);
        format!(
            "{} processes have this name: --comm {name} selects all of them, and pgrep -a {name} lists them",
            several.len()
        )
    })
}

/// Parses a PID, or the name of the only process that has it, of a verb for one process.
pub(crate) fn one_pid(text: &str) -> Result<u32, String> {
    pid_or(text, |several| {
        let first: Vec<String> = several.iter().take(3).map(u32::to_string).collect();
        format!(
            "{} processes have this name, such as {}: one is wanted, and pgrep -a {} lists them",
            several.len(),
            first.join(", "),
            quoted(text)
        )
    })
}

/// Parses a PID, or a name. `of_several` is the error for processes that all have this name.
fn pid_or(text: &str, of_several: impl FnOnce(&[u32]) -> String) -> Result<u32, String> {
    if let Ok(pid) = text.parse() {
        return Ok(pid);
    }
    match named(text).as_slice() {
        [pid] => Ok(*pid),
        [] => Err(format!(
            "neither a process ID nor the name of a running process: pgrep -fa {} searches in command lines",
            quoted(text)
        )),
        several => Err(of_several(several)),
    }
}

/// Returns the processes of a name, without lowtide itself.
pub(crate) fn named(name: &str) -> Vec<u32> {
    let selection = Selection { comm: Some(name.to_owned()), ..Selection::default() };
    let mut processes = selection.processes().unwrap_or_default();
    processes.remove(&std::process::id());
    processes.into_iter().collect()
}

/// Parses the path of a cgroup, or the PID of a process in it. A process in the root cgroup would
/// select all processes.
pub(crate) fn cgroup(text: &str) -> Result<String, Box<dyn Error + Send + Sync>> {
    let path = path_of(text)?;
    let is_pid = text.parse::<u32>().is_ok();
    // The root of a cgroup namespace is a group like others.
    let has_no_name = path.split('/').all(|part| part.is_empty() || part == "..");
    if is_pid && has_no_name && CgroupDirectory::find(&path).is_err() {
        return Err(
            format!("process {text} is in the root cgroup: name the path of another one").into()
        );
    }
    Ok(path)
}

/// A process that was selected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selected {
    pub(crate) pid: u32,
    /// Its start time, in clock ticks since boot; `None` if it has ended.
    start_ticks: Option<u64>,
}

impl Selected {
    /// Returns whether it still runs.
    pub(crate) fn is_running(&self) -> bool {
        self.start_ticks.is_some() && began(self.pid) == self.start_ticks
    }
}

impl ProcessFilter {
    fn selection(&self) -> Selection {
        Selection { exe: self.exe.clone(), comm: self.comm.clone(), cgroup: self.cgroup.clone() }
    }

    /// Returns the filter of a survey. Without any flag, it selects all processes.
    pub(crate) fn survey_filter(&self) -> ScanFilter {
        ScanFilter { selection: self.selection(), subprocesses: self.subprocesses }
    }

    /// Returns the filter as words of the command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let path = self.exe.as_ref().map(|path| path.display().to_string());
        for (flag, value) in [("--exe", &path), ("--comm", &self.comm), ("--cgroup", &self.cgroup)]
        {
            if let Some(value) = value {
                words.extend([flag.to_owned(), quoted(value)]);
            }
        }
        for (flag, is_given) in [("--all", self.all), ("--subprocesses", self.subprocesses)] {
            if is_given {
                words.push(flag.to_owned());
            }
        }
        words
    }
}

impl Selector {
    /// Returns whether a process is still selected: one given by PID always is; any other only as
    /// long as it runs under its PID and matches the selection.
    pub(crate) fn still_means(&self, selected: &Selected) -> bool {
        if self.pids.contains(&selected.pid) {
            return true;
        }
        // A descendant of a selected process need not be selected itself.
        let is_meant = || self.filter.subprocesses || self.filter.selection().means(selected.pid);
        selected.start_ticks.is_some() && began(selected.pid) == selected.start_ticks && is_meant()
    }

    /// Returns whether the processes are given by PID.
    pub(crate) fn is_by_number(&self) -> bool {
        !self.pids.is_empty()
    }

    /// Returns whether a group of processes is selected, so that totals are useful.
    pub(crate) fn is_group(&self) -> bool {
        !self.is_by_number() || self.filter.subprocesses
    }

    /// Returns whether totals are printed. As JSON they are an object of their own, which only a
    /// group has.
    pub(crate) fn has_totals(&self, processes: usize, output: &Output) -> bool {
        self.is_group() || (processes > 1 && !output.json)
    }

    /// Returns the cgroup, if it is the only thing that selects processes.
    pub(crate) fn only_cgroup(&self) -> Option<&str> {
        let ProcessFilter { exe, comm, cgroup, subprocesses, .. } = &self.filter;
        let is_only = exe.is_none() && comm.is_none() && !subprocesses;
        cgroup.as_deref().filter(|_| is_only)
    }

    /// Returns whether all processes are selected.
    pub(crate) fn is_all(&self) -> bool {
        self.filter.all
    }

    /// Returns the PIDs that the selection currently matches, with their descendants if requested.
    pub(crate) fn matching(&self) -> std::io::Result<BTreeSet<u32>> {
        Ok(self.with_subprocesses(self.filter.selection().processes()?))
    }

    /// Adds the descendants of processes, if requested.
    pub(crate) fn with_subprocesses(&self, processes: BTreeSet<u32>) -> BTreeSet<u32> {
        if self.filter.subprocesses { with_descendants(&processes) } else { processes }
    }

    /// Returns the processes, each once: those given by PID in their order, then the others by PID.
    ///
    /// # Errors
    /// Fails if nothing is selected, or the processes cannot be listed.
    pub(crate) fn select(&self) -> Result<Vec<Selected>, Failure> {
        if self.pids.contains(&std::process::id()) {
            return Err(Failure::usage("that is lowtide itself: name another process"));
        }
        let named: BTreeSet<u32> = if self.is_by_number() {
            self.pids.iter().copied().collect()
        } else {
            self.filter
                .selection()
                .processes()
                .map_err(|error| Failure::failed(format!("/proc cannot be read ({error})")))?
        };
        if named.is_empty() {
            let words = self.filter.words().join(" ");
            let message = format!("no process matches {words}: it may have ended");
            return Err(Failure::new(Exit::Gone, message).next("ps -eo pid,comm,args"));
        }
        let all = self.with_subprocesses(named);
        let mut seen = BTreeSet::new();
        let in_order = self.pids.iter().chain(&all).copied();
        let each = in_order.filter(|pid| seen.insert(*pid));
        Ok(each.map(|pid| Selected { pid, start_ticks: began(pid) }).collect())
    }
}
