//! Sentences about growth.

use std::cmp::Reverse;

use lowtide_model::bytes::Human;
use lowtide_model::counts::CountGrowth;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::growth::{DescendantGrowth, Growth, GrowthPart, LAZILY_FREED};
use lowtide_model::number::HumanCount;

/// Minimum part of the growth that the named owners must explain.
const EXPLAINED: f64 = 0.5;
/// Minimum part of the growth for an owner to be named.
const NAMED: f64 = 0.1;
/// Minimum part of the growth that has a bound, for it to be said.
const MOSTLY_BOUNDED: f64 = 0.9;
/// Default size of the stack of a thread.
const STACK_BYTES: u64 = 8 << 20;
/// Maximum number of owners that are named.
const MAX_NAMED: usize = 4;

/// Returns a sentence on how much RSS grew, and where.
pub fn sentence(growth: &Growth) -> String {
    let [before, after] = growth.rss_bytes;
    let rise = after.saturating_sub(before);
    let is_named = |part: &&GrowthPart| part.bytes as f64 >= NAMED * rise as f64;
    let named = |by: &[GrowthPart]| -> (i64, Vec<String>) {
        let parts: Vec<&GrowthPart> = by.iter().filter(is_named).take(MAX_NAMED).collect();
        (parts.iter().map(|part| part.bytes).sum(), parts.into_iter().map(described).collect())
    };
    let (mut covered, mut parts) = named(&growth.by);
    if (covered as f64) < EXPLAINED * rise as f64 {
        // Many small parts of one owner.
        (covered, parts) = named(&by_owner_alone(&growth.by));
    }
    let rest = rise.saturating_sub(u64::try_from(covered).unwrap_or(0));
    if rest as f64 >= NAMED * rise as f64 {
        parts.push(format!("{} elsewhere", Human(rest)));
    }
    format!(
        "RSS grew by {}, from {} to {}: {}",
        Human(rise),
        Human(before),
        Human(after),
        parts.join(", ")
    )
}

/// Returns a sentence on the growth of page tables, if it is noticeable.
fn page_tables(growth: &Growth) -> Option<String> {
    let rise = growth.page_tables_rise()?;
    let [before, after] = growth.page_tables_bytes?;
    Some(format!(
        "page tables, which RSS does not count, grew by {}, from {} to {}: the program maps ever more addresses, or \
         touches them far apart",
        Human(rise),
        Human(before),
        Human(after)
    ))
}

/// Returns a sentence on the growth of memory in the kernel's pool of huge pages, if it is
/// noticeable.
fn hugetlb(growth: &Growth) -> Option<String> {
    let rise = growth.hugetlb_rise()?;
    let [before, after] = growth.hugetlb_bytes?;
    Some(format!(
        "memory in huge pages of the kernel's pool (hugetlb), which RSS does not count, grew by {}, from {} to {}",
        Human(rise),
        Human(before),
        Human(after)
    ))
}

/// Returns a sentence on a count that has risen.
pub(super) fn counted(growth: &CountGrowth) -> String {
    let CountGrowth { kind, counts: [before, after], per_s, .. } = growth;
    let rate = per_s.map(|per_s| format!(", by {} a second", rate(per_s))).unwrap_or_default();
    format!(
        "{} grew from {} to {}{rate}: {}",
        kind.what(),
        HumanCount(*before),
        HumanCount(*after),
        kind.cost()
    )
}

/// Returns sentences on the counts that rise steadily.
pub(super) fn steady_counts(growth: &Growth) -> Vec<String> {
    growth.counts.iter().filter(|count| count.per_s.is_some()).map(counted).collect()
}

/// Returns sentences on the limits that counts reach, with the time until then.
pub(crate) fn count_limits(growth: &Growth) -> Vec<String> {
    let of = |count: &CountGrowth| {
        let (limit, left_s) = count.limit.as_ref().zip(count.seconds_to_limit)?;
        let others = match limit.used > count.counts[1] {
            true => format!(", of which {} are used,", HumanCount(limit.used)),
            false => String::new(),
        };
        Some(format!(
            "at {} {} a second, the limit of {} ({}){others} is reached in {}",
            rate(count.per_s?),
            count.kind.what().split(" that").next().unwrap_or_default(),
            HumanCount(limit.limit),
            limit.name,
            HumanSeconds(left_s)
        ))
    };
    growth.counts.iter().filter_map(of).collect()
}

