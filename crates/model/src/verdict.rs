//! Why a process's memory is what it is, and what would lower it: judged from its ledger.
//!
//! A verdict names what most of the memory that could be thought too much is. The shares are of RSS:
//!
//! - **hoard**: at least [`NOTABLE`] of it is free, in whole pages, and still held;
//! - **fragmentation**: at least as much is free on pages that something else keeps, and more than
//!   could go back;
//! - **runtime**: most of it is managed by a runtime or another allocator, which cannot be seen into;
//! - **live**: most of it is in use, or is no heap at all;
//! - **growing**: over time, what is in use grew from look to look;
//! - **inconclusive**: none of these, or too much could not be seen.

use serde::{Deserialize, Serialize};

use crate::bytes::Human;
use crate::inspection::{Arena, Tunables};
use crate::ledger::{Ledger, Owner};

/// From this part of RSS on, what is free is worth a verdict.
pub const NOTABLE: f64 = 0.2;
/// More than this part of RSS that could not be told makes a verdict inconclusive.
const UNSEEN: f64 = 0.2;
/// Most of it.
const MOST: f64 = 0.5;
/// What would return less than this is no cure, in bytes.
const LEAST_CURE: u64 = 64 << 10;
/// So many arenas that hold free blocks are worth sharing.
const MANY_ARENAS: usize = 8;
/// glibc's own trim threshold, in bytes (`DEFAULT_TRIM_THRESHOLD`).
const TRIM_THRESHOLD: u64 = 128 << 10;

/// What kind of memory it is that does not go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It is in use.
    Live,
    /// It was freed, and the allocator holds it.
    Hoard,
    /// It was freed, and lies between what is in use.
    Fragmentation,
    /// A runtime or another allocator manages it.
    Runtime,
    /// What is in use grows.
    Growing,
    /// It could not be told.
    Inconclusive,
}

impl Kind {
    /// What people read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Hoard => "hoard",
            Self::Fragmentation => "fragmentation",
            Self::Runtime => "runtime",
            Self::Growing => "growing",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// A verdict and its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What it is.
    pub kind: Kind,
    /// Why: sentences with figures, the weightiest first.
    pub because: Vec<String>,
}

/// Something that would lower RSS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cure {
    /// Its name: `release`, `malloc_trim`, `close_connections`, `arena_max`, `allocator`, ….
    pub cure: String,
    /// What it would return, in bytes, where that is known exactly.
    pub predicted_bytes: Option<u64>,
    /// What it does, and what to type, for people.
    pub how: String,
}

/// What a verdict is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Whose the resident bytes are.
    pub ledger: &'a Ledger,
    /// The name of the allocator, where it is known.
    pub allocator: Option<&'a str>,
    /// The names of the runtimes.
    pub runtimes: &'a [String],
    /// Whether the heap could be walked.
    pub heap_was_walked: bool,
    /// The arenas of the heap.
    pub arenas: &'a [Arena],
    /// Settings of the allocator.
    pub tunables: Option<&'a Tunables>,
    /// What a `malloc_trim(0)` would return, in bytes.
    pub trim_bytes: u64,
    /// What a release would return, in bytes.
    pub release_bytes: u64,
    /// Established connections.
    pub connections: Option<u64>,
}

impl Facts<'_> {
    fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / (self.ledger.total().max(1)) as f64
    }

    fn part(&self, bytes: u64) -> String {
        format!("{} ({} of RSS)", Human(bytes), percent(self.share(bytes)))
    }
}

fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.01 {
        "under 1 %".to_owned()
    } else {
        format!("{:.0} %", share * 100.0)
    }
}

