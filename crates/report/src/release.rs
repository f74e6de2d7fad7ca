//! A release, or a dry run of one, for people: RSS before and after, the work, its cost for the
//! process, and the outcome in a sentence.

use std::fmt::Write as _;

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::release::{
    Collected, Hazard, HeapRelease, Method, Regained, Release, ReleaseOutcome, RunsIn,
};

use crate::screen::{Screen, bold, hanging, title};
use crate::text::{printable, thousands, wrapped};

/// Formats a release, without the memory that the process took again afterwards: see [`regained`].
pub fn render(release: &Release, screen: Screen) -> String {
    let mut out = format!("{}\n", title(&release.command, release.pid, screen));
    let facts = facts(release);
    if !facts.is_empty() {
        let _ = writeln!(out, "{}", wrapped(&facts, screen.width));
    }
    let _ = writeln!(out, "\n{}", rss(release));
    for (label, text) in rows(release) {
        out += &row(label, &text, screen);
    }
    for note in &release.notes {
        let _ = writeln!(out, "{}", wrapped(&format!("note: {note}"), screen.width));
    }
    let sentence = format!("{}.", sentence(release));
    let _ = writeln!(out, "\n{}", bold(&wrapped(&sentence, screen.width), screen));
    out
}

/// Formats the memory that a process took again some time after a release, as one more row.
pub fn regained(regained: &Regained, screen: Screen) -> String {
    let after = HumanSeconds(regained.after_s);
    let huge = match regained.huge_bytes {
        Some(0) => "none of it in huge pages".to_owned(),
        Some(bytes) => format!("{} more in huge pages", Human(bytes)),
        None => "huge pages could not be counted".to_owned(),
    };
    let text = match (regained.rss_bytes, regained.huge_bytes) {
        (0, Some(0) | None) => format!("nothing within {after}"),
        (bytes, _) => format!("{} of RSS within {after}, {huge}", Human(bytes)),
    };
    row("came back", &text, screen)
}

/// Describes a collection before it begins.
pub fn collects(before: &Collected) -> String {
    let heap = before.heap_before.map(|heap| {
        format!(
            "; of the {} that its heap has committed, {} were in use after the last collection",
            Human(heap.committed_bytes),
            Human(heap.used_bytes)
        )
    });
    format!(
        "{} runs {}, whose pauses of all threads have no bound{}",
        runtime(before),
        before.by.iter().map(|name| printable(name)).collect::<Vec<_>>().join(" and "),
        heap.unwrap_or_else(|| "; it does not show how much of its heap is in use".to_owned())
    )
}

fn runtime(collected: &Collected) -> String {
    match &collected.collector {
        Some(collector) => format!("{} ({})", printable(&collected.runtime), printable(collector)),
        None => printable(&collected.runtime),
    }
}

/// Describes a collection that was made.
fn collection(collected: &Collected, after_bytes: u64) -> String {
    let by: Vec<String> = collected.by.iter().map(|name| printable(name)).collect();
    let mut text = format!("{} by {}", runtime(collected), by.join(", then "));
    if let Some(elapsed) = collected.elapsed_s {
        text += &format!(" in {}", HumanSeconds(elapsed));
    }
    if let Some(pause) = collected.pause_s {
        text += &format!(", pauses of all threads {} together", HumanSeconds(pause));
    }
    text += &format!(": RSS {} → {}", Human(collected.before_bytes), Human(after_bytes));
    if let Some((before, after)) = collected.heap_before.zip(collected.heap_after) {
        text += &format!(
            "; its heap: {} → {} committed, {} → {} in use after a collection",
            Human(before.committed_bytes),
            Human(after.committed_bytes),
            Human(before.used_bytes),
            Human(after.used_bytes)
        );
    }
    text
}

/// Describes the outcome in a sentence.
pub fn sentence(release: &Release) -> String {
    let sizes = |collected: &Collected| Some((collected.before_bytes, collected.after_bytes?));
    match release.collected.as_ref().and_then(sizes) {
        None => outcome(release),
        // Then something was done.
        Some((before, after)) => {
            let rest = outcome(release).replace(", and nothing was done", "");
            format!(
                "the runtime has collected (RSS {} → {}); the release of malloc's memory: {rest}",
                Human(before),
                Human(after)
            )
        }
    }
}

