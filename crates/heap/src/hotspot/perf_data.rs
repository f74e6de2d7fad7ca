//! The sizes of the heap and the pauses of collections, by the performance data that HotSpot shares
//! with `jstat`, and the guess at the heap's addresses for a HotSpot that does not describe itself.
//!
//! The data are in a mapping of the file `/tmp/hsperfdata_USER/PID` (`perfMemory.hpp`). The used
//! bytes are those after the last collection. The data do not contain the address of the heap: the
//! guess is the reserved range that has the heap's maximum size and whose accessible part is
//! closest in size to the committed bytes.

use std::ops::Range;

use crate::memory::{Memory, half_in, word_in};
use crate::ranges;

/// The first bytes of the data in little-endian memory: 0xcafec0c0, then the byte order.
const MAGIC: [u8; 5] = [0xca, 0xfe, 0xc0, 0xc0, 1];
/// Size of the prologue (`PerfDataPrologue`), and of an entry without its name and value
/// (`PerfDataEntry`), in bytes.
const PROLOGUE: usize = 32;
const ENTRY: usize = 20;
/// Maximum number of bytes of the data that are read (`-XX:PerfDataMemorySize` is 32 KiB).
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of generations, and of their spaces.
const PARTS: u64 = 8;
/// Maximum length of a relevant name, in bytes.
const MAX_NAME: usize = 128;
/// The type of a value of 64 bits.
const LONG: u8 = b'J';
/// Unit of the sizes, in bytes; G1 adds a few bytes to each.
const UNIT: u64 = 4096;

/// The sizes of the heap, in bytes, and the pauses of collections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PerfData {
    /// Bytes in use after the last collection.
    pub used_bytes: u64,
    /// Committed bytes.
    pub committed_bytes: u64,
    /// Maximum sizes of the generations.
    max_bytes: Vec<u64>,
    /// Number of collections, of all collectors.
    pub collections: u64,
    /// Time for which all threads have waited for collections, in ticks.
    pause_ticks: u64,
    /// Ticks in a second.
    ticks_per_s: u64,
}

/// A private anonymous mapping, or a part of the heap that is mapped from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether it is writable anonymous memory.
    pub is_memory: bool,
}

impl PerfData {
    /// Reads the data in a mapping. Returns `None` if it contains no such data, or if they are
    /// incomplete.
    pub fn read(memory: &impl Memory, mapping: Range<u64>) -> Option<Self> {
        let bytes = mapping.end.checked_sub(mapping.start)?.min(MAX_BYTES);
        let mut data = vec![0; usize::try_from(bytes).ok()?];
        let length = memory.read(mapping.start, &mut data);
        Self::parse(&data[..length])
    }

    /// Creates the data from sizes in bytes. `max_bytes` are those of the generations.
    pub fn from_sizes(used_bytes: u64, committed_bytes: u64, max_bytes: Vec<u64>) -> Self {
        Self { used_bytes, committed_bytes, max_bytes, ..Self::default() }
    }

    /// Returns the time for which all threads have waited for collections since earlier data, in
    /// seconds; `None` if no collection was counted since, or the data are not of the same clock.
    pub fn pause_s_since(&self, earlier: &Self) -> Option<f64> {
        let ticks = self.pause_ticks.checked_sub(earlier.pause_ticks)?;
        let is_known = self.collections > earlier.collections
            && self.ticks_per_s > 0
            && self.ticks_per_s == earlier.ticks_per_s;
        is_known.then(|| ticks as f64 / self.ticks_per_s as f64)
    }

    fn parse(data: &[u8]) -> Option<Self> {
        let is_accessible = *data.get(7)? != 0;
        if !data.starts_with(&MAGIC) || !is_accessible {
            return None;
        }
        let (mut at, entries) = (half_in(data, 24)? as usize, half_in(data, 28)?);
        let mut found = Self::default();
        for _ in 0..entries {
            let length = half_in(data, at)? as usize;
            if length < ENTRY || at < PROLOGUE {
                return None;
            }
            if let Some((name, value)) = entry(data, at) {
                found.add(name, value);
            }
            at = at.checked_add(length)?;
        }
        (found.committed_bytes > 0).then_some(found)
    }