/// Judges one look.
pub fn judge(facts: &Facts<'_>) -> Verdict {
    let of = |owner| facts.ledger.bytes(owner);
    let (reclaimable, fragmented) = (of(Owner::Reclaimable), of(Owner::Fragmented));
    let unseen = of(Owner::Unattributed);
    let runtime = of(Owner::Runtime);
    let in_use = of(Owner::Allocated) + of(Owner::Cached) + of(Owner::Metadata);
    let no_heap = of(Owner::Stacks) + of(Owner::ProgramData) + of(Owner::File) + of(Owner::Shared);
    let mut because = Vec::new();
    let kind = if facts.share(unseen) > UNSEEN {
        because.push(format!("{} could not be told whose they are", facts.part(unseen)));
        Kind::Inconclusive
    } else if facts.share(reclaimable) >= NOTABLE && reclaimable >= fragmented {
        because.push(format!(
            "{} were freed and are still held, in whole pages that can go back",
            facts.part(reclaimable)
        ));
        because.push(format!("{} are in use", facts.part(of(Owner::Allocated))));
        Kind::Hoard
    } else if facts.share(fragmented) >= NOTABLE {
        because.push(format!(
            "{} were freed, but lie on pages that also hold blocks in use",
            facts.part(fragmented)
        ));
        because.push(format!("only {} could go back", facts.part(reclaimable)));
        because.push(format!("{} are in use", facts.part(of(Owner::Allocated))));
        Kind::Fragmentation
    } else if runtime > 0 && runtime >= in_use && facts.share(runtime) >= MOST {
        let who = match (facts.runtimes, facts.allocator) {
            ([], Some("unknown")) => "an allocator that nothing names".to_owned(),
            ([], Some(name)) => name.to_owned(),
            ([], None) => "a runtime".to_owned(),
            (names, _) => names.join(", "),
        };
        because.push(format!("{} are managed by {who}", facts.part(runtime)));
        Kind::Runtime
    } else if facts.share(in_use + no_heap) >= MOST {
        let heap = format!("{} are in use by the program", facts.part(of(Owner::Allocated)));
        let rest = format!("{} are no heap: files, stacks, data", facts.part(no_heap));
        because.extend(if in_use >= no_heap { [heap, rest] } else { [rest, heap] });
        if facts.heap_was_walked {
            let free = reclaimable + fragmented;
            because.push(format!("only {} are free and held", facts.part(free)));
        }
        Kind::Live
    } else {
        let rows = facts.ledger.rows().iter().filter(|r| r.bytes > 0);
        if facts.share(of(Owner::AnonymousOther)) >= MOST {
            because.push(format!(
                "{} were mapped by the program itself, past its allocator: what of it is in use \
                 cannot be seen",
                facts.part(of(Owner::AnonymousOther))
            ));
        } else if let Some(row) = rows.max_by_key(|r| r.bytes) {
            because.push(format!(
                "no owner stands out; the largest is {}, {}",
                row.owner.name(),
                facts.part(row.bytes)
            ));
        } else {
            because.push("nothing is resident".to_owned());
        }
        Kind::Inconclusive
    };
    if !facts.heap_was_walked && kind != Kind::Runtime && kind != Kind::Live {
        because.push("its heap could not be walked".to_owned());
    }
    Verdict { kind, because }
}

