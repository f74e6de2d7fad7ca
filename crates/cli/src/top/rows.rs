//! The contents of the table: processes or groups of them, in order.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use clap::ValueEnum;
use lowtide_model::cgroup::known_name;
use lowtide_model::ledger::Owner;
use lowtide_model::top::{SCHEMA, Top, TopGroup, TopProcess};
use lowtide_probe::permission::{Access, required};
use lowtide_report::inspection::outside_heap;
use lowtide_report::text::{shortened, without_directory};
use lowtide_survey::{Host, HostProcess, Unread};

/// Maximum length of the command beside the name of a cgroup, in characters.
const MAX_COMMAND: usize = 30;

/// Maximum length of the path of a cgroup without a known name, in characters.
const MAX_NAME: usize = 32;

/// The column that the table is ordered by, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortKey {
    /// Free memory in whole pages
    Reclaimable,
    /// Resident memory
    Rss,
    /// Memory in use
    Allocated,
    /// Growth of resident memory
    Growth,
}

impl SortKey {
    /// Returns the next one, in a circle.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Reclaimable => Self::Rss,
            Self::Rss => Self::Allocated,
            Self::Allocated => Self::Growth,
            Self::Growth => Self::Reclaimable,
        }
    }
}

/// What a line of the table stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroupKey {
    /// A process
    Process,
    /// All processes of a program
    Exe,
    /// All processes of a short name
    Comm,
    /// All processes of a memory cgroup
    Cgroup,
    /// All processes with an allocator
    Allocator,
}

impl GroupKey {
    /// Returns the next one, in a circle.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Process => Self::Exe,
            Self::Exe => Self::Comm,
            Self::Comm => Self::Cgroup,
            Self::Cgroup => Self::Allocator,
            Self::Allocator => Self::Process,
        }
    }

    /// Returns the heading of the column.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Exe => "program",
            Self::Comm => "name",
            Self::Cgroup => "cgroup",
            Self::Allocator => "allocator",
        }
    }

    fn of(self, process: &TopProcess) -> String {
        match self {
            Self::Process => process.pid.to_string(),
            Self::Exe => process.exe.clone().unwrap_or_else(|| format!("[{}]", process.comm)),
            Self::Comm => process.comm.clone(),
            Self::Cgroup => process.cgroup.clone(),
            Self::Allocator => process.allocator.clone().unwrap_or_else(|| "unknown".to_owned()),
        }
    }
}

/// Returns the table of a host.
pub(crate) fn top(host: &Host, sort: SortKey, by: GroupKey) -> Top {
    let t_s = host.elapsed_s();
    let mut processes: Vec<TopProcess> =
        host.processes().map(|process| row(process, t_s)).collect();
    processes.sort_by_key(|process| (Reverse(order(process, sort)), Reverse(process.rss_bytes)));
    let mut groups = match by {
        GroupKey::Process => Vec::new(),
        _ => groups(&processes, sort, by),
    };
    if by == GroupKey::Cgroup {
        groups.iter_mut().for_each(|group| add_charge(group, host, &processes));
    }
    let refused = processes.iter().find(|process| process.unread == Some("not_permitted"));
    Top {
        schema: SCHEMA,
        required: refused.map(|process| required(process.pid, Access::Read)),
        elapsed_s: t_s,
        unreadable: host.processes().filter(|process| process.unread.is_some()).count() as u64,
        uninspected: host.processes().filter(|process| process.is_waiting()).count() as u64,
        processes,
        groups,
    }
}

/// Adds the charge of a cgroup, and the name by which people know it with its largest process.
fn add_charge(group: &mut TopGroup, host: &Host, processes: &[TopProcess]) {
    group.charge = host.charge(&group.name).cloned();
    let own = processes.iter().filter(|process| process.cgroup == group.name);
    let main = own.max_by_key(|process| process.rss_bytes);
    let name = known_name(&group.name).unwrap_or_else(|| shortened(&group.name, MAX_NAME));
    group.label = Some(match main {
        Some(main) => {
            format!("{name} ({})", shortened(without_directory(&main.command), MAX_COMMAND))
        }
        None => name,
    });
}

/// Returns the totals of all processes.
pub(crate) fn total(top: &Top) -> TopGroup {
    TopGroup::of(&top.processes)
}

