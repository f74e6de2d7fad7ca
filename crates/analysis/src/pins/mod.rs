//! What pins fragmented memory: from sums over blocks and pages to groups, sets and remedies.
//!
//! - [`holders`]: sets of groups, and what becomes free with them.
//! - `bounds`: what the caches of an allocator can hold back.
//! - `joined`: groups of one holder, whatever their sizes.
//! - `remedies`: what would cure it.

pub(crate) mod bounds;
pub mod holders;
pub(crate) mod joined;
pub(crate) mod remedies;

use lowtide_model::bytes::Human;
use lowtide_model::inspection::Tunables;
use lowtide_model::leaks::LeakStack;
use lowtide_model::pins::{BlockAge, PinGroup, PinKind, PinSet, Pins};

use bounds::Bounds;
use holders::{CACHED, Holders, MAX_GROUPS, REST, SMALL_SET, UnitSums};

/// The blocks of a group, and the memory that they pin.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupSums {
    /// The allocator.
    pub allocator: &'static str,
    /// The smallest and the largest size of a block in bytes, including the overhead of the
    /// allocator.
    pub size_bytes: [u64; 2],
    /// Number of different sizes.
    pub sizes: u64,
    /// Their type.
    pub block_type: Option<String>,
    /// Whether they are older than a watch, if there was one.
    pub age: Option<BlockAge>,
    /// What holds most of them, if it was searched for.
    pub holder: Option<String>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of units that they hold.
    pub units: u64,
    /// Their share of the pinned memory.
    pub pinned_bytes: u64,
    /// The units that no block of another group holds. Of a joined group, those of each of its
    /// groups.
    pub alone: UnitSums,
    /// The stacks by which sampled blocks were allocated, the most frequent first.
    pub stacks: Vec<LeakStack>,
}

impl GroupSums {
    /// Adds the blocks of another group.
    pub fn add(&mut self, other: &Self) {
        self.size_bytes = [
            self.size_bytes[0].min(other.size_bytes[0]),
            self.size_bytes[1].max(other.size_bytes[1]),
        ];
        self.sizes += other.sizes;
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.units += other.units;
        self.pinned_bytes += other.pinned_bytes;
        self.alone.add(other.alone);
        self.add_stacks(&other.stacks);
    }

    fn add_stacks(&mut self, other: &[LeakStack]) {
        for stack in other {
            match self.stacks.iter_mut().find(|known| known.frames == stack.frames) {
                Some(known) => known.samples += stack.samples,
                None => self.stacks.push(stack.clone()),
            }
        }
        let all: u64 = self.stacks.iter().map(|stack| stack.samples).sum();
        for stack in &mut self.stacks {
            stack.share = stack.samples as f64 / all.max(1) as f64;
        }
        self.stacks.sort_by_key(|stack| std::cmp::Reverse(stack.samples));
    }
}

/// The sums over a heap.
#[derive(Debug, Clone, Default)]
pub struct HeapPins {
    /// The groups of blocks. Those with the largest shares come first, and are distinguished by
    /// [`Holders`].
    pub groups: Vec<GroupSums>,
    /// The blocks in the caches of threads.
    pub cached: GroupSums,
    /// The share of memory that only something other than blocks holds.
    pub fixed_bytes: u64,
    /// The units by their holders.
    pub holders: Holders,
    /// The heap is estimated from this part of it.
    pub read_share: f64,
    /// Whether the values are estimates for another reason.
    pub estimated: bool,
    /// Resident bytes that could not be read.
    pub unread_bytes: u64,
    /// Number of threads of the process.
    pub threads: u64,
    /// Size of a page of the kernel, in bytes.
    pub page_bytes: u64,
    /// The settings of glibc, if they are known.
    pub tunables: Option<Tunables>,
}

impl HeapPins {
    /// Returns the bit of a group, by its index.
    pub fn bit(place: usize) -> u64 {
        if place < MAX_GROUPS { 1 << place } else { REST }
    }