/// Formats a number of things a second.
fn rate(per_s: f64) -> String {
    if per_s < 10.0 { format!("{per_s:.1}") } else { HumanCount(per_s.round() as u64).to_string() }
}

/// Returns a sentence on the growth of files in memory that the process has open, if it is
/// noticeable.
fn open_memory(growth: &Growth) -> Option<String> {
    let rise = growth.open_memory_rise()?;
    let [before, after] = growth.open_memory.as_ref()?;
    let name = after.name.as_ref().map(|name| match name.ends_with('*') || after.files == 1 {
        true => format!(" ({name})"),
        false => format!(" (mostly {name})"),
    });
    let files = match before.files {
        1 => "file",
        _ => "files",
    };
    Some(format!(
        "files in memory that it has open and does not map, which RSS does not count, grew by {}, from {} in {} \
         {files} to {} in {}{}",
        Human(rise),
        Human(before.bytes),
        HumanCount(before.files),
        Human(after.bytes),
        HumanCount(after.files),
        name.unwrap_or_default()
    ))
}

/// Returns a sentence on the growth of the descendants of the process, if it is noticeable.
fn descendants(growth: &Growth) -> Option<String> {
    let rise = growth.descendants_rise()?;
    let DescendantGrowth {
        processes: [_, processes],
        pss_bytes: [before, after],
        estimated,
        bytes_per_hour,
        most,
        ..
    } = growth.descendants.as_ref()?;
    let [first, last] = most.pss_bytes;
    let most = match processes {
        1 => format!("{} with PID {}", most.name, most.pid),
        _ => format!(
            "most by {} with PID {}, from {} to {}",
            most.name,
            most.pid,
            Human(first),
            Human(last)
        ),
    };
    let who = match processes {
        1 => "its child process".to_owned(),
        _ => format!("its {} descendant processes", HumanCount(*processes)),
    };
    let by = if *estimated { "≈ PSS" } else { "PSS" };
    Some(format!(
        "{who} grew by {} ({by}), from {} to {}, {} an hour: {most}",
        Human(rise),
        Human(*before),
        Human(*after),
        Human(*bytes_per_hour)
    ))
}

/// Returns sentences on the growth of memory that RSS does not count, and that leads to a limit.
pub(crate) fn beside(growth: &Growth) -> Vec<String> {
    let all = [page_tables(growth), hugetlb(growth), open_memory(growth)];
    all.into_iter().flatten().collect()
}

/// Returns sentences on the growth of all memory beside the RSS of the process, and on what the
/// kernel limits by number.
pub(crate) fn beside_and_descendants(growth: &Growth) -> Vec<String> {
    let counts = growth.counts.iter().map(counted);
    beside(growth).into_iter().chain(counts).chain(descendants(growth)).collect()
}

/// Returns whether all that is known beside RSS is a count that rose at once.
pub(crate) fn rose_once_beside(growth: &Growth) -> bool {
    !growth.counts.is_empty()
        && growth.counts.iter().all(|count| count.per_s.is_none())
        && beside(growth).is_empty()
        && growth.descendants_rise().is_none()
}

/// Returns what the kernel does with the memory that it takes back and that grew most.
pub(crate) fn fate(growth: &Growth) -> String {
    match growth.by.iter().find(|part| part.is_taken_back()) {
        Some(part) if part.owner == LAZILY_FREED => {
            "the kernel takes these pages back when memory is short, so they cause no OOM kill"
                .to_owned()
        }
        _ => fate_of_files(growth),
    }
}

/// Returns what the kernel does with the pages of files that grew.
fn fate_of_files(growth: &Growth) -> String {
    let files = u64::try_from(growth.files_bytes()).unwrap_or(0);
    match growth.locked_files_bytes {
        Some(locked) if locked as f64 >= NAMED * files as f64 => {
            return format!(
                "up to ≈ {} of these pages are locked in memory, by this process or another one: the kernel does \
                 not take them back",
                Human(locked.min(files))
            );
        }
        _ => {}
    }
    match growth.dirty_files_bytes {
        Some(dirty) if (dirty as f64) < NAMED * files as f64 => format!(
            "these pages are clean (at most ≈ {} are not): the kernel takes them back when memory is short, so \
             they cause no OOM kill",
            Human(dirty)
        ),
        Some(dirty) => format!(
            "up to ≈ {} of these pages are dirty: the kernel writes them to their file before it takes them back",
            Human(dirty.min(files))
        ),
        None => "the kernel takes clean pages of files back when memory is short".to_owned(),
    }
}

