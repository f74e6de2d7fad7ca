//! Remedies that would lower a process's memory, with the predicted effect: the rows of the
//! `table` whose preconditions the process meets, with its values.

mod table;

use std::cmp::Reverse;

use crate::evidence::{Evidence, NAMED, NOTABLE};
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::bytes::Human;
use lowtide_model::inspection::{
    CPythonHeap, CPythonSizeClass, HeapPrediction, HugeGrant, Linkage, Observation, WalkedHeap,
};
use lowtide_model::ledger::Owner;
use lowtide_model::number::HumanCount;
use lowtide_model::remedy::{Remedy, RemedyKind};
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_model::verdict::{Verdict, VerdictKind};
use table::{Place, Row};

/// Minimum gain of a remedy of the heap, in bytes.
const MIN_BYTES: u64 = 64 << 10;
/// Minimum number of arenas with free chunks for which fewer arenas are recommended.
const MANY_ARENAS: usize = 8;
/// glibc's own trim threshold, in bytes (`DEFAULT_TRIM_THRESHOLD`).
const TRIM_THRESHOLD: u64 = 128 << 10;

/// Returns whether a release is one of the remedies, unless it is withdrawn
/// ([`Observation::withdraw_release`]).
pub fn promises_release(observation: &Observation) -> bool {
    releasable(observation.heap.unwrap_or_default()).is_some()
}

/// Returns the bytes that a release returns, if it is worth one.
fn releasable(heap: HeapPrediction) -> Option<u64> {
    heap.release_bytes.filter(|bytes| *bytes >= MIN_BYTES)
}

/// Returns the remedies that would lower RSS, the most effective first.
pub(crate) fn remedies(facts: &Evidence<'_>, verdict: &Verdict) -> Vec<Remedy> {
    let mut found = Vec::new();
    if let Some(heap) = facts.heap {
        found.extend(releases(heap, facts));
        found.extend(facts.heaps.iter().filter_map(|heap| purge(heap, facts)));
    }
    found.extend(close_connections(facts));
    found.extend(arena_max(facts));
    found.extend(trim_threshold(facts));
    if verdict.kind == VerdictKind::Cached {
        found.extend(smaller_caches(facts));
    }
    let fragmented = facts.ledger.bytes(Owner::Fragmented);
    if verdict.kind == VerdictKind::Fragmentation && fragmented >= facts.free_in_cpython() {
        found.push(against_fragmentation(facts));
    }
    found.extend(of_managers(facts));
    found.extend(without_purge(facts));
    found.extend(of_named_runtimes(facts));
    found.extend(no_huge_pages(facts));
    found.extend(shared_after_fork(facts));
    for remedy in &mut found {
        remedy.replace("jcmd PID", &format!("jcmd {}", facts.pid));
    }
    found
}

/// Returns the remedy of a row of the table, with the values of the process in its text. What a row
/// that is not exact predicts is an estimate.
fn apply(row: &Row, values: &[(&str, &str)], predicted_bytes: Option<u64>) -> Remedy {
    let fill = |text: &str| {
        values.iter().fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("{{{name}}}"), value)
        })
    };
    let mut remedy =
        Remedy::new(row.kind, predicted_bytes, fill(row.how)).in_brief(fill(row.brief));
    remedy.row = Some(row.name.to_owned());
    remedy.source = Some(row.source.0.to_owned());
    remedy.estimated = predicted_bytes.is_some() && !row.is_exact;
    // Only variables of the environment can be pasted into a deployment.
    let variable = row.setting.filter(|setting| setting.place == Place::Environment);
    match variable {
        Some(setting) => remedy.with_setting(&fill(setting.name), setting.value),
        None => remedy,
    }
}

