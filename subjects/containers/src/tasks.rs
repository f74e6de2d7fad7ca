//! A million tasks that sleep. Some of them may outlive the others.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::options::Options;
use crate::runtimes::{Gate, Runtimes, wait_until};
use crate::stage::Stage;

/// Minimum size of the block that an interleaved task holds, in bytes. The maximum is eight times
/// as large: a part of a page.
const LEAST_HELD: usize = 128;
const SPREAD: usize = 897;

/// The tasks that outlive the others of their round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Long {
    None,
    /// The last task.
    Last,
    /// One in four, like long requests among short ones. Each task then holds a block besides its
    /// own.
    EveryFourth,
}

impl Long {
    fn holds_for(self, place: usize, count: usize) -> bool {
        match self {
            Self::None => false,
            Self::Last => place + 1 == count,
            Self::EveryFourth => place.is_multiple_of(4),
        }
    }
}

/// Runs one round.
pub(crate) fn round(
    stage: &Stage,
    runtimes: &Runtimes,
    count: usize,
    long: Long,
) -> Result<(), String> {
    let (handle, own) = runtimes.of_round()?;
    let (short_ones, long_ones) = (Gate::new(), Gate::new());
    for place in 0..count {
        let gate = if long.holds_for(place, count) { &long_ones } else { &short_ones }.clone();
        if long == Long::EveryFourth {
            let held = held(place);
            handle.spawn(async move {
                gate.sleep().await;
                drop(held);
            });
        } else {
            handle.spawn(async move { gate.sleep().await });
        }
    }
    let asleep = || short_ones.asleep() + long_ones.asleep();
    wait_until(|| asleep() == count);
    stage.announce("filled", &format!("{count} tasks"));
    short_ones.open();
    wait_until(|| short_ones.asleep() == 0);
    stage.announce("emptied", &format!("{} tasks", asleep()));
    long_ones.open();
    wait_until(|| asleep() == 0);
    if long != Long::None || own.is_some() {
        drop(own);
        stage.announce("dropped", "no task");
    }
    Ok(())
}

/// Returns a block with a size that differs between tasks.
fn held(place: usize) -> Vec<u8> {
    vec![1; LEAST_HELD + place.wrapping_mul(7919) % SPREAD]
}

/// The numbers of tasks that have started and that have ended.
#[derive(Default)]
struct Counts {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

/// Runs one round of tasks that each end by a sleep of their own, as in the post.
pub(crate) fn sleepers(
    stage: &Stage,
    runtimes: &Runtimes,
    options: &Options,
) -> Result<(), String> {
    let (handle, own) = runtimes.of_round()?;
    let (count, state, sleep) = (options.count, options.state, options.sleep);
    let counts = Arc::new(Counts::default());
    let spawn_all = {
        let (handle, counts) = (handle.clone(), Arc::clone(&counts));
        move || {
            for _ in 0..count {
                spawn(&handle, state, sleep, &counts);
            }
        }
    };
    if options.inside {
        handle.spawn(async move { spawn_all() });
    } else {
        spawn_all();
    }
    wait_until(|| counts.begun.load(Ordering::Relaxed) == count);
    stage.announce("filled", &format!("{count} tasks"));
    wait_until(|| counts.ended.load(Ordering::Relaxed) == count);
    stage.announce("emptied", "no task");
    stage.drop_runtime(own, "no task");
    Ok(())
}

fn spawn(handle: &Handle, state: usize, sleep: Duration, counts: &Arc<Counts>) {
    match state {
        0 => spawn_with::<0>(handle, sleep, counts),
        64 => spawn_with::<64>(handle, sleep, counts),
        1024 => spawn_with::<1024>(handle, sleep, counts),
        _ => spawn_with::<16384>(handle, sleep, counts),
    }
}

/// Spawns a task that holds `BYTES` bytes while it sleeps.
fn spawn_with<const BYTES: usize>(handle: &Handle, sleep: Duration, counts: &Arc<Counts>) {
    let (counts, state) = (Arc::clone(counts), [1_u8; BYTES]);
    handle.spawn(async move {
        counts.begun.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(sleep).await;
        black_box(&state);
        counts.ended.fetch_add(1, Ordering::Relaxed);
    });
}
