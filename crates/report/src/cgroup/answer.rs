//! The answer: what the largest part of the charge is, what follows from it, and what to do.
//!
//! It says nothing that was not seen: a file is named as the cgroup's only if its pages are known
//! to be charged to it, and nothing is missing unless all places were searched.

use lowtide_model::bytes::Human;
use lowtide_model::cgroup::{
    CgroupFile, CgroupHolder, CgroupKind, CgroupLedger, CgroupRow, HolderPart, KernelObjects,
};
use lowtide_model::number::HumanCount;

use crate::text::{printable, with_minus};

/// Kernel memory that is noticeable although there is more anonymous memory, in bytes.
const MIN_KERNEL: i64 = 1 << 20;
/// Page tables of a process below which they are its fixed cost, in bytes.
const FIXED_PAGE_TABLES: u64 = 256 << 10;
/// Memory that a byte of page tables maps if no page is left out: 4 KiB map 2 MiB. Below an eighth
/// of that, mappings are sparse.
const DENSE: u64 = 512;
/// Part of a row that counted objects need, at least, to be named for it.
const NAMED: f64 = 0.01;

/// Returns the largest part that is not the memory of processes, or says that there is none.
pub(super) fn answer(ledger: &CgroupLedger) -> String {
    let charged = ledger.charged_bytes;
    let of_charge = |bytes: i64| 100.0 * bytes as f64 / charged.max(1) as f64;
    let anon = ledger.bytes(CgroupKind::Anon);
    let rest = ledger.bytes(CgroupKind::Rest);
    let mut sentence = match largest(ledger) {
        other if ledger.incomplete && rest > anon && other.is_none_or(|row| rest > row.bytes) => {
            let (of_charge, rest) = (of_charge(rest), with_minus(rest));
            let sentence = format!(
                "not in the kernel's account: {rest} of {} ({of_charge:.0} %).",
                Human(charged)
            );
            sentence + &pinned(ledger)
        }
        None if ledger.incomplete => {
            "incomplete: the kernel does not report what a part of the charge is.".to_owned()
        }
        Some(row) if is_noticeable(row, anon) && of_charge(row.bytes) >= 5.0 => {
            let about = if row.estimated { "≈ " } else { "" };
            let processes = match anon > row.bytes {
                true => format!(" Most is of processes: {}.", with_minus(anon)),
                false => String::new(),
            };
            format!(
                "{}: {about}{} of {} ({:.0} %). {}{processes}",
                heading(row.kind),
                with_minus(row.bytes),
                Human(charged),
                of_charge(row.bytes),
                advice(ledger, row)
            )
        }
        _ => of_processes(ledger, anon, of_charge(anon)),
    };
    if ledger.incomplete && largest(ledger).is_some() {
        sentence += " The ledger is incomplete.";
    }
    if ledger.moved {
        sentence += " The charge moved while it was read: all rows are ≈.";
    }
    sentence
}

/// Returns a sentence about the pinned memory that may be the rest; an empty text if there is none.
fn pinned(ledger: &CgroupLedger) -> String {
    let of = |holder: &&CgroupHolder| holder.part == Some(HolderPart::Pinned);
    match ledger.holders.iter().find(of) {
        Some(CgroupHolder { pid, name, bytes, .. }) => format!(
            " At most {} of it are pinned by {} {pid} (VmPin: buffers that are registered for io_uring, RDMA or a \
             device) and not mapped: they stay until it unregisters them or ends.",
            Human((*bytes).min(u64::try_from(ledger.bytes(CgroupKind::Rest)).unwrap_or(0))),
            printable(name)
        ),
        None => String::new(),
    }
}

fn largest(ledger: &CgroupLedger) -> Option<&CgroupRow> {
    let is_one = |row: &&CgroupRow| {
        !matches!(row.kind, CgroupKind::Anon | CgroupKind::Stock | CgroupKind::Rest)
    };
    ledger.rows.iter().filter(is_one).max_by_key(|row| row.bytes)
}