/// Returns the remedy of fewer connections, if many bytes are in use while some are open.
fn close_connections(facts: &Evidence<'_>) -> Option<Remedy> {
    let in_use = facts.ledger.bytes(Owner::Allocated) + facts.ledger.bytes(Owner::Runtime);
    let connections = facts.sockets_established.filter(|n| *n > 0)?;
    let how = format!(
        "{} connections are open: their memory is in use until they close (at most {} each)",
        HumanCount(connections),
        Human(in_use / connections)
    );
    let brief = format!(
        "{} are open, with at most {} each",
        HumanCount(connections),
        Human(in_use / connections)
    );
    let remedy = Remedy::new(RemedyKind::CloseConnections, None, how).in_brief(brief);
    (facts.share(in_use) >= 0.5).then_some(remedy)
}

/// Returns advice for the runtimes of which only the name is known, if much memory is where they
/// keep their objects.
fn of_named_runtimes(facts: &Evidence<'_>) -> Vec<Remedy> {
    let is_notable = |kind: &RuntimeKind| facts.share(facts.bytes_of_named(*kind)) >= NOTABLE;
    let notable = facts.named_runtimes().filter(is_notable);
    notable.flat_map(|kind| of_manager(kind.name(), facts)).collect()
}

/// Returns the advice against fragmentation, for the allocator whose heap has most of it.
fn against_fragmentation(facts: &Evidence<'_>) -> Remedy {
    let most = facts.heaps.iter().max_by_key(|heap| heap.fragmented_bytes);
    let row = match most {
        Some(heap) if heap.is_of_cpython() => "cpython/mimalloc",
        Some(heap) if heap.allocator != AllocatorKind::Glibc => "separated/lifetimes",
        _ => "glibc/another_allocator",
    };
    let name = most.map_or_else(String::new, |heap| heap.allocator.to_string());
    let scattered = "free memory is scattered between blocks in use, and no release can return it";
    apply(table::named(row), &[("scattered", scattered), ("allocator", &name)], None)
}

/// Returns whether the program contains its allocator, so that no preload replaces it.
fn is_static(facts: &Evidence<'_>) -> bool {
    facts.allocator.as_ref().is_some_and(|a| a.linkage == Some(Linkage::Static))
}

/// Returns the remedies that return free memory of a walked heap.
fn releases(heap: HeapPrediction, facts: &Evidence<'_>) -> Vec<Remedy> {
    let (pid, shared) = (facts.pid, shared_pages(facts));
    let release = releasable(heap);
    // Locked memory at the end of the main heap is returned by a trim only.
    let trim = heap.trim_bytes.filter(|bytes| release.is_some() || *bytes >= MIN_BYTES);
    let release = release.map(|bytes| {
        let tops = trim.map_or(0, |trim_bytes| bytes.saturating_sub(trim_bytes));
        let tops = match tops >= MIN_BYTES {
            true => format!(", including the top chunks of thread heaps ({})", Human(tops)),
            false => String::new(),
        };
        let how = format!(
            "returns every whole free page{tops}, in short pauses{shared}: lowtide release {pid}"
        );
        let fork = if shared.is_empty() { "" } else { ", shared after a fork" };
        let brief = format!("lowtide release {pid} returns whole free pages{fork}");
        Remedy::new(RemedyKind::Release, Some(bytes), how).in_brief(brief)
    });
    let trim = trim.map(|bytes| {
        let how = format!(
            "a call to malloc_trim(0) in the program; it holds each arena's lock while it trims it (threads of \
             process {pid} that need the arena wait){shared}"
        );
        let brief = "malloc_trim(0) in the program; its threads wait";
        Remedy::new(RemedyKind::MallocTrim, Some(bytes), how).in_brief(brief.to_owned())
    });
    release.into_iter().chain(trim).collect()
}

/// Returns what a return of free pages that a process shares after a fork leaves in the memory of
/// the machine, as a part of a sentence; an empty text if it shares no notable part.
fn shared_pages(facts: &Evidence<'_>) -> String {
    let shared = facts.forked.as_ref().and_then(|forked| forked.free_shared_bytes);
    match shared.filter(|bytes| facts.share(*bytes) >= NAMED) {
        Some(bytes) => format!(
            " ({} of them are shared with forked processes: the machine gains these only once each has returned \
             them)",
            Human(bytes)
        ),
        None => String::new(),
    }
}

