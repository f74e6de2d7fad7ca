//! What would lower a process's memory, with the predicted effect.

use serde::{Deserialize, Serialize};

use crate::bytes::Human;
use crate::ledger::Owner;
use crate::verdict::{Facts, Kind, NOTABLE, Verdict};

/// The name of the remedy that is a release.
pub const RELEASE: &str = "release";
/// What would return less than this is no remedy, in bytes.
const LEAST_CURE: u64 = 64 << 10;
/// So many arenas that hold free blocks are worth sharing.
const MANY_ARENAS: usize = 8;
/// glibc's own trim threshold, in bytes (`DEFAULT_TRIM_THRESHOLD`).
const TRIM_THRESHOLD: u64 = 128 << 10;

/// Something that would lower RSS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cure {
    /// Its name: `release`, `malloc_trim`, `close_connections`, `arena_max`, `trim_threshold`, `allocator`,
    /// `runtime`.
    pub cure: String,
    /// What it would return, in bytes, where that is known exactly.
    pub predicted_bytes: Option<u64>,
    /// What it does, and what to type, for people.
    pub how: String,
    /// The variable of the environment that does it, where one does.
    pub setting: Option<Setting>,
}

/// A variable of a program's environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Cure {
    fn new(cure: &str, predicted_bytes: Option<u64>, how: String) -> Self {
        Self { cure: cure.to_owned(), predicted_bytes, how, setting: None }
    }

    fn with_setting(self, name: &str, value: &str) -> Self {
        let setting = Setting { name: name.to_owned(), value: value.to_owned() };
        Self { setting: Some(setting), ..self }
    }
}

/// What would lower RSS, the most effective first.
pub fn cures(facts: &Facts<'_>, verdict: &Verdict, pid: u32) -> Vec<Cure> {
    let mut cures = Vec::new();
    if facts.heap_was_walked && facts.release_bytes >= LEAST_CURE {
        cures.extend(releases(facts, pid));
    }
    let managed: u64 = facts.ledger.bytes(Owner::Runtime);
    let in_use = facts.ledger.bytes(Owner::Allocated) + managed;
    if let Some(connections) = facts.connections.filter(|n| *n > 0)
        && facts.share(in_use) >= 0.5
    {
        let how = format!(
            "{connections} connections are open: what they hold is in use until they close (at most {} \
             each)",
            Human(in_use / connections)
        );
        cures.push(Cure::new("close_connections", None, how));
    }
    cures.extend(settings(facts));
    if verdict.kind == Kind::Fragmentation {
        let how = "free memory lies between blocks in use, and no release reaches it: an allocator that keeps \
                   sizes apart may hold less; try lowtide study -a glibc,jemalloc,mimalloc";
        cures.push(Cure::new("allocator", None, how.to_owned()));
    }
    cures.extend(of_managers(facts));
    cures
}

fn releases(facts: &Facts<'_>, pid: u32) -> [Cure; 2] {
    let tops = facts.release_bytes.saturating_sub(facts.trim_bytes);
    let tops = match tops >= LEAST_CURE {
        true => format!(", the top chunks of thread heaps ({}) included", Human(tops)),
        false => String::new(),
    };
    let release =
        format!("returns every whole free page{tops}, in short pauses: lowtide release {pid}");
    let trim = format!(
        "a call of malloc_trim(0) in the program; it holds each arena's lock for all of the arena (threads of \
         process {pid} that allocate wait meanwhile)"
    );
    [
        Cure::new(RELEASE, Some(facts.release_bytes), release),
        Cure::new("malloc_trim", Some(facts.trim_bytes), trim),
    ]
}

/// Settings of glibc's allocator.
fn settings(facts: &Facts<'_>) -> Vec<Cure> {
    let mut cures = Vec::new();
    let free = facts.ledger.bytes(Owner::Reclaimable) + facts.ledger.bytes(Owner::Fragmented);
    let Some(tunables) = facts.tunables.filter(|_| facts.share(free) >= NOTABLE) else {
        return cures;
    };
    let holding = facts.arenas.iter().filter(|a| a.free_bytes + a.top_bytes > LEAST_CURE).count();
    if tunables.arena_max.is_none() && holding >= MANY_ARENAS {
        let how = format!(
            "{holding} arenas hold free blocks: MALLOC_ARENA_MAX=2 makes threads share them; try it with \
             lowtide study -t glibc/arena_max=2"
        );
        cures.push(Cure::new("arena_max", None, how).with_setting("MALLOC_ARENA_MAX", "2"));
    }
    if tunables.trim_threshold_bytes > 64 * TRIM_THRESHOLD {
        let how = format!(
            "the main heap returns only what exceeds {} at its top (trim_threshold has grown with what was \
             freed, or was set): try lowtide study -t glibc/trim_threshold",
            Human(tunables.trim_threshold_bytes)
        );
        let cure = Cure::new("trim_threshold", None, how);
        cures.push(cure.with_setting("MALLOC_TRIM_THRESHOLD_", &TRIM_THRESHOLD.to_string()));
    }
    cures
}