/// Returns whether a row is noticeable beside the anonymous memory. Each process has some memory
/// of the kernel.
fn is_noticeable(row: &CgroupRow, anon: i64) -> bool {
    match row.kind {
        CgroupKind::ShmemMapped
        | CgroupKind::ShmemUnmapped
        | CgroupKind::FileActive
        | CgroupKind::FileInactive
        | CgroupKind::FileOther => row.bytes > anon / 4,
        _ => row.bytes > anon || row.bytes > anon / 2 && row.bytes >= MIN_KERNEL,
    }
}

fn heading(kind: CgroupKind) -> &'static str {
    match kind {
        CgroupKind::ShmemMapped => "shared memory",
        CgroupKind::ShmemUnmapped => "shared memory that no process maps",
        CgroupKind::FileActive | CgroupKind::FileInactive | CgroupKind::FileOther => "page cache",
        CgroupKind::SlabReclaimable | CgroupKind::SlabUnreclaimable => "kernel objects",
        CgroupKind::PageTables => "page tables",
        CgroupKind::KernelStacks => "kernel stacks",
        CgroupKind::Sockets => "socket buffers",
        _ => "kernel memory",
    }
}

/// Returns the consequence of a large row, and what to do.
fn advice(ledger: &CgroupLedger, row: &CgroupRow) -> String {
    let text = match row.kind {
        CgroupKind::PageTables => return page_tables_advice(ledger, row),
        CgroupKind::SlabUnreclaimable | CgroupKind::KernelOther => {
            return kernel_advice(ledger, row);
        }
        CgroupKind::ShmemMapped => "Processes share it: it counts once, unlike in their RSS.",
        CgroupKind::ShmemUnmapped => unmapped_advice(ledger, row.bytes.unsigned_abs()),
        CgroupKind::FileInactive => {
            "The kernel reclaims it before it kills, and it is not in the working set."
        }
        CgroupKind::FileOther if ledger.locked_cache_bytes * 2 > row.bytes.unsigned_abs() => {
            "The kernel cannot reclaim it: locked (mlock), of a ramfs, or secret memory. It stays until it is \
             unlocked, or its files are deleted."
        }
        CgroupKind::FileOther => {
            "It is on no list of the kernel yet: it was just read, or it is locked."
        }
        CgroupKind::FileActive => {
            "The kernel reclaims it before it kills, but it counts in the working set."
        }
        CgroupKind::SlabReclaimable => {
            "Mostly cached names and inodes of files: the kernel reclaims them. Touch fewer files."
        }
        CgroupKind::KernelStacks => "16 KiB for each thread: run fewer threads and processes.",
        CgroupKind::Sockets => {
            "Data that was not sent or read yet: read faster, or set lower limits."
        }
        CgroupKind::Percpu => "Memory of the kernel for each processor.",
        CgroupKind::Vmalloc => "Large tables of the kernel.",
        CgroupKind::Zswap => "Swapped memory that is kept compressed.",
        CgroupKind::Hugetlb => "Huge pages of the kernel's pool.",
        _ => "",
    };
    text.to_owned()
}

/// Returns what the page tables are due to: many processes, sparse mappings, or much memory.
fn page_tables_advice(ledger: &CgroupLedger, row: &CgroupRow) -> String {
    let each = row.bytes.unsigned_abs() / ledger.processes.max(1);
    let of_row = ledger.holders.iter().filter(|holder| holder.kind == row.kind);
    let sparse = of_row
        .filter(|holder| holder.bytes >= FIXED_PAGE_TABLES)
        .find(|holder| holder.used_bytes < holder.bytes.saturating_mul(DENSE / 8));
    match sparse {
        Some(holder) => format!(
            "{} {} maps its memory sparsely: map less, less sparsely, or in huge pages.",
            printable(&holder.name),
            holder.pid
        ),
        None if ledger.processes > 1 && each < FIXED_PAGE_TABLES => {
            format!("About {} for each of {} processes: run fewer.", Human(each), ledger.processes)
        }
        None => "Map less in each process, or in huge pages.".to_owned(),
    }
}

