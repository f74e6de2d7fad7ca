//! Where the threads of a process keep their stacks.
//!
//! The kernel names only the first thread's. The others are found by what glibc and musl do
//! (`allocate_stack` in nptl/allocatestack.c): a page or more that may not be touched, and the stack
//! right above it; and by where the threads' stack pointers are. From glibc 2.42 on, the page below is
//! guarded without a mapping of its own (`MADV_GUARD_INSTALL`), so that only the latter helps.

use std::ops::Range;

use super::{OwnMemory, Recognition, RuntimeKind, identity};
use crate::proc::maps::Mapping;
use crate::proc::task;

/// A guard is a page; 64 KiB where pages are large; a few more under HotSpot. What is larger is a
/// reservation.
const LARGEST_GUARD: u64 = 64 << 10;
/// No thread can be started on less (`PTHREAD_STACK_MIN`).
const SMALLEST_STACK: u64 = 16 << 10;
/// A stack pointer alone says that a mapping is a stack only if it is not larger: a coroutine runs
/// on memory that was allocated like any other.
const LARGEST_STACK: u64 = 16 << 20;
/// What is known of stacks whose end cannot be seen, in bytes.
struct Usual {
    /// What a thread gets unless its program asks for another size.
    size: u64,
    /// A waiting thread has used little: what lies so far above its pointer is still of its stack.
    above_pointer: u64,
}

/// The usual limit (`ulimit -s`).
const OF_GLIBC: Usual = Usual { size: 8 << 20, above_pointer: 64 << 10 };
/// 128 KiB, and above it the records of the thread (`DEFAULT_STACK_SIZE` in
/// src/internal/pthread_impl.h); it lies among the blocks of malloc, so that a page too many is wrong.
const OF_MUSL: Usual = Usual { size: 136 << 10, above_pointer: 4 << 10 };

/// glibc's thread heaps begin at a multiple of it (`HEAP_MAX_SIZE`), right above a reservation.
const HEAP_OF_THREAD: u64 = 64 << 20;

/// The stack pointers of the threads that wait in a system call; of those that run, nothing is told.
/// Empty where that may not be seen.
pub fn stack_pointers(pid: u32) -> Vec<u64> {
    let threads = task::threads(pid).unwrap_or_default();
    let mut pointers: Vec<u64> =
        threads.iter().filter_map(|thread| thread.doing().ok()?.stack_pointer()).collect();
    pointers.sort_unstable();
    pointers
}

/// Where stacks are, in order: the first thread's, those that glibc has named, those behind a guard,
/// and those that a stack pointer leads to. Where the kernel has merged a stack with what was mapped
/// above it, as it does under musl, its end is an estimate.
pub fn stacks(recognition: &Recognition, maps: &[Mapping], pointers: &[u64]) -> Vec<Range<u64>> {
    // Go's threads run on the stacks of goroutines, which are part of its heap.
    let has_go = recognition.has(RuntimeKind::Go);
    let has_threads_of_c = !has_go || recognition.malloc.is_some();
    let is_musl = recognition.malloc.as_ref().is_some_and(|m| m.name == identity::MUSL);
    let usual = if is_musl { OF_MUSL } else { OF_GLIBC };
    let mut found = Vec::new();
    for (place, mapping) in maps.iter().enumerate() {
        let below = place.checked_sub(1).and_then(|at| maps.get(at));
        let plain = mapping.permissions == "rw-p" && mapping.name.is_empty() && !mapping.has_file();
        let is_named =
            mapping.name == "[stack]" || mapping.name.starts_with("[anon: glibc: pthread stack");
        if is_named {
            found.push(mapping.start..mapping.end);
        } else if plain && has_threads_of_c && is_guarded(mapping, below) {
            found.push(mapping.start..end_of_guarded(mapping, pointers, &usual));
        } else if plain
            && !has_go
            && is_in_use(mapping, pointers)
            && !is_of_v8(recognition, mapping)
        {
            found.push(mapping.start..mapping.end);
        }
    }
    found
}

fn end_of_guarded(mapping: &Mapping, pointers: &[u64], usual: &Usual) -> u64 {
    let above = usual.above_pointer;
    let highest = pointers.iter().rfind(|pointer| mapping.contains(**pointer));
    let in_use = highest.map_or(0, |pointer| pointer.next_multiple_of(above) + above);
    mapping.end.min(in_use.max(mapping.start + usual.size))
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

fn is_in_use(mapping: &Mapping, pointers: &[u64]) -> bool {
    let at = pointers.partition_point(|pointer| *pointer < mapping.start);
    mapping.size() <= LARGEST_STACK && pointers.get(at).is_some_and(|p| mapping.contains(*p))
}

/// V8 runs nothing on its pages; a stack that begins like one is rarer than a wrong pointer.
fn is_of_v8(recognition: &Recognition, mapping: &Mapping) -> bool {
    let page = recognition.runtimes.iter().find(|r| r.kind.has_v8()).map(|r| r.memory);
    matches!(page, Some(OwnMemory::Aligned(bytes)) if mapping.size() == bytes && mapping.start.is_multiple_of(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::maps::parse;

    #[test]
    fn a_stack_lies_behind_a_guard_and_a_heap_behind_a_reservation() {
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
             7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]\n",
        )
        .unwrap();
        let pointers = [0x7f00_307f_0000, 0x7f00_4000_1000];
        let found = stacks(&Recognition::default(), &maps, &pointers);
        let starts: Vec<u64> = found.iter().map(|range| range.start).collect();
        assert_eq!(starts, [0x7f00_1000_1000, 0x7f00_3000_0000, 0x7ffd_0000_0000]);
    }

    #[test]
    fn a_heap_that_was_merged_with_a_stack_below_it_is_not_all_stack() {
        let maps = parse(
            "7f0010000000-7f0010002000 ---p 00000000 00:00 0\n\
             7f0010002000-7f0020000000 rw-p 00000000 00:00 0\n",
        )
        .unwrap();
        let end = |pointers: &[u64]| stacks(&Recognition::default(), &maps, pointers)[0].end;
        assert_eq!(end(&[]), 0x7f00_1080_2000);
        assert_eq!(end(&[0x7f00_117f_0008]), 0x7f00_1181_0000);
    }

    #[test]
    fn our_own_threads_have_their_stacks() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let local = 0_u8;
            tell.send(std::ptr::from_ref(&local) as u64).unwrap();
            let _ = ends.recv();
        });
        let address = told.recv().unwrap();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let found = stacks(
            &Recognition::default(),
            &parse(&text).unwrap(),
            &stack_pointers(std::process::id()),
        );
        assert!(found.iter().any(|range| range.contains(&address)), "{address:x} {text}");
        drop(end);
        thread.join().unwrap();
    }
}
