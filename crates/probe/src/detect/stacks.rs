//! The stacks of a process's threads.
//!
//! The kernel names only the first thread's stack. Another mapping is a stack if it contains a
//! thread's stack pointer, or a thread's descriptor, which glibc and musl put at the end of the
//! stack (`allocate_stack` in nptl/allocatestack.c, `pthread_create` of musl). A guard below it
//! alone proves nothing: other allocators use guards as well.

use std::ops::Range;

use lowtide_heap::memory::{ADDRESS_END, Memory};

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::runtime_kind::RuntimeKind;

use super::{Claim, Detected, OwnMemory};
use crate::proc::maps::Mapping;
use crate::proc::task;

/// Maximum size of a guard, in bytes. A guard is one page, 64 KiB if pages are large, and a few
/// more under HotSpot. Anything larger is a reservation.
const LARGEST_GUARD: u64 = 64 << 10;
/// Minimum size of a stack, in bytes (`PTHREAD_STACK_MIN`).
const SMALLEST_STACK: u64 = 16 << 10;
/// Maximum size of a stack without a guard below it, in bytes: a coroutine runs on memory that was
/// allocated like any other. Also the maximum distance that is searched for a descriptor.
const LARGEST_STACK: u64 = 16 << 20;
/// Maximum size of the end of a stack that contains the descriptor, in bytes.
const LARGEST_END: u64 = 64 << 10;
/// Alignment and maximum size of descriptors, in bytes (`struct pthread` has 2,304 bytes).
const DESCRIPTOR_ALIGNMENT: u64 = 16;
const DESCRIPTOR: u64 = 4 << 10;
/// Usual sizes of stacks whose end is not visible, in bytes.
struct Usual {
    /// Default size of a stack.
    size: u64,
    /// Distance above a stack pointer that still belongs to the stack. A waiting thread has used
    /// little of it.
    above_pointer: u64,
}

/// glibc's stacks have the usual limit (`ulimit -s`).
const OF_GLIBC: Usual = Usual { size: 8 << 20, above_pointer: 64 << 10 };
/// musl's stacks have 128 KiB, and above it the thread's own data (`DEFAULT_STACK_SIZE` in
/// src/internal/pthread_impl.h). They are among the blocks of malloc, so that a single extra page
/// would be wrong.
const OF_MUSL: Usual = Usual { size: 136 << 10, above_pointer: 4 << 10 };

/// Alignment of glibc's thread heaps, in bytes (`HEAP_MAX_SIZE`). They start right above a
/// reservation.
const HEAP_OF_THREAD: u64 = 64 << 20;

/// Returns the stack pointers of the threads that wait in a system call; those of running threads
/// are not known. Empty if they may not be read.
pub fn stack_pointers(pid: u32) -> Vec<u64> {
    let threads = task::threads(pid).unwrap_or_default();
    let mut pointers: Vec<u64> =
        threads.iter().filter_map(|thread| thread.doing().ok()?.stack_pointer()).collect();
    pointers.sort_unstable();
    pointers
}

/// The owner of a stack: one of the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stack;

/// Returns the stacks, in order: the first thread's, those that glibc has named, and mappings that
/// contain a stack pointer or a thread's descriptor. If the kernel has merged a stack with the
/// mapping above it, the stack ends with the descriptor; without one, its end is an estimate. So is
/// the start of a stack without a guard.
pub fn stacks(
    memory: &impl Memory,
    detected: &Detected,
    maps: &[Mapping],
    pointers: &[u64],
) -> Vec<Claim<Stack>> {
    // Go's threads run on goroutine stacks, which are part of its heap.
    let has_go = detected.has(RuntimeKind::Go);
    let has_threads_of_c = !has_go || detected.malloc.is_some();
    let is_musl = detected.malloc.as_ref().is_some_and(|m| m.kind == AllocatorKind::Musl);
    let usual = if is_musl { OF_MUSL } else { OF_GLIBC };
    let mut found = Vec::new();
    for (place, mapping) in maps.iter().enumerate() {
        let below = place.checked_sub(1).and_then(|at| maps.get(at));
        let plain = mapping.permissions == "rw-p" && mapping.name.is_empty() && !mapping.has_file();
        let is_named =
            mapping.name == "[stack]" || mapping.name.starts_with("[anon: glibc: pthread stack");
        if is_named {
            found.push(stack(mapping.start..mapping.end, false));
        } else if plain && has_threads_of_c && is_guarded(mapping, below) {
            found.extend(guarded(memory, mapping, pointers, &usual));
        } else if plain && !has_go && !is_of_v8(detected, mapping) {
            found.extend(in_use(memory, mapping, pointers, &usual));
        }
    }
    found
}

fn stack(range: Range<u64>, estimated: bool) -> Claim<Stack> {
    Claim { range, owner: Stack, estimated }
}