/// Returns what kernel memory is due to, as far as it was seen.
fn kernel_advice(ledger: &CgroupLedger, row: &CgroupRow) -> String {
    let bytes = row.bytes.unsigned_abs();
    let unread = ledger.holders.iter().filter(|holder| holder.kind == row.kind);
    let unread: u64 = unread.map(|holder| holder.bytes).sum();
    if unread * 2 > bytes {
        return "Mostly data in pipes and unix sockets that no process has read: read faster, or write less.".to_owned();
    }
    let seen: Vec<String> = objects_of(ledger, row).take(2).map(named).collect();
    match seen.is_empty() {
        true if ledger.version == 1 => {
            "Version 1 has only its sum, and nothing of its processes was seen that needs it: it can be cached names of files."
                .to_owned()
        }
        true => "Nothing of its processes was seen that needs it.".to_owned(),
        false => format!("Counted in its processes: {}. Fewer of them need less.", seen.join(", and ")),
    }
}

/// Returns the objects that need a noticeable part of a row of kernel memory.
pub(super) fn objects_of<'l>(
    ledger: &'l CgroupLedger,
    row: &CgroupRow,
) -> impl Iterator<Item = &'l KernelObjects> {
    let least = row.bytes as f64 * NAMED;
    ledger.objects.iter().filter(move |found| found.least_bytes() as f64 >= least)
}

/// Names objects, and the process that has them.
pub(super) fn named(found: &KernelObjects) -> String {
    let (count, name) = (HumanCount(found.count), printable(&found.name));
    format!("{count} {} ({name} {})", found.kind.plural(), found.pid)
}

/// Returns a sentence on the anonymous memory, which is of its processes unless these have moved:
/// the kernel leaves a charge with the cgroup in which the memory was first used.
fn of_processes(ledger: &CgroupLedger, anon: i64, percent: f64) -> String {
    let other = ledger.anon.as_ref().map_or(0, |anon| anon.other_bytes);
    let inspected = ledger.anon.iter().flat_map(|anon| &anon.processes);
    let is_unread = inspected.clone().any(|process| process.unread.is_some());
    if other < 0 && other.unsigned_abs() > anon.unsigned_abs() {
        return format!(
            "processes: {} of their anonymous memory is not charged to it: they may have moved here from another \
             cgroup, which stays charged for it.",
            Human(other.unsigned_abs())
        );
    }
    let of = format!("{} of {} ({percent:.0} %)", with_minus(anon), Human(ledger.charged_bytes));
    let is_of_others = other > anon / 2 && !is_unread;
    match ledger.processes {
        _ if ledger.charged_bytes == 0 => "nothing is charged to it.".to_owned(),
        0 => format!(
            "anonymous memory: {of}, and no process of it can be seen: such processes have moved to another \
             cgroup, or are in another PID namespace."
        ),
        _ if is_of_others => format!(
            "anonymous memory: {of}, most of it not of the processes that are in it now: others may have moved to \
             another cgroup."
        ),
        _ => format!("processes: {of} is their own memory: inspect the largest."),
    }
}

