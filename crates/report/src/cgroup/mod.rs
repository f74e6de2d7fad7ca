//! The ledger of a cgroup for people: the answer first, then its rows.

mod answer;
pub mod growth;
mod parts;
mod rows;

use lowtide_model::bytes::Human;
use lowtide_model::cgroup::{CgroupKind, CgroupLedger};

use crate::group::processes;
use crate::screen::{Screen, bold, dim};
use crate::text::{facts_in_lines, printable, shortened, wrapped};
use answer::answer;
use parts::Shown;
use rows::{MIN_SHARE, rows};

/// The parts of rows that a page has, from more to fewer: the maximum number of parts of a row, and
/// their minimum share of the charge beside the usual one.
const FOLDED: [(usize, f64); 6] = [(3, 0.0), (2, 0.0), (1, 0.0), (1, 0.05), (1, 0.1), (1, 0.25)];
/// What it has if there is no room for any of these: none.
const LEAST: (usize, f64) = (0, 1.0);

/// What stands before a value that is a lower bound.
const LEAST_KNOWN: &str = "at least ";

/// Formats the ledger of a cgroup, with as many parts of its rows as `room` lines hold; without
/// `room`, with all rows and all parts.
pub fn render(ledger: &CgroupLedger, room: Option<usize>, screen: Screen) -> String {
    let Some(room) = room else { return page(ledger, Shown::All, screen) };
    let fits = |shown: &Shown| page(ledger, *shown, screen).lines().count() <= room;
    let large = |(most, min_share)| Shown::Large { most, min_share };
    let mut by_length = FOLDED.into_iter().map(large);
    let shown = by_length.find(fits).unwrap_or(large(LEAST));
    page(ledger, shown, screen)
}

fn page(ledger: &CgroupLedger, shown: Shown, screen: Screen) -> String {
    let mut out = head(ledger, screen);
    out.push('\n');
    out += &bold(&wrapped(&printable(&answer(ledger)), screen.width), screen);
    out.push_str("\n\n");
    out += &rows(ledger, shown, screen);
    out += &returnable(ledger, screen);
    out += &beside(ledger, screen);
    for note in &ledger.notes {
        out += &wrapped(&printable(&format!("note: {note}")), screen.width);
        out.push('\n');
    }
    out
}

fn head(ledger: &CgroupLedger, screen: Screen) -> String {
    let path = shortened(&printable(&ledger.path), usize::from(screen.width));
    let mut facts = vec![
        format!("charged {}", Human(ledger.charged_bytes)),
        format!("cgroup v{}", ledger.version),
        processes(ledger.processes),
        match ledger.limit_bytes {
            Some(limit) => format!("limit {}{}", Human(limit), limiting(ledger)),
            None => "no limit".to_owned(),
        },
        format!("working set {}", Human(ledger.working_set_bytes)),
    ];
    for (count, what) in [(ledger.events.max, "limit hits"), (ledger.events.oom_kill, "OOM kills")]
    {
        facts.extend(count.filter(|count| *count > 0).map(|count| format!("{count} {what}")));
    }
    let stalls = ledger.stall_percent.filter(|percent| *percent >= 1.0);
    facts.extend(stalls.map(|percent| format!("stalled {percent:.0} % of the time")));
    format!("{}\n{}\n", bold(&path, screen), facts_in_lines(&facts, screen.width))
}

/// Returns whose limit it is, if it is not its own.
fn limiting(ledger: &CgroupLedger) -> String {
    let lowest = ledger.limits.iter().find(|limit| limit.limit_bytes == ledger.limit_bytes);
    match lowest.map(|limit| limit.path.as_str()) {
        Some(path) if path != ledger.path => format!(" (of {})", shortened(path, 30)),
        _ => String::new(),
    }
}

/// Returns how much of the charge can be returned, and by whom; parts that are not noticeable are
/// left out.
fn returnable(ledger: &CgroupLedger, screen: Screen) -> String {
    let is_noticeable = |bytes: u64| bytes as f64 >= ledger.charged_bytes as f64 * MIN_SHARE;
    let released = ledger.anon.as_ref().map(|anon| {
        let is_estimate = anon.processes.iter().any(|found| found.estimated);
        let about = if is_estimate { "≈ " } else { "" };
        (anon.releasable_bytes, about, "by lowtide release")
    });
    // Version 1 does not tell what of its kernel memory can be reclaimed.
    let is_undivided =
        ledger.version == 1 && is_noticeable(ledger.bytes(CgroupKind::KernelOther).unsigned_abs());
    let least = if is_undivided { LEAST_KNOWN } else { "" };
    let unmapped = ledger.bytes(CgroupKind::ShmemUnmapped).unsigned_abs();
    let parts: Vec<String> = released
        .into_iter()
        .chain([
            (ledger.reclaimable_bytes, least, "by the kernel"),
            (unmapped, "", "once files are gone"),
        ])
        .filter(|(bytes, about, _)| is_noticeable(*bytes) || *about == LEAST_KNOWN)
        .map(|(bytes, about, by)| format!("{about}{} {by}", Human(bytes)))
        .collect();
    let text = if parts.is_empty() { "less than 1 %".to_owned() } else { parts.join(" · ") };
    format!("{}\n", wrapped(&format!("can be returned: {text}"), screen.width))
}