/// Returns the stack above a guard, if there is one.
fn guarded(
    memory: &impl Memory,
    mapping: &Mapping,
    pointers: &[u64],
    usual: &Usual,
) -> Option<Claim<Stack>> {
    let highest = pointers.iter().rfind(|pointer| mapping.contains(**pointer));
    let descriptor = descriptor(memory, mapping.start, mapping.end).or_else(|| {
        // A large stack that ends with its mapping has it there.
        let last = mapping.end.saturating_sub(LARGEST_END).max(mapping.start);
        descriptor(memory, last, mapping.end)
    });
    let (end, estimated) = match (descriptor, highest) {
        (Some(descriptor), _) => (end_of(memory, descriptor), false),
        (None, Some(pointer)) => {
            let above = usual.above_pointer;
            let end = (pointer.next_multiple_of(above) + above).max(mapping.start + usual.size);
            (end, true)
        }
        (None, None) => return None,
    };
    Some(stack(mapping.start..end.min(mapping.end), estimated))
}

/// Returns the stack around a stack pointer, if no guard marks its start: since glibc 2.42, the
/// page below is guarded without a mapping of its own (`MADV_GUARD_INSTALL`).
fn in_use(
    memory: &impl Memory,
    mapping: &Mapping,
    pointers: &[u64],
    usual: &Usual,
) -> Option<Claim<Stack>> {
    let at = pointers.partition_point(|pointer| *pointer < mapping.start);
    let pointer = *pointers.get(at).filter(|pointer| mapping.contains(**pointer))?;
    if mapping.size() <= LARGEST_STACK {
        return Some(stack(mapping.start..mapping.end, true));
    }
    let end = end_of(memory, descriptor(memory, pointer, mapping.end)?).min(mapping.end);
    let start = mapping.start.max(end.saturating_sub(usual.size)).min(pointer);
    Some(stack(start..end, true))
}