/// Returns the consequence of shared memory that no process maps. To delete files is advised only
/// for files that are known to be charged to the cgroup.
fn unmapped_advice(ledger: &CgroupLedger, bytes: u64) -> &'static str {
    let sum = |is_counted: fn(&CgroupFile) -> bool| -> u64 {
        let counted = ledger.files.iter().filter(|file| is_counted(file));
        counted.map(|file| file.bytes.saturating_sub(file.mapped_bytes)).sum()
    };
    let own = sum(|file| file.charged == Some(true));
    let deleted = sum(|file| file.charged == Some(true) && file.deleted);
    // Named by the root of a process in another mount namespace.
    let elsewhere = sum(|file| file.charged == Some(true) && file.path.starts_with("/proc/"));
    match bytes {
        _ if own * 2 >= bytes && deleted * 2 > own => {
            "Its files have no name any more: it stays until the processes that have them open close them or end."
        }
        _ if own * 2 >= bytes && elsewhere * 2 > own => {
            "It stays until its files are deleted, or the last mount of their tmpfs ends: delete them by the paths that \
             are shown, and give the tmpfs a size (sizeLimit)."
        }
        _ if own * 2 >= bytes => {
            "It stays until its files are deleted, also after a restart of the processes: delete them, and give the \
             tmpfs a size (sizeLimit)."
        }
        _ if sum(|_| true) * 2 >= bytes => {
            "It stays until its files are deleted or closed. Which files these are is not known: those that were \
             found may be of another cgroup."
        }
        _ if ledger.files_complete => {
            "No file of most of it was found: `ipcs -m` lists System V segments; a file that was passed through a \
             socket and not received has no name."
        }
        _ => "Its files are not known: the search was not complete.",
    }
}

#[cfg(test)]
mod tests {
    use lowtide_model::cgroup::{AnonCount, AnonProcess, KernelObjectKind};
    use lowtide_model::ledger::{Ledger, Owner};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn ledger(rows: &[(CgroupKind, u64)]) -> CgroupLedger {
        let charged_bytes = rows.iter().map(|(_, mib)| mib * MIB).sum();
        let row = |(kind, mib): &(CgroupKind, u64)| CgroupRow {
            kind: *kind,
            bytes: (mib * MIB) as i64,
            estimated: false,
            bound_bytes: None,
        };
        let mut ledger =
            CgroupLedger { version: 1, charged_bytes, processes: 1, ..CgroupLedger::default() };
        ledger.set_rows(rows.iter().map(row).collect());
        ledger
    }

    fn file(mib: u64, deleted: bool, charged: Option<bool>) -> CgroupFile {
        let (path, kind) = ("/dev/shm/a".to_owned(), CgroupKind::ShmemUnmapped);
        CgroupFile { path, kind, bytes: mib * MIB, mapped_bytes: 0, deleted, charged }
    }

    #[test]
    fn only_files_that_are_charged_to_the_group_are_to_be_deleted() {
        let mut found = ledger(&[(CgroupKind::ShmemUnmapped, 30), (CgroupKind::Anon, 8)]);
        for (files, is_whole, says) in [
            (vec![file(30, false, Some(true))], true, "delete them"),
            (vec![file(30, true, Some(true)), file(900, false, None)], true, "have no name"),
            (vec![file(37, false, None)], true, "may be of another cgroup"),
            (vec![file(30, true, None)], true, "may be of another cgroup"),
            (vec![], true, "No file of most of it was found"),
            (vec![], false, "the search was not complete"),
            (vec![file(2, false, Some(true))], false, "the search was not complete"),
        ] {
            (found.files, found.files_complete) = (files, is_whole);
            let answer = answer(&found);
            assert!(answer.contains(says), "{says}: {answer}");
            assert_eq!(answer.contains("delete them"), says == "delete them", "{answer}");
        }
    }

    #[test]
    fn page_cache_that_is_locked_is_not_said_to_be_reclaimed() {
        let mut found = ledger(&[(CgroupKind::FileOther, 40), (CgroupKind::Anon, 8)]);
        assert!(answer(&found).contains("on no list"), "{}", answer(&found));
        found.locked_cache_bytes = 40 * MIB;
        let answer = answer(&found);
        assert!(answer.contains("The kernel cannot reclaim it: locked (mlock)"), "{answer}");
        assert!(!answer.contains("before it kills"), "{answer}");
    }

    fn holder(kind: CgroupKind, kib: u64, used_mib: u64) -> CgroupHolder {
        let (part, name) = (None, "server".to_owned());
        let (bytes, used_bytes) = (kib << 10, used_mib * MIB);
        CgroupHolder { kind, part, pid: 7, name, bytes, used_bytes }
    }