fn beside(ledger: &CgroupLedger, screen: Screen) -> String {
    let mut parts = Vec::new();
    let swap = ledger.swap_bytes.filter(|bytes| *bytes > 0);
    parts.extend(swap.map(|bytes| format!("swapped out, not counted: {}", Human(bytes))));
    let removed = ledger.removed_groups.filter(|count| *count > 0);
    parts.extend(removed.map(|count| format!("removed cgroups that are still charged: {count}")));
    match parts.is_empty() {
        true => String::new(),
        false => format!("{}\n", dim(&facts_in_lines(&parts, screen.width), screen)),
    }
}

#[cfg(test)]
mod tests {
    use lowtide_model::cgroup::{
        AnonCount, AnonProcess, CachedFile, CgroupFile, CgroupHolder, CgroupPageCache, CgroupRow,
        HolderPart,
    };
    use lowtide_model::ledger::Owner;

    use super::*;

    const NARROW: Screen = Screen { width: 80, colour: false };
    /// The lines of a screen with a single process below the ledger.
    const ROOM: Option<usize> = Some(18);

    fn row(kind: CgroupKind, mib: i64) -> CgroupRow {
        CgroupRow { kind, bytes: mib << 20, estimated: false, bound_bytes: None }
    }

    fn ledger() -> CgroupLedger {
        let mut ledger = CgroupLedger {
            path: "/kubepods/podX/app".to_owned(),
            version: 2,
            charged_bytes: 200 << 20,
            working_set_bytes: 190 << 20,
            reclaimable_bytes: 10 << 20,
            limit_bytes: Some(256 << 20),
            ..CgroupLedger::default()
        };
        ledger.set_rows(vec![
            row(CgroupKind::Anon, 60),
            row(CgroupKind::ShmemUnmapped, 120),
            row(CgroupKind::FileInactive, 10),
            row(CgroupKind::KernelOther, 9),
            row(CgroupKind::Rest, 1),
        ]);
        ledger
    }

