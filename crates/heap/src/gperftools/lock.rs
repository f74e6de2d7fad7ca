//! The lock of the page heap.
//!
//! From 2.11 on, it is the first member of `PageHeap`. The cache of size classes (`PackedCache`,
//! 2^16 words) and the root of the page map follow it (`page_heap.h`).
//!
//! Up to 2.10 it is a variable of its own (`Static::pageheap_lock_`), which is found by the code
//! that takes it: no symbol is needed. A function that uses the page heap first exchanges 0 for 1
//! in the lock, in an atomic instruction, and then refers to the page heap, whose address is known
//! from the page map. The functions have to agree on the lock.
//!
//! A `SpinLock` is 0 when it is free, 1 when it is held, and 2 when threads may wait for it. They
//! wait on a private futex, for a few milliseconds at most, and a thread that finds 2 when it
//! unlocks wakes one (`spinlock.h`, `spinlock_linux-inl.h`). `lll_lock` has the same rules.

use std::collections::BTreeMap;
use std::ops::Range;

use memchr::memmem;

use super::Layout;
use super::page_map::ROOT_BYTES;
use crate::allocator::Module;
use crate::code::{Code, is_relative};
use crate::droppable::Unguarded;
use crate::memory::{Memory, half_in, word};
use crate::ranges::hold;

/// Size of the cache of size classes in bytes. The root of the page map follows it.
const CACHE_BYTES: u64 = 8 << 16;
/// Distance from the lock to the root of the page map, from [`FIRST_INSIDE`] on.
const LOCK_TO_ROOT: u64 = 8 + CACHE_BYTES;
/// The first version in which the lock is in the page heap.
const FIRST_INSIDE: (u32, u32) = (2, 11);
/// Size of the members after the root up to 2.10, in bytes: two sets of large spans of 48 bytes,
/// the lists of 128 lengths with two spans each, and statistics.
const LISTS_BYTES: u64 = 2 * 48 + 128 * 2 * 48 + 11 * 8;
/// Maximum distance, in bytes, from the instruction that takes the lock back to those that load
/// its operands, and forward to a reference to the page heap.
const BEFORE: usize = 64;
const AFTER: usize = 96;
/// Minimum number of places that take the lock, and maximum number that seem to take another one.
const MIN_PLACES: usize = 6;
const MAX_OTHERS: usize = 1;
/// Maximum number of atomic instructions that are examined.
const MAX_EXCHANGES: usize = 1 << 20;

/// The address of the lock of the page heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeapLock(pub(super) u64);

/// Finds the lock of the page heap.
///
/// # Errors
/// Fails with the reason if it is not found.
pub fn lock(
    memory: &impl Memory,
    layout: &Layout,
    module: &Module<'_>,
) -> Result<PageHeapLock, Unguarded> {
    let mut numbers = module.version.unwrap_or_default().split('.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err("the location of its lock depends on its version, which is unknown");
    };
    let at = if (major, minor) < FIRST_INSIDE {
        outside(memory, layout, &(module.code)())
            .ok_or("the code that takes the lock of its page heap was not recognised")?
    } else {
        inside(layout).ok_or("the lock of its page heap is not where it is expected")?
    };
    // The other half is padding, or another variable.
    let is_lock = word(memory, at - at % 8).is_none_or(|word| (word >> (at % 8 * 8)) as u32 <= 2);
    if is_lock {
        Ok(PageHeapLock(at))
    } else {
        Err("the lock of its page heap has an unknown value")
    }
}

/// Returns the place of the lock in the page heap.
fn inside(layout: &Layout) -> Option<u64> {
    let at = layout.root.checked_sub(LOCK_TO_ROOT)?;
    let is_inside = layout.data.iter().any(|range| range.start <= at && layout.root < range.end);
    is_inside.then_some(at)
}

/// Finds the lock that the code takes before it refers to the page heap.
fn outside(memory: &impl Memory, layout: &Layout, code: &[(u64, Vec<u8>)]) -> Option<u64> {
    let heap = layout.root.checked_sub(CACHE_BYTES)?..layout.root + ROOT_BYTES + LISTS_BYTES;
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    for part in Code::parts(code) {
        let exchanges = memmem::find_iter(part.bytes, &[0xf0]).take(MAX_EXCHANGES);
        for exchange in exchanges.filter_map(|at| Exchange::parse(&part, at)) {
            if part.refers_soon(exchange.end, &heap)
                && let Some(lock) = part.address(&exchange, memory)
                && lock.is_multiple_of(4)
                && hold(&layout.data, &(lock..lock.saturating_add(4)))
                && !heap.contains(&lock)
            {
                *places.entry(lock).or_default() += 1;
            }
        }
    }
    let mut places: Vec<(usize, u64)> = places.into_iter().map(|(at, n)| (n, at)).collect();
    places.sort_unstable_by(|a, b| b.cmp(a));
    let (count, at) = *places.first()?;
    let others = places.get(1).map_or(0, |(count, _)| *count);
    (count >= MIN_PLACES && others <= MAX_OTHERS).then_some(at)
}