/// Returns the first descriptor of a thread in a range. Its first and third word are its own
/// address (`tcb` and `self` of glibc's `tcbhead_t`); in musl, only the first is, followed by links
/// to others.
fn descriptor(memory: &impl Memory, from: u64, to: u64) -> Option<u64> {
    let page = memory.page_bytes();
    let range = from - from % page..to.min(from.saturating_add(LARGEST_STACK));
    let mut bytes = Vec::new();
    for run in memory.resident(range.clone()) {
        let run = run.start.max(range.start)..run.end.min(range.end);
        bytes.resize(usize::try_from(run.end.saturating_sub(run.start)).ok()?, 0);
        let length = memory.read_resident(run.start, &mut bytes);
        let word = |at: u64| {
            let place = usize::try_from(at - run.start).ok()?;
            let word = bytes[..length].get(place..place + 8)?;
            Some(u64::from_le_bytes(word.try_into().ok()?))
        };
        let is_pointer =
            |at: u64| word(at).is_some_and(|w| w > page && w < ADDRESS_END && w % 8 == 0);
        let found = (run.start..run.end).step_by(DESCRIPTOR_ALIGNMENT as usize).find(|at| {
            word(*at) == Some(*at)
                && is_pointer(at + 8)
                && (word(at + 16) == Some(*at) || (is_pointer(at + 16) && is_pointer(at + 24)))
        });
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Returns the end of the stack with this descriptor.
fn end_of(memory: &impl Memory, descriptor: u64) -> u64 {
    (descriptor + DESCRIPTOR).next_multiple_of(memory.page_bytes())
}

fn is_guarded(mapping: &Mapping, below: Option<&Mapping>) -> bool {
    let guard = below.is_some_and(|below| {
        below.end == mapping.start
            && below.permissions == "---p"
            && !below.has_file()
            && below.name.is_empty()
            && below.size() <= LARGEST_GUARD
    });
    guard && mapping.size() >= SMALLEST_STACK && !mapping.start.is_multiple_of(HEAP_OF_THREAD)
}

/// Returns whether a mapping has the form of a V8 page. V8 uses none of its pages as a stack, and a
/// stack of this form is rarer than a wrong pointer.
fn is_of_v8(detected: &Detected, mapping: &Mapping) -> bool {
    let page = detected.runtimes.iter().find(|r| r.kind.has_v8()).map(|r| r.memory);
    matches!(page, Some(OwnMemory::Aligned(bytes)) if mapping.size() == bytes && mapping.start.is_multiple_of(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ProcessMemory;
    use crate::proc::maps::parse;
    use lowtide_heap::memory::Saved;

    /// Returns a page with a thread's descriptor in the middle.
    fn page_with_descriptor(at: u64) -> (u64, Vec<u8>) {
        let own = at + 0x800;
        let mut bytes = vec![0; 4096];
        for (place, word) in [(0, own), (8, 0x7f00_0000_1230), (16, own)] {
            bytes[0x800 + place..][..8].copy_from_slice(&u64::to_le_bytes(word));
        }
        (at, bytes)
    }

    #[test]
    fn a_stack_of_any_size_is_found_by_the_descriptor_at_its_end() {
        let maps = parse(
            "7f0010000000-7f0010001000 ---p 00000000 00:00 0\n\
             7f0010001000-7f0030001000 rw-p 00000000 00:00 0\n",
        )
        .unwrap();
        let memory = Saved::new(vec![page_with_descriptor(0x7f00_3000_0000)]);
        let found = stacks(&memory, &Detected::default(), &maps, &[0x7f00_1800_0000]);
        assert_eq!(found, [stack(0x7f00_1000_1000..0x7f00_3000_1000, false)]);
    }

    fn starts(found: &[Claim<Stack>]) -> Vec<u64> {
        found.iter().map(|stack| stack.range.start).collect()
    }

    #[test]
    fn a_mapping_with_a_stack_pointer_or_thread_descriptor_is_a_stack() {
        let maps = parse(
            "7f0000000000-7f0000021000 rw-p 00000000 00:00 0\n\
             7f0000021000-7f0003ff8000 ---p 00000000 00:00 0\n\
             7f0003ff8000-7f0004000000 ---p 00000000 00:00 0\n\
             7f0004000000-7f0004021000 rw-p 00000000 00:00 0\n\
             7f0010000000-7f0010001000 ---p 00000000 00:00 0\n\
             7f0010001000-7f0010801000 rw-p 00000000 00:00 0\n\
             7f0020000000-7f0020002000 rw-p 00000000 00:00 0\n\
             7f0030000000-7f0030800000 rw-p 00000000 00:00 0\n\
             7f0040000000-7f0080000000 rw-p 00000000 00:00 0\n\
             7f0090000000-7f0090001000 ---p 00000000 00:00 0\n\
             7f0090001000-7f0090801000 rw-p 00000000 00:00 0\n\
             7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]\n",
        )
        .unwrap();
        let memory = Saved::new(vec![page_with_descriptor(0x7f00_1080_0000)]);
        let pointers = [0x7f00_307f_0000, 0x7f00_4000_1000];
        let found = stacks(&memory, &Detected::default(), &maps, &pointers);
        // Neither a guard alone nor a pointer into a large mapping makes a stack.
        assert_eq!(starts(&found), [0x7f00_1000_1000, 0x7f00_3000_0000, 0x7ffd_0000_0000]);
        assert_eq!(found[0].range.end, 0x7f00_1080_1000);
        // Guard and descriptor prove both ends, a pointer does not.
        let estimated: Vec<bool> = found.iter().map(|stack| stack.estimated).collect();
        assert_eq!(estimated, [false, true, false]);
    }

    #[test]
    fn super_pages_between_guard_pages_are_not_stacks() {
        let maps = parse(
            "33fc00000000-33fc00002000 ---p 00000000 00:00 0\n\
             33fc00002000-33fc00003000 rw-p 00000000 00:00 0\n\
             33fc00003000-33fc00004000 ---p 00000000 00:00 0\n\
             33fc00004000-33fc001fc000 rw-p 00000000 00:00 0\n\
             33fc001fc000-33fc00202000 ---p 00000000 00:00 0\n",
        )
        .unwrap();
        assert!(stacks(&Saved::default(), &Detected::default(), &maps, &[]).is_empty());
    }

    #[test]
    fn a_stack_does_not_extend_over_a_heap_in_the_same_mapping() {
        let maps = parse(
            "7f0010000000-7f0010002000 ---p 00000000 00:00 0\n\
             7f0010002000-7f0020000000 rw-p 00000000 00:00 0\n",
        )
        .unwrap();
        let end = |memory: &Saved, pointers: &[u64]| {
            let found = stacks(memory, &Detected::default(), &maps, pointers);
            found.first().map(|stack| stack.range.end)
        };
        let none = Saved::default();
        assert_eq!(end(&none, &[]), None);
        assert_eq!(end(&none, &[0x7f00_1000_3000]), Some(0x7f00_1080_2000));
        assert_eq!(end(&none, &[0x7f00_117f_0008]), Some(0x7f00_1181_0000));
        let memory = Saved::new(vec![page_with_descriptor(0x7f00_1080_1000)]);
        assert_eq!(end(&memory, &[]), Some(0x7f00_1080_3000));
    }

    #[test]
    fn the_stacks_of_our_own_threads_are_found() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let local = 0_u8;
            sender.send(std::ptr::from_ref(&local) as u64).unwrap();
            let _ = ends.recv();
        });
        let address = receiver.recv().unwrap();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let found = stacks(
            &memory,
            &Detected::default(),
            &parse(&text).unwrap(),
            &stack_pointers(std::process::id()),
        );
        assert!(found.iter().any(|stack| stack.range.contains(&address)), "{address:x} {text}");
        drop(end);
        thread.join().unwrap();
    }
}