    /// Reports the groups with the largest shares, `top` of them and those of the proposed sets.
    pub fn report(&self, top: usize) -> Pins {
        let pinned_bytes = self.pinned_bytes();
        let sets = self.holders.sets(pinned_bytes);
        let in_set = sets.last().copied().unwrap_or(0);
        let least = (pinned_bytes as f64 * MIN_SHOWN) as u64;
        let is_large = |place: usize| self.groups[place].pinned_bytes >= least;
        let is_shown =
            |place: usize| place < top && is_large(place) || Self::bit(place) & in_set & !REST != 0;
        let shown: Vec<usize> = (0..self.groups.len()).filter(|place| is_shown(*place)).collect();
        let mut groups = self.listed(&shown);
        groups.extend(self.others(&shown));
        let sets = sets.iter().map(|set| self.set(*set, &shown)).collect();
        let free = self.holders.free();
        let has_further = shown.iter().any(|place| Self::bit(*place) == REST);
        let crowded = self.holders.crowded();
        Pins {
            pinned_bytes: self.scaled(pinned_bytes),
            reclaimable_bytes: self.scaled(free.resident_bytes),
            crowded_bytes: self.scaled(crowded.free_bytes),
            unread_bytes: self.unread_bytes,
            blocks: self.scaled(self.groups.iter().map(|group| group.blocks).sum()),
            read_share: self.read_share,
            estimated: self.is_estimated(),
            groups,
            sets,
            notes: has_further.then(|| FURTHER.to_owned()).into_iter().collect(),
            cpu_s: 0.0,
        }
    }

    /// Returns the free bytes on pages that something holds, without scaling.
    pub fn pinned_bytes(&self) -> u64 {
        let groups: u64 = self.groups.iter().map(|group| group.pinned_bytes).sum();
        groups + self.cached.pinned_bytes + self.fixed_bytes
    }

    fn is_estimated(&self) -> bool {
        self.read_share < 1.0 || self.unread_bytes > 0 || self.estimated
    }

    /// Scales a sum over the part of the heap that was read.
    fn scaled(&self, value: u64) -> u64 {
        match self.read_share {
            share if share > 0.0 && share < 1.0 => (value as f64 / share) as u64,
            _ => value,
        }
    }

    fn listed(&self, shown: &[usize]) -> Vec<PinGroup> {
        let (mut before, mut further) = (0, UnitSums::default());
        let group = |place: &usize| {
            let sums = &self.groups[*place];
            let bit = Self::bit(*place) & !REST;
            before |= bit;
            let mut gain = self.holders.gain(bit);
            if bit == 0 {
                gain = sums.alone;
                further.add(gain);
            }
            let mut with_previous = self.holders.gain(before);
            with_previous.add(further);
            PinGroup {
                kind: PinKind::Blocks,
                allocator: Some(sums.allocator.to_owned()),
                size_bytes: Some(sums.size_bytes),
                block_type: sums.block_type.clone(),
                age: sums.age,
                holder: sums.holder.clone(),
                stacks: sums.stacks.clone(),
                ..self.group(sums, gain, with_previous)
            }
        };
        shown.iter().map(group).collect()
    }

    fn group(&self, sums: &GroupSums, gain: UnitSums, with_previous: UnitSums) -> PinGroup {
        PinGroup {
            kind: PinKind::Other,
            allocator: None,
            size_bytes: None,
            block_type: None,
            age: None,
            holder: None,
            blocks: self.scaled(sums.blocks),
            bytes: self.scaled(sums.bytes),
            pages: self.scaled(sums.units),
            pinned_bytes: self.scaled(sums.pinned_bytes),
            gain_bytes: self.scaled(gain.resident_bytes),
            gain_free_bytes: self.scaled(gain.free_bytes),
            gain_with_previous_bytes: self.scaled(with_previous.resident_bytes),
            estimated: self.is_estimated(),
            remedy: None,
            stacks: Vec::new(),
        }
    }

    /// Returns the groups that are not of listed blocks, as far as they pin memory.
    fn others(&self, shown: &[usize]) -> Vec<PinGroup> {
        let none = UnitSums::default();
        let mut found = Vec::new();
        if self.cached.blocks > 0 {
            let gain = self.holders.gain(CACHED);
            found.push(PinGroup {
                kind: PinKind::Cached,
                remedy: remedies::of_caches(self.cached.allocator).map(str::to_owned),
                ..self.group(&self.cached, gain, none)
            });
        }
        let rest = self.groups.iter().enumerate().filter(|(place, _)| !shown.contains(place));
        let mut others = GroupSums::default();
        rest.for_each(|(_, group)| others.add(group));
        if others.pinned_bytes > 0 {
            // A page may be held by several of them.
            others.units = 0;
            found.push(self.group(&others, none, none));
        }
        if self.fixed_bytes > 0 {
            let fixed = GroupSums { pinned_bytes: self.fixed_bytes, ..GroupSums::default() };
            found.push(PinGroup { kind: PinKind::Fixed, ..self.group(&fixed, none, none) });
        }
        found
    }