/// Describes the outcome of the release itself.
fn outcome(release: &Release) -> String {
    let (returned, predicted) = (release.returned_bytes, release.predicted_bytes);
    let reason = release.reason.as_deref().map(printable);
    let reason = reason.as_deref().unwrap_or("the reason is not known");
    match release.outcome {
        // Its threads were paused, in vain.
        ReleaseOutcome::Refused if release.hazard == Some(Hazard::LockTaken) => {
            format!("nothing was returned: {reason}")
        }
        ReleaseOutcome::Refused => format!("refused, and nothing was done: {reason}"),
        ReleaseOutcome::NothingToRelease => {
            let (rss, predicted) = (Human(release.rss_after_bytes), release.predicted_bytes);
            let what = match predicted {
                0 if release.method == Method::Purge => {
                    "the allocator's own purge would return nothing".to_owned()
                }
                0 => "no whole page of its heap is free and resident".to_owned(),
                few => format!("{} of whole free pages are not worth a pause", Human(few)),
            };
            format!("nothing to release: {what}, and nothing was done; RSS is {rss}")
        }
        ReleaseOutcome::Released if release.dry_run => {
            let shared = shared(release, "are mapped");
            format!("dry run: {} would be returned{shared}; nothing was done", Human(predicted))
        }
        ReleaseOutcome::Released if returned == 0 && release.skipped_ranges > 0 => format!(
            "nothing was returned: {} that were free when the heap was read were in use again, or locked, \
             when they were due",
            many(release.skipped_ranges, "range")
        ),
        ReleaseOutcome::Released => format!("released: {}", given_back(release)),
        ReleaseOutcome::Partial if returned == 0 => {
            format!("nothing was returned: the release stopped early ({reason})")
        }
        ReleaseOutcome::Partial => {
            format!("released in part: {}, then the release stopped: {reason}", given_back(release))
        }
    }
}

/// Describes the returned memory, the prediction, and the memory that the program took again.
fn given_back(release: &Release) -> String {
    let (returned, predicted) = (release.returned_bytes, release.predicted_bytes);
    let mut text = format!("{} were returned", Human(returned));
    if predicted > 0 {
        let share = returned as f64 / predicted as f64 * 100.0;
        text += &match share.round() {
            100.0 => format!(", 100 % of the {} predicted", Human(predicted)),
            less if less < 100.0 => format!(", {less:.0} % of the {} predicted", Human(predicted)),
            _ => format!(
                "; {} were predicted, and the program freed more in the meantime",
                Human(predicted)
            ),
        };
    }
    text += &shared(release, "are still mapped");
    let again = taken_again(release);
    if again > 0 {
        text += &format!("; the program reused {} in the meantime", Human(again));
    }
    text
}

/// Returns what a release leaves in the memory of the machine, because forked processes map the
/// same pages, as the end of a sentence; an empty text if that is hardly anything.
fn shared(release: &Release, are_mapped: &str) -> String {
    /// Part of the release below which it is not mentioned.
    const LITTLE: u64 = 20;
    let all = if release.dry_run { release.predicted_bytes } else { release.returned_bytes };
    let Some((bytes, with)) = release.shared_bytes.zip(release.shared_with) else {
        return String::new();
    };
    if bytes <= all / LITTLE {
        return String::new();
    }
    let (others, each) = match with {
        1 => ("1 process".to_owned(), "that one returns them, too"),
        _ => (format!("some of {} processes", thousands(with)), "each of these has returned them"),
    };
    format!(
        "; {} of it {are_mapped} by {others}, forked from or with this one: the machine gains them only once {each}",
        Human(bytes)
    )
}

/// Returns by how many bytes RSS fell less than was returned; 0 if the difference is within the
/// usual change.
fn taken_again(release: &Release) -> u64 {
    /// Smaller differences are within the usual change, in bytes,
    const USUAL_BYTES: u64 = 1 << 20;
    /// and so are those below the returned bytes divided by this.
    const USUAL_SHARE: u64 = 20;
    let fell = release.rss_before_bytes.saturating_sub(release.rss_after_bytes);
    let again = release.returned_bytes.saturating_sub(fell);
    if again >= USUAL_BYTES.max(release.returned_bytes / USUAL_SHARE) { again } else { 0 }
}

