//! The evidence for a verdict: shares of RSS, and a sentence for each owner.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ops::Deref;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::bytes::Human;
use lowtide_model::engine::POOL;
use lowtide_model::inspection::{HugePages, Manager, NamedMemory, Observation};
use lowtide_model::ledger::{Owner, State, WalkedRuntime};
use lowtide_model::number::HumanCount;
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_model::verdict::VerdictKind;

/// Share of RSS from which on free memory justifies a verdict.
pub(crate) const NOTABLE: f64 = 0.2;
/// Share of RSS from which on an owner is named in the reasons. Where the verdict has no reason of
/// its own, the largest one is always named.
pub(crate) const NAMED: f64 = 0.1;
/// Minimum number of bytes that a forked process copied, to be named.
const MIN_COPIED: u64 = 4 << 20;
/// Maximum number of owners in the reasons.
const MAX_NAMED: usize = 4;
/// What the freed blocks in the caches of threads are.
const KEPT_BY_THREADS: &str =
    "were freed, and are kept by threads for themselves, where no release reaches them";
/// Size from which on a block is named, in bytes.
const LARGE_BLOCK: u64 = 64 << 10;
/// All blocks in use count as resident if their bytes are at most this multiple of the resident
/// ones.
const ALL_RESIDENT: f64 = 1.05;

/// The evidence for a verdict: an observation, with the shares and sentences that follow from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evidence<'a>(pub(crate) &'a Observation);

impl Deref for Evidence<'_> {
    type Target = Observation;

    fn deref(&self) -> &Observation {
        self.0
    }
}

