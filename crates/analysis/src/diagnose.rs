//! The verdict on a process's memory, from its ledger.
//!
//! Shares are relative to RSS. The first condition that holds is the verdict:
//!
//! - **inconclusive**: too much could not be attributed, or was not there when it was read;
//! - **hoard**: at least a fifth of RSS is free, in whole pages, and still held;
//! - **locked**: at least a fifth of RSS, and no less than the fragmented bytes, is free in whole
//!   pages, but locked in memory;
//! - **cached**: at least a fifth of RSS, and more than of any other free memory, was freed and is
//!   kept in the caches of threads;
//! - **fragmentation**: at least a fifth of RSS, [`MIN_FRAGMENTED_BYTES`], and more than the
//!   reclaimable bytes, is free on pages that also hold other data; free blocks in CPython's arenas
//!   are included. [`MIN_MOSTLY_FRAGMENTED_BYTES`] are enough if they are more than half of RSS;
//! - **live**: memory in use by the program is the largest part of the rest;
//! - **runtime**: memory of a runtime or of another allocator is the largest part;
//! - **outside_heap**: memory outside of any heap is (files, shared memory, stacks, data, the
//!   program's own mappings);
//! - **growing**: over time, memory in use grew from inspection to inspection.

use crate::evidence::{Evidence, NAMED, NOTABLE};
use crate::remedies::remedies;
use lowtide_model::bytes::Human;
use lowtide_model::inspection::{Inspection, Observation, SCHEMA, Unreadable, WalkedHeap};
use lowtide_model::ledger::Owner;
use lowtide_model::verdict::{Verdict, VerdictKind};

/// Minimum free bytes on pages with other data that are called fragmentation: less is usual after a
/// release, and not worth a change of the program.
pub const MIN_FRAGMENTED_BYTES: u64 = 16 << 20;

/// Minimum free bytes on pages with other data that are called fragmentation if they are more than
/// half of RSS: of many small processes, this is the most.
pub const MIN_MOSTLY_FRAGMENTED_BYTES: u64 = 4 << 20;

/// Share of RSS without an owner above which a verdict is inconclusive.
const UNSEEN: f64 = 0.2;

/// The owners outside of any heap.
const OUTSIDE: [Owner; 6] = [
    Owner::Stacks,
    Owner::ProgramData,
    Owner::File,
    Owner::Shared,
    Owner::Device,
    Owner::AnonymousOther,
];

/// Returns why a heap was not read.
fn unread(why: Unreadable) -> &'static str {
    match why {
        Unreadable::Maps | Unreadable::Memory => "lowtide may not read its heap",
        Unreadable::Slow => "reading it takes too long",
        Unreadable::Blocked => "reading it makes no progress",
    }
}

/// Adds the verdict and remedies to an observation.
pub fn diagnose(observation: Observation) -> Inspection {
    let evidence = Evidence(&observation);
    let verdict = match observation.unreadable {
        None if observation.moved_bytes > 0 => {
            Verdict { kind: VerdictKind::Inconclusive, because: vec![moved(&observation)] }
        }
        None => verdict(&evidence),
        Some(why) => {
            Verdict { kind: VerdictKind::Inconclusive, because: vec![unread(why).to_owned()] }
        }
    };
    let remedies = remedies(&evidence, &verdict);
    let coverage = observation.ledger.coverage();
    Inspection {
        schema: SCHEMA,
        observation,
        coverage,
        verdict,
        remedies,
        growth: None,
        pins: None,
        blocks: None,
        saved: None,
        container: None,
    }
}

/// Returns a sentence on memory that was not there when it was read.
fn moved(observation: &Observation) -> String {
    format!(
        "{} of the {} that the kernel counts were not there when lowtide read them, twice: they were moved \
         (mremap), or are new",
        Human(observation.moved_bytes),
        Human(observation.rss_bytes)
    )
}