/// Returns the remedy by which a program returns the free memory of a heap of jemalloc, mimalloc or
/// gperftools.
fn purge(heap: &WalkedHeap, facts: &Evidence<'_>) -> Option<Remedy> {
    let purged_bytes = heap.prediction.purge_bytes?;
    if heap.is_of_cpython() {
        // No Python program can call it, and its setting leaves the fragmented pages.
        return None;
    }
    // Threads keep free parts of their own segments, which no call in another thread returns.
    let is_kept = purged_bytes < heap.reclaimable_bytes / 2
        && facts.share(heap.reclaimable_bytes) >= NOTABLE
        && heap.allocator == AllocatorKind::Mimalloc;
    let bytes = if is_kept { heap.reclaimable_bytes } else { purged_bytes };
    let row = table::of_purge(heap.allocator.name(), facts)?;
    let call = if is_kept { String::new() } else { format!("{}; ", purge_call(heap, facts)) };
    let mut remedy = apply_to_heap(row, heap, facts, &call, Some(bytes));
    remedy.estimated |= is_kept;
    let own = facts.arenas.iter().filter_map(|arena| arena.jemalloc());
    let slabs: u64 = own.map(|own| own.slab_free_pages_bytes).sum();
    if slabs >= MIN_BYTES && heap.allocator == AllocatorKind::Jemalloc {
        remedy.how +=
            &format!("; {} more are whole pages of slabs, which no purge returns", Human(slabs));
    }
    (bytes >= MIN_BYTES).then_some(remedy)
}

/// Returns the remedy of a row for a heap; `call` is the call by which the program applies it. Its
/// setting has the name of the variable that the heap's allocator reads, or is left out if that is
/// not known.
fn apply_to_heap(
    row: &Row,
    heap: &WalkedHeap,
    facts: &Evidence<'_>,
    call: &str,
    predicted_bytes: Option<u64>,
) -> Remedy {
    let variable = heap.variable.as_deref().unwrap_or("MALLOC_CONF");
    let values = [("call", call), ("variable", variable)];
    let mut remedy = apply(row, &values, predicted_bytes);
    if let (AllocatorKind::Jemalloc, Some(setting)) = (&heap.allocator, &mut remedy.setting) {
        setting.name = variable.to_owned();
        // The name of the variable of a library or program is known only from its text.
        if heap.variable.is_none() && (heap.library.is_some() || is_static(facts)) {
            remedy.setting = None;
        }
    }
    remedy
}

/// Returns the call by which the program itself returns the free memory of a heap.
fn purge_call(heap: &WalkedHeap, facts: &Evidence<'_>) -> String {
    let program = facts.command.first().map(String::as_str).unwrap_or_default();
    let is_redis = ["redis-server", "valkey-server"].iter().any(|name| program.contains(name));
    let place = heap.library.as_deref().unwrap_or("the program");
    match heap.allocator {
        _ if has_python(facts) && place.contains("arrow") => {
            "pyarrow.default_memory_pool().release_unused()".to_owned()
        }
        AllocatorKind::Mimalloc => format!("mi_collect(true) in {place}"),
        AllocatorKind::Gperftools => format!("MallocExtension_ReleaseFreeMemory() in {place}"),
        _ if is_redis => "MEMORY PURGE".to_owned(),
        _ => format!("mallctl(\"arena.4096.purge\") in {place}"),
    }
}

fn has_python(facts: &Evidence<'_>) -> bool {
    facts.runtimes.iter().any(|runtime| runtime.name == RuntimeKind::Python.name())
}