/// Describes the allocator and the method.
fn facts(release: &Release) -> String {
    let mut parts = Vec::new();
    match heaps_with_memory(release).as_slice() {
        [_, _, ..] => parts.push("several heaps".to_owned()),
        _ => {
            let version = release.allocator_version.as_deref();
            parts.extend(release.allocator.as_ref().map(|name| allocator(name, version)));
        }
    }
    if matches!(release.outcome, ReleaseOutcome::Released | ReleaseOutcome::Partial) {
        parts.push(how(release).to_owned());
    }
    parts.join(" · ")
}

fn how(release: &Release) -> &'static str {
    match release.method {
        Method::Chunks if !has_locks(release) => {
            "range by range, each while no thread can allocate it"
        }
        Method::Chunks => "range by range, each under a lock held for a bounded time",
        Method::Trim => "malloc_trim, which holds each arena's lock without a bound",
        Method::Purge => "the allocator's own purge",
    }
}

fn rss(release: &Release) -> String {
    let before = Human(release.rss_before_bytes);
    match release.outcome {
        ReleaseOutcome::Released | ReleaseOutcome::Partial if !release.dry_run => format!(
            "RSS {before} → {} in {}",
            Human(release.rss_after_bytes),
            HumanSeconds(release.elapsed_s)
        ),
        _ => format!("RSS {before}"),
    }
}

fn row(label: &str, text: &str, screen: Screen) -> String {
    hanging(&format!(" {label:<10} "), text, screen)
}