/// The bytes of a process that decide on its verdict.
struct Amounts {
    reclaimable: u64,
    fragmented: u64,
    locked: u64,
    /// Freed blocks that threads keep for themselves.
    cached: u64,
    /// Free memory in CPython's arenas.
    in_cpython: u64,
    /// Free memory in V8's heap.
    in_v8: u64,
    unseen: u64,
    runtime: u64,
    in_use: u64,
    /// Memory outside of any heap.
    outside: u64,
}

impl Amounts {
    fn new(facts: &Evidence<'_>) -> Self {
        let bytes_of = |owner| facts.ledger.bytes(owner);
        Self {
            reclaimable: bytes_of(Owner::Reclaimable),
            fragmented: bytes_of(Owner::Fragmented),
            locked: bytes_of(Owner::Locked),
            in_cpython: facts.free_in_cpython(),
            in_v8: facts.free_in_v8(),
            unseen: bytes_of(Owner::Unattributed),
            runtime: bytes_of(Owner::Runtime),
            cached: bytes_of(Owner::Cached),
            in_use: bytes_of(Owner::Allocated) + bytes_of(Owner::Metadata),
            outside: OUTSIDE.into_iter().map(bytes_of).sum(),
        }
    }

    /// Returns the bytes that are free on pages with other data.
    fn between_blocks(&self) -> u64 {
        self.fragmented + self.in_cpython
    }

    /// Returns whether enough is free between other data to be the verdict.
    fn is_fragmented(&self, facts: &Evidence<'_>) -> bool {
        let bytes = self.between_blocks();
        let is_most = facts.share(bytes) > 0.5 && bytes >= MIN_MOSTLY_FRAGMENTED_BYTES;
        is_most || facts.share(bytes) >= NOTABLE && bytes >= MIN_FRAGMENTED_BYTES
    }

    /// Returns the bytes that are free and held, as far as lowtide divides memory
    /// ([`Evidence::undivided`]).
    fn free(&self) -> u64 {
        self.reclaimable + self.locked + self.between_blocks() + self.cached
    }

    /// Returns the kind of the verdict.
    fn kind(&self, facts: &Evidence<'_>) -> VerdictKind {
        let is_notable = |bytes| facts.share(bytes) >= NOTABLE;
        let between_blocks = self.between_blocks();
        let others = [self.reclaimable, self.locked, self.in_v8, between_blocks];
        match () {
            () if facts.ledger.total() == 0 => VerdictKind::Inconclusive,
            () if facts.share(self.unseen) > UNSEEN => VerdictKind::Inconclusive,
            () if is_notable(self.cached) && others.iter().all(|bytes| self.cached > *bytes) => {
                VerdictKind::Cached
            }
            () if is_notable(self.reclaimable) && self.reclaimable >= between_blocks => {
                VerdictKind::Hoard
            }
            () if is_notable(self.locked) && self.locked >= between_blocks => VerdictKind::Locked,
            () if is_notable(self.in_v8) && self.in_v8 >= between_blocks => VerdictKind::Runtime,
            () if self.is_fragmented(facts) => VerdictKind::Fragmentation,
            () if self.runtime > self.in_use.max(self.outside) => VerdictKind::Runtime,
            () if self.outside > self.in_use => VerdictKind::OutsideHeap,
            () => VerdictKind::Live,
        }
    }

