//! What HotSpot says about itself: the settings in force, and its performance data.

use std::collections::HashMap;

use lowtide_heap::hotspot::PerfData;
use lowtide_heap::memory::Memory;

use crate::detect::{Detected, DetectedRuntime, load_address_of};
use crate::mapped::open_mapped;
use crate::memory::ProcessMemory;
use crate::proc::maps::Mapping;
use crate::program::flags;
use lowtide_model::runtime_kind::RuntimeKind;

/// The flags that select a collector, with its name.
const COLLECTORS: [(&str, Collector); 6] = [
    ("UseSerialGC", Collector::Serial),
    ("UseParallelGC", Collector::Parallel),
    ("UseG1GC", Collector::G1),
    ("UseZGC", Collector::Z),
    ("UseShenandoahGC", Collector::Shenandoah),
    ("UseEpsilonGC", Collector::Epsilon),
];
const NO_ATTACH: &str = "DisableAttachMechanism";
const FEW_SIGNALS: &str = "ReduceSignalUsage";
const NO_EXPLICIT: &str = "DisableExplicitGC";

/// A collector of HotSpot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collector {
    /// One thread, for small machines.
    Serial,
    /// Several threads, while the program waits.
    Parallel,
    /// The default on servers.
    G1,
    /// Concurrent, for large heaps.
    Z,
    /// Concurrent.
    Shenandoah,
    /// It never collects.
    Epsilon,
}

impl Collector {
    /// Returns its common name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serial => "Serial",
            Self::Parallel => "Parallel",
            Self::G1 => "G1",
            Self::Z => "ZGC",
            Self::Shenandoah => "Shenandoah",
            Self::Epsilon => "Epsilon",
        }
    }
}

/// The flags of a HotSpot that concern a collection from outside, as they are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags {
    /// Whether no other process may attach (`-XX:+DisableAttachMechanism`).
    pub attach_disabled: bool,
    /// Whether it handles few signals (`-Xrs`): SIGQUIT ends it.
    pub few_signals: bool,
    /// Whether it ignores requests to collect (`-XX:+DisableExplicitGC`).
    pub explicit_disabled: bool,
    /// The collector; `None` for one that lowtide does not know.
    pub collector: Option<Collector>,
}

/// Reads the flags of a HotSpot. Returns `None` if it does not describe them, if it has not
/// started, or if they cannot be read, such as in memory that is swapped out.
pub fn read_flags(
    pid: u32,
    memory: &ProcessMemory,
    maps: &[Mapping],
    detected: &Detected,
) -> Option<Flags> {
    let is_hotspot = |found: &&DetectedRuntime| found.kind == RuntimeKind::HotSpot;
    let file = detected.runtimes.iter().find(is_hotspot)?.file;
    let mapping = maps.iter().find(|m| m.file == file)?;
    let load_address = |first| load_address_of(maps, file, first);
    let mut names = vec![NO_ATTACH, FEW_SIGNALS, NO_EXPLICIT];
    names.extend(COLLECTORS.map(|(name, _)| name));
    let places = flags(&open_mapped(pid, mapping).ok()?, memory, load_address, &names)?;
    Flags::from_values(&values(memory, &places)?)
}

/// Reads the values of flags, which are 0 or 1. Returns `None` if one cannot be read.
fn values(memory: &impl Memory, places: &HashMap<String, u64>) -> Option<HashMap<String, bool>> {
    let value = |(name, place): (&String, &u64)| {
        let mut byte = [0];
        let is_read = memory.read(*place, &mut byte) == 1 && byte[0] <= 1;
        is_read.then(|| (name.clone(), byte[0] == 1))
    };
    places.iter().map(value).collect()
}

impl Flags {
    /// Builds them from the flags that a version has. One that lacks a collector does not use it.
    fn from_values(values: &HashMap<String, bool>) -> Option<Self> {
        let is_set = |name: &str| values.get(name).copied();
        let is_in_use = |(name, _): &&(&str, Collector)| is_set(name) == Some(true);
        Some(Self {
            attach_disabled: is_set(NO_ATTACH)?,
            few_signals: is_set(FEW_SIGNALS)?,
            explicit_disabled: is_set(NO_EXPLICIT)?,
            collector: COLLECTORS.iter().find(is_in_use).map(|(_, collector)| *collector),
        })
    }
}

/// Returns the performance data that HotSpot shares.
pub fn perf_data(memory: &ProcessMemory, maps: &[Mapping]) -> Option<PerfData> {
    // HotSpot reads those of other processes, if at all.
    let is_perf_data = |m: &&Mapping| {
        m.has_file() && m.permissions == "rw-s" && m.name.starts_with("/tmp/hsperfdata_")
    };
    PerfData::read(memory, maps.iter().find(is_perf_data).map(|m| m.start..m.end)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_heap::memory::Saved;

    #[test]
    fn flags_that_decide_about_harm_must_all_be_known() {
        let all =
            [(NO_ATTACH, false), (FEW_SIGNALS, true), (NO_EXPLICIT, false), ("UseG1GC", true)];
        let known = |names: &[(&str, bool)]| {
            let values = names.iter().map(|(name, value)| ((*name).to_owned(), *value));
            Flags::from_values(&values.collect())
        };
        let found = known(&all).unwrap();
        assert!(found.few_signals && !found.attach_disabled && !found.explicit_disabled);
        assert_eq!(found.collector, Some(Collector::G1));
        assert_eq!(known(&all[..3]).unwrap().collector, None);
        for left_out in 0..3 {
            let rest: Vec<_> = all.iter().enumerate().filter(|(n, _)| *n != left_out).collect();
            let rest: Vec<_> = rest.into_iter().map(|(_, flag)| *flag).collect();
            assert_eq!(known(&rest), None, "without {}", all[left_out].0);
        }
    }

    #[test]
    fn a_value_that_is_no_boolean_or_not_resident_is_unknown() {
        let memory = Saved::new(vec![(0x1000, [&[0, 1, 2][..], &[0; 4093]].concat())]);
        let read = |place| values(&memory, &HashMap::from([("a".to_owned(), place)]));
        assert!(!read(0x1000).unwrap()["a"]);
        assert!(read(0x1001).unwrap()["a"]);
        assert_eq!([read(0x1002), read(0x9000)], [None, None]);
    }
}
