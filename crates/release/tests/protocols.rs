//! Models of the protocols by which the code in a process prevents other threads from using the
//! memory that it drops. Each test visits every state that some threads can reach, in every order
//! of their steps. A step is one atomic operation or one system call.
//!
//! The lock is that of glibc's `lll_lock`. jemalloc's mutexes and gperftools' lock are the same or
//! similar. The claim is that of mimalloc 3 (`crates/heap/src/mimalloc/droppable.rs`). Memory of
//! mimalloc 2 is dropped by the thread that owns it, so there is no concurrency.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// Visits all reachable states, and checks those in which no further step is possible. Returns
/// their number.
fn explore<S: Clone + Eq + Hash + Debug>(
    first: S,
    next: impl Fn(&S) -> Vec<S>,
    check: impl Fn(&S),
    check_end: impl Fn(&S),
) -> usize {
    let mut seen = HashSet::from([first.clone()]);
    let mut left = vec![first];
    while let Some(state) = left.pop() {
        check(&state);
        let following = next(&state);
        if following.is_empty() {
            check_end(&state);
        }
        for state in following {
            if seen.insert(state.clone()) {
                left.push(state);
            }
        }
    }
    seen.len()
}

/// The next step of a thread with regard to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Try,
    Exchange,
    Wait,
    Asleep,
    Holds,
    Unlock,
    Wake,
    Done,
}

/// Threads of the program, and the stub as the last thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Locked {
    futex: u8,
    /// The next step of each thread, and the number of times that it will still take the lock.
    threads: Vec<(Step, u8)>,
}

impl Locked {
    fn set(&self, thread: usize, step: Step) -> Self {
        let mut state = self.clone();
        state.threads[thread].0 = step;
        state
    }

    /// Takes or exchanges the word, and continues.
    fn with(&self, thread: usize, futex: u8, step: Step) -> Self {
        Self { futex, ..self.set(thread, step) }
    }

    fn next_of(&self, thread: usize, stub_checks_nothing: bool) -> Vec<Self> {
        let is_stub = thread + 1 == self.threads.len();
        let (step, rounds) = self.threads[thread];
        match step {
            Step::Try if is_stub && stub_checks_nothing => vec![self.set(thread, Step::Holds)],
            Step::Try if self.futex == 0 => vec![self.with(thread, 1, Step::Holds)],
            Step::Try => vec![self.set(thread, Step::Exchange)],
            Step::Exchange if self.futex == 0 => vec![self.with(thread, 2, Step::Holds)],
            // The stub may have waited for long enough. It leaves the word as it is.
            Step::Exchange if is_stub => {
                vec![self.with(thread, 2, Step::Wait), self.with(thread, 2, Step::Done)]
            }
            Step::Exchange => vec![self.with(thread, 2, Step::Wait)],
            Step::Wait if self.futex == 2 => vec![self.set(thread, Step::Asleep)],
            Step::Wait => vec![self.set(thread, Step::Exchange)],
            // Only the stub's wait has a timeout.
            Step::Asleep if is_stub => vec![self.set(thread, Step::Exchange)],
            Step::Asleep => vec![],
            Step::Holds => vec![self.set(thread, Step::Unlock)],
            Step::Unlock => {
                let step = if self.futex > 1 { Step::Wake } else { Step::Done };
                vec![self.with(thread, 0, step).again(thread, rounds)]
            }
            Step::Wake => {
                let done = self.set(thread, Step::Done).again(thread, rounds);
                let sleepers: Vec<usize> = (0..self.threads.len())
                    .filter(|other| self.threads[*other].0 == Step::Asleep)
                    .collect();
                match sleepers.is_empty() {
                    true => vec![done],
                    false => sleepers.iter().map(|one| done.set(*one, Step::Exchange)).collect(),
                }
            }
            Step::Done => vec![],
        }
    }

    /// Lets a thread that is done take the lock once more.
    fn again(mut self, thread: usize, rounds: u8) -> Self {
        if self.threads[thread].0 == Step::Done && rounds > 1 {
            self.threads[thread] = (Step::Try, rounds - 1);
        }
        self
    }

    fn next(&self, stub_checks_nothing: bool) -> Vec<Self> {
        (0..self.threads.len()).flat_map(|n| self.next_of(n, stub_checks_nothing)).collect()
    }

    fn holders(&self) -> usize {
        self.threads.iter().filter(|(step, _)| matches!(step, Step::Holds | Step::Unlock)).count()
    }
}

fn threads(program: usize, rounds: u8) -> Locked {
    Locked { futex: 0, threads: vec![(Step::Try, rounds); program + 1] }
}

#[test]
fn a_lock_has_one_holder_and_wakes_every_waiter_even_if_the_stub_gives_up() {
    for (program, rounds) in [(1, 3), (2, 2), (3, 2)] {
        let states = explore(
            threads(program, rounds),
            |state| state.next(false),
            |state| assert!(state.holders() <= 1, "{state:?}"),
            |state| {
                assert!(state.threads.iter().all(|(step, _)| *step == Step::Done), "{state:?}");
                assert_eq!(state.futex, 0, "{state:?}");
            },
        );
        assert!(states > 100, "{states}");
    }
}