fn rows(release: &Release) -> Vec<(&'static str, String)> {
    let is_act = matches!(release.outcome, ReleaseOutcome::Released | ReleaseOutcome::Partial);
    let mut rows: Vec<(&'static str, String)> = Vec::new();
    let with_memory = heaps_with_memory(release);
    if is_act && with_memory.len() > 1 {
        rows.extend(with_memory.iter().map(|heap| ("heap", of_heap(heap, release.dry_run))));
    }
    if let Some(collected) = &release.collected {
        rows.push(match collected.after_bytes {
            Some(bytes) => ("collected", collection(collected, bytes)),
            None => ("collect", collects(collected)),
        });
    }
    let mut add = |label, text: Option<String>| rows.extend(text.map(|text| (label, text)));
    if is_act && release.dry_run {
        add("runs", place(release));
        add("pauses", Some(bound(release)));
    } else if is_act {
        add("ran", place(release));
        add("pauses", Some(pauses(release)));
        add("locks", (release.lock_holds > 0).then(|| locks(release)));
        add("passes", Some(passes(release)));
        add(
            "huge pages",
            some(release.huge_gone_bytes, "no longer in huge pages: returned, or split"),
        );
    }
    add("cleaned up", some(release.cleaned_bytes, "left by an earlier release"));
    rows
}

/// Returns the heaps that were released, or that have memory to return.
fn heaps_with_memory(release: &Release) -> Vec<&HeapRelease> {
    let has_memory = |heap: &&HeapRelease| heap.outcome != ReleaseOutcome::NothingToRelease;
    release.heaps.iter().filter(has_memory).collect()
}

fn of_heap(heap: &HeapRelease, is_dry_run: bool) -> String {
    let library = heap.library.as_deref().map(|name| format!(" in {}", printable(name)));
    let name = allocator(&heap.allocator, heap.allocator_version.as_deref());
    let name = format!("{name}{}", library.unwrap_or_default());
    match heap.outcome {
        ReleaseOutcome::Refused => format!("{name}: left alone"),
        _ if is_dry_run => format!("{name}: {} would be returned", Human(heap.predicted_bytes)),
        _ => format!("{name}: {} returned", Human(heap.returned_bytes)),
    }
}

fn allocator(name: &str, version: Option<&str>) -> String {
    match version {
        Some(version) => format!("{} {}", printable(name), printable(version)),
        None => printable(name),
    }
}

fn some(bytes: u64, what: &str) -> Option<String> {
    (bytes > 0).then(|| format!("{} {what}", Human(bytes)))
}

/// Describes where the code runs, and on which thread.
fn place(release: &Release) -> Option<String> {
    let thread = release.thread.map(|thread| match &release.waiting_in {
        Some(call) => format!("thread {thread}, which waits in {}", printable(call)),
        None => format!("thread {thread}"),
    });
    match (release.runs_in, thread) {
        (Some(RunsIn::OwnThread), Some(thread)) => {
            Some(format!("in a separate thread of the same process, started by {thread}"))
        }
        (Some(RunsIn::OwnThread), None) => Some("in a separate thread of the same process".into()),
        (Some(RunsIn::Slices), Some(thread)) if release.method == Method::Trim => {
            Some(format!("at once, in {thread}"))
        }
        (Some(RunsIn::Slices), Some(thread)) => Some(format!("in slices, in {thread}")),
        (Some(RunsIn::Slices), None) => Some("in slices, in a thread that waits".into()),
        (None, thread) => thread.map(|thread| format!("in {thread}")),
    }
}

/// Describes the bound on pauses.
fn bound(release: &Release) -> String {
    match release.method {
        Method::Chunks => format!(
            "of that thread only, each at most {} where the work can be sliced, longer if all processors are busy",
            HumanSeconds(release.pause_bound_s)
        ),
        Method::Trim | Method::Purge => "without a bound".to_owned(),
    }
}

fn pauses(release: &Release) -> String {
    if release.pauses == 0 {
        return "none".to_owned();
    }
    let longest = HumanSeconds(release.longest_pause_s);
    // A thread that works in slices is paused repeatedly; one that only starts lowtide's thread,
    // only around that.
    let whose = match release.runs_in {
        Some(RunsIn::Slices) => "the thread that ran it",
        _ => "a waiting thread",
    };
    let text = match release.pauses {
        1 => format!("1 pause of {whose}: {longest}"),
        count => format!(
            "{} pauses of {whose}, longest {longest} (median {})",
            thousands(count),
            HumanSeconds(release.median_pause_s)
        ),
    };
    format!("{text}{}", over_bound(release))
}

/// Describes how often the bound was exceeded, and for what.
fn over_bound(release: &Release) -> String {
    if release.pauses_over_bound == 0 || release.method != Method::Chunks {
        return String::new();
    }
    let bound = HumanSeconds(release.pause_bound_s);
    let (over, all) = (thousands(release.pauses_over_bound), thousands(release.pauses));
    let waited = HumanSeconds(release.waited_over_bound_s);
    let excess_s = release.longest_pause_s - release.pause_bound_s;
    let why = match release.waited_over_bound_s {
        0.0 => "the kernel took longer; no thread waited for a processor".to_owned(),
        waited_s if waited_s >= excess_s / 2.0 => format!(
            "the processors were busy, and threads waited {waited} for a processor in these pauses"
        ),
        _ => format!("the kernel took longer; threads waited {waited} for a processor"),
    };
    format!("; {over} of {all} exceeded the bound of {bound}: {why}")
}

/// Returns whether free memory of its allocator is protected by locks. Free slices of mimalloc 3
/// are claimed, and free memory of version 2 belongs to one thread.
fn has_locks(release: &Release) -> bool {
    release.allocator.as_deref() != Some("mimalloc")
}

fn locks(release: &Release) -> String {
    let longest = HumanSeconds(release.longest_lock_s);
    if !has_locks(release) {
        return format!("none; {} steps, longest {longest}", thousands(release.lock_holds));
    }
    if release.lock_holds == 1 {
        return format!("1 lock hold in the allocator: {longest}");
    }
    let holds = thousands(release.lock_holds);
    match release.lock_holds {
        ..100 => format!("{holds} lock holds in the allocator, longest {longest}"),
        _ => format!(
            "{holds} lock holds in the allocator, longest {longest}, 99 % under {}",
            HumanSeconds(release.p99_lock_s)
        ),
    }
}

fn passes(release: &Release) -> String {
    let mut parts = vec![thousands(release.passes)];
    if release.skipped_ranges > 0 {
        let ranges = many(release.skipped_ranges, "range");
        parts.push(format!("{ranges} skipped, no longer free, or locked"));
    }
    if release.joined_blocks > 0 {
        let blocks = many(release.joined_blocks, "free block");
        parts.push(format!("{blocks} coalesced with their neighbours"));
    }
    parts.join("; ")
}

/// Formats a count with its noun: `1 range`, `1,204 ranges`.
fn many(count: u64, what: &str) -> String {
    format!("{} {what}{}", thousands(count), if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use lowtide_model::release::JavaHeapSize;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn made_up(outcome: ReleaseOutcome) -> Release {
        let command = vec!["redis-server".to_owned(), "*:6379".to_owned()];
        Release {
            outcome,
            allocator: Some("glibc".to_owned()),
            allocator_version: Some("2.36".to_owned()),
            runs_in: Some(RunsIn::OwnThread),
            thread: Some(4711),
            waiting_in: Some("epoll_wait".to_owned()),
            predicted_bytes: 905 * MIB,
            returned_bytes: 900 * MIB,
            rss_before_bytes: 1210 * MIB,
            rss_after_bytes: 310 * MIB,
            elapsed_s: 0.8,
            pauses: 3,
            longest_pause_s: 0.000_12,
            median_pause_s: 0.000_08,
            pause_bound_s: 0.001,
            lock_holds: 1204,
            longest_lock_s: 0.000_31,
            p99_lock_s: 0.000_09,
            passes: 2,
            skipped_ranges: 12,
            ..Release::of(4711, 1, command)
        }
    }

    fn idle(outcome: ReleaseOutcome) -> Release {
        Release {
            runs_in: None,
            thread: None,
            waiting_in: None,
            predicted_bytes: 0,
            returned_bytes: 0,
            rss_before_bytes: 12 * MIB,
            rss_after_bytes: 12 * MIB,
            pauses: 0,
            lock_holds: 0,
            passes: 0,
            skipped_ranges: 0,
            ..made_up(outcome)
        }
    }

    fn shown(release: &Release) -> String {
        render(release, Screen { width: 90, colour: false })
    }

    #[test]
    fn a_release_reports_the_returned_memory_and_its_cost() {
        insta::assert_snapshot!(shown(&made_up(ReleaseOutcome::Released)), @r"
        redis-server *:6379  PID 4711
        glibc 2.36 · range by range, each under a lock held for a bounded time

        RSS 1.18 GiB → 310 MiB in 800 ms
         ran        in a separate thread of the same process, started by thread 4711, which waits
                    in epoll_wait
         pauses     3 pauses of a waiting thread, longest 120 µs (median 80.0 µs)
         locks      1,204 lock holds in the allocator, longest 310 µs, 99 % under 90.0 µs
         passes     2; 12 ranges skipped, no longer free, or locked

        released: 900 MiB were returned, 99 % of the 905 MiB predicted.
        ");
    }

    #[test]
    fn a_release_reports_its_side_effects_and_notes() {
        let release = Release {
            runs_in: Some(RunsIn::Slices),
            joined_blocks: 1_234_567,
            huge_gone_bytes: 64 * MIB,
            cleaned_bytes: 4096,
            skipped_ranges: 1,
            notes: vec![
                "2 arenas could not be walked to their ends, and were left alone".to_owned(),
            ],
            ..made_up(ReleaseOutcome::Released)
        };
        insta::assert_snapshot!(shown(&release), @r"
        redis-server *:6379  PID 4711
        glibc 2.36 · range by range, each under a lock held for a bounded time

        RSS 1.18 GiB → 310 MiB in 800 ms
         ran        in slices, in thread 4711, which waits in epoll_wait
         pauses     3 pauses of the thread that ran it, longest 120 µs (median 80.0 µs)
         locks      1,204 lock holds in the allocator, longest 310 µs, 99 % under 90.0 µs
         passes     2; 1 range skipped, no longer free, or locked; 1,234,567 free blocks coalesced
                    with their neighbours
         huge pages 64.0 MiB no longer in huge pages: returned, or split
         cleaned up 4.00 KiB left by an earlier release
        note: 2 arenas could not be walked to their ends, and were left alone

        released: 900 MiB were returned, 99 % of the 905 MiB predicted.
        ");
    }

    #[test]
    fn a_dry_run_shows_the_prediction_the_method_and_the_thread() {
        let release = Release {
            dry_run: true,
            returned_bytes: 0,
            rss_after_bytes: 1210 * MIB,
            pauses: 0,
            lock_holds: 0,
            passes: 0,
            ..made_up(ReleaseOutcome::Released)
        };
        insta::assert_snapshot!(shown(&release), @r"
        redis-server *:6379  PID 4711
        glibc 2.36 · range by range, each under a lock held for a bounded time

        RSS 1.18 GiB
         runs       in a separate thread of the same process, started by thread 4711, which waits
                    in epoll_wait
         pauses     of that thread only, each at most 1.00 ms where the work can be sliced, longer
                    if all processors are busy

        dry run: 905 MiB would be returned; nothing was done.
        ");
    }

    #[test]
    fn nothing_to_release_is_reported_in_one_sentence() {
        insta::assert_snapshot!(shown(&idle(ReleaseOutcome::NothingToRelease)), @r"
        redis-server *:6379  PID 4711
        glibc 2.36

        RSS 12.0 MiB

        nothing to release: no whole page of its heap is free and resident, and nothing was done;
        RSS is 12.0 MiB.
        ");
    }

    #[test]
    fn refused_and_partial_releases_are_reported_with_their_reasons() {
        let refused = Release {
            reason: Some("it is stopped, and nothing can run in it: kill -CONT 4711".to_owned()),
            hazard: Some(Hazard::Stopped),
            ..idle(ReleaseOutcome::Refused)
        };
        insta::assert_snapshot!(shown(&refused), @r"
        redis-server *:6379  PID 4711
        glibc 2.36

        RSS 12.0 MiB

        refused, and nothing was done: it is stopped, and nothing can run in it: kill -CONT 4711.
        ");
        let partial = Release {
            returned_bytes: 400 * MIB,
            rss_after_bytes: 810 * MIB,
            pauses: 1,
            lock_holds: 1,
            reason: Some("it started another program: try again".to_owned()),
            ..made_up(ReleaseOutcome::Partial)
        };
        insta::assert_snapshot!(shown(&partial), @r"
        redis-server *:6379  PID 4711
        glibc 2.36 · range by range, each under a lock held for a bounded time

        RSS 1.18 GiB → 810 MiB in 800 ms
         ran        in a separate thread of the same process, started by thread 4711, which waits
                    in epoll_wait
         pauses     1 pause of a waiting thread: 120 µs
         locks      1 lock hold in the allocator: 310 µs
         passes     2; 12 ranges skipped, no longer free, or locked

        released in part: 400 MiB were returned, 44 % of the 905 MiB predicted, then the release
        stopped: it started another program: try again.
        ");
    }

    #[test]
    fn a_collection_is_described_before_and_after_it() {
        let heap = |used, committed| {
            Some(JavaHeapSize { used_bytes: used * MIB, committed_bytes: committed * MIB })
        };
        let before = Collected {
            runtime: "HotSpot".to_owned(),
            collector: Some("G1".to_owned()),
            by: vec!["GC.run".to_owned()],
            pause_s: None,
            elapsed_s: None,
            before_bytes: 1474 * MIB,
            after_bytes: None,
            heap_before: heap(240, 1346),
            heap_after: None,
        };
        let dry = Release {
            dry_run: true,
            collected: Some(before.clone()),
            ..idle(ReleaseOutcome::NothingToRelease)
        };
        let wide = Screen { width: 400, colour: false };
        let text = render(&dry, wide);
        let expected = " collect    HotSpot (G1) runs GC.run, whose pauses of all threads have no bound; of the \
                        1.31 GiB that its heap has committed, 240 MiB were in use after the last collection\n";
        assert!(text.contains(expected), "{text}");
        let done = Collected {
            by: vec!["GC.run".to_owned(), "System.trim_native_heap".to_owned()],
            pause_s: Some(0.08),
            elapsed_s: Some(0.5),
            after_bytes: Some(120 * MIB),
            heap_after: heap(20, 90),
            ..before
        };
        let refused = Release {
            collected: Some(done),
            reason: Some("its C library is too old".to_owned()),
            ..idle(ReleaseOutcome::Refused)
        };
        let text = render(&refused, wide);
        let expected = " collected  HotSpot (G1) by GC.run, then System.trim_native_heap in 500 ms, pauses of \
                        all threads 80.0 ms together: RSS 1.44 GiB → 120 MiB; its heap: 1.31 GiB → 90.0 MiB \
                        committed, 240 MiB → 20.0 MiB in use after a collection\n";
        assert!(text.contains(expected), "{text}");
        assert_eq!(
            sentence(&refused),
            "the runtime has collected (RSS 1.44 GiB → 120 MiB); the release of malloc's memory: refused: its C library \
             is too old"
        );
    }

    #[test]
    fn pauses_over_the_bound_are_counted_and_explained() {
        let over = |waited_over_bound_s| {
            let release = Release {
                pauses: 87,
                pauses_over_bound: 71,
                waited_over_bound_s,
                longest_pause_s: 0.004,
                ..made_up(ReleaseOutcome::Released)
            };
            pauses(&release)
        };
        let text = over(0.097);
        assert!(
            text.contains("; 71 of 87 exceeded the bound of 1.00 ms: the processors"),
            "{text}"
        );
        assert!(text.contains("threads waited 97.0 ms for a processor in these pauses"), "{text}");
        assert!(
            over(3e-6).ends_with("the kernel took longer; threads waited 3.00 µs for a processor")
        );
        assert!(over(0.0).ends_with("the kernel took longer; no thread waited for a processor"));
    }

    #[test]
    fn memory_reused_by_the_program_is_reported_beside_the_returned_memory() {
        let release = Release {
            returned_bytes: 189 * MIB,
            predicted_bytes: 127 * MIB,
            rss_before_bytes: 436 * MIB,
            rss_after_bytes: 406 * MIB,
            ..made_up(ReleaseOutcome::Released)
        };
        assert_eq!(
            sentence(&release),
            "released: 189 MiB were returned; 127 MiB were predicted, and the program freed more in the \
             meantime; the program reused 159 MiB in the meantime"
        );
    }

    #[test]
    fn a_trim_warns_that_its_lock_holds_are_unbounded() {
        let release =
            Release { dry_run: true, method: Method::Trim, ..made_up(ReleaseOutcome::Released) };
        let text = shown(&release);
        assert!(text.contains("holds each arena's lock without a bound"), "{text}");
        assert!(text.contains("without a bound"), "{text}");
    }

    #[test]
    fn regained_memory_is_reported_with_its_share_in_huge_pages() {
        let reported = |rss_bytes, huge_bytes| {
            let found = Regained { after_s: 60.0, rss_bytes, huge_bytes };
            regained(&found, Screen { width: 90, colour: false })
        };
        insta::assert_snapshot!(
            [
                reported(0, Some(0)),
                reported(0, Some(2 * MIB)),
                reported(12 * MIB, Some(10 * MIB)),
                reported(12 * MIB, Some(0)),
                reported(12 * MIB, None),
            ]
            .concat(),
            @r"
        came back  nothing within 1 min 0 s
        came back  0 B of RSS within 1 min 0 s, 2.00 MiB more in huge pages
        came back  12.0 MiB of RSS within 1 min 0 s, 10.0 MiB more in huge pages
        came back  12.0 MiB of RSS within 1 min 0 s, none of it in huge pages
        came back  12.0 MiB of RSS within 1 min 0 s, huge pages could not be counted
        "
        );
    }

    #[test]
    fn output_fits_a_narrow_screen_and_is_coloured_only_on_request() {
        let release = Release {
            command: vec!["a".repeat(200), "\x1b[31m".to_owned()],
            notes: vec!["word ".repeat(40)],
            ..made_up(ReleaseOutcome::Released)
        };
        let narrow = render(&release, Screen { width: 50, colour: false });
        assert!(narrow.lines().all(|line| line.chars().count() <= 50), "{narrow}");
        assert!(!narrow.contains('\x1b'));
        assert!(render(&release, Screen { width: 50, colour: true }).contains("\x1b[1m"));
    }
}
