//! The allocator's context, and the chain of the pages that contain the records of groups.

use std::collections::HashSet;
use std::ops::Range;

use super::group::{CLASSES, Group, META_BYTES};
use crate::memory::{Memory, each_word, half_in, word, word_in};
use crate::ranges::{hold, parts};

/// Size of a page with records (`struct meta_area`), whatever the size of the processor's pages.
pub(super) const AREA_BYTES: u64 = 4096;
/// Place of the records in it, in bytes: after the secret, the next page and their number.
const RECORDS_AT: u64 = 24;
/// Number of records in it.
const RECORDS: u32 = ((AREA_BYTES - RECORDS_AT) / META_BYTES) as u32;
/// Places in the context, in bytes, without the page size that it contains if this is not a
/// constant of the processor.
const INIT_DONE_AT: u64 = 8;
const HEAD_AT: u64 = 56;
const TAIL_AT: u64 = 64;
const USAGE_AT: u64 = 464;
const CONTEXT_BYTES: usize = 928;
/// Maximum number of places that are tried, and of bytes that are searched: a hostile program can
/// fill its data with copies.
const MAX_CANDIDATES: u32 = 4 << 10;
const MAX_SEARCHED: u64 = 1 << 30;
/// Maximum number of groups that are read: those of about 40 GiB of small blocks.
const MAX_GROUPS: usize = 4 << 20;

/// The place of the context (`struct malloc_context`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Context {
    at: u64,
    secret: u64,
    /// Number of bytes of the page size in it.
    shift: u64,
}

impl Context {
    /// Finds the context in the data of the program or library that contains it.
    pub(super) fn find(memory: &impl Memory, data: &[Range<u64>]) -> Option<Self> {
        let (mut left, mut tries, mut found) = (MAX_SEARCHED, MAX_CANDIDATES, None);
        for part in data.iter().flat_map(|range| parts(range.clone(), 1 << 20)) {
            left = left.checked_sub(part.end - part.start)?;
            let mut before = [(0, 0); 2];
            // A context can begin in the part before this one.
            let from = part.start.saturating_sub(CONTEXT_BYTES as u64).max(data_start(data, &part));
            each_word(memory, from..part.end, |at, value| {
                if value as u32 == 1 {
                    let candidates =
                        before.iter().filter(|(place, _)| (8..=16).contains(&(at - place)));
                    for (place, secret) in candidates {
                        let shift = at - place - INIT_DONE_AT;
                        let context = Self { at: *place, secret: *secret, shift };
                        tries = tries.saturating_sub(1);
                        found = found.or_else(|| context.is_valid(memory).then_some(context));
                    }
                }
                before = [before[1], (at, value)];
                found.is_none() && tries > 0
            });
            if found.is_some() || tries == 0 {
                break;
            }
        }
        found
    }

    /// Returns its addresses.
    pub(super) fn range(&self) -> Range<u64> {
        self.at..self.at + self.shift + CONTEXT_BYTES as u64
    }

    /// Returns the word with which it begins, and each page of records.
    pub(super) fn secret(&self) -> u64 {
        self.secret
    }

    /// Returns whether its pages of records begin with the secret, and end with the last.
    fn is_valid(&self, memory: &impl Memory) -> bool {
        let is_secret =
            |at: u64| at.is_multiple_of(AREA_BYTES) && word(memory, at) == Some(self.secret);
        let of = |place: u64| word(memory, self.at + self.shift + place).filter(|at| *at != 0);
        let page_bytes = || word(memory, self.at + 8);
        let is_place = self.shift == 0 || page_bytes() == Some(memory.page_bytes());
        let (Some(head), Some(tail)) = (of(HEAD_AT), of(TAIL_AT)) else { return false };
        is_place && is_secret(head) && is_secret(tail) && word(memory, tail + 8) == Some(0)
    }

    /// Returns the number of slots by class, as the allocator counts them.
    pub(super) fn usage(&self, memory: &impl Memory) -> Option<[u64; CLASSES]> {
        let mut bytes = [0; CLASSES * 8];
        let length = memory.read(self.at + self.shift + USAGE_AT, &mut bytes);
        let of = |class| word_in(&bytes, class * 8);
        (length == bytes.len()).then(|| std::array::from_fn(|class| of(class).unwrap_or(0)))
    }

    /// Reads the records of all groups. `mappings` are those that may contain the pages of records,
    /// in order and disjoint.
    pub(super) fn records(&self, memory: &impl Memory, mappings: &[Range<u64>]) -> GroupRecords {
        let mut records = GroupRecords::default();
        let mut seen = HashSet::new();
        let mut page = [0; AREA_BYTES as usize];
        let mut next = word(memory, self.at + self.shift + HEAD_AT);
        while let Some(at) = next.filter(|at| *at != 0) {
            let range = at..at.saturating_add(AREA_BYTES);
            let is_area = at.is_multiple_of(AREA_BYTES)
                && hold(mappings, &range)
                && seen.insert(at)
                && memory.read(at, &mut page) == page.len()
                && word_in(&page, 0) == Some(self.secret)
                && half_in(&page, 16) == Some(RECORDS);
            if !is_area || records.groups.len() > MAX_GROUPS {
                records.is_cut = true;
                break;
            }
            records.pages.push(range);
            for place in (0..RECORDS).map(|record| RECORDS_AT + u64::from(record) * META_BYTES) {
                let record = &page[place as usize..];
                match Group::parse(at + place, record) {
                    Some(group) => records.groups.push(group),
                    None => records.rejected += usize::from(Group::is_used(record)),
                }
            }
            next = word_in(&page, 8);
        }
        records.pages.sort_unstable_by_key(|page| page.start);
        records
    }
}

fn data_start(data: &[Range<u64>], part: &Range<u64>) -> u64 {
    data.iter().find(|range| range.contains(&part.start)).map_or(part.start, |range| range.start)
}

/// The records of all groups.
#[derive(Debug, Default)]
pub(super) struct GroupRecords {
    /// The groups, in no order.
    pub(super) groups: Vec<Group>,
    /// Number of records in use that cannot be of a group.
    pub(super) rejected: usize,
    /// The pages that contain the records, in order.
    pub(super) pages: Vec<Range<u64>>,
    /// Whether the chain of pages could not be read to its end.
    pub(super) is_cut: bool,
}