    /// Returns the sentences that only a verdict of this kind has. For the others, the owners have
    /// them.
    fn reasons(&self, kind: VerdictKind, facts: &Evidence<'_>) -> Vec<String> {
        match kind {
            VerdictKind::Inconclusive if facts.ledger.total() == 0 => {
                vec!["nothing is resident".to_owned()]
            }
            VerdictKind::Inconclusive => {
                vec![format!("{} could not be attributed to an owner", facts.part(self.unseen))]
            }
            VerdictKind::Cached => vec![facts.cached()],
            VerdictKind::Hoard => vec![format!(
                "{} were freed and are still held, in whole pages{}{}",
                facts.part(self.reclaimable),
                that_can_be_returned(facts, self.reclaimable),
                in_library(facts, self.reclaimable, |heap| heap.reclaimable_bytes)
            )],
            VerdictKind::Locked => vec![format!(
                "{} were freed, but are locked in memory (mlock), where no release can return them: the program has \
                 to unlock them first (munlock), or restart",
                facts.part(self.locked)
            )],
            VerdictKind::Fragmentation => self.reasons_of_fragmentation(facts),
            _ => Vec::new(),
        }
    }

    fn reasons_of_fragmentation(&self, facts: &Evidence<'_>) -> Vec<String> {
        let in_library = in_library(facts, self.fragmented, |heap| heap.fragmented_bytes);
        let on_pages =
            format!("were freed, but are on pages that also hold blocks in use{in_library}");
        let in_arenas = format!("are free in CPython's arenas{}", kept_arenas(facts));
        let mut parts = [(self.fragmented, on_pages), (self.in_cpython, in_arenas)];
        parts.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let notable = parts.iter().filter(|(bytes, _)| facts.share(*bytes) >= NOTABLE / 2.0);
        let notable = notable.map(|(bytes, what)| format!("{} {what}", facts.part(*bytes)));
        let reclaimable = match self.reclaimable {
            0 => "none of it can be returned as it is".to_owned(),
            bytes if is_returnable(returnable(facts), bytes) => {
                format!("only {} can be returned as they are", facts.part(bytes))
            }
            bytes => format!("only {} are in whole pages", facts.part(bytes)),
        };
        notable.chain([reclaimable]).collect()
    }
}

/// Returns the verdict on a process whose memory could be read.
fn verdict(facts: &Evidence<'_>) -> Verdict {
    let amounts = Amounts::new(facts);
    let kind = amounts.kind(facts);
    let mut because = amounts.reasons(kind, facts);
    because.extend(facts.owners(kind));
    let again = facts.mapped_again_bytes.filter(|bytes| facts.share(*bytes) >= NAMED);
    because.extend(again.map(|bytes| {
        format!(
            "{} are no memory of their own: the process maps the same pages at several addresses, and RSS counts them \
             at each",
            facts.part(bytes)
        )
    }));
    if matches!(kind, VerdictKind::OutsideHeap | VerdictKind::Inconclusive) {
        because.extend(facts.unread_libraries());
    }
    because.extend(facts.forked_memory());
    because.extend(facts.unused_in_huge_pages());
    because.extend(facts.lazily_freed());
    let is_unnamed =
        matches!(kind, VerdictKind::Live | VerdictKind::OutsideHeap | VerdictKind::Runtime);
    if is_unnamed && facts.heap.is_some() {
        because.push(facts.free_and_held(amounts.free()));
    } else if kind == VerdictKind::Inconclusive && facts.heap.is_none() {
        because.push("its heap could not be walked".to_owned());
    }
    Verdict { kind, because }
}

/// Names the library whose allocator has most of some bytes; returns an empty text if there is
/// none.
fn in_library(facts: &Evidence<'_>, bytes: u64, of: impl Fn(&WalkedHeap) -> u64) -> String {
    let mut others = facts.heaps.iter().filter(|heap| heap.library.is_some());
    match others.find(|heap| of(heap) > bytes / 2) {
        Some(heap) => format!(" ({}: {})", heap.name(), Human(of(heap))),
        None => String::new(),
    }
}

/// Returns the most that one remedy returns.
fn returnable(facts: &Evidence<'_>) -> u64 {
    let heap = facts.heap.unwrap_or_default();
    let predicted = [heap.release_bytes, heap.trim_bytes, heap.purge_bytes];
    predicted.into_iter().flatten().max().unwrap_or(0)
}