/// Returns the remedies for walked heaps of allocators without a function that returns their free
/// memory, such as musl's, if notable memory in them is free.
fn without_purge(facts: &Evidence<'_>) -> Vec<Remedy> {
    let has_none =
        |kind: &AllocatorKind| *kind != AllocatorKind::Glibc && kind.facts().purge.is_none();
    let mut free: Vec<(&str, u64)> = Vec::new();
    for heap in facts.heaps.iter().filter(|heap| has_none(&heap.allocator)) {
        let (name, bytes) = (heap.allocator.name(), heap.reclaimable_bytes + heap.fragmented_bytes);
        match free.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => *all += bytes,
            None => free.push((name, bytes)),
        }
    }
    let notable = free.into_iter().filter(|(_, bytes)| facts.share(*bytes) >= NOTABLE);
    notable.flat_map(|(name, _)| of_manager(name, facts)).collect()
}

/// Returns the remedy of smaller caches of threads, for the allocator whose threads keep most.
fn smaller_caches(facts: &Evidence<'_>) -> Option<Remedy> {
    let most = facts.heaps.iter().max_by_key(|heap| heap.cached_bytes)?;
    let row = table::of_caches(most.allocator.name())?;
    // What no setting returns is not predicted.
    let predicted_bytes = row.setting.map(|_| most.cached_bytes);
    Some(apply_to_heap(row, most, facts, "", predicted_bytes))
}

/// Returns the free bytes in heaps of glibc, if they are notable.
fn free_in_glibc(facts: &Evidence<'_>) -> Option<u64> {
    let of_glibc = facts.heaps.iter().filter(|heap| heap.allocator == AllocatorKind::Glibc);
    let free: u64 = of_glibc
        .map(|heap| heap.reclaimable_bytes + heap.locked_bytes + heap.fragmented_bytes)
        .sum();
    (facts.share(free) >= NOTABLE).then_some(free)
}

/// Returns the remedy of fewer arenas, if many hold free blocks.
fn arena_max(facts: &Evidence<'_>) -> Option<Remedy> {
    free_in_glibc(facts)?;
    let tunables = facts.tunables_in_force.as_ref()?;
    let arenas = facts.arenas.iter().filter(|arena| arena.is_of_glibc());
    let holding = arenas.filter(|arena| arena.free_bytes + arena.top_bytes() > MIN_BYTES).count();
    let row = table::named("glibc/arena_max");
    (tunables.arena_max.is_none() && holding >= MANY_ARENAS)
        .then(|| apply(row, &[("arenas", &holding.to_string())], None))
}

