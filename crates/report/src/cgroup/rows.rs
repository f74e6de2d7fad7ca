//! The rows of the ledger of a cgroup, with their parts.

use lowtide_model::bytes::Human;
use lowtide_model::cgroup::{CgroupHolder, CgroupKind, CgroupLedger, CgroupRow};
use ratatui_core::style::Color;

use super::answer::{named, objects_of};
use super::parts::{Parts, Shown};
use crate::inspection::ledger::{MAX_BAR_WIDTH, cells, first_names, line};
use crate::screen::Screen;
use crate::text::printable;

/// Minimum part of the charge of a row of its own.
pub(super) const MIN_SHARE: f64 = 0.01;

/// Maximum number of rows of their own on a page that does not show all.
const MAX_ROWS: usize = 5;

/// Formats the bar and the rows.
pub(super) fn rows(ledger: &CgroupLedger, shown: Shown, screen: Screen) -> String {
    let charged = ledger.charged_bytes.max(1) as f64;
    let share = |row: &CgroupRow| row.bytes as f64 / charged;
    let (large, small) = divide(ledger, shown);
    let width = usize::from(screen.width).min(MAX_BAR_WIDTH);
    let places = |row: &CgroupRow| (share(row) * width as f64).floor() as usize;
    let bar: String = large.iter().map(|row| cells(ink(row.kind), places(row), screen)).collect();
    let mut out = format!("{bar}\n");
    let last_of_cache = large.iter().rposition(|row| is_page_cache(row.kind));
    let parts = Parts { ledger, shown, screen };
    for (place, row) in large.into_iter().enumerate() {
        let about = if row.estimated { '≈' } else { ' ' };
        let bytes = row.bytes.unsigned_abs();
        let text = meaning(ledger, row);
        out += &line(ink(row.kind), (row.kind.name(), about, bytes, share(row)), &text, screen);
        out += &parts.of_row(row.kind);
        if Some(place) == last_of_cache {
            out += &parts.page_cache();
        }
    }
    let bytes = small.iter().map(|row| row.bytes).sum::<i64>();
    if bytes > 0 {
        let mut small = small;
        small.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        let names = first_names(small.iter().map(|row| row.kind.name()));
        let numbers = ("others", ' ', bytes.unsigned_abs(), bytes as f64 / charged);
        out += &line((Color::DarkGray, '.'), numbers, &names, screen);
    }
    out
}

/// Divides the rows that hold memory into those of their own and those that are shown together.
fn divide(ledger: &CgroupLedger, shown: Shown) -> (Vec<&CgroupRow>, Vec<&CgroupRow>) {
    let held = ledger.rows.iter().filter(|row| row.bytes != 0);
    let mut sizes: Vec<i64> = held.clone().map(|row| row.bytes).collect();
    sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let least = sizes.get(MAX_ROWS - 1).copied().unwrap_or(0);
    let min_bytes = ledger.charged_bytes.max(1) as f64 * MIN_SHARE;
    held.partition(|row| {
        let is_large = row.bytes >= least && row.bytes as f64 >= min_bytes;
        is_large || (shown == Shown::All && row.bytes > 0)
    })
}

fn is_page_cache(kind: CgroupKind) -> bool {
    matches!(kind, CgroupKind::FileActive | CgroupKind::FileInactive | CgroupKind::FileOther)
}

/// Returns what a row is.
pub(super) fn description(kind: CgroupKind, version: u32) -> &'static str {
    match kind {
        CgroupKind::Anon => "of processes",
        CgroupKind::ShmemMapped => "tmpfs, memfd, System V",
        CgroupKind::ShmemUnmapped => "files that no process maps",
        CgroupKind::FileActive => "page cache, used repeatedly",
        CgroupKind::FileInactive => "page cache, used once",
        CgroupKind::FileOther => "page cache, locked or just read",
        CgroupKind::SlabReclaimable => "cached names and inodes of files",
        CgroupKind::SlabUnreclaimable => "kernel objects in use",
        CgroupKind::PageTables => "page tables",
        CgroupKind::KernelStacks => "kernel stacks of threads",
        CgroupKind::Sockets => "buffers of TCP",
        CgroupKind::Percpu => "per processor",
        CgroupKind::Vmalloc => "large kernel tables",
        CgroupKind::Zswap => "compressed swap",
        CgroupKind::Hugetlb => "huge pages of the pool",
        CgroupKind::KernelOther if version == 1 => "kernel memory, in one sum",
        CgroupKind::KernelOther => "kernel memory of no other row",
        CgroupKind::Stock => "charged in advance",
        CgroupKind::Rest => "not in the kernel's account",
    }
}

/// Returns what a row is, and who has most of it.
fn meaning(ledger: &CgroupLedger, row: &CgroupRow) -> String {
    let mut text = description(row.kind, ledger.version).to_owned();
    if let Some(bound) = row.bound_bytes {
        text += &format!(", ≤ {}", Human(bound));
    }
    if let Some((name, pid, bytes)) = largest_holder(ledger, row) {
        text += &format!("; {} {pid}: {}", printable(name), Human(bytes));
    }
    if matches!(row.kind, CgroupKind::KernelOther | CgroupKind::SlabUnreclaimable) {
        text.extend(objects_of(ledger, row).take(1).map(|found| format!("; {}", named(found))));
    }
    let is_cache = matches!(row.kind, CgroupKind::FileInactive);
    // More than that is dirty on other lists, too.
    if is_cache && (1..=row.bytes.unsigned_abs()).contains(&ledger.dirty_bytes) {
        text += &format!("; {} dirty", Human(ledger.dirty_bytes));
    }
    text
}

/// Returns the name, the PID and the bytes of the process with at least a quarter of a row.
fn largest_holder<'l>(ledger: &'l CgroupLedger, row: &CgroupRow) -> Option<(&'l str, u32, u64)> {
    let inspected = ledger.anon.as_ref().filter(|_| row.kind == CgroupKind::Anon);
    let most = match inspected {
        // Its owners are below it.
        Some(_) => None,
        None => {
            let is_of_row =
                |holder: &&CgroupHolder| holder.kind == row.kind && holder.part.is_none();
            let holders = ledger.holders.iter().filter(is_of_row);
            let most = holders.max_by_key(|holder| holder.bytes);
            most.map(|most| (most.name.as_str(), most.pid, most.bytes))
        }
    };
    most.filter(|(_, _, bytes)| *bytes as f64 >= row.bytes as f64 / 4.0)
}

fn ink(kind: CgroupKind) -> (Color, char) {
    match kind {
        CgroupKind::Anon => (Color::Blue, 'A'),
        CgroupKind::ShmemMapped => (Color::Cyan, 'S'),
        CgroupKind::ShmemUnmapped => (Color::Red, 'U'),
        kind if is_page_cache(kind) => (Color::Green, 'F'),
        CgroupKind::Stock | CgroupKind::Rest => (Color::DarkGray, '?'),
        _ => (Color::Yellow, 'K'),
    }
}
