//! The lock of `malloc`, found by the code that takes it: no symbol is needed.
//!
//! `__lock` begins with a load of `need_locks` with its sign, and then exchanges 0 for 0x80000001
//! in an atomic instruction. It is the only such function. Its calls near references to the context
//! are those of `malloc` and `free`, and their argument is the address of the lock. `need_locks` is
//! in `struct __libc`, which also has the address of the auxiliary vector, and so of the secret of
//! the context: that proves it.
//!
//! Sources: musl 1.2.1 to 1.2.5, `src/thread/__lock.c`, `src/malloc/mallocng/glue.h`,
//! `src/internal/libc.h`.

use std::collections::BTreeMap;
use std::ops::Range;

use memchr::memmem;

use super::context::Context;
use crate::code::{Code, is_relative};
use crate::memory::{Memory, word};
use crate::ranges::hold;

/// The value of a lock that one thread holds, and no other waits for.
const HELD: [u8; 4] = 0x8000_0001_u32.to_le_bytes();
/// Maximum distance, in bytes, from the start of `__lock` to that value, and from there to the
/// atomic instruction.
const HEAD_BYTES: usize = 32;
/// Maximum distance, in bytes, from a call in `malloc` or `free` to a reference to the context, and
/// to the instruction that loads the address of the lock.
const NEAR: usize = 1100;
/// Minimum number of calls that agree on the lock: one in `malloc`, one in `free`.
const MIN_CALLS: usize = 2;
/// Place of `need_locks` in `struct __libc`, and of the address of the auxiliary vector.
const NEED_LOCKS_AT: u64 = 3;
const AUXV_AT: u64 = 8;
/// Maximum number of entries of the auxiliary vector.
const MAX_AUXV: u64 = 64;
const AT_RANDOM: u64 = 25;
/// Maximum number of threads that hold a lock or wait for it: PID_MAX_LIMIT of the kernel.
const MAX_THREADS: u32 = 4 << 20;

/// The places of the lock and of the state of all locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// The address of the lock.
    pub at: u64,
    /// The address of the word that shows whether locks are taken, and the number of threads
    /// besides the first.
    pub threads: u64,
}

impl Lock {
    /// Finds it by the code of the file that contains the context: parts with their addresses.
    /// `data` are the ranges of its writable data.
    pub(super) fn find(
        memory: &impl Memory,
        context: &Context,
        data: &[Range<u64>],
        code: &[(u64, Vec<u8>)],
    ) -> Option<Self> {
        let code = Code::parts(code);
        let function = LockFunction::find(&code)?;
        let is_data = |at: u64| hold(data, &(at..at.saturating_add(4)));
        let own = context.range();
        let mut calls: BTreeMap<u64, usize> = BTreeMap::new();
        for part in &code {
            for call in part.calls_near(function.start, &own) {
                let lock = part.argument(call).filter(|at| is_data(*at) && !own.contains(at));
                lock.into_iter().for_each(|lock| *calls.entry(lock).or_default() += 1);
            }
        }
        let mut calls: Vec<(usize, u64)> = calls.into_iter().map(|(at, n)| (n, at)).collect();
        calls.sort_unstable_by(|a, b| b.cmp(a));
        let (count, at) = *calls.first()?;
        let is_only_one = calls.get(1).is_none_or(|(other, _)| *other < MIN_CALLS);
        let threads = function.need_locks.checked_sub(NEED_LOCKS_AT)?;
        let is_sure = count >= MIN_CALLS
            && is_only_one
            && at.is_multiple_of(4)
            && is_lock(memory, at)
            && is_data(threads)
            && secret(memory, threads) == Some(context.secret());
        is_sure.then_some(Self { at, threads })
    }

    /// Returns the number of threads that musl counts; `None` if the word cannot be read.
    pub(super) fn counted(self, memory: &impl Memory) -> Option<u64> {
        let others = u32::try_from(word(memory, self.threads)? >> 32).ok()?;
        Some(u64::from(others) + 1)
    }
}

/// Returns whether a word can be a lock. If its page was never touched, it is 0.
fn is_lock(memory: &impl Memory, at: u64) -> bool {
    let mut bytes = [0; 4];
    let is_resident = memory.read(at, &mut bytes) == bytes.len();
    !is_resident || u32::from_le_bytes(bytes) & 0x7fff_ffff < MAX_THREADS
}

/// Returns the secret to which the auxiliary vector leads, if a word belongs to `struct __libc`.
fn secret(memory: &impl Memory, threads: u64) -> Option<u64> {
    let auxv = word(memory, threads.checked_add(AUXV_AT)?)?;
    let entry = |place: u64| auxv.checked_add(place * 16).filter(|at| at.is_multiple_of(8));
    let kind = |at: &u64| word(memory, *at) == Some(AT_RANDOM);
    let random = (0..MAX_AUXV).map_while(entry).find(kind)?;
    let random = word(memory, random.checked_add(8)?)?;
    unaligned(memory, random.checked_add(8)?)
}

