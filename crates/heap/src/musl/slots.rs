//! The blocks in slots, by the bytes before and at the end of each.

use std::ops::Range;

use super::Layout;
use super::group::{Group, IN_BAND, UNIT};
use super::tree::{GroupTree, SlotGroups};
use crate::blocks::{BlockCollector, BlockVisitor, printed_bytes};
use crate::memory::Memory;
use crate::rooms::RoomKind;
use crate::scattered::Scattered;

/// The number in place of the reserve of a slot whose reserve is in its last bytes.
const LONG_RESERVE: u64 = 5;
/// The number in place of the reserve of a slot that contains a group.
const HOLDS_GROUP: u64 = 6;
/// The number in place of the reserve if the block begins later in the slot.
const LATER: u64 = 7;
/// Bytes by which a block can begin later than a slot says that begins with a strictly aligned
/// block: only the lowest 16 bits of the distance are known.
const WRAP: u64 = UNIT << 16;
/// Maximum number of such distances that are tried: 4 GiB.
const MAX_WRAPS: u64 = 4 << 10;

/// A block in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The address that the program has.
    pub at: u64,
    /// The end of the slot.
    pub end: u64,
    /// Number of bytes that the program has requested; `None` if the end of the slot is not
    /// resident.
    pub requested_bytes: Option<u64>,
}

impl Slot {
    /// Reads a slot in use; `None` if it contradicts itself, because it changes, or is not
    /// resident.
    fn read<M: Memory>(words: &mut Scattered<'_, M>, group: &Group, index: u32) -> Option<Self> {
        let slot = group.slot(index);
        let head = Head::read(words, slot.start)?;
        let places = match head.reserve {
            LATER => {
                let later = slot.start + head.distance * UNIT;
                let wraps = if group.class.is_none() { MAX_WRAPS } else { 1 };
                (later..slot.end).step_by(WRAP as usize).take(wraps as usize)
            }
            _ => (slot.start..slot.end).step_by(WRAP as usize).take(1),
        };
        let first = group.range.start + UNIT;
        for at in places {
            let head = Head::read(words, at);
            let is_head = |head: &Head| head.index == index && head.distance * UNIT == at - first;
            let Some(head) = head.filter(is_head) else { continue };
            let end = slot.end - IN_BAND;
            let reserved = match head.reserve {
                LONG_RESERVE => half(words, end - IN_BAND).map(u64::from),
                HOLDS_GROUP | LATER => return None,
                reserve => Some(reserve),
            };
            let room = end.checked_sub(at)?;
            let requested_bytes = reserved.and_then(|reserved| room.checked_sub(reserved));
            return Some(Self { at, end: slot.end, requested_bytes });
        }
        None
    }
}

/// The bytes before a block, or before a slot whose block begins later.
struct Head {
    index: u32,
    reserve: u64,
    /// Distance from the first slot to the block, or from the slot to the block, in units.
    distance: u64,
}

impl Head {
    fn read<M: Memory>(words: &mut Scattered<'_, M>, at: u64) -> Option<Self> {
        let word = words.word(at.checked_sub(8)?)?;
        let (is_long, bits) = (word >> 32 & 0xff != 0, word >> 40 & 0xff);
        let distance = if is_long { word & 0xffff_ffff } else { word >> 48 };
        Some(Self { index: (bits & 31) as u32, reserve: bits >> 5, distance })
    }
}

/// Returns half a word at a multiple of its size.
fn half<M: Memory>(words: &mut Scattered<'_, M>, at: u64) -> Option<u32> {
    let word = words.word(at - at % 8)?;
    Some((word >> (at % 8 * 8)) as u32)
}

/// Calls `each` with the slots in use of one group after the other: with the block, or with the
/// addresses of a slot that could not be read.
pub fn each_slot(
    memory: &impl Memory,
    layout: &Layout,
    mappings: &[Range<u64>],
    mut each: impl FnMut(Result<Slot, Range<u64>>),
) {
    let (tree, _) = layout.tree(memory, mappings);
    let mut words = Scattered::new(memory);
    for outer in tree.mapped.iter().chain(&tree.donated) {
        for (group, index) in used_slots(outer) {
            each(Slot::read(&mut words, group, index).ok_or_else(|| group.slot(index)));
        }
    }
}

/// Returns the slots in use that contain no group, in order of address.
fn used_slots(outer: &GroupTree) -> Vec<(&Group, u32)> {
    let mut slots = Vec::new();
    for (group, parents) in outer.groups() {
        let is_used = |i: &u32| !group.is_free(*i) && parents >> i & 1 == 0;
        slots.extend((0..group.count).filter(is_used).map(|index| (group, index)));
    }
    slots.sort_unstable_by_key(|(group, index)| group.slot(*index).start);
    slots
}

/// Passes on the blocks, and the rooms in which they are.
pub(super) fn collect(memory: &impl Memory, tree: &SlotGroups, blocks: &mut BlockCollector<'_>) {
    let mut words = Scattered::new(memory);
    for outer in tree.mapped.iter().chain(&tree.donated) {
        let group = &outer.group;
        let mut unread = Vec::new();
        let is_room = group.count > 1;
        blocks.begin(group.slot(0).start);
        for (group, index) in used_slots(outer) {
            let range = group.slot(index);
            if !blocks.wants(&range) {
                continue;
            }
            let Some(slot) = Slot::read(&mut words, group, index) else {
                unread.push(range);
                continue;
            };
            match is_room {
                true => blocks.go_to(slot.at),
                false => blocks.begin(slot.at),
            }
            let bytes = slot.end - slot.at;
            blocks.add(slot.at, bytes, |visitor| print(&mut words, slot, visitor));
            if !is_room {
                blocks.end(slot.at + 1);
            }
        }
        if is_room {
            let end = group.slot(group.count - 1).end;
            blocks.go_to(end);
            blocks.end(end);
            blocks.room(RoomKind::MuslGroup, group.range.clone());
        }
        unread.into_iter().for_each(|range| blocks.unknown(range));
    }
}

/// Makes the print of a block, or returns 0 if its first bytes are not resident.
fn print<M: Memory>(
    words: &mut Scattered<'_, M>,
    slot: Slot,
    visitor: &mut dyn BlockVisitor,
) -> u16 {
    let bytes = slot.requested_bytes.unwrap_or(slot.end - IN_BAND - slot.at);
    let wanted = printed_bytes(bytes) as u64;
    let read = (slot.at..slot.at + wanted).step_by(8).map(|at| words.word(at));
    let first: Option<Vec<u8>> =
        read.map(|word| word.map(u64::to_le_bytes)).collect::<Option<Vec<_>>>().map(|w| w.concat());
    first.map_or(0, |first| visitor.print(slot.at, &first))
}