/// Returns the growth of each owner, without the names of its parts, the largest first.
fn by_owner_alone(by: &[GrowthPart]) -> Vec<GrowthPart> {
    let mut all: Vec<GrowthPart> = Vec::new();
    for part in by {
        let is_alike = |known: &&mut GrowthPart| {
            (&known.owner, known.kept, known.free) == (&part.owner, part.kept, part.free)
        };
        match all.iter_mut().find(is_alike) {
            Some(known) => known.bytes += part.bytes,
            None => all.push(GrowthPart { name: None, ..part.clone() }),
        }
    }
    all.sort_by_key(|part| Reverse(part.bytes));
    all
}

fn described(part: &GrowthPart) -> String {
    let bytes_of_part = part.bytes.unsigned_abs();
    let bytes = Human(bytes_of_part);
    let name = part.name.as_deref();
    let what = match (part.owner.as_str(), name) {
        ("allocated", Some("V8")) => {
            "in objects of V8, including garbage that it has not collected yet".to_owned()
        }
        ("allocated", Some(name)) => format!("in objects of {name}"),
        ("allocated", None) => "in blocks in use".to_owned(),
        ("reclaimable" | "locked" | "cached", _) => "in free memory of the heap".to_owned(),
        ("fragmented", _) => "in free memory between blocks in use (fragmentation)".to_owned(),
        ("metadata", _) => "in structures of the allocator".to_owned(),
        ("runtime", Some("HotSpot")) if part.free => {
            "in newer objects and free memory of HotSpot's heap".to_owned()
        }
        ("runtime", Some(name)) if part.free => format!("in free memory of {name}"),
        ("runtime", Some("unknown")) => {
            "in memory of an unknown allocator, which lowtide does not divide".to_owned()
        }
        ("runtime", Some(name)) => format!("in memory of {name}, which lowtide does not divide"),
        ("runtime", None) => "in memory of a runtime, which lowtide does not divide".to_owned(),
        ("stacks", _) => match part.count {
            // Live threads with stacks of the usual size cannot use that much.
            Some(count) if bytes_of_part > count * STACK_BYTES => format!(
                "in stacks, probably of threads that have ended and were not joined, or of a deep recursion \
                 ({} alive)",
                HumanCount(count)
            ),
            Some(1) => "in stacks (1 thread is alive)".to_owned(),
            Some(count) => format!("in stacks ({} threads are alive)", HumanCount(count)),
            None => "in stacks".to_owned(),
        },
        ("shared", Some(name)) => format!("in shared memory ({name}{})", more(part, ", ", "")),
        ("shared", None) => "in shared memory".to_owned(),
        ("file", _) => {
            let name = name.unwrap_or("mapped files");
            let kept = ", which the kernel cannot take back (locked in memory, or on ramfs)";
            format!("in pages of {name}{}", if part.kept { kept } else { "" })
        }
        ("program_data", Some(name)) => {
            format!("in private pages of {name} (variables, or changed copies)")
        }
        ("program_data", None) => "in writable data of programs and libraries".to_owned(),
        (LAZILY_FREED, _) => "that were freed lazily (MADV_FREE)".to_owned(),
        ("device", _) => "in memory of a device".to_owned(),
        ("anonymous_other", _) => {
            format!("in memory that the program mapped itself{}", more(part, " (", ")"))
        }
        _ => "in memory whose owner is unknown".to_owned(),
    };
    format!("{bytes} {what}")
}

/// Returns the number of additional mappings as text; empty if there are none.
fn more(part: &GrowthPart, before: &str, after: &str) -> String {
    match part.more {
        Some(1) => format!("{before}1 more mapping{after}"),
        Some(more @ 2..) => {
            format!("{before}{} more mappings{after}", HumanCount(more.unsigned_abs()))
        }
        _ => String::new(),
    }
}