/// Returns a word at any address.
fn unaligned(memory: &impl Memory, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (memory.read(at, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

/// The function `__lock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LockFunction {
    start: u64,
    /// The address of the byte that it loads first.
    need_locks: u64,
}

impl LockFunction {
    /// Finds it; `None` if there are several.
    fn find(code: &[Code<'_>]) -> Option<Self> {
        let mut found = code.iter().flat_map(|part| {
            let places = memmem::find_iter(part.bytes, &HELD);
            places.filter_map(|held| Self::around(part, held))
        });
        let first = found.next()?;
        found.all(|other| other == first).then_some(first)
    }

    fn around(code: &Code<'_>, held: usize) -> Option<Self> {
        let after = code.bytes.get(held + HELD.len()..)?;
        let after = &after[..after.len().min(HEAD_BYTES)];
        after.windows(5).any(is_exchange).then_some(())?;
        let load = |start: &usize| is_signed_load(code.bytes.get(*start..).unwrap_or_default());
        let start = (held.saturating_sub(HEAD_BYTES)..held).find(load)?;
        let need_locks = code.relative(start + 3)?;
        let is_marked = code.bytes[..start].ends_with(&ENDBR);
        let start = if is_marked { start - ENDBR.len() } else { start };
        Some(Self { start: code.at.checked_add(start as u64)?, need_locks })
    }
}

/// Returns whether instructions begin with `movsbl x(%rip), %reg`.
fn is_signed_load(code: &[u8]) -> bool {
    matches!(code, [0x0f, 0xbe, modrm, ..] if is_relative(*modrm))
}

/// Returns whether instructions begin with `lock cmpxchg %reg, (%reg)`.
fn is_exchange(code: &[u8]) -> bool {
    let code = match code {
        [0xf0, 0x40..=0x4f, rest @ ..] | [0xf0, rest @ ..] => rest,
        _ => return false,
    };
    matches!(code, [0x0f, 0xb1, modrm, ..] if modrm >> 6 == 0 && !matches!(modrm & 7, 4 | 5))
}

impl Code<'_> {
    /// Returns the places of calls of a function, and of jumps to it, near references to a range.
    fn calls_near(&self, function: u64, range: &Range<u64>) -> Vec<usize> {
        let is_reference = |place: &usize| {
            is_relative(self.bytes[*place])
                && self.relative(place + 1).is_some_and(|at| range.contains(&at))
        };
        let mut calls = Vec::new();
        let mut seen = 0;
        for place in (0..self.bytes.len()).filter(is_reference) {
            let from = place.saturating_sub(NEAR).max(seen);
            seen = (place + NEAR).min(self.bytes.len());
            let is_call = |place: &usize| {
                matches!(self.bytes[*place], 0xe8 | 0xe9)
                    && self.relative(place + 1) == Some(function)
            };
            calls.extend((from..seen).filter(is_call));
        }
        calls
    }

    /// Returns the address that a call passes on as its first argument (`rdi`): loaded before it,
    /// or in a register that is loaded with no other address nearby. Only registers may be saved on
    /// the stack in between.
    fn argument(&self, call: usize) -> Option<u64> {
        let is_end = |end: &usize| are_saves(&self.bytes[*end..call]);
        let ends = (call.saturating_sub(SAVES_WITHIN)..=call).rev().filter(is_end);
        ends.filter_map(|end| self.argument_before(end)).next()
    }

    /// Returns the address that the instruction before a place loads into `rdi`.
    fn argument_before(&self, end: usize) -> Option<u64> {
        if let Some([0x48, 0x8d, 0x3d, ..]) = end.checked_sub(7).map(|at| &self.bytes[at..end]) {
            return self.relative(end - 4);
        }
        let [rex, opcode, modrm] = self.bytes[end.checked_sub(3)?..end] else { return None };
        // mov %reg, %rdi
        let is_move = matches!(rex, 0x48 | 0x4c) && opcode == 0x89 && modrm & 0xc7 == 0xc7;
        let load = [rex, 0x8d, modrm & 0x38 | 5];
        let from = end.saturating_sub(NEAR);
        let loads = memmem::find_iter(&self.bytes[from..end], &load);
        let mut addresses = loads.filter_map(|place| self.relative(from + place + load.len()));
        let first = addresses.next().filter(|_| is_move)?;
        addresses.all(|other| other == first).then_some(first)
    }
}

/// Returns whether instructions only save registers on the stack: `mov %reg, n(%rsp)`.
fn are_saves(mut code: &[u8]) -> bool {
    while !code.is_empty() {
        let after_rex = match code {
            [0x40..=0x4f, rest @ ..] => rest,
            _ => code,
        };
        code = match after_rex {
            [0x89, modrm, 0x24, rest @ ..] if modrm & 0xc7 == 0x04 => rest,
            [0x89, modrm, 0x24, _, rest @ ..] if modrm & 0xc7 == 0x44 => rest,
            _ => return false,
        };
    }
    true
}

/// Maximum number of bytes of such instructions.
const SAVES_WITHIN: usize = 32;
/// The instruction `endbr64`.
const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::assembled::{AT, Assembled};

    const LIBC: u64 = 0x50_0000;
    const LOCK: u64 = 0x50_0100;
    const OTHER: u64 = 0x50_0108;
    const CONTEXT: u64 = 0x50_1000;

    impl Assembled {
        /// `__lock`; returns its address.
        fn lock(&mut self) -> u64 {
            let at = self.at();
            self.relative(&[0x0f, 0xbe, 0x0d], LIBC + NEED_LOCKS_AT);
            self.plain(&[0x85, 0xc9, 0x74, 0x10, 0x31, 0xc0, 0xba]).plain(&HELD);
            self.plain(&[0xf0, 0x0f, 0xb1, 0x17, 0xc3]);
            at
        }

        /// A function that takes a lock directly, or by a register, and uses the context.
        fn user(&mut self, function: u64, lock: u64, by_register: bool, context: u64) {
            if by_register {
                self.relative(&[0x4c, 0x8d, 0x3d], lock).plain(&[0x90; 20]);
                self.plain(&[0x4c, 0x89, 0xff]);
            } else {
                self.relative(&[0x48, 0x8d, 0x3d], lock);
            }
            self.relative(&[0xe8], function).relative(&[0x8b, 0x05], context).plain(&[0xc3]);
        }
    }

    fn found(code: &[u8]) -> Option<u64> {
        let code = Code { at: AT, bytes: code };
        let function = LockFunction::find(&[code])?;
        assert_eq!(function.need_locks, LIBC + NEED_LOCKS_AT);
        let calls = code.calls_near(function.start, &(CONTEXT..CONTEXT + 928));
        let mut locks: Vec<u64> = calls.into_iter().filter_map(|at| code.argument(at)).collect();
        locks.dedup();
        (locks.len() == 1).then(|| locks[0])
    }

    #[test]
    fn the_lock_is_the_argument_of_calls_near_the_context() {
        let mut code = Assembled::default();
        let function = code.lock();
        code.user(function, LOCK, true, CONTEXT + 80);
        code.plain(&[0x90; 40]).user(function, LOCK, false, CONTEXT);
        code.plain(&[0x90; 2 * NEAR]).user(function, OTHER, false, LIBC);
        assert_eq!(found(&code.0), Some(LOCK));
    }

    #[test]
    fn registers_may_be_saved_between_the_address_and_the_call() {
        let saves = [0x44, 0x89, 0x44, 0x24, 0x08, 0x48, 0x89, 0x14, 0x24];
        for (between, is_found) in [(&saves[..], true), (&[0x90][..], false)] {
            let mut code = Assembled::default();
            let function = code.lock();
            code.relative(&[0x48, 0x8d, 0x3d], LOCK).plain(between);
            code.relative(&[0xe8], function).relative(&[0x8b, 0x05], CONTEXT).plain(&[0xc3]);
            assert_eq!(found(&code.0), is_found.then_some(LOCK), "{between:x?}");
        }
    }

    #[test]
    fn two_functions_that_could_be_the_lock_function_are_none() {
        let mut code = Assembled::default();
        let function = code.lock();
        code.lock();
        code.user(function, LOCK, true, CONTEXT);
        assert_eq!(found(&code.0), None);
    }

    #[test]
    fn a_register_with_two_addresses_is_no_argument() {
        let mut code = Assembled::default();
        let function = code.lock();
        code.relative(&[0x4c, 0x8d, 0x3d], OTHER);
        code.user(function, LOCK, true, CONTEXT);
        assert_eq!(found(&code.0), None);
    }

    #[test]
    fn code_of_any_bytes_is_searched_without_a_panic() {
        for length in 0..40 {
            for byte in [0x05, 0xe8, 0x0f, 0x80, 0xf0] {
                let bytes = vec![byte; length];
                let code = Code { at: u64::MAX - 20, bytes: &bytes };
                assert_eq!(LockFunction::find(&[code]), None);
                let calls = code.calls_near(AT, &(0..u64::MAX));
                assert!(calls.into_iter().all(|call| code.argument(call) != Some(AT)));
            }
        }
    }
}
