//! A run of one program, with or without releases.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::release::{Method, Release};
use lowtide_probe::detect::Detector;
use lowtide_probe::target::{Target, TargetError};
use lowtide_release::testing::{TargetStep, release_observed};
use lowtide_release::{KeptWalk, Options, ReleaseError, Walk};

use crate::record::{Kind, Record};
use crate::subject::{Library, Shape, Subject};
use crate::tally::Tally;

/// The parameters of a run.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) library: Library,
    pub(crate) shape: Shape,
    pub(crate) seed: u64,
    /// Run time of the program, in ms. If no release has returned anything by then, it goes on.
    pub(crate) ms: u64,
}

/// Random numbers from a seed.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        let mut draw = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        draw.below(1);
        draw
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) % end
    }
}

impl Run {
    pub(crate) fn go(&self, kind: Kind) -> Record {
        /// Maximum further run time in which nothing is returned.
        const MAX_IN_VAIN: Duration = Duration::from_secs(20);
        /// Time after which the program counts as hung. It ends by itself, and reports if a part of
        /// it hangs.
        const GRACE: Duration = Duration::from_secs(60);
        let home = tempfile::tempdir().unwrap();
        let until = home.path().join("enough");
        let least = Duration::from_millis(self.ms);
        let most = least + MAX_IN_VAIN;
        let mut subject = Subject::start(&self.library, self.shape, self.seed, most, &until);
        let begin = Instant::now();
        let target = Target::open(subject.pid()).unwrap();
        let allocator = version(&self.library, &target);
        let mut tally = Tally::default();
        let mut draw = Draw::new(self.seed);
        while !subject.has_ended() {
            let elapsed = begin.elapsed();
            if elapsed >= least && (kind == Kind::Control || tally.returned > 0) {
                fs::write(&until, "").unwrap();
            }
            if elapsed > most + GRACE {
                tally.failures.push(format!("it hangs:\n{}", subject.threads()));
                subject.kill();
                break;
            }
            match kind {
                Kind::Release if tally.gone.is_none() => act(&target, &mut draw, &mut tally),
                _ => std::thread::park_timeout(Duration::from_millis(10)),
            }
        }
        if tally.gone.is_some_and(|at| at.elapsed() > GRACE) {
            tally.failures.push("it was told to have ended, and went on".to_owned());
        }
        let (said, ended) = subject.end();
        tally.failures.extend(ended.err());
        Record::new(kind, self, allocator, tally, &said)
    }
}

/// Releases memory once, sometimes twice at the same time, sometimes by a walk that is up to a
/// second old. Then pauses in half of the cases.
fn act(target: &Target, draw: &mut Draw, tally: &mut Tally) {
    const DOUBLE_RELEASE_INTERVAL: u64 = 16;
    const MAX_PAUSE_MS: u64 = 100;
    // This test determines which versions of allocators count as tested.
    const EARLIER_WALK_INTERVAL: u64 = 4;
    const MAX_AGE_MS: u64 = 1000;
    let mut options = Options {
        untested: true,
        method: method(),
        min_privileged_age: Duration::ZERO,
        ..Options::default()
    };
    if draw.below(EARLIER_WALK_INTERVAL) == 0
        && let Ok(Some(walk)) = KeptWalk::make(target, &options)
    {
        std::thread::park_timeout(Duration::from_millis(draw.below(MAX_AGE_MS)));
        options.walk = Walk::Earlier(Arc::new(walk));
    }
    if draw.below(DOUBLE_RELEASE_INTERVAL) == 0 {
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(|| release(target, &options, 1));
            [release(target, &options, 2), other.join().unwrap()]
        });
        tally.doubled += 1;
        for one in both {
            count(one, true, tally);
        }
    } else {
        count(release(target, &options, draw.below(u64::MAX)), false, tally);
    }
    // While a process is ending, its threads are still listed for a moment.
    if tally.gone.is_none() {
        tally.failures.extend(left_behind(target.pid));
    }
    if draw.below(2) == 0 {
        std::thread::park_timeout(Duration::from_millis(draw.below(MAX_PAUSE_MS)));
    }
}

/// Returns the method in `LOWTIDE_TORTURE_METHOD`.
fn method() -> Option<Method> {
    let name = std::env::var("LOWTIDE_TORTURE_METHOD").ok()?;
    assert_eq!(name, "purge", "LOWTIDE_TORTURE_METHOD");
    Some(Method::Purge)
}

/// Releases memory. With `LOWTIDE_TORTURE_DELAY_MS`, time passes between the walk and the
/// operations that follow it, so that much of the memory that the walk has found is in use again.
fn release(target: &Target, options: &Options, seed: u64) -> Result<Release, ReleaseError> {
    let delay = std::env::var("LOWTIDE_TORTURE_DELAY_MS").ok();
    let delay: u64 = delay.map_or(0, |ms| ms.parse().expect("LOWTIDE_TORTURE_DELAY_MS"));
    let mut draw = Draw::new(seed);
    release_observed(target, options, &mut |step| {
        if step == TargetStep::Write && delay > 0 && draw.below(4) == 0 {
            std::thread::sleep(Duration::from_millis(draw.below(delay)));
        }
    })
}

fn count(result: Result<Release, ReleaseError>, is_double: bool, tally: &mut Tally) {
    match result {
        Ok(release) => tally.add(&release, is_double),
        // Its memory is released before it has ended, so it may seem to have started another
        // program.
        Err(
            ReleaseError::Target(TargetError::Gone(_) | TargetError::Replaced(_))
            | ReleaseError::Ended(_)
            | ReleaseError::Replaced(_),
        ) => {
            tally.gone.get_or_insert_with(Instant::now);
        }
        // On a machine that is busy beyond its processors, this process may not run for a second.
        // Then the thread of lowtide ends.
        Err(ReleaseError::Failed(reason)) if reason.contains("no heartbeat") => {
            *tally.partial.entry(reason).or_default() += 1;
        }
        // There, lowtide also gives up before it has changed anything.
        Err(ReleaseError::Target(error @ (TargetError::Slow(_) | TargetError::Blocked(_)))) => {
            *tally.partial.entry(error.to_string()).or_default() += 1;
        }
        Err(error) => tally.failures.push(format!("a release failed: {error}")),
    }
}

/// Returns a description of what a release has left in the program: there should be nothing.
fn left_behind(pid: u32) -> Option<String> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let maps = read("maps");
    let mapping = maps.lines().find(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_code = words.next().is_some_and(|permissions| permissions.contains('x'));
        let name = words.nth(3).unwrap_or_default();
        // Kernels that do not name mappings show code without a file.
        name == "[anon:lowtide]" || is_code && name.is_empty()
    });
    mapping.map(|mapping| format!("a mapping was left: {mapping}"))
}

/// Returns the version of glibc, or the name and the version of another allocator.
fn version(library: &Library, target: &Target) -> String {
    let maps = target.maps().unwrap();
    let detected = Detector::default().detect(target.pid, &maps).unwrap();
    let malloc = detected.malloc.expect("an allocator");
    let version = || malloc.version.expect("a version that is known");
    match (library, malloc.kind) {
        // A static program does not contain it.
        (Library::Musl(musl, linkage), _) => format!("musl {}, {linkage:?}", musl.version()),
        (_, AllocatorKind::Glibc) => version(),
        (_, other) => format!("{other} {}", version()),
    }
}