/// Returns a sentence on how much further RSS can grow, if most of its growth has a bound below the
/// limit; `None` otherwise.
pub fn bound(growth: &Growth) -> Option<String> {
    let bounded = growth.bounded();
    let most = growth.by.iter().find(|part| part.bound_bytes.is_some() && part.bytes > 0)?;
    let is_most = bounded.bytes as f64 >= MOSTLY_BOUNDED * growth.kept_bytes().max(0) as f64;
    let of_runtime = growth.process_limit.is_some_and(|limit| limit.kind.runtime().is_some());
    if !is_most || of_runtime || growth.seconds_to_limit.is_some() {
        return None;
    }
    let left = Human(most.bound_bytes?);
    Some(match (most.owner.as_str(), most.name.as_deref()) {
        ("allocated", None) => {
            format!(
                "the blocks in use did not grow: at most {left} more of their memory can become resident"
            )
        }
        ("allocated" | "runtime", name) => {
            format!(
                "the heap of {} has its own limit: it can grow by at most {left} more",
                name.unwrap_or("it")
            )
        }
        _ => format!(
            "this memory was mapped before, and its mappings did not grow: at most {left} more can become resident"
        ),
    })
}

/// Returns a sentence on the time until the process reaches its limit; `None` if that is not known.
pub fn until_limit(growth: &Growth) -> Option<String> {
    let (left_s, limit) = growth.seconds_to_limit.zip(growth.limit_bytes)?;
    if let Some(process_limit) = &growth.process_limit {
        return Some(format!(
            "its {} grows by {} an hour, and reaches {} ({}, {}) in {}",
            process_limit.kind.what(),
            Human(process_limit.bytes_per_hour),
            process_limit.kind.whose(),
            process_limit.kind.name(),
            Human(limit),
            HumanSeconds(left_s)
        ));
    }
    let rate = growth.limit_bytes_per_hour();
    Some(format!(
        "at {} an hour, the limit of {} is reached in {}",
        Human(u64::try_from(rate).ok()?),
        Human(limit),
        HumanSeconds(left_s)
    ))
}

#[cfg(test)]
mod tests {
    use lowtide_model::inspection::NamedMemory;
    use lowtide_model::ledger::Owner;

    use super::super::owners::tests::{growth_between, observed};
    use super::*;

    #[test]
    fn many_small_parts_of_an_owner_are_named_together() {
        let mut before = observed(&[(Owner::Shared, 12)], &[]);
        let mut after = observed(&[(Owner::Shared, 132)], &[]);
        let shared = |mib: u64| {
            let one = |place| NamedMemory::new(format!("/memfd:{place}"), mib << 20, 1);
            (0..12).map(one).collect()
        };
        (before.shared, after.shared) = (shared(1), shared(11));
        let said = sentence(&growth_between(&before, &after));
        assert!(said.ends_with(": 120 MiB in shared memory"), "{said}");
    }

    #[test]
    fn pages_of_a_file_that_are_locked_are_not_said_to_be_taken_back() {
        let before = observed(&[(Owner::File, 100)], &[]);
        let after = observed(&[(Owner::File, 300)], &[]);
        let growth = growth_between(&before, &after);
        let by = |locked_mib: u64| Growth {
            locked_files_bytes: Some(locked_mib << 20),
            dirty_files_bytes: Some(0),
            ..growth.clone()
        };
        assert!(fate_of_files(&by(150)).ends_with("the kernel does not take them back"));
        assert!(fate_of_files(&by(1)).contains("cause no OOM kill"));
    }

    #[test]
    fn mappings_of_one_name_are_counted() {
        let mut before = observed(&[(Owner::Shared, 12), (Owner::AnonymousOther, 10)], &[]);
        let mut after = observed(&[(Owner::Shared, 132), (Owner::AnonymousOther, 90)], &[]);
        before.shared = vec![NamedMemory::new("/memfd:screen".to_owned(), 12 << 20, 1)];
        after.shared = vec![NamedMemory::new("/memfd:screen".to_owned(), 132 << 20, 11)];
        (before.anonymous_mappings, after.anonymous_mappings) = (Some(7), Some(8));
        let said = sentence(&growth_between(&before, &after));
        assert!(
            said.contains("120 MiB in shared memory (/memfd:screen, 10 more mappings)"),
            "{said}"
        );
        assert!(
            said.ends_with("80.0 MiB in memory that the program mapped itself (1 more mapping)"),
            "{said}"
        );
    }
}