/// Returns the first two numbers of a version; 0 for one that it lacks.
fn major_and_minor(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Returns what keeps memory shared after a fork, for a process that has copied a notable part.
fn shared_after_fork(facts: &Evidence<'_>) -> Option<Remedy> {
    let copied = facts.copied_after_fork()?;
    let version = |kind: RuntimeKind| {
        let found = facts.runtimes.iter().find(|runtime| runtime.name == kind.name())?;
        Some(major_and_minor(found.version.as_deref().unwrap_or_default()))
    };
    let name = match (version(RuntimeKind::Python), version(RuntimeKind::Ruby)) {
        (Some(version), _) if version >= (3, 7) => "fork/cpython",
        (_, Some(version)) if version >= (3, 3) => "fork/ruby_warmup",
        (_, Some(version)) if version >= (2, 7) => "fork/ruby_compact",
        _ => "fork/fewer",
    };
    Some(apply(table::named(name), &[("copied", &Human(copied).to_string())], None))
}

/// Returns the remedy against huge pages of which little was written, by what makes the process
/// have them.
fn no_huge_pages(facts: &Evidence<'_>) -> Option<Remedy> {
    let huge = facts.zeros_in_huge_pages()?;
    let is_java = facts.command.iter().any(|word| word == "-XX:+UseTransparentHugePages");
    let name = match (huge.grant?, &huge.setting) {
        (_, Some(_)) => "huge_pages/variable",
        (HugeGrant::Madvise, None) if is_java => "huge_pages/hotspot",
        (HugeGrant::Madvise, None) => "huge_pages/asked",
        (HugeGrant::Always, None) => "huge_pages/always",
        // Those that it has are from before the setting, which no further setting changes.
        (HugeGrant::Never, None) => return None,
    };
    let variable = huge.setting.as_ref().map(|set| format!("{}={}", set.name, set.value));
    let values = [("variable", variable.as_deref().unwrap_or_default())];
    let mut remedy = apply(table::named(name), &values, Some(huge.zero_bytes));
    remedy.setting.clone_from(&huge.setting);
    Some(remedy)
}

/// Returns the remedy of glibc's trim threshold, if the top of the main heap, the only one that it
/// trims, holds at least half of the free memory.
fn trim_threshold(facts: &Evidence<'_>) -> Option<Remedy> {
    let free = free_in_glibc(facts)?;
    let threshold = facts.tunables_in_force.as_ref()?.trim_threshold_bytes;
    let main = facts.arenas.iter().find(|arena| arena.is_of_glibc() && arena.id == 0)?;
    // The pages of the top can be absent, and no more than what is reclaimable is there.
    let top = main.top_bytes().min(main.reclaimable_bytes);
    let row = table::named("glibc/trim_threshold");
    (threshold > 64 * TRIM_THRESHOLD && top >= free / 2).then(|| {
        let gain = top.saturating_sub(TRIM_THRESHOLD);
        apply(row, &[("threshold", &Human(threshold).to_string())], Some(gain))
    })
}

/// Returns the remedies for each runtime and allocator that manages a notable part, and for
/// PostgreSQL's shared memory.
fn of_managers(facts: &Evidence<'_>) -> Vec<Remedy> {
    let is_notable = |bytes: u64| facts.share(bytes) >= NOTABLE;
    let managers = facts.managers.iter().filter(|manager| is_notable(manager.bytes));
    let shared = facts.shared.iter().filter(|shared| is_notable(shared.bytes));
    let names = managers.map(|m| m.name.as_str()).chain(shared.map(|s| s.name.as_str()));
    names.flat_map(|name| of_manager(name, facts)).collect()
}

/// Returns the remedies of the table for the memory of one manager.
fn of_manager(name: &str, facts: &Evidence<'_>) -> Vec<Remedy> {
    let postgres = RuntimeKind::Postgres.name();
    let known = if name.starts_with(postgres) { postgres } else { name };
    let kept = facts.cpython.as_ref().map(kept_arenas).unwrap_or_default();
    let arrow = match has_python(facts) {
        true => "; if it is pyarrow's, pyarrow.default_memory_pool().release_unused()",
        false => "",
    };
    let new = Human(facts.free_in_space("new_space")).to_string();
    let values = [("kept", kept.as_str()), ("arrow", arrow), ("new", new.as_str())];
    table::of_manager(known)
        .filter(|row| (row.when)(facts))
        .map(|row| {
            let mut remedy = apply(row, &values, None);
            remedy.how = format!("{name}: {}", remedy.how);
            remedy.brief = remedy.brief.map(|brief| format!("{name}: {brief}"));
            remedy
        })
        .collect()
}

/// Returns the sizes of blocks that keep arenas of CPython that are mostly free; an empty text if
/// there are none.
fn kept_arenas(heap: &CPythonHeap) -> String {
    let mut sizes: Vec<_> = heap.sizes.iter().filter(|size| size.mostly_free_arenas > 0).collect();
    sizes.sort_by_key(|size| Reverse(size.mostly_free_arenas));
    let kept = |size: &&CPythonSizeClass| {
        format!("blocks of {} keep {}", Human(size.block_bytes), size.mostly_free_arenas)
    };
    let kept: Vec<String> = sizes.iter().take(2).map(kept).collect();
    match kept.is_empty() {
        true => String::new(),
        false => format!(
            " ({} of {} arenas are less than a quarter full: {})",
            heap.mostly_free_arenas,
            heap.arenas,
            kept.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests;