    fn set(&self, set: u64, shown: &[usize]) -> PinSet {
        let members: Vec<usize> =
            (0..shown.len()).filter(|place| Self::bit(shown[*place]) & set & !REST != 0).collect();
        let sums: Vec<&GroupSums> =
            members.iter().map(|place| &self.groups[shown[*place]]).collect();
        let gain = self.holders.gain(set);
        let with_caches = self.holders.gain(set | CACHED);
        let bounds = Bounds::new(&sums, self.threads, self.page_bytes, self.tunables.as_ref());
        PinSet {
            blocks: self.scaled(sums.iter().map(|group| group.blocks).sum()),
            bytes: self.scaled(sums.iter().map(|group| group.bytes).sum()),
            gain_bytes: self.scaled(gain.resident_bytes),
            gain_free_bytes: self.scaled(gain.free_bytes),
            gain_at_least_bytes: bounds
                .held_back_bytes
                .map(|bytes| self.scaled(gain.resident_bytes).saturating_sub(bytes)),
            gain_at_most_bytes: self.scaled(with_caches.resident_bytes),
            remedies: remedies::of_set(&sums, &bounds),
            groups: members,
        }
    }
}

/// The note of a report with more groups than [`Holders`] distinguishes.
const FURTHER: &str = "the gain with the groups before counts all pages that the 62 groups with the largest shares hold \
                       together; of a further group, only pages that it holds alone";
/// Part of the pinned memory below which a group is counted with all others.
const MIN_SHOWN: f64 = 0.001;
/// Amount of pinned memory below which its cause is not named, in bytes.
const MIN_NAMED: u64 = 1 << 20;
/// Part of the pinned memory that a set must free to be named as its cause.
const MOST: f64 = 0.5;

/// Names the blocks that pin most of the fragmented memory of a process, in a sentence; `None` if
/// there is little of it, or if it is not known.
pub fn sentence(pins: &Pins) -> Option<String> {
    if pins.pinned_bytes < MIN_NAMED {
        return None;
    }
    let about = if pins.estimated { "≈" } else { "" };
    let is_most = |bytes: u64| bytes as f64 >= pins.pinned_bytes as f64 * MOST;
    if let Some(set) = pins.sets.iter().find(|set| is_most(set.gain_free_bytes)) {
        let mut sizes: Vec<[u64; 2]> =
            set.groups.iter().filter_map(|place| pins.groups.get(*place)?.size_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let sizes: Vec<String> = sizes.iter().map(|sizes| range(*sizes)).collect();
        return Some(format!(
            "{about}{} of the free memory is pinned by {about}{} in blocks of {} (--pins shows their types and holders)",
            Human(set.gain_free_bytes),
            Human(set.bytes),
            listed(&sizes)
        ));
    }
    if let Some(sentence) = many_sizes(pins, is_most) {
        return Some(sentence);
    }
    is_most(pins.crowded_bytes).then(|| {
        format!(
            "{about}{} of the free memory is on pages that blocks of more than {SMALL_SET} sizes share: no few sizes pin it (--pins shows what holds them)",
            Human(pins.crowded_bytes)
        )
    })
}

/// Names the sizes of the groups that pin most of the memory only all together.
fn many_sizes(pins: &Pins, is_most: impl Fn(u64) -> bool) -> Option<String> {
    let blocks: Vec<&PinGroup> =
        pins.groups.iter().filter(|group| group.kind == PinKind::Blocks).collect();
    let place = blocks.iter().position(|group| is_most(group.gain_with_previous_bytes))?;
    let together = &blocks[..=place];
    let sizes = together.iter().filter_map(|group| group.size_bytes);
    let [low, high] = sizes.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])])?;
    let about = if pins.estimated { "≈" } else { "" };
    Some(format!(
        "{about}{} of pages would be free without {about}{} in blocks of {} sizes, {} (--pins shows their types and \
         holders)",
        Human(blocks[place].gain_with_previous_bytes),
        Human(together.iter().map(|group| group.bytes).sum()),
        together.len(),
        range([low, high])
    ))
}

/// Joins the parts of a list: `a, b and c`.
fn listed(parts: &[String]) -> String {
    match parts {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => parts.concat(),
    }
}