/// Returns whether a remedy returns nearly all reclaimable memory.
fn is_returnable(returnable: u64, reclaimable: u64) -> bool {
    returnable.saturating_mul(10) >= reclaimable.saturating_mul(9)
}

/// Returns how much of the reclaimable memory a remedy returns, as the end of a sentence; an empty
/// text if that is a small part, or if none is known.
fn that_can_be_returned(facts: &Evidence<'_>, reclaimable: u64) -> String {
    match returnable(facts) {
        bytes if is_returnable(bytes, reclaimable) => " that can be returned".to_owned(),
        bytes if bytes >= reclaimable / 10 => {
            format!(", of which {} can be returned", Human(bytes))
        }
        _ => String::new(),
    }
}

/// Returns the reason why CPython's arenas are not returned; an empty text if it is not known.
fn kept_arenas(facts: &Evidence<'_>) -> String {
    let Some(heap) = &facts.cpython else { return String::new() };
    let arena = Human(heap.arena_bytes);
    match heap.arenas {
        1 => format!(", but its one arena of {arena} has a block in use"),
        arenas => format!(", but each of its {arenas} arenas of {arena} has a block in use"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    use lowtide_model::inspection::{
        CPythonHeap, CPythonSizeClass, HeapPrediction, Manager, NamedMemory, Runtime,
    };
    use lowtide_model::ledger::{Ledger, State, WalkedRuntime};

    pub(crate) const MIB: u64 = 1 << 20;

    /// Returns a walked heap whose ledger has these rows, in MiB; a release returns the reclaimable
    /// bytes.
    pub(crate) fn observed(rows: &[(Owner, u64)]) -> Observation {
        let mut ledger = Ledger::default();
        for (owner, mib) in rows {
            ledger.add(*owner, mib * MIB);
        }
        let release_bytes = ledger.bytes(Owner::Reclaimable);
        let heap = Some(HeapPrediction {
            trim_bytes: Some(0),
            release_bytes: Some(release_bytes),
            purge_bytes: None,
        });
        Observation { pid: 7, ledger, heap, ..Observation::default() }
    }

    pub(crate) fn runtimes(names: &[&str]) -> Vec<Runtime> {
        names.iter().map(|name| Runtime { name: (*name).to_owned(), version: None }).collect()
    }

    pub(crate) fn manager(name: &str, mib: u64) -> Manager {
        Manager { name: name.to_owned(), bytes: mib * MIB, estimated: false }
    }

    fn kind(rows: &[(Owner, u64)]) -> VerdictKind {
        diagnose(observed(rows)).verdict.kind
    }

    #[test]
    fn large_blocks_of_one_size_that_have_most_of_the_memory_in_use_are_named() {
        use lowtide_model::inspection::Bin;
        let said = |rows: &[(Owner, u64)], count: u64, size: u64| {
            let bin = Bin { from: size, to: 2 * size, count, bytes: count * size };
            let small = Bin { from: 32, to: 64, count: 1000, bytes: 48_000 };
            let observation = Observation { allocated_by_size: vec![small, bin], ..observed(rows) };
            diagnose(observation).verdict.because.remove(0)
        };
        let rows = [(Owner::Allocated, 134), (Owner::File, 1)];
        let pool = said(&rows, 33, 4 * MIB);
        assert!(
            pool.ends_with(
                "are in use by the program, 132 MiB of them in 33 blocks of about 4.00 MiB"
            ),
            "{pool}"
        );
        let one = said(&rows, 1, 132 * MIB);
        assert!(one.ends_with(", 132 MiB of them in one block"), "{one}");
        // Small blocks, a small part, and blocks of which much is not resident.
        for (count, size) in [(132 << 15, 32), (1, 60 * MIB), (33, 8 * MIB)] {
            let other = said(&rows, count, size);
            assert!(other.ends_with("are in use by the program"), "{other}");
        }
    }

    #[test]
    fn the_ledger_determines_the_kind_of_verdict() {
        use Owner::*;
        assert_eq!(kind(&[(Allocated, 900), (Reclaimable, 50), (File, 10)]), VerdictKind::Live);
        assert_eq!(kind(&[(Allocated, 100), (Reclaimable, 900)]), VerdictKind::Hoard);
        assert_eq!(kind(&[(Allocated, 500), (Fragmented, 500)]), VerdictKind::Fragmentation);
        assert_eq!(kind(&[(Allocated, 700), (Cached, 300)]), VerdictKind::Cached);
        assert_eq!(kind(&[(Cached, 300), (Fragmented, 400)]), VerdictKind::Fragmentation);
        assert_eq!(kind(&[(Cached, 400), (Reclaimable, 300)]), VerdictKind::Cached);
        assert_eq!(kind(&[(Allocated, 100), (Locked, 900)]), VerdictKind::Locked);
        assert_eq!(kind(&[(Reclaimable, 300), (Locked, 500)]), VerdictKind::Hoard);
        assert_eq!(kind(&[(Locked, 300), (Fragmented, 400)]), VerdictKind::Fragmentation);
        // Usual after a release.
        assert_eq!(kind(&[(Allocated, 4), (File, 6), (Fragmented, 8)]), VerdictKind::OutsideHeap);
        // Most of a small process.
        assert_eq!(
            kind(&[(Allocated, 2), (File, 1), (Fragmented, 13)]),
            VerdictKind::Fragmentation
        );
        assert_eq!(kind(&[(Allocated, 2), (Fragmented, 3)]), VerdictKind::Live);
        assert_eq!(kind(&[(Allocated, 10), (Device, 500)]), VerdictKind::OutsideHeap);
        assert_eq!(kind(&[(Allocated, 20), (Runtime, 500)]), VerdictKind::Runtime);
        assert_eq!(kind(&[(Allocated, 1), (File, 3), (Stacks, 1)]), VerdictKind::OutsideHeap);
        assert_eq!(kind(&[(Allocated, 10), (AnonymousOther, 500)]), VerdictKind::OutsideHeap);
        assert_eq!(kind(&[(Allocated, 30), (Runtime, 48), (File, 22)]), VerdictKind::Runtime);
        assert_eq!(kind(&[(Reclaimable, 700), (Unattributed, 300)]), VerdictKind::Inconclusive);
        assert_eq!(kind(&[]), VerdictKind::Inconclusive);
    }

    #[test]
    fn the_evidence_is_quantified() {
        let found = observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 900)]);
        let verdict = diagnose(found).verdict;
        assert_eq!(
            verdict.because[0],
            "900 MiB (90 % of RSS) were freed and are still held, in whole pages that can be returned"
        );
    }

    #[test]
    fn free_memory_is_called_little_only_where_lowtide_sees_that_it_is() {
        let said = |rows: &[(Owner, u64)], managers: &[(&str, u64)], runtime: &str| {
            let managers = managers.iter().map(|(name, mib)| manager(name, *mib)).collect();
            let (found, runtimes) = (observed(rows), runtimes(&[runtime]));
            let verdict = diagnose(Observation { managers, runtimes, ..found }).verdict;
            assert!(
                matches!(
                    verdict.kind,
                    VerdictKind::Live | VerdictKind::Runtime | VerdictKind::OutsideHeap
                ),
                "{verdict:?}"
            );
            verdict.because.last().unwrap().clone()
        };
        use Owner::*;
        assert_eq!(
            said(&[(Allocated, 60), (Fragmented, 15), (File, 6)], &[], ""),
            "only 15.0 MiB (19 % of RSS) are free and held"
        );
        // Too little for another verdict, and still much of a small process.
        assert_eq!(
            said(&[(Allocated, 9), (Fragmented, 8), (File, 2)], &[], ""),
            "8.00 MiB (42 % of RSS) are free and held"
        );
        let of_php = said(&[(Allocated, 10), (Runtime, 97), (File, 7)], &[("PHP", 97)], "PHP");
        assert_eq!(of_php, "only 0 B (0 % of RSS) are free and held outside of PHP");
        let of_two = [(Allocated, 30), (Runtime, 60), (AnonymousOther, 40)];
        let of_two = said(&of_two, &[("PHP", 30), ("tcmalloc", 28), ("V8", 2)], "PHP");
        assert!(
            of_two.ends_with("outside of PHP, tcmalloc and the program's own mappings"),
            "{of_two}"
        );
        let of_lua = said(&[(Allocated, 3), (AnonymousOther, 79)], &[], "LuaJIT");
        assert!(of_lua.ends_with("free and held outside of LuaJIT"), "{of_lua}");
        let of_pypy = said(&[(Allocated, 300), (File, 20)], &[], "PyPy");
        assert!(of_pypy.ends_with("free and held outside of PyPy"), "{of_pypy}");
    }

    #[test]
    fn the_largest_owner_is_named_unless_free_memory_is_the_reason() {
        // MariaDB with a buffer pool, and a PostgreSQL server.
        let of_innodb = observed(&[
            (Owner::Allocated, 49),
            (Owner::Runtime, 81),
            (Owner::File, 30),
            (Owner::Fragmented, 5),
        ]);
        let managers = vec![manager("InnoDB", 81)];
        let verdict = diagnose(Observation { managers, ..of_innodb }).verdict;
        assert_eq!(verdict.kind, VerdictKind::Runtime);
        assert_eq!(
            verdict.because,
            [
                "81.0 MiB (49 % of RSS) are managed by InnoDB",
                "49.0 MiB (30 % of RSS) are in use by the program",
                "30.0 MiB (18 % of RSS) are files: program text, libraries, mapped files",
                "only 5.00 MiB (3 % of RSS) are free and held outside of InnoDB",
            ]
        );
        let of_postgres = observed(&[
            (Owner::Allocated, 8),
            (Owner::Shared, 70),
            (Owner::File, 60),
            (Owner::Stacks, 1),
        ]);
        let unread_libraries = vec!["/opt/libvm.so.1".to_owned(), "/opt/libx.so".to_owned()];
        let verdict = diagnose(Observation { unread_libraries, ..of_postgres.clone() }).verdict;
        let unread =
            "libvm.so.1 and others could not be read: a runtime in them would not be recognised";
        assert!(verdict.because.iter().any(|reason| reason == unread), "{verdict:?}");
        let shared = vec![NamedMemory::new("PostgreSQL's shared memory".to_owned(), 69 * MIB, 1)];
        let verdict = diagnose(Observation { shared, ..of_postgres }).verdict;
        assert_eq!(verdict.kind, VerdictKind::OutsideHeap);
        assert_eq!(
            verdict.because[0],
            "70.0 MiB (50 % of RSS) are shared memory: PostgreSQL's shared memory"
        );
        // The reason of a hoard is the free memory.
        let because =
            diagnose(observed(&[(Owner::Reclaimable, 300), (Owner::File, 5)])).verdict.because;
        assert!(!because.iter().any(|reason| reason.contains("are files")), "{because:?}");
        let found = observed(&[(Owner::ProgramData, 100), (Owner::File, 60)]);
        let named = |name: &str, mib: u64| vec![NamedMemory::new(name.to_owned(), mib * MIB, 1)];
        let (changed_files, files) = (named("/var/data", 100), named("/var/other", 40));
        let verdict = diagnose(Observation { changed_files, files, ..found }).verdict;
        assert_eq!(
            verdict.because[..2],
            [
                "100 MiB (62 % of RSS) are variables of programs and libraries, or changed pages of files: /var/data",
                "60.0 MiB (38 % of RSS) are files, 40.0 MiB of them /var/other",
            ]
        );
    }

    #[test]
    fn free_memory_of_v8_has_the_verdict_runtime_with_its_place_and_the_setting_for_it() {
        use lowtide_model::engine::{EngineHeap, EngineSpace, POOL};
        let diagnosed = |new_mib: u64, pool_mib: u64, reclaimable_mib: u64| {
            let mut found = observed(&[(Owner::File, 60), (Owner::Reclaimable, reclaimable_mib)]);
            let space = |name: &str, mib: u64| EngineSpace {
                name: name.to_owned(),
                free_bytes: mib * MIB,
                ..EngineSpace::default()
            };
            let spaces = vec![space("new_space", new_mib), space(POOL, pool_mib)];
            let version = "13.6".to_owned();
            let engine = WalkedRuntime::V8;
            found.engines = vec![EngineHeap { engine, version, instances: 1, spaces }];
            found.ledger.add_walked(engine, State::Allocated, 10 * MIB);
            found.ledger.add_walked(engine, State::Free, (new_mib + pool_mib) * MIB);
            let managers = vec![manager("V8", 10 + new_mib + pool_mib)];
            diagnose(Observation { managers, ..found })
        };
        let rows = |found: &Inspection| -> Vec<String> {
            found.remedies.iter().filter_map(|remedy| remedy.row.clone()).collect()
        };
        let new = diagnosed(40, 2, 1);
        assert_eq!(new.verdict.kind, VerdictKind::Runtime);
        assert!(
            new.verdict.because[1].contains("are free in V8's heap: 40.0 MiB in the new space"),
            "{:?}",
            new.verdict
        );
        assert_eq!(rows(&new), ["v8/semi_space"]);
        let pool = diagnosed(2, 40, 1);
        assert!(pool.verdict.because[1].contains("40.0 MiB in its pool"), "{:?}", pool.verdict);
        assert_eq!(rows(&pool), ["v8/optimize_for_size"]);
        assert_eq!(rows(&diagnosed(5, 5, 1)), ["v8/old_space"]);
        // A release returns the other memory.
        assert_eq!(diagnosed(40, 2, 40).verdict.kind, VerdictKind::Hoard);
    }

    #[test]
    fn pages_that_rss_counts_several_times_are_named() {
        let said = |mib: u64| {
            let found = observed(&[(Owner::Runtime, 400), (Owner::File, 30)]);
            let found = Observation { mapped_again_bytes: Some(mib * MIB), ..found };
            diagnose(found).verdict.because
        };
        let sentence = "172 MiB (40 % of RSS) are no memory of their own";
        assert!(said(172).iter().any(|reason| reason.starts_with(sentence)), "{:?}", said(172));
        assert!(said(4).iter().all(|reason| !reason.contains("no memory")));
    }

    #[test]
    fn memory_that_forked_processes_share_is_named_with_the_processes() {
        use lowtide_model::inspection::ForkedMemory;
        let said = |parent, processes, shared_mib: u64, copied_mib: Option<u64>| {
            let forked = ForkedMemory {
                private_bytes: 77 * MIB,
                shared_bytes: shared_mib * MIB,
                copied_bytes: copied_mib.map(|mib| mib * MIB),
                free_shared_bytes: None,
                parent,
                processes,
                pids: Vec::new(),
            };
            let found = observed(&[(Owner::Allocated, 140), (Owner::File, 5)]);
            let because = diagnose(Observation { forked: Some(forked), ..found }).verdict.because;
            because[1..because.len() - 1].join("; ")
        };
        assert_eq!(
            said(Some(7), 4, 64, Some(70)),
            "64.0 MiB (44 % of RSS) are shared with some of 4 processes (PID 7, from which it was forked, and 3 \
             more): RSS counts them in each; 77.0 MiB (53 % of RSS) are its own; at most 70.0 MiB of its own are copies \
             of pages that it shared after the fork"
        );
        let first = said(None, 1, 64, None);
        assert!(
            first.contains("with a process that was forked from it, or with it: RSS")
                && !first.contains("copies")
        );
        assert!(said(Some(7), 1, 64, Some(2)).contains("with PID 7, from which it was forked:"));
        assert_eq!(said(Some(7), 4, 3, Some(2)), "");
    }

    #[test]
    fn memory_that_huge_pages_or_lazy_frees_left_in_rss_is_named() {
        use lowtide_model::inspection::HugePages;
        let said = |zero_mib: u64, lazy_mib: u64| {
            let huge = HugePages {
                zero_bytes: zero_mib * MIB,
                estimated: true,
                grant: None,
                setting: None,
            };
            let found = observed(&[(Owner::Allocated, 200)]);
            let lazyfree_bytes = Some(lazy_mib * MIB);
            let found = Observation { huge_pages: Some(huge), lazyfree_bytes, ..found };
            let because = diagnose(found).verdict.because;
            because[1..because.len() - 1].join("; ")
        };
        let huge = said(198, 0);
        assert!(huge.starts_with("≈ 198 MiB (99 % of RSS) are in huge pages and hold only zeros"));
        assert!(said(0, 150).starts_with("150 MiB (75 % of RSS) were freed lazily"));
        assert_eq!(said(5, 5), "");
    }

    #[test]
    fn uncollected_garbage_counts_as_in_use_and_the_verdict_mentions_it() {
        let found = observed(&[(Owner::Allocated, 100), (Owner::Runtime, 60), (Owner::File, 5)]);
        let (managers, runtimes) = (vec![manager("Ruby", 60)], runtimes(&["Ruby"]));
        let verdict = diagnose(Observation { managers, runtimes, ..found }).verdict;
        assert_eq!(verdict.kind, VerdictKind::Live);
        assert_eq!(
            verdict.because[..2],
            [
                "100 MiB (61 % of RSS) are in use by the program, including garbage that Ruby has not collected \
                 yet",
                "60.0 MiB (36 % of RSS) are managed by Ruby: in use, free, or garbage not collected yet",
            ]
        );
    }

    #[test]
    fn free_cpython_blocks_are_fragmentation_and_the_advice_names_the_block_sizes() {
        let mut found = observed(&[(Owner::Allocated, 20), (Owner::Fragmented, 1)]);
        found.ledger.add_walked(WalkedRuntime::CPython, State::Allocated, 3 * MIB);
        found.ledger.add_walked(WalkedRuntime::CPython, State::Free, 286 * MIB);
        let size = |block_bytes, mostly_free_arenas| CPythonSizeClass {
            block_bytes,
            mostly_free_arenas,
            ..CPythonSizeClass::default()
        };
        let cpython = CPythonHeap {
            arenas: 289,
            arena_bytes: MIB,
            mostly_free_arenas: 280,
            allocated_bytes: 3 * MIB,
            free_block_bytes: 286 * MIB,
            sizes: vec![size(32, 0), size(48, 12), size(64, 280)],
            ..CPythonHeap::default()
        };
        let managers = vec![manager("CPython", 289)];
        let found = diagnose(Observation { managers, cpython: Some(cpython), ..found });
        assert_eq!(found.verdict.kind, VerdictKind::Fragmentation);
        assert_eq!(
            found.verdict.because[..2],
            [
                "286 MiB (92 % of RSS) are free in CPython's arenas, but each of its 289 arenas of 1.00 MiB has a block \
                 in use",
                "none of it can be returned as it is",
            ]
        );
        let [remedy] = &found.remedies[..] else { panic!("{:?}", found.remedies) };
        let sizes = "(280 of 289 arenas are less than a quarter full: blocks of 64 B keep 280, blocks of 48 B keep 12)";
        assert!(remedy.how.contains(sizes) && !remedy.how.contains("gc.collect"), "{remedy:?}");
    }
}