/// What would lower RSS, the most effective first.
pub fn cures(facts: &Facts<'_>, verdict: &Verdict, pid: u32) -> Vec<Cure> {
    let mut cures = Vec::new();
    let mut add = |cure: &str, predicted_bytes, how: String| {
        cures.push(Cure { cure: cure.to_owned(), predicted_bytes, how });
    };
    if facts.heap_was_walked {
        let tops = facts.release_bytes.saturating_sub(facts.trim_bytes);
        if facts.release_bytes >= LEAST_CURE {
            let tops = if tops >= LEAST_CURE {
                format!(", the tops of thread heaps ({}) among them", Human(tops))
            } else {
                String::new()
            };
            add(
                "release",
                Some(facts.release_bytes),
                format!(
                    "returns every whole free page{tops}, in short pauses: lowtide release {pid}"
                ),
            );
            add(
                "malloc_trim",
                Some(facts.trim_bytes),
                format!(
                    "a call of malloc_trim(0) in the program; it holds each arena's lock for all of \
                     the arena (PID {pid} would stand still meanwhile)"
                ),
            );
        }
    }
    let allocated = facts.ledger.bytes(Owner::Allocated) + facts.ledger.bytes(Owner::Runtime);
    if let Some(connections) = facts.connections.filter(|n| *n > 0)
        && facts.share(allocated) >= MOST
    {
        add(
            "close_connections",
            None,
            format!(
                "{connections} connections are open: what they hold is in use until they close \
                 (at most {} each)",
                Human(allocated / connections)
            ),
        );
    }
    if let Some(tunables) = facts.tunables {
        let holding =
            facts.arenas.iter().filter(|a| a.free_bytes + a.top_bytes > LEAST_CURE).count();
        let free = facts.ledger.bytes(Owner::Reclaimable) + facts.ledger.bytes(Owner::Fragmented);
        let is_much = facts.share(free) >= NOTABLE;
        if tunables.arena_max.is_none() && holding >= MANY_ARENAS && is_much {
            add(
                "arena_max",
                None,
                format!(
                    "{holding} arenas hold free blocks: MALLOC_ARENA_MAX=2 has threads share them; \
                     try it with lowtide study -t glibc/arena_max=2"
                ),
            );
        }
        if tunables.trim_threshold_bytes > 64 * TRIM_THRESHOLD && is_much {
            add(
                "trim_threshold",
                None,
                format!(
                    "the main heap gives back only what exceeds {} at its top (trim_threshold has \
                     grown with what was freed, or was set): try lowtide study -t glibc/trim_threshold",
                    Human(tunables.trim_threshold_bytes)
                ),
            );
        }
    }
    if verdict.kind == Kind::Fragmentation {
        add(
            "allocator",
            None,
            "what is free lies between what is in use, and no release reaches it: an allocator that \
             keeps sizes apart may hold less; try lowtide study -a glibc,jemalloc,mimalloc"
                .to_owned(),
        );
    }
    if verdict.kind == Kind::Runtime
        && let Some(how) = runtime_cure(facts)
    {
        add("runtime", None, how);
    }
    cures
}