/// A line for each runtime and allocator that manages a notable part, and for PostgreSQL's shared memory.
fn of_managers(facts: &Facts<'_>) -> Vec<Cure> {
    let is_notable = |bytes: u64| facts.share(bytes) >= NOTABLE;
    let managers = facts.managers.iter().filter(|manager| is_notable(manager.bytes));
    let shared = facts.shared.iter().filter(|shared| is_notable(shared.bytes));
    let names = managers.map(|m| m.name.as_str()).chain(shared.map(|s| s.name.as_str()));
    names
        .filter_map(|name| {
            let (how, setting) = advice(name)?;
            let mut cure = Cure::new("runtime", None, format!("{name}: {how}"));
            if let Some((name, value)) = setting {
                cure = cure.with_setting(name, value);
            }
            if name == "mimalloc" && facts.runtimes.iter().any(|runtime| runtime == "CPython") {
                cure.how += "; if it is pyarrow's, pyarrow.default_memory_pool().release_unused()";
            }
            Some(cure)
        })
        .collect()
}

type Variable = (&'static str, &'static str);

/// What makes a runtime or an allocator return memory, and the variable that does it.
fn advice(name: &str) -> Option<(&'static str, Option<Variable>)> {
    Some(match name {
        "CPython" => (
            "an arena is returned when every object in it is gone: gc.collect(), fewer long-lived objects \
             made beside short-lived ones",
            None,
        ),
        "Node.js" | "V8" => (
            "V8 returns what a collection frees, and collects when its heap has grown: a smaller \
             --max-old-space-size makes it collect earlier (for Node.js also in NODE_OPTIONS), and a heap \
             snapshot shows what is in use",
            None,
        ),
        "Go" => ("debug.FreeOSMemory(), or GOMEMLIMIT, makes Go return free memory", None),
        "HotSpot" => (
            "jcmd PID GC.run, or -XX:+UseG1GC with -XX:G1PeriodicGCInterval; -Xmx bounds the heap",
            None,
        ),
        "Ruby" => (
            "slots are returned when all of a page are free: GC.compact before a fork or after the start, \
             fewer long-lived objects made beside short-lived ones",
            None,
        ),
        "PHP" => (
            "gc_mem_caches() returns free chunks; pm.max_requests restarts a worker of PHP-FPM now and then",
            None,
        ),
        "Erlang" => (
            "recon_alloc:memory(usage) shows how full the carriers are; +MBas aobf and smaller carriers \
             (+MBlmbcs) leave less unused",
            None,
        ),
        "InnoDB" => (
            "innodb_buffer_pool_size sets the size of the buffer pool, which is kept full on purpose",
            None,
        ),
        "PartitionAlloc" => (
            "it returns free pages by itself a few seconds after they were freed, and under memory pressure",
            None,
        ),
        "jemalloc" => (
            "MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0 returns free memory, \
             also while the program is idle",
            Some(("MALLOC_CONF", "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0")),
        ),
        "mimalloc" => (
            "MIMALLOC_PURGE_DELAY=0 returns a page as soon as it is free",
            Some(("MIMALLOC_PURGE_DELAY", "0")),
        ),
        "gperftools" => (
            "TCMALLOC_RELEASE_RATE=10 returns free memory sooner, TCMALLOC_AGGRESSIVE_DECOMMIT=1 at once",
            Some(("TCMALLOC_AGGRESSIVE_DECOMMIT", "1")),
        ),
        name if name.starts_with("PostgreSQL") => (
            "shared_buffers sets its size; every server process counts what it has touched of it, so that \
             only PSS adds up",
            None,
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::judge;
    use crate::verdict::tests::{MIB, facts, ledger, manager};

    #[test]
    fn every_manager_has_a_line_of_advice() {
        let ledger = ledger(&[(Owner::Allocated, 20), (Owner::Runtime, 500)]);
        for name in [
            "CPython",
            "Node.js",
            "V8",
            "Go",
            "HotSpot",
            "Ruby",
            "PHP",
            "Erlang",
            "InnoDB",
            "PartitionAlloc",
            "jemalloc",
            "mimalloc",
            "gperftools",
        ] {
            let managers = [manager(name, 400), manager("other", 20)];
            let facts = Facts { managers: &managers, ..facts(&ledger) };
            let found = cures(&facts, &judge(&facts), 7);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].how.starts_with(&format!("{name}: ")), "{found:?}");
        }
    }

    #[test]
    fn a_setting_can_be_pasted() {
        let ledger = ledger(&[(Owner::Allocated, 20), (Owner::Runtime, 500)]);
        let (managers, runtimes) = ([manager("mimalloc", 500)], ["CPython".to_owned()]);
        let facts = Facts { managers: &managers, runtimes: &runtimes, ..facts(&ledger) };
        let found = cures(&facts, &judge(&facts), 7);
        let setting = found[0].setting.as_ref().unwrap();
        assert_eq!((setting.name.as_str(), setting.value.as_str()), ("MIMALLOC_PURGE_DELAY", "0"));
        assert!(found[0].how.contains("release_unused()"), "{found:?}");
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
        assert!(found[0].how.contains("the top chunks of thread heaps (100 MiB) included"));
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