    /// Adds a value.
    fn add(&mut self, name: &str, value: u64) {
        if let Some((generation, name)) = numbered(name, "sun.gc.generation.") {
            self.add_size(generation, name, value);
        } else if let Some((_, name)) = numbered(name, "sun.gc.collector.") {
            match name {
                "invocations" => self.collections = self.collections.saturating_add(value),
                "time" => self.pause_ticks = self.pause_ticks.saturating_add(value),
                _ => {}
            }
        } else if name == "sun.os.hrt.frequency" {
            self.ticks_per_s = value;
        }
    }

    /// Adds `capacity`, `maxCapacity` or `space.N.used` of a generation.
    fn add_size(&mut self, generation: u64, name: &str, bytes: u64) {
        let bytes = bytes - bytes % UNIT.min(bytes.max(1));
        match name {
            "capacity" => self.committed_bytes = self.committed_bytes.saturating_add(bytes),
            "maxCapacity" if generation < PARTS => self.max_bytes.push(bytes - bytes % UNIT),
            _ => {
                // Eden is empty after a collection; until the next one, it only grows.
                let is_eden = |space: u64| generation == 0 && space == 0;
                if let Some((space, "used")) = numbered(name, "space.")
                    && !is_eden(space)
                {
                    self.used_bytes = self.used_bytes.saturating_add(bytes);
                }
            }
        }
    }

    /// Guesses the memory of the heap among mappings, which are in order of address; empty if no
    /// reserved range fits. The mappings must exclude memory that is proven to be another owner's:
    /// a heap of a glibc arena can have the size of a Java heap.
    pub fn guess_heap(&self, mappings: &[Part]) -> Vec<Range<u64>> {
        // Generations are parts of the heap, or may each become as large as all of it.
        let sum = self.max_bytes.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let largest = self.max_bytes.iter().copied().max().unwrap_or(0);
        let mut best: Option<(u64, Vec<Range<u64>>)> = None;
        for max_bytes in [sum, largest] {
            for first in 0..mappings.len() {
                let start = mappings[first].range.start;
                let is_start = first == 0 || mappings[first - 1].range.end != start;
                let Some(parts) =
                    is_start.then(|| reserved(&mappings[first..], max_bytes)).flatten()
                else {
                    continue;
                };
                let bytes = ranges::bytes(&parts);
                let difference = bytes.abs_diff(self.committed_bytes);
                let is_better = best.as_ref().is_none_or(|(least, _)| difference < *least);
                if bytes >= self.used_bytes && is_better {
                    best = Some((difference, parts));
                }
            }
        }
        best.map_or(Vec::new(), |(_, parts)| parts)
    }
}

/// Returns the writable memory in the first `bytes` bytes of mappings; `None` if there is a gap
/// before that.
fn reserved(mappings: &[Part], bytes: u64) -> Option<Vec<Range<u64>>> {
    let start = mappings.first()?.range.start;
    let end = start.checked_add(bytes)?;
    let (mut at, mut parts) = (start, Vec::new());
    for mapping in mappings {
        if at >= end || mapping.range.start != at {
            break;
        }
        at = mapping.range.end;
        if mapping.is_memory {
            parts.push(mapping.range.start..at.min(end));
        }
    }
    (bytes > 0 && at >= end).then_some(parts)
}

/// Returns the name of an entry and its value, if that is one number of 64 bits.
fn entry(data: &[u8], at: usize) -> Option<(&str, u64)> {
    let name = data.get(at.checked_add(half_in(data, at + 4)? as usize)?..)?;
    let name = &name[..name.iter().take(MAX_NAME).position(|byte| *byte == 0)?];
    let is_vector = half_in(data, at + 8)? != 0;
    let value = word_in(data, at.checked_add(half_in(data, at + 16)? as usize)?)?;
    let is_long = *data.get(at + 12)? == LONG && !is_vector;
    is_long.then_some((std::str::from_utf8(name).ok()?, value))
}