fn runtime_cure(facts: &Facts<'_>) -> Option<String> {
    let names = facts.runtimes.iter().map(String::as_str).chain(facts.allocator);
    names.into_iter().find_map(|name| {
        Some(match name {
            "CPython" => {
                "CPython gives back an arena when every object in it is gone: gc.collect(), fewer \
                 long-lived objects made beside short-lived ones"
            }
            "Node.js" | "V8" => {
                "V8 gives back what a collection frees, and collects when its heap has grown: a smaller \
                 --max-old-space-size has it collect earlier (for Node.js also in NODE_OPTIONS), and a heap \
                 snapshot tells what is in use"
            }
            "Go" => "debug.FreeOSMemory(), or GOMEMLIMIT, makes Go give back what is free",
            "HotSpot" => "jcmd PID GC.run, or -XX:+UseG1GC with -XX:G1PeriodicGCInterval",
            "jemalloc" => {
                "MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0 gives back \
                 what is free, also while it is idle"
            }
            "mimalloc" => "MIMALLOC_PURGE_DELAY=0 gives back a page as soon as it is free",
            "gperftools" => "TCMALLOC_RELEASE_RATE=10, or TCMALLOC_AGGRESSIVE_DECOMMIT=1",
            _ => return None,
        }
        .to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ledger(rows: &[(Owner, u64)]) -> Ledger {
        let mut ledger = Ledger::default();
        for (owner, mib) in rows {
            ledger.add(*owner, mib * MIB);
        }
        ledger
    }

    fn facts(ledger: &Ledger) -> Facts<'_> {
        Facts {
            ledger,
            allocator: Some("glibc"),
            runtimes: &[],
            heap_was_walked: true,
            arenas: &[],
            tunables: None,
            trim_bytes: 0,
            release_bytes: ledger.bytes(Owner::Reclaimable),
            connections: None,
        }
    }

    fn kind(rows: &[(Owner, u64)]) -> Kind {
        judge(&facts(&ledger(rows))).kind
    }

    #[test]
    fn each_kind_has_its_ledger() {
        use Owner::*;
        assert_eq!(kind(&[(Allocated, 900), (Reclaimable, 50), (File, 10)]), Kind::Live);
        assert_eq!(kind(&[(Allocated, 100), (Reclaimable, 900)]), Kind::Hoard);
        assert_eq!(kind(&[(Allocated, 500), (Fragmented, 500)]), Kind::Fragmentation);
        assert_eq!(kind(&[(Allocated, 20), (Runtime, 500)]), Kind::Runtime);
        assert_eq!(kind(&[(Allocated, 1), (File, 3), (Stacks, 1)]), Kind::Live);
        assert_eq!(kind(&[(Allocated, 10), (AnonymousOther, 500)]), Kind::Inconclusive);
        assert_eq!(kind(&[(Reclaimable, 700), (Unattributed, 300)]), Kind::Inconclusive);
        assert_eq!(kind(&[]), Kind::Inconclusive);
    }

    #[test]
    fn the_evidence_is_in_figures() {
        let ledger = ledger(&[(Owner::Allocated, 100), (Owner::Reclaimable, 900)]);
        let verdict = judge(&facts(&ledger));
        assert_eq!(
            verdict.because[0],
            "900 MiB (90 % of RSS) were freed and are still held, in whole pages that can go back"
        );
    }

    #[test]
    fn what_a_runtime_holds_has_the_cure_of_that_runtime() {
        let ledger = ledger(&[(Owner::Allocated, 20), (Owner::Runtime, 500)]);
        for runtime in ["Node.js", "V8"] {
            let runtimes = [runtime.to_owned()];
            let facts = Facts { runtimes: &runtimes, ..facts(&ledger) };
            let verdict = judge(&facts);
            assert_eq!(
                verdict.because,
                [format!("500 MiB (96 % of RSS) are managed by {runtime}")]
            );
            let found = cures(&facts, &verdict, 7);
            let cure = found.iter().find(|cure| cure.cure == "runtime").unwrap();
            assert!(cure.how.contains("--max-old-space-size"), "{found:?}");
        }
    }

    #[test]
    fn cures_fit_the_verdict() {
        let hoard = ledger(&[(Owner::Allocated, 100), (Owner::Reclaimable, 900)]);
        let mut of_hoard = facts(&hoard);
        of_hoard.trim_bytes = 800 * MIB;
        let found = cures(&of_hoard, &judge(&of_hoard), 7);
        let told: Vec<(&str, Option<u64>)> =
            found.iter().map(|c| (c.cure.as_str(), c.predicted_bytes)).collect();
        assert_eq!(told, [("release", Some(900 * MIB)), ("malloc_trim", Some(800 * MIB))]);
        assert!(found[0].how.contains("the tops of thread heaps (100 MiB) among them"));
        assert!(found[0].how.ends_with("lowtide release 7"), "{found:?}");

        let fragmented = ledger(&[(Owner::Allocated, 500), (Owner::Fragmented, 500)]);
        let of_fragmented = facts(&fragmented);
        let found = cures(&of_fragmented, &judge(&of_fragmented), 7);
        assert_eq!(found.iter().map(|c| c.cure.as_str()).collect::<Vec<_>>(), ["allocator"]);

        let live = ledger(&[(Owner::Allocated, 1000)]);
        let of_live = Facts { connections: Some(1000), ..facts(&live) };
        let found = cures(&of_live, &judge(&of_live), 7);
        assert_eq!(found[0].cure, "close_connections");
        assert!(found[0].how.contains("at most 1.00 MiB each"), "{found:?}");
    }
}
