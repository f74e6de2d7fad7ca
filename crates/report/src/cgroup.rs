//! The ledger of a cgroup for people: the answer first, then its rows.

use lowtide_model::bytes::Human;
use lowtide_model::cgroup::{CgroupFile, CgroupKind, CgroupLedger, CgroupRow};
use ratatui_core::style::Color;

use crate::group::processes;
use crate::inspection::ledger::{MAX_BAR_WIDTH, cells, line};
use crate::screen::{Screen, bold, dim};
use crate::text::{printable, shortened, wrapped};

/// Minimum part of the charge of a row of its own.
const MIN_SHARE: f64 = 0.01;
/// Number of files that are shown.
const FILES: usize = 3;
/// Maximum length of the path of a file, in characters.
const MAX_PATH: usize = 48;

/// Formats the ledger of a cgroup.
pub fn render(ledger: &CgroupLedger, screen: Screen) -> String {
    let mut out = head(ledger, screen);
    out.push('\n');
    out += &bold(&wrapped(&printable(&answer(ledger)), screen.width), screen);
    out.push_str("\n\n");
    out += &rows(ledger, screen);
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
        format!("cgroup v{}", ledger.version),
        processes(ledger.processes),
        match ledger.limit_bytes {
            Some(limit) => format!("limit {}{}", Human(limit), limiting(ledger)),
            None => "no limit".to_owned(),
        },
        format!("working set {}", Human(ledger.working_set_bytes)),
        format!("reclaimable by the kernel {}", Human(ledger.reclaimable_bytes)),
    ];
    for (count, what) in [(ledger.events.max, "limit hits"), (ledger.events.oom_kill, "OOM kills")]
    {
        facts.extend(count.filter(|count| *count > 0).map(|count| format!("{count} {what}")));
    }
    let stalls = ledger.stall_percent.filter(|percent| *percent >= 1.0);
    facts.extend(stalls.map(|percent| format!("stalled {percent:.0} % of the time")));
    let facts = printable(&facts.join(" · "));
    format!("{}\n{}\n", bold(&path, screen), wrapped(&facts, screen.width))
}

/// Returns whose limit it is, if it is not its own.
fn limiting(ledger: &CgroupLedger) -> String {
    let lowest = ledger.limits.iter().find(|limit| limit.limit_bytes == ledger.limit_bytes);
    match lowest.map(|limit| limit.path.as_str()) {
        Some(path) if path != ledger.path => format!(" (of {})", shortened(path, 30)),
        _ => String::new(),
    }
}