fn groups(processes: &[TopProcess], sort: SortKey, by: GroupKey) -> Vec<TopGroup> {
    let mut groups: BTreeMap<String, Vec<&TopProcess>> = BTreeMap::new();
    for process in processes {
        groups.entry(by.of(process)).or_default().push(process);
    }
    let named = groups.into_iter().map(|(name, group)| TopGroup { name, ..TopGroup::of(group) });
    let mut groups: Vec<TopGroup> = named.collect();
    groups.sort_by_key(|group| {
        let order = match sort {
            SortKey::Reclaimable => group.reclaimable_bytes as i64,
            SortKey::Rss => group.rss_bytes as i64,
            SortKey::Allocated => (group.allocated_bytes + group.runtime_bytes) as i64,
            SortKey::Growth => group.rss_bytes_per_hour.unwrap_or(i64::MIN),
        };
        (Reverse(order), Reverse(group.rss_bytes))
    });
    groups
}

/// Returns the key to order by. `None` (unknown) comes last.
fn order(process: &TopProcess, sort: SortKey) -> Option<i64> {
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as i64);
    match sort {
        SortKey::Reclaimable => bytes(process.reclaimable_bytes),
        SortKey::Rss => bytes(Some(process.rss_bytes)),
        SortKey::Allocated => {
            bytes(process.allocated_bytes.zip(process.runtime_bytes).map(|(a, r)| a + r))
        }
        SortKey::Growth => process.rss_bytes_per_hour,
    }
}

fn row(process: &HostProcess, t_s: f64) -> TopProcess {
    let inspected = process.inspected.as_ref();
    // An earlier inspection is obsolete if the process could not be read since then.
    let readable = inspected.filter(|_| process.unread.is_none());
    let bytes = |owner| readable.map(|found| found.ledger.bytes(owner));
    let growth = process.rss_bytes_per_hour(t_s);
    TopProcess {
        pid: process.pid,
        command: process.command(),
        comm: process.comm.clone(),
        exe: process.exe.clone(),
        cgroup: process.cgroup().to_owned(),
        allocator: inspected.map(|found| found.allocator_name()).filter(|name| name != "-"),
        rss_bytes: process.rss_bytes,
        same_memory_as: process.same_memory_as,
        allocated_bytes: bytes(Owner::Allocated),
        runtime_bytes: bytes(Owner::Runtime),
        reclaimable_bytes: bytes(Owner::Reclaimable),
        fragmented_bytes: bytes(Owner::Fragmented),
        coverage: readable.map(|found| found.ledger.coverage()),
        rss_bytes_per_hour: growth.map(|growth| growth.round() as i64),
        verdict: readable.map(|found| found.verdict.kind),
        verdict_name: readable.map(|found| outside_heap(found.verdict.kind, &found.ledger)),
        age_s: readable.map(|found| found.at.elapsed().as_secs_f64()),
        unread: process.unread.map(Unread::name),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lowtide_model::verdict::VerdictKind;

    pub(crate) fn process(pid: u32, rss_mib: u64, reclaimable_mib: Option<u64>) -> TopProcess {
        TopProcess {
            pid,
            command: format!("server --number {pid}"),
            comm: "server".to_owned(),
            exe: Some(format!("/usr/bin/server{}", pid % 2)),
            cgroup: "/system.slice/server.service".to_owned(),
            allocator: reclaimable_mib.map(|_| "glibc 2.36".to_owned()),
            rss_bytes: rss_mib << 20,
            same_memory_as: None,
            allocated_bytes: reclaimable_mib.map(|mib| (rss_mib - mib) << 20),
            runtime_bytes: reclaimable_mib.map(|_| 0),
            reclaimable_bytes: reclaimable_mib.map(|mib| mib << 20),
            fragmented_bytes: reclaimable_mib.map(|_| 1 << 20),
            coverage: None,
            rss_bytes_per_hour: Some(1 << 20),
            verdict: reclaimable_mib.map(|_| VerdictKind::Hoard),
            verdict_name: reclaimable_mib.map(|_| "hoard"),
            age_s: reclaimable_mib.map(|_| 1.0),
            unread: if reclaimable_mib.is_none() { Some("not_permitted") } else { None },
        }
    }

    #[test]
    fn unknown_values_sort_last() {
        let mut processes =
            [process(1, 300, None), process(2, 100, Some(0)), process(3, 50, Some(20))];
        processes.sort_by_key(|p| Reverse(order(p, SortKey::Reclaimable)));
        assert_eq!(processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [3, 2, 1]);
        processes.sort_by_key(|p| Reverse(order(p, SortKey::Rss)));
        assert_eq!(processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn groups_are_totals_of_their_processes() {
        let processes =
            [process(1, 300, None), process(2, 100, Some(10)), process(4, 50, Some(20))];
        let groups = groups(&processes, SortKey::Reclaimable, GroupKey::Exe);
        assert_eq!(groups[0].name, "/usr/bin/server0");
        assert_eq!((groups[0].processes, groups[0].reclaimable_bytes), (2, 30 << 20));
        assert_eq!((groups[1].processes, groups[1].unread), (1, 1));
    }
}