    #[test]
    fn the_answer_comes_first_and_fits_on_a_screen_of_80_columns() {
        let page = render(&ledger(), ROOM, NARROW);
        assert!(
            page.contains("shared memory that no process maps: 120 MiB of 200 MiB (60 %)"),
            "{page}"
        );
        assert!(page.lines().count() <= 22, "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    }

    #[test]
    fn owners_and_what_can_be_returned_are_shown() {
        let mut own = lowtide_model::ledger::Ledger::default();
        own.add(Owner::Allocated, 20 << 20);
        own.add(Owner::Reclaimable, 20 << 20);
        let count = AnonCount { resident_bytes: 40 << 20, proportional_bytes: Some(40 << 20) };
        let server = AnonProcess::new(7, "server".to_owned(), &own, count, 20 << 20);
        let count = AnonCount { resident_bytes: 20 << 20, proportional_bytes: None };
        let slow = AnonProcess::unread(8, "fuse\x1b".to_owned(), count, "slow".to_owned());
        let mut found = ledger();
        found.set_anon(vec![server, slow]);
        let page = render(&found, ROOM, NARROW);
        for line in [
            "20.0 MiB  allocated: in use by the program",
            "20.0 MiB  reclaimable: freed, in whole pages",
            "8: not inspected (slow)",
            "can be returned: ≈ 20.0 MiB by lowtide release · 10.0 MiB by the kernel",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
        assert!(!page.contains('\x1b'), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    }

    /// Returns a container that holds memory of every kind, with parts of each.
    fn full() -> CgroupLedger {
        let mut own = lowtide_model::ledger::Ledger::default();
        let owners = [Owner::Allocated, Owner::Reclaimable, Owner::Fragmented, Owner::Stacks];
        owners.iter().for_each(|owner| own.add(*owner, 15 << 20));
        let count = AnonCount { resident_bytes: 60 << 20, proportional_bytes: Some(60 << 20) };
        let mut found = ledger();
        found.set_rows(vec![
            row(CgroupKind::Anon, 60),
            row(CgroupKind::ShmemMapped, 20),
            row(CgroupKind::ShmemUnmapped, 30),
            row(CgroupKind::FileActive, 40),
            row(CgroupKind::FileInactive, 20),
            row(CgroupKind::SlabReclaimable, 9),
            row(CgroupKind::SlabUnreclaimable, 5),
            row(CgroupKind::PageTables, 4),
            row(CgroupKind::KernelOther, 12),
        ]);
        found.set_anon(vec![AnonProcess::new(7, "server".to_owned(), &own, count, 15 << 20)]);
        let file = |kind: CgroupKind, place: u32| CgroupFile {
            path: format!("/dev/shm/{}/{}-{place}", "a".repeat(80), kind.name()),
            kind,
            bytes: 5 << 20,
            mapped_bytes: 0,
            deleted: true,
            charged: None,
        };
        let kinds = [CgroupKind::ShmemMapped, CgroupKind::ShmemUnmapped];
        found.files = kinds.iter().flat_map(|kind| (0..4).map(|at| file(*kind, at))).collect();
        let cached = |place: u32| CachedFile {
            path: format!("/var/log/{}/{place}.log", "b".repeat(80)),
            pid: 7,
            cached_bytes: 8 << 20,
            dirty_bytes: Some(4 << 20),
            charged_bytes: None,
            deleted: true,
        };
        found.page_cache = CgroupPageCache::new(60 << 20, (0..4).map(cached).collect(), true);
        found.holders = [HolderPart::Pipes, HolderPart::UnixSockets]
            .map(|part| CgroupHolder {
                kind: CgroupKind::KernelOther,
                part: Some(part),
                pid: 7,
                name: "server".to_owned(),
                bytes: 5 << 20,
                used_bytes: 100 << 20,
            })
            .to_vec();
        found
    }

    #[test]
    fn a_full_container_leaves_room_for_three_processes_on_a_screen_of_80_by_24() {
        let page = render(&full(), Some(16), NARROW);
        assert!(page.lines().count() <= 16, "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
        assert!(page.contains("page cache: 40.0 MiB of 200 MiB (20 %)"), "{page}");
        assert!(page.contains(" others ") && page.contains(" shmem_unmapped "), "{page}");
    }

    #[test]
    fn a_page_without_a_limit_shows_every_row_and_every_part() {
        let found = full();
        let page = render(&found, None, NARROW);
        assert!(!page.contains(" others ") && !page.contains(" more\n"), "{page}");
        assert!(found.rows.iter().all(|row| page.contains(row.kind.name())), "{page}");
        for part in ["allocated", "reclaimable", "fragmented", "stacks", "pipes of", "sockets, w"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.matches("(deleted)").count(), 12, "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    }

    #[test]
    fn files_of_the_page_cache_and_unread_data_are_shown_below_their_rows() {
        let file = CachedFile {
            path: "/var/log/app.log".to_owned(),
            pid: 7,
            cached_bytes: 8 << 20,
            dirty_bytes: Some(4 << 20),
            charged_bytes: Some(8 << 20),
            deleted: false,
        };
        let mut found = ledger();
        found.page_cache = CgroupPageCache::new(10 << 20, vec![file], true);
        found.holders = vec![CgroupHolder {
            kind: CgroupKind::KernelOther,
            part: Some(HolderPart::Pipes),
            pid: 7,
            name: "server".to_owned(),
            bytes: 8 << 20,
            used_bytes: 100 << 20,
        }];
        let page = render(&found, ROOM, NARROW);
        for line in [
            "     8.00 MiB  /var/log/app.log, 4.00 MiB dirty",
            "     2.00 MiB  files that were not found open in its processes",
            "     8.00 MiB  unread in pipes of server 7",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
    }

    #[test]
    fn memory_that_only_a_pin_keeps_is_the_answer_and_not_the_processes() {
        let mut found = ledger();
        found.set_rows(vec![row(CgroupKind::Anon, 1), row(CgroupKind::Rest, 199)]);
        let page = render(&found, ROOM, Screen { width: 200, colour: false });
        assert!(page.contains("not in the kernel's account: 199 MiB of 200 MiB (100 %)"), "{page}");
        assert!(!page.contains("inspect the largest"), "{page}");
        found.holders = vec![CgroupHolder {
            kind: CgroupKind::Rest,
            part: Some(HolderPart::Pinned),
            pid: 7,
            name: "server\x1b".to_owned(),
            bytes: 190 << 20,
            used_bytes: 100 << 20,
        }];
        let page = render(&found, ROOM, Screen { width: 200, colour: false });
        assert!(
            page.contains("At most 190 MiB of it are pinned by server")
                && page.contains("io_uring")
        );
        assert!(!page.contains('\x1b'), "{page}");
    }

    #[test]
    fn a_ledger_with_a_large_rest_calls_itself_incomplete() {
        let mut found = ledger();
        found.set_rows(vec![row(CgroupKind::ShmemUnmapped, 190), row(CgroupKind::Rest, 10)]);
        let page = render(&found, ROOM, NARROW);
        assert!(found.incomplete && page.contains("The ledger is incomplete."), "{page}");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let mut found = ledger();
        found.path = "/a\x1b[2J\n".to_owned();
        found.files = vec![CgroupFile {
            path: "/dev/shm/\x1b]0;x\x07".to_owned(),
            kind: CgroupKind::ShmemUnmapped,
            bytes: 8 << 20,
            mapped_bytes: 0,
            deleted: true,
            charged: None,
        }];
        let page = render(&found, ROOM, NARROW);
        assert!(!page.contains('\x1b') && !page.contains('\x07'), "{page}");
    }
}