/// Returns the largest part that is not the memory of processes, or says that there is none.
fn answer(ledger: &CgroupLedger) -> String {
    let charged = ledger.charged_bytes;
    let of_charge = |bytes: i64| 100.0 * bytes as f64 / charged.max(1) as f64;
    let anon = ledger.bytes(CgroupKind::Anon);
    let mut sentence = match largest(ledger) {
        None if ledger.incomplete => {
            "incomplete: the kernel does not report what a part of the charge is.".to_owned()
        }
        Some(row) if row.bytes > anon / 4 && of_charge(row.bytes) >= 5.0 => {
            let about = if row.estimated { "≈ " } else { "" };
            format!(
                "{}: {about}{} of {} ({:.0} %). {}",
                heading(row.kind),
                human(row.bytes),
                Human(charged),
                of_charge(row.bytes),
                advice(ledger, row)
            )
        }
        _ => format!(
            "processes: {} of {} ({:.0} %) is anonymous memory of the processes: inspect the largest.",
            human(anon),
            Human(charged),
            of_charge(anon)
        ),
    };
    if ledger.incomplete && largest(ledger).is_some() {
        sentence += " The ledger is incomplete.";
    }
    if ledger.moved {
        sentence += " The charge moved while it was read: all rows are ≈.";
    }
    sentence
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
        CgroupKind::ShmemUnmapped if known_files(ledger) * 2 < row.bytes.unsigned_abs() => {
            "No file of most of it was found: `ipcs -m` lists System V segments; a file that was passed through a \
             socket and not received has no name."
        }
        CgroupKind::ShmemUnmapped if is_deleted(ledger) => {
            "Its files have no name any more: it stays until the processes that have them open close them or end."
        }
        CgroupKind::ShmemUnmapped => {
            "It stays until its files are deleted, also after a restart of the processes: delete them, and give the \
             tmpfs a size (sizeLimit)."
        }
        CgroupKind::FileInactive => {
            "The kernel reclaims it before it kills, and it is not in the working set."
        }
        CgroupKind::FileActive | CgroupKind::FileOther => {
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

/// Returns the unmapped bytes of the files that were found.
fn known_files(ledger: &CgroupLedger) -> u64 {
    ledger.files.iter().map(|file| file.bytes.saturating_sub(file.mapped_bytes)).sum()
}

/// Returns whether the largest unmapped file has no name any more.
fn is_deleted(ledger: &CgroupLedger) -> bool {
    let unmapped = ledger.files.iter().filter(|file| file.kind == CgroupKind::ShmemUnmapped);
    unmapped.max_by_key(|file| file.bytes).is_some_and(|file| file.deleted)
}

fn human(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", Human(bytes.unsigned_abs()))
}

fn rows(ledger: &CgroupLedger, screen: Screen) -> String {
    let charged = ledger.charged_bytes.max(1) as f64;
    let share = |row: &CgroupRow| row.bytes as f64 / charged;
    let is_large = |row: &&CgroupRow| share(row) >= MIN_SHARE;
    let (large, small): (Vec<&CgroupRow>, Vec<&CgroupRow>) =
        ledger.rows.iter().filter(|row| row.bytes != 0).partition(is_large);
    let width = usize::from(screen.width).min(MAX_BAR_WIDTH);
    let places = |row: &CgroupRow| (share(row) * width as f64).floor() as usize;
    let bar: String = large.iter().map(|row| cells(ink(row.kind), places(row), screen)).collect();
    let mut out = format!("charged {}\n{bar}\n", Human(ledger.charged_bytes));
    for row in large {
        let about = if row.estimated { '≈' } else { ' ' };
        let bytes = row.bytes.unsigned_abs();
        let text = meaning(ledger, row);
        out += &line(ink(row.kind), (row.kind.name(), about, bytes, share(row)), &text, screen);
        if matches!(row.kind, CgroupKind::ShmemMapped | CgroupKind::ShmemUnmapped) {
            out += &files(ledger, row.kind, screen);
        }
    }
    let bytes = small.iter().map(|row| row.bytes).sum::<i64>();
    if bytes > 0 {
        let names: Vec<&str> = small.iter().map(|row| row.kind.name()).collect();
        let numbers = ("others", ' ', bytes.unsigned_abs(), bytes as f64 / charged);
        out += &line((Color::DarkGray, '.'), numbers, &names.join(", "), screen);
    }
    out
}

fn files(ledger: &CgroupLedger, kind: CgroupKind, screen: Screen) -> String {
    let of_row = ledger.files.iter().filter(|file| file.kind == kind);
    let describe = |file: &CgroupFile| {
        let path = shortened(&printable(&file.path), MAX_PATH);
        let deleted = if file.deleted { " (deleted)" } else { "" };
        let whose = if file.charged.is_none() { ", maybe of another cgroup" } else { "" };
        dim(&format!("     {:>10}  {path}{deleted}{whose}", Human(file.bytes).to_string()), screen)
            + "\n"
    };
    of_row.take(FILES).map(describe).collect()
}

/// Returns what a row is, and who has most of it.
fn meaning(ledger: &CgroupLedger, row: &CgroupRow) -> String {
    let mut text = match row.kind {
        CgroupKind::Anon => "of processes".to_owned(),
        CgroupKind::ShmemMapped => "tmpfs, memfd, System V".to_owned(),
        CgroupKind::ShmemUnmapped => "files that no process maps".to_owned(),
        CgroupKind::FileActive => "page cache, used repeatedly".to_owned(),
        CgroupKind::FileInactive => "page cache, used once".to_owned(),
        CgroupKind::FileOther => "page cache, locked or just read".to_owned(),
        CgroupKind::SlabReclaimable => "cached names and inodes of files".to_owned(),
        CgroupKind::SlabUnreclaimable => "kernel objects in use".to_owned(),
        CgroupKind::PageTables => "page tables".to_owned(),
        CgroupKind::KernelStacks => "kernel stacks of threads".to_owned(),
        CgroupKind::Sockets => "buffers of TCP".to_owned(),
        CgroupKind::Percpu => "per processor".to_owned(),
        CgroupKind::Vmalloc => "large kernel tables".to_owned(),
        CgroupKind::Zswap => "compressed swap".to_owned(),
        CgroupKind::Hugetlb => "huge pages of the pool".to_owned(),
        CgroupKind::KernelOther if ledger.version == 1 => "slab, pipes, unix sockets".to_owned(),
        CgroupKind::KernelOther => "pipes, unix sockets".to_owned(),
        CgroupKind::Stock => {
            format!("charged in advance, ≤ {}", Human(row.bound_bytes.unwrap_or(0)))
        }
        CgroupKind::Rest => "not in the kernel's account".to_owned(),
    };
    let holders = ledger.holders.iter().filter(|holder| holder.kind == row.kind);
    let most = holders.max_by_key(|holder| holder.bytes);
    if let Some(most) = most.filter(|holder| holder.bytes as f64 >= row.bytes as f64 / 4.0) {
        let (name, size) = (printable(&most.name), Human(most.bytes));
        text += &format!("; {name} {}: {size}", most.pid);
    }
    let is_cache = matches!(row.kind, CgroupKind::FileInactive);
    if is_cache && ledger.dirty_bytes > 0 {
        text += &format!("; {} dirty", Human(ledger.dirty_bytes));
    }
    text
}

fn ink(kind: CgroupKind) -> (Color, char) {
    match kind {
        CgroupKind::Anon => (Color::Blue, 'A'),
        CgroupKind::ShmemMapped => (Color::Cyan, 'S'),
        CgroupKind::ShmemUnmapped => (Color::Red, 'U'),
        CgroupKind::FileActive | CgroupKind::FileInactive | CgroupKind::FileOther => {
            (Color::Green, 'F')
        }
        CgroupKind::Stock | CgroupKind::Rest => (Color::DarkGray, '?'),
        _ => (Color::Yellow, 'K'),
    }
}

fn beside(ledger: &CgroupLedger, screen: Screen) -> String {
    let mut parts = Vec::new();
    let swap = ledger.swap_bytes.filter(|bytes| *bytes > 0);
    parts.extend(swap.map(|bytes| format!("swapped out, not counted: {}", Human(bytes))));
    let removed = ledger.removed_groups.filter(|count| *count > 0);
    parts.extend(removed.map(|count| format!("removed cgroups that are still charged: {count}")));
    match parts.is_empty() {
        true => String::new(),
        false => format!("{}\n", dim(&wrapped(&parts.join(" · "), screen.width), screen)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let page = render(&ledger(), Screen { width: 80, colour: false });
        assert!(
            page.contains("shared memory that no process maps: 120 MiB of 200 MiB (60 %)"),
            "{page}"
        );
        assert!(page.lines().count() <= 22, "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    }

    #[test]
    fn a_ledger_with_a_large_rest_calls_itself_incomplete() {
        let mut found = ledger();
        found.set_rows(vec![row(CgroupKind::ShmemUnmapped, 190), row(CgroupKind::Rest, 10)]);
        let page = render(&found, Screen { width: 80, colour: false });
        assert!(found.incomplete && page.contains("The ledger is incomplete."), "{page}");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let mut found = ledger();
        found.path = "/a\x1b[2J\n".to_owned();
        found.files = vec![CgroupFile {
            path: "/dev/shm/\x1b]0;x\x07".to_owned(),
            kind: CgroupKind::ShmemUnmapped,
            bytes: 1 << 20,
            mapped_bytes: 0,
            deleted: true,
            charged: None,
        }];
        let page = render(&found, Screen { width: 80, colour: false });
        assert!(!page.contains('\x1b') && !page.contains('\x07'), "{page}");
    }
}