impl Evidence<'_> {
    /// Returns the share of some bytes in RSS.
    pub(crate) fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / (self.ledger.total().max(1)) as f64
    }

    /// Returns bytes with their share of RSS, for a sentence.
    pub(crate) fn part(&self, bytes: u64) -> String {
        format!("{} ({} of RSS)", Human(bytes), percent(self.share(bytes)))
    }

    /// Returns the runtime whose garbage collector decides when memory in use is freed.
    fn collector(&self) -> Option<&str> {
        let is_collected =
            |name: &&str| RuntimeKind::parse(name).is_some_and(RuntimeKind::is_collected);
        self.runtimes.iter().map(|runtime| runtime.name.as_str()).find(is_collected)
    }

    /// Returns the reason why a runtime may be missing; `None` if all libraries were read.
    pub(crate) fn unread_libraries(&self) -> Option<String> {
        let first = self.unread_libraries.first()?;
        let (others, them) =
            if self.unread_libraries.len() > 1 { (" and others", "them") } else { ("", "it") };
        let name = first.rsplit('/').next().unwrap_or(first);
        Some(format!(
            "{name}{others} could not be read: a runtime in {them} would not be recognised"
        ))
    }

    /// Returns the free bytes in arenas of CPython, which return to the kernel only as a whole.
    pub(crate) fn free_in_cpython(&self) -> u64 {
        self.ledger.bytes_of(WalkedRuntime::CPython, State::Free)
    }

    /// Returns the free bytes in the chunks of V8, and in its pool of chunks.
    pub(crate) fn free_in_v8(&self) -> u64 {
        self.ledger.bytes_of(WalkedRuntime::V8, State::Free)
    }

    /// Returns the resident free bytes in the spaces of walked engines with a name.
    pub(crate) fn free_in_space(&self, name: &str) -> u64 {
        self.engines.iter().map(|heap| heap.sum_of(name, |space| space.free_bytes)).sum()
    }

    /// Returns where the free memory of V8 is, the largest part first, for a sentence; an empty
    /// text if that is not known.
    pub(crate) fn places_in_v8(&self) -> String {
        let of = |name: &str| self.free_in_space(name);
        let all = self.free_in_v8();
        let mut parts = vec![
            (of("new_space"), "in the new space, which keeps its size for the next burst"),
            (of(POOL), "in its pool of freed chunks, which no statistic of V8 counts"),
            (of("old_space"), "between the objects of the old space"),
        ];
        parts.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let notable = parts.into_iter().filter(|(bytes, _)| bytes.saturating_mul(10) >= all.max(1));
        let parts: Vec<String> =
            notable.map(|(bytes, place)| format!("{} {place}", Human(bytes))).collect();
        if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
    }

    /// Returns sentences about the memory that forked processes share, if it is a notable part.
    pub(crate) fn forked_memory(&self) -> Vec<String> {
        let Some(forked) = self.forked.as_ref().filter(|forked| {
            self.share(forked.shared_bytes.max(forked.copied_bytes.unwrap_or(0))) >= NAMED
        }) else {
            return Vec::new();
        };
        let others = match (forked.processes, forked.parent) {
            (1, Some(pid)) => format!("PID {pid}, from which it was forked"),
            (1, None) => "a process that was forked from it, or with it".to_owned(),
            (n, Some(pid)) => {
                format!(
                    "some of {n} processes (PID {pid}, from which it was forked, and {} more)",
                    n - 1
                )
            }
            (n, None) => format!("some of {n} processes that were forked from it, or with it"),
        };
        let shared = format!(
            "{} are shared with {others}: RSS counts them in each; {} are its own",
            self.part(forked.shared_bytes),
            self.part(forked.private_bytes)
        );
        let copied = self.copied_after_fork().map(|bytes| {
            format!(
                "at most {} of its own are copies of pages that it shared after the fork",
                Human(bytes)
            )
        });
        std::iter::once(shared).chain(copied).collect()
    }

    /// Returns the bytes that a process copied since it was forked, if they are a notable part.
    pub(crate) fn copied_after_fork(&self) -> Option<u64> {
        let copied = self.forked.as_ref()?.copied_bytes?;
        (copied >= MIN_COPIED && self.share(copied) >= NAMED).then_some(copied)
    }

    /// Returns the bytes in huge pages that hold only zeros, if they are a notable part.
    pub(crate) fn zeros_in_huge_pages(&self) -> Option<&HugePages> {
        self.huge_pages.as_ref().filter(|huge| self.share(huge.zero_bytes) >= NAMED)
    }

    /// Returns a sentence about memory that only huge pages made resident, if that is a notable
    /// part.
    pub(crate) fn unused_in_huge_pages(&self) -> Option<String> {
        let huge = self.zeros_in_huge_pages()?;
        let about = if huge.estimated { "≈ " } else { "" };
        Some(format!(
            "{about}{} are in huge pages and hold only zeros, as memory does that was never written: a write to one \
             byte makes a whole huge page resident",
            self.part(huge.zero_bytes)
        ))
    }

    /// Returns a sentence about lazily freed memory, if it is a notable part.
    pub(crate) fn lazily_freed(&self) -> Option<String> {
        let bytes = self.lazyfree_bytes.filter(|bytes| self.share(*bytes) >= NAMED)?;
        let about = if self.lazyfree_estimated { "≈ " } else { "" };
        Some(format!(
            "{about}{} were freed lazily (MADV_FREE): the kernel takes them when memory is short, and RSS counts them \
             until then",
            self.part(bytes)
        ))
    }

    /// Returns the large blocks of one size that have most of the memory in use, for a sentence: a
    /// pool, a cache or a buffer of the program, whose contents lowtide does not divide. `None` if
    /// there are none, or if their sizes say little about RSS, because not all of them is resident.
    fn large_blocks(&self) -> Option<String> {
        let resident = self.ledger.bytes(Owner::Allocated);
        let bytes = self.allocated_by_size.iter().map(|bin| bin.bytes).sum::<u64>();
        let most = self.allocated_by_size.iter().max_by_key(|bin| bin.bytes)?;
        let size = most.bytes.checked_div(most.count)?;
        let resident_bytes = most.bytes.min(resident);
        let is_most = most.bytes.saturating_mul(2) > resident;
        let is_resident = bytes as f64 <= ALL_RESIDENT * resident as f64;
        if !(is_resident && is_most && size >= LARGE_BLOCK) {
            return None;
        }
        let of_them = Human(resident_bytes);
        Some(match most.count {
            1 => format!(", {of_them} of them in one block"),
            count => format!(
                ", {of_them} of them in {} blocks of about {}",
                HumanCount(count),
                Human(size)
            ),
        })
    }

    /// Returns the bytes of each part of the heaps of runtimes that were walked, and the end of a
    /// sentence about them.
    fn walked_runtimes(&self) -> Vec<(u64, String)> {
        let mut parts = Vec::new();
        for row in self.ledger.rows() {
            let (Some(manager), Some(state)) = (row.manager, row.state) else { continue };
            let name = manager.kind().name();
            parts.push(match state {
                State::Allocated if manager == WalkedRuntime::HotSpot => {
                    (row.bytes, "were in use after HotSpot's last collection".to_owned())
                }
                State::Allocated if manager == WalkedRuntime::V8 => {
                    let what = "are objects in V8's heap, including garbage not collected yet";
                    (row.bytes, what.to_owned())
                }
                State::Allocated => (row.bytes, format!("are in use in {name}'s heap")),
                // The verdict `fragmentation` covers it.
                State::Free if manager == WalkedRuntime::CPython => continue,
                State::Free if manager == WalkedRuntime::V8 => {
                    (row.bytes, format!("are free in V8's heap{}", self.places_in_v8()))
                }
                State::Free => {
                    (row.bytes, format!("are newer objects and free memory in {name}'s heap"))
                }
                State::Unknown => {
                    (row.bytes, format!("are in parts of {name}'s heap that could not be walked"))
                }
            });
        }
        parts
    }

    /// Returns whether the heap of a runtime, with the objects of its programs, was walked.
    pub(crate) fn is_walked(&self, kind: RuntimeKind) -> bool {
        // Node.js has the heap of V8.
        let of_heap = if kind.has_v8() { RuntimeKind::V8 } else { kind };
        self.ledger.rows().iter().any(|row| row.manager.is_some_and(|m| m.kind() == of_heap))
    }

    /// Returns the bytes of a runtime outside of its walked heap.
    pub(crate) fn bytes_outside(&self, kind: RuntimeKind) -> u64 {
        let managers = Manager::outside_of_walked(&self.managers, &self.ledger);
        managers.iter().filter(|manager| manager.name == kind.name()).map(|m| m.bytes).sum()
    }

    /// Returns the name of HotSpot's collector: the one in force, or else that of the command line;
    /// `None` if it is not known.
    pub(crate) fn java_collector(&self) -> Option<&str> {
        const FLAGS: [(&str, &str); 6] = [
            ("-XX:+UseSerialGC", "Serial"),
            ("-XX:+UseParallelGC", "Parallel"),
            ("-XX:+UseG1GC", "G1"),
            ("-XX:+UseZGC", "ZGC"),
            ("-XX:+UseShenandoahGC", "Shenandoah"),
            ("-XX:+UseEpsilonGC", "Epsilon"),
        ];
        let has = |flag: &str| self.command.iter().any(|word| word == flag);
        let by_flag = || FLAGS.iter().find(|(flag, _)| has(flag)).map(|(_, name)| *name);
        self.java_collector.as_deref().or_else(by_flag)
    }

    /// Returns what the memory of a manager outside of walked heaps can be, for a sentence; an
    /// empty text if its name says it.
    fn contents(&self, manager: &Manager) -> &'static str {
        match RuntimeKind::parse(&manager.name) {
            Some(RuntimeKind::Go) => {
                ": stacks of goroutines, objects in use, garbage and free memory, which lowtide does not divide"
            }
            Some(kind @ RuntimeKind::HotSpot) if self.is_walked(kind) => {
                " outside of its Java heap: classes, compiled code, structures of its own"
            }
            Some(kind) if kind.has_v8() && self.is_walked(kind) => {
                " outside of V8's spaces, such as memories of WebAssembly"
            }
            // CPython has arenas of its own, and buffer pools are kept full.
            Some(RuntimeKind::Python | RuntimeKind::InnoDb | RuntimeKind::Postgres) => "",
            Some(kind) if kind.is_collected() => ": in use, free, or garbage not collected yet",
            _ => ", in use or free: lowtide does not divide them",
        }
    }

    /// Returns the bytes where the objects of a runtime are of which only the name is known.
    pub(crate) fn bytes_of_named(&self, kind: RuntimeKind) -> u64 {
        let of = |owner| self.ledger.bytes(owner);
        match kind {
            RuntimeKind::PyPy | RuntimeKind::R => of(Owner::Allocated),
            RuntimeKind::JavaScriptCore => of(Owner::Allocated) + of(Owner::Runtime),
            _ => of(Owner::AnonymousOther),
        }
    }

    /// Returns the runtimes of which only the name is known.
    pub(crate) fn named_runtimes(&self) -> impl Iterator<Item = RuntimeKind> {
        let kinds = self.runtimes.iter().filter_map(|runtime| RuntimeKind::parse(&runtime.name));
        kinds.filter(|kind| kind.is_named_only())
    }

    /// Returns the names of notable memory of which lowtide does not know the free part, or that
    /// another sentence divides.
    fn undivided(&self) -> Vec<String> {
        let is_named = |bytes| self.share(bytes) >= NAMED;
        let mut names: Vec<String> = Vec::new();
        let walked = self.ledger.rows().iter().filter_map(|row| {
            let kind = row.manager.filter(|manager| *manager != WalkedRuntime::CPython)?.kind();
            let is_in_use = row.state == Some(State::Allocated);
            (!is_in_use && row.bytes > 0).then(|| kind.name().to_owned())
        });
        names.extend(walked);
        let managers = Manager::outside_of_walked(&self.managers, &self.ledger);
        names.extend(managers.iter().filter(|m| is_named(m.bytes)).map(|m| name_of(m).to_owned()));
        let mut mapped = self.ledger.bytes(Owner::AnonymousOther);
        for kind in self.named_runtimes().filter(|kind| is_named(self.bytes_of_named(*kind))) {
            names.push(kind.name().to_owned());
            if self.bytes_of_named(kind) == mapped {
                mapped = 0;
            }
        }
        if is_named(mapped) {
            names.push("the program's own mappings".to_owned());
        }
        let mut known = HashSet::new();
        names.retain(|name| known.insert(name.clone()));
        names
    }

    /// Returns the sentence for memory that is free and held, in the heaps that lowtide divides.
    pub(crate) fn free_and_held(&self, bytes: u64) -> String {
        let only = if self.share(bytes) < NOTABLE { "only " } else { "" };
        let names = self.undivided();
        let outside = match names.split_last() {
            None => String::new(),
            Some((last, [])) => format!(" outside of {last}"),
            Some((last, others)) => format!(" outside of {} and {last}", others.join(", ")),
        };
        format!("{only}{} are free and held{outside}", self.part(bytes))
    }

    /// Returns the sentence for the freed blocks that threads keep for themselves.
    pub(crate) fn cached(&self) -> String {
        format!("{} {KEPT_BY_THREADS}", self.part(self.ledger.bytes(Owner::Cached)))
    }

    /// Returns a sentence for each notable owner, the largest first. `kind` is the verdict, whose
    /// own sentence comes before them.
    pub(crate) fn owners(&self, kind: VerdictKind) -> Vec<String> {
        let of = |owner| self.ledger.bytes(owner);
        let mut owners: Vec<(u64, String)> = Vec::new();
        let with_objects =
            |name: &&str| RuntimeKind::parse(name).is_some_and(RuntimeKind::has_objects_in_malloc);
        let garbage = match self.collector().filter(with_objects) {
            Some(name) => format!(", including garbage that {name} has not collected yet"),
            None => String::new(),
        };
        let blocks = self.large_blocks().unwrap_or_default();
        if kind != VerdictKind::Cached {
            owners.push((of(Owner::Cached), KEPT_BY_THREADS.to_owned()));
        }
        owners.push((of(Owner::Allocated), format!("are in use by the program{garbage}{blocks}")));
        for manager in Manager::outside_of_walked(&self.managers, &self.ledger) {
            let (name, contents) = (name_of(&manager), self.contents(&manager));
            owners.push((manager.bytes, format!("are managed by {name}{contents}")));
        }
        owners.extend(self.walked_runtimes());
        let named: u64 = self.managers.iter().map(|manager| manager.bytes).sum();
        let unnamed = of(Owner::Runtime).saturating_sub(named);
        owners.push((unnamed, "are managed by a runtime or another allocator".to_owned()));
        let shared = most_of(&self.shared, of(Owner::Shared)).unwrap_or_default();
        owners.push((of(Owner::Shared), format!("are shared memory{shared}")));
        let device = "are mapped from a device (GPU, RDMA), whose driver pins them";
        owners.push((of(Owner::Device), device.to_owned()));
        let files = most_of(&self.files, of(Owner::File));
        let files = files.unwrap_or_else(|| ": program text, libraries, mapped files".to_owned());
        owners.push((of(Owner::File), format!("are files{files}")));
        owners.push((of(Owner::Stacks), "are stacks of threads".to_owned()));
        let data = match most_of(&self.changed_files, of(Owner::ProgramData)) {
            Some(most) => {
                format!("are variables of programs and libraries, or changed pages of files{most}")
            }
            None => "are writable data of programs and libraries".to_owned(),
        };
        owners.push((of(Owner::ProgramData), data));
        let named = most_of(&self.named_anonymous, of(Owner::AnonymousOther));
        let other = format!(
            "were mapped by the program itself, outside of malloc{}; the part of it in use is unknown",
            named.unwrap_or_default()
        );
        owners.push((of(Owner::AnonymousOther), other));
        owners.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let has_reason = matches!(
            kind,
            VerdictKind::Hoard
                | VerdictKind::Locked
                | VerdictKind::Cached
                | VerdictKind::Fragmentation
        );
        let is_named = |(place, (bytes, _)): &(usize, (u64, String))| {
            *bytes > 0 && ((*place == 0 && !has_reason) || self.share(*bytes) >= NAMED)
        };
        let named = owners.into_iter().enumerate().filter(is_named).take(MAX_NAMED);
        named.map(|(_, (bytes, what))| format!("{} {what}", self.part(bytes))).collect()
    }
}

/// Returns the name of a manager, for a sentence.
fn name_of(manager: &Manager) -> &str {
    match manager.name == AllocatorKind::Unknown.name() {
        true => "an unknown allocator",
        false => &manager.name,
    }
}

/// Names what has most of some bytes; `None` if none has more than half.
fn most_of(named: &[NamedMemory], bytes: u64) -> Option<String> {
    /// Share from which on the rest is not worth a figure.
    const NEARLY_ALL: f64 = 0.95;
    let largest = named.first().filter(|largest| largest.bytes > bytes / 2)?;
    Some(match largest.bytes as f64 >= bytes as f64 * NEARLY_ALL {
        true => format!(": {}", largest.name),
        false => format!(", {} of them {}", Human(largest.bytes), largest.name),
    })
}

fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.01 {
        "under 1 %".to_owned()
    } else {
        format!("{:.0} %", share * 100.0)
    }
}