/// An instruction that exchanges 1 for the value in `eax`: `lock cmpxchg %source, operand`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Exchange {
    start: usize,
    end: usize,
    operand: Operand,
}

/// The operand of an instruction, without a displacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operand {
    /// Four bytes at this place lead to it, relative to the end of the instruction.
    Relative(usize),
    /// Four bytes at this place are its address.
    Absolute(usize),
    /// This register contains its address.
    Register(u8),
}

impl Exchange {
    fn parse(code: &Code<'_>, start: usize) -> Option<Self> {
        let byte = |place: usize| code.bytes.get(place).copied();
        let rex = byte(start + 1).filter(|byte| byte & 0xf8 == 0x40);
        let opcode = start + 1 + usize::from(rex.is_some());
        let rex = rex.unwrap_or(0);
        (byte(opcode)? == 0x0f && byte(opcode + 1)? == 0xb1).then_some(())?;
        let (modrm, place) = (byte(opcode + 2)?, opcode + 3);
        let base = rex << 3 & 8;
        let (operand, end) = match (modrm >> 6, modrm & 7) {
            (0, 5) => (Operand::Relative(place), place + 4),
            (0, 4) if byte(place)? == 0x25 => (Operand::Absolute(place + 1), place + 5),
            (0, 4) if byte(place)? == 0x24 => (Operand::Register(4 | base), place + 1),
            (0, register) if register != 4 => (Operand::Register(register | base), place),
            (1, register) if register != 4 && byte(place)? == 0 => {
                (Operand::Register(register | base), place + 1)
            }
            _ => return None,
        };
        let exchange = Self { start, end, operand };
        exchange.is_of_one(code, modrm >> 3 & 7 | rex << 1 & 8).then_some(exchange)
    }

    /// Returns whether 1 is loaded into a register shortly before.
    fn is_of_one(&self, code: &Code<'_>, register: u8) -> bool {
        let load = [0xb8 | register & 7, 1, 0, 0, 0];
        memmem::find(code.bytes_before(self.start), &load).is_some()
    }
}