/// Formats the sizes of blocks.
fn range([low, high]: [u64; 2]) -> String {
    if low == high { format!("{low} B") } else { format!("{low} to {high} B") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Entries of 64 bytes and their map nodes of 32 bytes, which share pages, and blocks that fill
    /// theirs.
    fn heap() -> HeapPins {
        let group = |size_bytes, blocks, pinned_bytes| GroupSums {
            allocator: "glibc",
            size_bytes: [size_bytes; 2],
            sizes: 1,
            blocks,
            bytes: size_bytes * blocks,
            units: 50_000,
            pinned_bytes,
            ..GroupSums::default()
        };
        let mut holders = Holders::default();
        let sums =
            |resident, free| UnitSums { units: 1, resident_bytes: resident, free_bytes: free };
        holders.add(0b11, sums(200 * MIB, 194 * MIB));
        holders.add(0b100, sums(100 * MIB, 0));
        holders.add(0b11 | CACHED, sums(MIB, MIB / 2));
        holders.add(REST, sums(MIB, MIB));
        HeapPins {
            groups: vec![
                group(64, 62_500, 130 * MIB),
                group(32, 62_500, 64 * MIB),
                group(1024, 9, 0),
            ],
            cached: GroupSums {
                allocator: "glibc",
                blocks: 7,
                pinned_bytes: MIB / 2,
                ..group(64, 0, 0)
            },
            fixed_bytes: MIB,
            holders,
            read_share: 1.0,
            threads: 1,
            page_bytes: 4096,
            ..HeapPins::default()
        }
    }

    #[test]
    fn the_shares_add_up_and_partners_are_a_set_with_its_bounds() {
        let pins = heap().report(1);
        let shares: u64 = pins.groups.iter().map(|group| group.pinned_bytes).sum();
        assert_eq!((pins.pinned_bytes, shares), (195 * MIB + MIB / 2, 195 * MIB + MIB / 2));
        let [set] = pins.sets.as_slice() else { panic!("{:#?}", pins.sets) };
        assert_eq!((set.groups.as_slice(), set.gain_bytes), (&[0, 1][..], 200 * MIB));
        assert_eq!(set.gain_at_most_bytes, 201 * MIB);
        assert_eq!(set.gain_at_least_bytes, Some(200 * MIB - 2 * 7 * 2 * 4096));
        let kinds: Vec<PinKind> = pins.groups.iter().map(|group| group.kind).collect();
        assert_eq!(kinds, [PinKind::Blocks, PinKind::Blocks, PinKind::Cached, PinKind::Fixed]);
        assert_eq!(pins.groups[0].gain_bytes, 0, "its map nodes stay");
        assert_eq!(pins.groups[1].gain_with_previous_bytes, 200 * MIB);
    }

    #[test]
    fn a_sentence_names_the_sizes_that_pin_most_of_the_memory() {
        let said = sentence(&heap().report(3));
        let expected =
            "194 MiB of the free memory is pinned by 5.72 MiB in blocks of 32 B and 64 B (";
        assert!(said.as_ref().is_some_and(|said| said.starts_with(expected)), "{said:?}");
        assert_eq!(sentence(&Pins::default()), None);
    }

    #[test]
    fn a_group_after_the_62_that_are_distinguished_gains_what_it_holds_alone() {
        let group = |place: u64| GroupSums {
            allocator: "glibc",
            size_bytes: [16 * (place + 1); 2],
            blocks: 1,
            pinned_bytes: MIB,
            alone: UnitSums { units: 1, resident_bytes: 4096, free_bytes: 4000 },
            ..GroupSums::default()
        };
        let mut holders = Holders::default();
        for place in 0..64 {
            let sums = UnitSums { units: 1, resident_bytes: 4096, free_bytes: 4000 };
            holders.add(HeapPins::bit(place), sums);
        }
        let groups = (0..64).map(group).collect();
        let heap = HeapPins { groups, holders, read_share: 1.0, ..HeapPins::default() };
        let pins = heap.report(64);
        assert!(pins.groups.iter().all(|group| group.gain_bytes == 4096), "{:#?}", pins.groups);
        assert_eq!(pins.groups[63].gain_with_previous_bytes, 64 * 4096);
        assert!(pins.notes[0].starts_with("the gain with the groups before"), "{:?}", pins.notes);
        assert_eq!(heap.report(62).notes, Vec::<String>::new());
    }

    #[test]
    fn the_sums_of_a_sample_are_scaled_and_estimates() {
        let pins = HeapPins { read_share: 0.5, ..heap() }.report(3);
        assert!(pins.estimated && pins.groups[0].estimated);
        assert_eq!(pins.sets[0].gain_bytes, 400 * MIB);
    }
}