    #[test]
    fn page_tables_are_due_to_processes_to_sparse_mappings_or_to_much_memory() {
        let mut found = ledger(&[(CgroupKind::PageTables, 11), (CgroupKind::Anon, 9)]);
        found.processes = 301;
        found.holders = vec![holder(CgroupKind::PageTables, 60, 1)];
        assert!(answer(&found).contains("for each of 301 processes"), "{}", answer(&found));
        found.processes = 2;
        found.holders = vec![holder(CgroupKind::PageTables, 11 << 10, 11)];
        assert!(answer(&found).contains("server 7 maps its memory sparsely"), "{}", answer(&found));
        found.holders = vec![holder(CgroupKind::PageTables, 11 << 10, 5 << 10)];
        assert!(answer(&found).contains("Map less in each process"), "{}", answer(&found));
    }

    #[test]
    fn a_little_kernel_memory_of_each_process_is_not_the_answer() {
        let mut found = ledger(&[]);
        let row = |kind, kib: i64| CgroupRow {
            kind,
            bytes: kib << 10,
            estimated: true,
            bound_bytes: None,
        };
        found.charged_bytes = 256 << 10;
        found.set_rows(vec![
            row(CgroupKind::Anon, 104),
            row(CgroupKind::PageTables, 64),
            row(CgroupKind::KernelOther, 88),
        ]);
        assert!(answer(&found).contains("is their own memory"), "{}", answer(&found));
    }

    #[test]
    fn kernel_memory_is_said_to_be_what_was_seen_and_nothing_else() {
        let mut found = ledger(&[(CgroupKind::KernelOther, 12), (CgroupKind::Anon, 1)]);
        let own = |kind, count| KernelObjects { kind, count, pid: 7, name: "server".to_owned() };
        found.objects =
            vec![own(KernelObjectKind::Eventfd, 20_000), own(KernelObjectKind::Socket, 9)];
        let seen = answer(&found);
        assert!(seen.contains("Counted in its processes: 20,000 eventfds (server 7)."), "{seen}");
        assert!(!seen.contains("sockets"), "{seen}");
        found.objects = vec![own(KernelObjectKind::Mapping, 300)];
        assert!(answer(&found).contains("nothing of its processes was seen"), "{}", answer(&found));
        found.holders = vec![holder(CgroupKind::KernelOther, 11 << 10, 1)];
        assert!(answer(&found).contains("that no process has read"), "{}", answer(&found));
    }

    #[test]
    fn memory_of_processes_that_have_moved_is_not_of_those_that_are_there() {
        let process = |mib: u64| {
            let mut own = Ledger::default();
            own.add(Owner::Allocated, mib * MIB);
            let bytes = mib * MIB;
            let count = AnonCount { resident_bytes: bytes, proportional_bytes: Some(bytes) };
            AnonProcess::new(7, "server".to_owned(), &own, count, 2 * MIB)
        };
        // Where the processes were, without and with another one.
        let mut found = ledger(&[(CgroupKind::Anon, 47)]);
        found.processes = 0;
        found.set_anon(vec![]);
        assert!(answer(&found).contains("no process of it can be seen"), "{}", answer(&found));
        found.processes = 1;
        found.set_anon(vec![process(3)]);
        assert!(answer(&found).contains("others may have moved"), "{}", answer(&found));
        // Where they are.
        let mut found = ledger(&[]);
        found.set_anon(vec![process(47)]);
        assert!(answer(&found).contains("47.0 MiB of their anonymous memory is not charged to it"));
        assert_eq!(found.anon.unwrap().releasable_bytes, 0, "a release would lower another group");
        let mut found = ledger(&[(CgroupKind::Anon, 47)]);
        found.set_anon(vec![process(47)]);
        assert!(answer(&found).contains("inspect the largest"), "{}", answer(&found));
    }
}