impl<'c> Code<'c> {
    fn bytes_before(&self, place: usize) -> &'c [u8] {
        &self.bytes[place.saturating_sub(BEFORE)..place]
    }

    /// Returns whether the code after a place refers to addresses in a range, before it takes the
    /// next lock.
    fn refers_soon(&self, from: usize, range: &Range<u64>) -> bool {
        let after = self.bytes.get(from..).unwrap_or_default();
        let after = &after[..after.len().min(AFTER)];
        let end = from + memmem::find(after, &[0x0f, 0xb1]).unwrap_or(after.len());
        let refers = |place: usize| {
            let to = if is_relative(self.bytes[place]) {
                self.relative(place + 1)
            } else {
                half_in(self.bytes, place).map(u64::from)
            };
            to.is_some_and(|to| range.contains(&to))
        };
        (from..end).any(refers)
    }

    /// Returns the address of the operand of an instruction.
    fn address(&self, exchange: &Exchange, memory: &impl Memory) -> Option<u64> {
        let register = match exchange.operand {
            Operand::Relative(place) => return self.relative(place),
            Operand::Absolute(place) => return half_in(self.bytes, place).map(u64::from),
            Operand::Register(register) => register,
        };
        let first = exchange.start.saturating_sub(BEFORE);
        (first..exchange.start).rev().find_map(|place| self.loaded(place, register, memory))
    }

    /// Returns the address that the instruction at a place loads into a register: itself, or from
    /// a table of addresses.
    fn loaded(&self, place: usize, register: u8, memory: &impl Memory) -> Option<u64> {
        let code = self.bytes.get(place..)?;
        let (high, low) = (register >> 3, register & 7);
        match code {
            [rex, 0x8d, modrm, ..] if *rex == 0x48 | high << 2 && *modrm == low << 3 | 5 => {
                self.relative(place + 3)
            }
            [rex, 0x8b, modrm, ..] if *rex == 0x48 | high << 2 && *modrm == low << 3 | 5 => {
                word(memory, self.relative(place + 3)?)
            }
            [0x41, opcode, ..] if high == 1 && *opcode == 0xb8 | low => {
                half_in(self.bytes, place + 2).map(u64::from)
            }
            [opcode, ..] if high == 0 && *opcode == 0xb8 | low => {
                half_in(self.bytes, place + 1).map(u64::from)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::assembled::{AT, Assembled};
    use crate::memory::Saved;

    const DATA: Range<u64> = 0x50_0000..0x80_0000;
    const ROOT: u64 = 0x60_0000;
    const LOCK: u64 = 0x50_0104;
    const OTHER: u64 = 0x50_0208;
    /// A table of addresses, with that of the lock.
    const TABLE: u64 = 0x48_0000;

    /// How code addresses a lock.
    #[derive(Debug, Clone, Copy)]
    enum By {
        Itself,
        Register,
        HighRegister,
        Immediate,
        Table,
    }

    impl Assembled {
        /// A function that takes a lock, and then refers to an address.
        fn takes(&mut self, lock: u64, by: By, then: u64) -> &mut Self {
            let immediate = (lock as u32).to_le_bytes();
            self.plain(&[0x31, 0xc0, 0xba, 1, 0, 0, 0]);
            match by {
                By::Itself => self.relative(&[0xf0, 0x0f, 0xb1, 0x15], lock),
                By::Register => {
                    self.relative(&[0x48, 0x8d, 0x3d], lock).plain(&[0xf0, 0x0f, 0xb1, 0x17])
                }
                By::HighRegister => self
                    .relative(&[0x4c, 0x8d, 0x25], lock)
                    .plain(&[0xf0, 0x41, 0x0f, 0xb1, 0x14, 0x24]),
                By::Immediate => {
                    self.plain(&[0xbd]).plain(&immediate).plain(&[0xf0, 0x0f, 0xb1, 0x55, 0])
                }
                By::Table => {
                    self.relative(&[0x48, 0x8b, 0x3d], TABLE).plain(&[0xf0, 0x0f, 0xb1, 0x17])
                }
            };
            self.plain(&[0x85, 0xc0, 0x75, 0x10]).relative(&[0x48, 0x8d, 0x1d], then);
            self.plain(&[0x90; AFTER])
        }
    }

    /// Functions that take a lock before they refer to the page heap.
    fn functions(count: usize, lock: u64, by: By) -> Assembled {
        let mut code = Assembled::default();
        for _ in 0..count {
            code.takes(lock, by, ROOT - CACHE_BYTES);
        }
        code
    }

    fn found(code: &Assembled) -> Option<u64> {
        let memory = Saved::new(vec![(TABLE, LOCK.to_le_bytes().to_vec())]);
        let layout = Layout { root: ROOT, sizes: Vec::new(), data: vec![DATA] };
        outside(&memory, &layout, &[(AT, code.0.clone())])
    }

    #[test]
    fn the_lock_is_what_code_takes_before_it_refers_to_the_page_heap() {
        let all = [By::Itself, By::Register, By::HighRegister, By::Immediate, By::Table];
        for by in all {
            let mut code = functions(MIN_PLACES, LOCK, by);
            for _ in 0..MIN_PLACES {
                code.takes(OTHER, By::Itself, DATA.start);
            }
            assert_eq!(found(&code), Some(LOCK), "{by:?}");
        }
    }

    #[test]
    fn locks_on_which_the_code_does_not_agree_are_none() {
        assert_eq!(found(&functions(MIN_PLACES - 1, LOCK, By::Itself)), None);
        let mut several = functions(MIN_PLACES, LOCK, By::Itself);
        several.takes(OTHER, By::Itself, ROOT);
        assert_eq!(found(&several), Some(LOCK));
        several.takes(OTHER, By::Itself, ROOT);
        assert_eq!(found(&several), None);
    }

    #[test]
    fn no_lock_is_in_the_page_heap_or_outside_of_the_data() {
        for lock in [ROOT + 8, DATA.end, DATA.start - 4, LOCK + 2] {
            let code = functions(MIN_PLACES, lock, By::Register);
            assert_eq!(found(&code), None, "{lock:x}");
        }
    }

    #[test]
    fn an_exchange_of_another_value_takes_no_lock() {
        let mut code = functions(MIN_PLACES, LOCK, By::Itself);
        code.0.iter_mut().filter(|byte| **byte == 1).for_each(|byte| *byte = 2);
        assert_eq!(found(&code), None);
    }

    #[test]
    fn code_of_any_bytes_is_searched_without_a_panic() {
        const EVERYWHERE: Range<u64> = 0..u64::MAX;
        for length in 0..40 {
            for byte in [0xf0, 0x0f, 0xb1, 0x05, 0x48, 0xff] {
                let code = [0xf0, 0x0f, 0xb1, byte].repeat(length);
                for at in [AT, u64::MAX - 20, 0] {
                    let layout = Layout { root: ROOT, sizes: Vec::new(), data: vec![EVERYWHERE] };
                    let memory = Saved::new(Vec::new());
                    assert_eq!(outside(&memory, &layout, &[(at, code.clone())]), None);
                }
            }
        }
    }
}
