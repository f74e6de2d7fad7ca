//! The answer: what the largest part of the charge is, what follows from it, and what to do.
//!
//! It says nothing that was not seen: a file is named as the cgroup's only if its pages are known to
//! be charged to it, and nothing is missing unless all places were searched.

use lowtide_model::bytes::Human;
use lowtide_model::cgroup::{
    CgroupFile, CgroupHolder, CgroupKind, CgroupLedger, CgroupRow, HolderPart,
};

use crate::text::{printable, with_minus};

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
        Some(row) if row.bytes > anon / 4 && of_charge(row.bytes) >= 5.0 => {
            let about = if row.estimated { "≈ " } else { "" };
            format!(
                "{}: {about}{} of {} ({:.0} %). {}",
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
fn advice(ledger: &CgroupLedger, row: &CgroupRow) -> &'static str {
    match row.kind {
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
        CgroupKind::SlabUnreclaimable => {
            "Objects in use, such as inodes of tmpfs files, sockets and threads: have fewer of them."
        }
        CgroupKind::PageTables => "Map less, less sparsely, or in huge pages.",
        CgroupKind::KernelStacks => "16 KiB for each thread: start fewer threads.",
        CgroupKind::Sockets => {
            "Data that was not sent or read yet: read faster, or set lower limits."
        }
        _ if ledger.version == 1 => {
            "Version 1 has only the sum: cached names and inodes of files, pipes, unread data of unix sockets."
        }
        _ => "Such as pipes, and unread data of unix sockets.",
    }
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
    match bytes {
        _ if own * 2 >= bytes && deleted * 2 > own => {
            "Its files have no name any more: it stays until the processes that have them open close them or end."
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
    use lowtide_model::cgroup::{AnonCount, AnonProcess};
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