/// Splits `PREFIX7.rest` into 7 and `rest`.
fn numbered<'n>(name: &'n str, prefix: &str) -> Option<(u64, &'n str)> {
    let (number, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns performance data with these values.
    fn data(values: &[(&str, u64)]) -> Vec<u8> {
        let mut data = vec![0; PROLOGUE];
        data[..5].copy_from_slice(&MAGIC);
        data[7] = 1;
        data[24..28].copy_from_slice(&(PROLOGUE as u32).to_le_bytes());
        data[28..32].copy_from_slice(&(values.len() as u32).to_le_bytes());
        for (name, value) in values {
            let room = (name.len() + 1).next_multiple_of(8);
            let begin = data.len();
            let value_at = (ENTRY + room) as u32;
            data.resize(begin + ENTRY + room + 8, 0);
            let head = [value_at + 8, ENTRY as u32, 0, u32::from(LONG), value_at];
            for (place, word) in head.iter().enumerate() {
                data[begin + 4 * place..][..4].copy_from_slice(&word.to_le_bytes());
            }
            data[begin + ENTRY..][..name.len()].copy_from_slice(name.as_bytes());
            data[begin + value_at as usize..][..8].copy_from_slice(&value.to_le_bytes());
        }
        data
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_sizes_of_all_generations_are_added() {
        let data = data(&[
            ("sun.gc.generation.0.capacity", 16 * MIB + 24),
            ("sun.gc.generation.0.maxCapacity", 1024 * MIB + 24),
            ("sun.gc.generation.0.space.0.used", 9 * MIB),
            ("sun.gc.generation.0.space.1.used", 2 * MIB),
            ("sun.gc.generation.1.capacity", 64 * MIB + 8),
            ("sun.gc.generation.1.maxCapacity", 1024 * MIB + 8),
            ("sun.gc.generation.1.space.0.used", 20 * MIB),
            ("sun.gc.generation.1.space.0.capacity", 64 * MIB),
            ("sun.gc.cause", 7),
        ]);
        let found = PerfData::parse(&data).unwrap();
        assert_eq!((found.used_bytes, found.committed_bytes), (22 * MIB, 80 * MIB));
        let part = |from: u64, to: u64, is_memory| Part { range: from * MIB..to * MIB, is_memory };
        let heap = [part(3072, 3152, true), part(3152, 4095, false), part(4095, 4096, true)];
        // Another reserved range of the same size, and an arena of the C library.
        let others = [part(9000, 9010, true), part(9010, 10024, false), part(11000, 11064, true)];
        let all: Vec<Part> = heap.into_iter().chain(others).collect();
        assert_eq!(found.guess_heap(&all), [3072 * MIB..3152 * MIB, 4095 * MIB..4096 * MIB]);
        assert!(found.guess_heap(&all[3..]).is_empty(), "less memory than is in use");
    }

    #[test]
    fn pauses_between_two_readings_are_those_of_all_collectors() {
        let at = |collections: u64, ticks: u64| {
            let data = data(&[
                ("sun.gc.generation.0.capacity", MIB),
                ("sun.gc.collector.0.invocations", 3),
                ("sun.gc.collector.0.time", 500),
                ("sun.gc.collector.1.invocations", collections),
                ("sun.gc.collector.1.time", ticks),
                ("sun.os.hrt.frequency", 1000),
            ]);
            PerfData::parse(&data).unwrap()
        };
        assert_eq!(at(2, 400).pause_s_since(&at(1, 150)), Some(0.25));
        assert_eq!(at(1, 150).pause_s_since(&at(1, 150)), None, "no collection");
        assert_eq!(at(2, 100).pause_s_since(&at(1, 150)), None, "of another process");
        let without_clock = PerfData { ticks_per_s: 0, ..at(2, 400) };
        assert_eq!(without_clock.pause_s_since(&at(1, 150)), None);
    }

    #[test]
    fn damaged_data_never_causes_a_panic() {
        let good = data(&[("sun.gc.generation.0.capacity", MIB)]);
        for length in 0..good.len() {
            PerfData::parse(&good[..length]);
        }
        for place in 0..good.len() {
            for value in [0, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[place] = value;
                PerfData::parse(&bad);
            }
        }
    }
}