#[test]
#[should_panic(expected = "two holders")]
fn the_model_detects_a_stub_that_takes_no_lock() {
    explore(
        threads(2, 1),
        |state| state.next(true),
        |state| assert!(state.holders() <= 1, "two holders: {state:?}"),
        |_| {},
    );
}

/// The owner of a slice of mimalloc 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Nobody,
    Thread(usize),
    Stub,
}

/// The next step of a thread with regard to the slices of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Claim {
    /// Reads the summary, which shows whether the chunk may have free slices.
    Look,
    /// Claims a slice of the word.
    Clear,
    /// Has found the word empty: clears the bit of the summary.
    ClearSummary,
    /// Reads the word again.
    LookAgain,
    /// Writes to the slice, or drops it.
    Use(usize),
    /// Sets the bit of the slice again.
    Set(usize),
    /// Sets the bit of the summary.
    SetSummary,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Claimed {
    /// Whether each of two slices is free.
    free: [bool; 2],
    summary: bool,
    owners: [Owner; 2],
    /// The next step of each thread, with the stub as the last one, and the number of times that it
    /// still starts again.
    threads: Vec<(Claim, u8)>,
    /// Whether a slice was dropped while a thread owned it.
    is_broken: bool,
}

impl Claimed {
    fn next_of(&self, thread: usize, stub_claims: bool) -> Vec<Self> {
        let is_stub = thread + 1 == self.threads.len();
        let owner = if is_stub { Owner::Stub } else { Owner::Thread(thread) };
        let (step, rounds) = self.threads[thread];
        let to = |step| {
            let mut state = self.clone();
            state.threads[thread].0 = step;
            state
        };
        let taken = |slice: usize| {
            let mut state = to(Claim::Use(slice));
            (state.free[slice], state.owners[slice]) = (false, owner);
            state
        };
        match step {
            // The walk has found the first slice free.
            Claim::Look if is_stub && !stub_claims => vec![to(Claim::Use(0))],
            Claim::Look if is_stub && self.free[0] => vec![taken(0)],
            Claim::Look if is_stub => vec![to(Claim::Done)],
            Claim::Look if self.summary => vec![to(Claim::Clear)],
            Claim::Look => vec![to(Claim::Done)],
            Claim::Clear => match (0..2).filter(|slice| self.free[*slice]).map(taken).collect() {
                found if self.free.contains(&true) => found,
                _ => vec![to(Claim::ClearSummary)],
            },
            Claim::ClearSummary => vec![Self { summary: false, ..to(Claim::LookAgain) }],
            Claim::LookAgain if self.free.contains(&true) => vec![to(Claim::SetSummary)],
            Claim::LookAgain => vec![to(Claim::Done)],
            Claim::Use(slice) => {
                let is_others = matches!(self.owners[slice], Owner::Thread(_));
                let is_broken = self.is_broken || is_stub && is_others;
                let step = if is_stub && !stub_claims { Claim::Done } else { Claim::Set(slice) };
                vec![Self { is_broken, ..to(step) }]
            }
            Claim::Set(slice) => {
                let mut state = to(Claim::SetSummary);
                (state.free[slice], state.owners[slice]) = (true, Owner::Nobody);
                vec![state]
            }
            Claim::SetSummary => vec![Self { summary: true, ..to(Claim::Done) }],
            Claim::Done if rounds > 1 => {
                let mut state = to(Claim::Look);
                state.threads[thread].1 -= 1;
                vec![state]
            }
            Claim::Done => vec![],
        }
    }

    fn next(&self, stub_claims: bool) -> Vec<Self> {
        (0..self.threads.len()).flat_map(|n| self.next_of(n, stub_claims)).collect()
    }
}

fn chunk(program: usize, rounds: u8) -> Claimed {
    Claimed {
        free: [true; 2],
        summary: true,
        owners: [Owner::Nobody; 2],
        threads: vec![(Claim::Look, rounds); program + 1],
        is_broken: false,
    }
}

#[test]
fn a_claimed_slice_has_one_owner_and_becomes_free_again() {
    for (program, rounds) in [(1, 3), (2, 2), (3, 1)] {
        let states = explore(
            chunk(program, rounds),
            |state| state.next(true),
            |state| assert!(!state.is_broken, "{state:?}"),
            |state| assert!(state.summary && state.free == [true; 2], "{state:?}"),
        );
        assert!(states > 100, "{states}");
    }
}

#[test]
#[should_panic(expected = "a thread had it")]
fn the_model_detects_a_stub_that_claims_nothing() {
    explore(
        chunk(1, 1),
        |state| state.next(false),
        |state| assert!(!state.is_broken, "a thread had it: {state:?}"),
        |_| {},
    );
}
