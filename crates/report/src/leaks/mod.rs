//! The report of `lowtide leaks` for people: one screen of text. [`page`] draws a record, which
//! [`read()`] opens.

mod html;
mod read;
mod samples;

use std::fmt::Write as _;

use lowtide_analysis::leaks::{MIN_UNSURE, below_all};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::leaks::{BlockType, Holder, LeakGroup, LeakGroupKind, LeakKind, LeakReport};
use lowtide_model::number::counted;

use crate::screen::{Screen, bold, dim, hanging, title};
use crate::stacks;
use crate::text::{facts_in_lines, printable, thousands, wrapped};

pub use html::render as page;
pub use read::read;
pub use samples::{folded, pprof};

/// Width of the columns before the description of a group.
const INDENT: usize = 13;
/// Maximum number of level groups that are shown, if no other is: they have no problem.
const MAX_LEVEL: usize = 3;
/// Minimum rate or size of a group with all details, as a share of the highest. Others have a line.
const MIN_SHARE: f64 = 0.1;

/// Formats a report.
pub fn render(report: &LeakReport, screen: Screen) -> String {
    let mut out = format!(
        "{}\n{}\n\n",
        title(&report.command, report.pid, screen),
        facts_in_lines(&facts(report), screen.width)
    );
    let verdict = &report.verdict;
    let mut sentence = format!("{}: {}.", verdict.kind.name(), verdict.because.join("; "));
    sentence += &until_limit(report).unwrap_or_default();
    out += &bold(&wrapped(&printable(&sentence), screen.width), screen);
    out.push_str("\n\n");
    let (level, growing): (Vec<&LeakGroup>, Vec<&LeakGroup>) =
        report.groups.iter().partition(|group| is_level(group));
    let highest = |of: fn(&LeakGroup) -> u64| growing.iter().map(|group| of(group)).max();
    let highest = [|group: &LeakGroup| group.bytes_per_hour, |group: &LeakGroup| group.bytes]
        .map(|of| (of, highest(of).unwrap_or(0) as f64));
    let groups = match growing.is_empty() {
        true => level.into_iter().take(MAX_LEVEL).collect(),
        false => growing,
    };
    if !groups.is_empty() {
        let head = format!(
            " {:<INDENT$}{:>9}  {:>15}  {:>10}  {:>12}",
            "", "blocks", "size", "bytes", "an hour"
        );
        let _ = writeln!(out, "{}", dim(&head, screen));
    }
    for (place, found) in groups.into_iter().enumerate() {
        let is_large = highest.iter().any(|(of, most)| of(found) as f64 >= most * MIN_SHARE);
        out += &row(found, report, screen);
        if !is_level(found) {
            out +=
                &if place == 0 || is_large { details(found, screen) } else { brief(found, screen) };
        }
    }
    if report.omitted_groups > 0 {
        let all = report.groups.len() as u64 + report.omitted_groups;
        let more = counted(report.omitted_groups, "more group");
        let _ = writeln!(out, " {more} (--top {all})");
    }
    out += &mapped_by(report, screen);
    let costs = format!("cost: {}", costs(report).join("; "));
    out += &dim(&wrapped(&costs, screen.width), screen);
    out.push('\n');
    for note in &report.notes {
        out += &wrapped(&printable(&format!("note: {note}")), screen.width);
        out.push('\n');
    }
    let next = LeakState::new(report).next(report.pid, report.next.as_deref());
    let _ = writeln!(out, "next: {next}");
    out
}

/// Returns a sentence on the time until the process reaches its limit; `None` if that is not known.
fn until_limit(report: &LeakReport) -> Option<String> {
    let left = HumanSeconds(report.seconds_to_limit?);
    let growth = report.growth.as_ref();
    let process_limit = growth.and_then(|growth| growth.process_limit.zip(growth.limit_bytes));
    let Some((limit, bytes)) = process_limit else {
        return Some(format!(" At this rate memory runs out in {left}."));
    };
    Some(format!(
        " At this rate its {} reaches {} ({}, {}) in {left}.",
        limit.kind.what(),
        limit.kind.whose(),
        limit.kind.name(),
        Human(bytes)
    ))
}

/// Formats the code that mapped memory beside the heap.
fn mapped_by(report: &LeakReport, screen: Screen) -> String {
    let mut out = String::new();
    for stack in stacks::shown(&report.mapped_by) {
        out += &hanging(" ", &stacks::summary("mapped", stack), screen);
        for line in stacks::lines(stack) {
            out += &hanging("   ", &line, screen);
        }
    }
    out
}

fn facts(report: &LeakReport) -> Vec<String> {
    let time = HumanSeconds(report.elapsed_s);
    let mut facts = match report.looks {
        0 => vec![format!("watched for {time}")],
        looks => vec![
            format!("{} in {time}", counted(looks, "snapshot")),
            format!("blocks in use {}", Human(report.in_use_bytes)),
        ],
    };
    if report.torn_looks > 0 {
        facts.push(format!("incomplete snapshots: {}", report.torn_looks));
    }
    if report.looks > 0 {
        facts.push(match report.sampled_share {
            share if share < 1.0 => format!("1/{:.0} of the heap sampled", 1.0 / share),
            _ => "whole heap scanned".to_owned(),
        });
    }
    facts
}

/// Returns what the search has cost.
fn costs(report: &LeakReport) -> Vec<String> {
    let mut costs = vec![format!("{} of CPU time", HumanSeconds(report.cpu_s))];
    costs.extend(report.sampling.iter().map(|found| stacks::sampling(found, report.exposure)));
    costs
}

/// Formats the numbers of a group.
fn row(found: &LeakGroup, report: &LeakReport, screen: Screen) -> String {
    let about = if report.sampled_share < 1.0 { "≈" } else { "" };
    let size = size(found);
    let rate = match found.bytes_per_hour {
        0 => "-".to_owned(),
        bytes => Human(bytes).to_string(),
    };
    let line = format!(
        " {:<INDENT$}{:>9}  {size:>15}  {:>10}  {rate:>12}",
        found.verdict.name(),
        format!("{about}{}", thousands(found.count)),
        Human(found.bytes).to_string(),
    );
    format!("{}\n", if is_level(found) { line } else { bold(&line, screen) })
}

/// Formats what the blocks of a small group are: the commonest type and holder, and the innermost
/// frame of the program that allocates most of them.
fn brief(found: &LeakGroup, screen: Screen) -> String {
    let kind = found.types.first().map(|kind| printable(&kind.name));
    let holder = found.holders.first();
    let holder = holder.map(|holder| format!("held by {}", printable(&holder.what)));
    let frame = found.stacks.first().and_then(|stack| stacks::lines(stack).into_iter().next());
    let frame = frame.map(|frame| format!("allocated by {}", frame.trim_start_matches("≈ ")));
    let parts: Vec<String> = [kind, holder, frame].into_iter().flatten().collect();
    match parts.is_empty() {
        true => String::new(),
        false => hanging(&" ".repeat(INDENT + 1), &format!("mostly {}", parts.join(", ")), screen),
    }
}

/// Formats all that is known about the blocks of a group.
fn details(found: &LeakGroup, screen: Screen) -> String {
    let mut out = String::new();
    let indent = " ".repeat(INDENT + 1);
    let [low, high] = found.bytes_per_hour_interval;
    if low != high {
        let text = format!("95 % interval: {} to {} an hour", Human(low), Human(high));
        out += &hanging(&indent, &text, screen);
    }
    for (head, text) in [
        ("type: ", types(&found.types)),
        ("held by: ", holders(&found.holders)),
        ("reached from: ", roots(found)),
    ] {
        if !text.is_empty() {
            out += &hanging(&format!("{indent}{head}"), &text, screen);
        }
    }
    for stack in stacks::shown(&found.stacks) {
        out += &hanging(&indent, &stacks::title(stack), screen);
        for line in stacks::lines(stack) {
            out += &hanging(&format!("{indent}  "), &line, screen);
        }
    }
    let is_lost = matches!(found.verdict, LeakKind::Lost | LeakKind::LostBefore);
    if let Some(share) = found.unreachable_share.filter(|share| *share > 0.0 && !is_lost) {
        let unreached = match share {
            1.0.. => "no pointer leads to any of them".to_owned(),
            _ => format!("no pointer leads to {} of them", below_all(share)),
        };
        out += &hanging(&indent, &unreached, screen);
    }
    if let Some(share) = found.unsure_share.filter(|share| *share >= MIN_UNSURE) {
        let unsure = format!(
            "only words that may be links of memory that was free once, or new blocks that nothing leads to, lead to {} of \
             them, or their pointers may have moved",
            percent(share)
        );
        out += &hanging(&indent, &unsure, screen);
    }
    out
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Formats types with the share of the blocks that has each.
fn types(types: &[BlockType]) -> String {
    shares(types.iter().map(|found| (found.share, &found.name)))
}

/// Formats holders with the share of the blocks that each points to.
fn holders(holders: &[Holder]) -> String {
    shares(holders.iter().map(|holder| (holder.share, &holder.what)))
}

/// Formats the roots of the paths to blocks; empty if the roots point to the blocks directly, or
/// are the state of Python's interpreter, which leads to every object.
fn roots(group: &LeakGroup) -> String {
    let is_of_interpreter = |root: &Holder| root.what.starts_with("variable _PyRuntime ");
    match group.roots == group.holders || group.roots.iter().all(is_of_interpreter) {
        true => String::new(),
        false => holders(&group.roots),
    }
}

fn shares<'n>(named: impl Iterator<Item = (f64, &'n String)>) -> String {
    let texts = named.map(|(share, name)| format!("{} {}", percent(share), printable(name)));
    texts.collect::<Vec<String>>().join(", ")
}

/// Formats the sizes of a group.
pub(crate) fn size(group: &LeakGroup) -> String {
    let [smallest, largest] = group.size_bytes;
    if group.kind == LeakGroupKind::GrowingBlock {
        return format!("{}→{}", short(smallest), short(largest));
    }
    match smallest == largest {
        true => format!("{smallest} B"),
        false => format!("{}–{}", short(smallest), short(largest)),
    }
}

/// Formats a size in a few characters.
fn short(bytes: u64) -> String {
    if bytes < 10_000 { bytes.to_string() } else { Human(bytes).to_string().replace(' ', "") }
}

/// What decides about the step after a search for leaks: its verdict, and what it had for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeakState {
    /// The verdict.
    pub kind: LeakKind,
    /// Duration of the search, in seconds.
    pub elapsed_s: f64,
    /// Whether stacks were sampled: a function with a probe was called.
    pub is_sampled: bool,
    /// Whether any group has stacks.
    pub has_stacks: bool,
}

impl LeakState {
    fn new(report: &LeakReport) -> Self {
        Self {
            kind: report.verdict.kind,
            elapsed_s: report.elapsed_s,
            is_sampled: report.sampling.is_some_and(|sampling| sampling.hits > 0),
            has_stacks: report.groups.iter().any(|group| !group.stacks.is_empty()),
        }
    }

    /// Returns the recommended next step. It never leads back: a search is recommended only if it
    /// is longer than this one. `own` is the report's own step: it divides memory that was not
    /// followed, or lets a stopped process run.
    pub fn next(self, pid: u32, own: Option<&str>) -> String {
        /// Durations of searches, in seconds and as an argument.
        const LONGER: [(f64, &str); 3] = [(300.0, "5m"), (1800.0, "30m"), (7200.0, "2h")];
        if let Some(own) = own {
            return own.to_owned();
        }
        let is_longer = |(seconds, _): &&(f64, &str)| *seconds > 1.5 * self.elapsed_s;
        let longer = LONGER.iter().find(is_longer);
        let longer = longer.map(|(_, time)| format!("lowtide leaks {pid} --duration {time}"));
        match (self.kind, longer) {
            (LeakKind::TooEarly, Some(longer)) => longer,
            (LeakKind::TooEarly, None) => {
                "no block was seen to grow for hours, which is too little for a verdict".to_owned()
            }
            (LeakKind::Growing | LeakKind::Filling, Some(longer)) => {
                format!("{longer}     (does it stop?)")
            }
            (LeakKind::Growing | LeakKind::Filling, None) => {
                "find out why the code or the holder above keeps these blocks".to_owned()
            }
            (LeakKind::Backlog, _) => {
                "find out what these blocks wait for: a limit on the queue bounds this memory"
                    .to_owned()
            }
            (LeakKind::Elsewhere, _) => {
                format!("pmap -x {pid} | sort -n -k 3 | tail     (its largest mappings)")
            }
            (LeakKind::Level, _) => {
                format!(
                    "nothing to do about leaks (lowtide inspect {pid} shows free memory that is held)"
                )
            }
            (LeakKind::Lost | LeakKind::LostBefore, _) if self.has_stacks => {
                "find out why the code above does not free these blocks".to_owned()
            }
            (LeakKind::Lost, Some(longer)) if self.is_sampled => {
                format!("{longer}     (for stacks of these blocks)")
            }
            (LeakKind::Lost | LeakKind::LostBefore, _) => {
                "find the code that allocates blocks of this type and size".to_owned()
            }
        }
    }
}

/// Returns whether nothing is known to grow in a group.
fn is_level(group: &LeakGroup) -> bool {
    matches!(group.verdict, LeakKind::Level | LeakKind::TooEarly)
}

#[cfg(test)]
mod tests {
    use lowtide_model::leaks::{
        AgeRange, CallProof, LeakFrame, LeakStack, LeakTier, LeakVerdict, StackSampling,
    };

    use super::*;

    /// Returns a stack, in part without debug information.
    fn stack() -> LeakStack {
        let frame = |function: &str, line: Option<u32>| LeakFrame {
            function: function.to_owned(),
            file: line.map(|_| "/src/server/session.cc".to_owned()),
            line,
            module: Some("server".to_owned()),
            estimated: false,
        };
        LeakStack {
            share: 1.0,
            samples: 12,
            is_cut: true,
            frames: vec![frame("Session::open(int)", Some(52)), frame("server+0x1f30", None)],
            proof: Some(CallProof {
                calls: 81,
                seconds: 8.0,
                calls_per_hour: 36_450.0,
                survivors_per_hour: 36_000.0,
            }),
        }
    }

    fn sampling() -> StackSampling {
        StackSampling {
            windows: 5,
            hits: 104_000,
            samples: 98_000,
            cut_share: 0.02,
            hit_s: 2.1e-6,
            max_delay_s: 0.0021,
        }
    }

    /// Returns a report with a leak, a cache, and a size that does not grow.
    pub(super) fn report() -> LeakReport {
        let because = || vec!["they come at 20.0 a second, in 6 of 6 intervals".to_owned()];
        let group = |verdict, bytes: u64| LeakGroup {
            size_bytes: [80, 80],
            count: bytes / 80,
            bytes,
            bytes_per_hour: bytes * 60,
            bytes_per_hour_interval: [bytes * 60; 2],
            survival: Some(1.0),
            age_s: AgeRange { youngest: 30.0, oldest: Some(60.0) },
            ..LeakGroup::new(verdict, because())
        };
        let lost = LeakGroup {
            types: vec![BlockType { name: "C++ Session".to_owned(), share: 1.0 }],
            unreachable_share: Some(0.99),
            stacks: vec![stack()],
            ..group(LeakKind::Lost, 96_000)
        };
        let growing = LeakGroup {
            size_bytes: [1664, 2560],
            holders: vec![Holder { what: "a block of 8208 bytes".to_owned(), share: 1.0 }],
            roots: vec![Holder { what: "variable cache of server".to_owned(), share: 0.97 }],
            bytes_per_hour_interval: [1 << 20, 3 << 20],
            bytes_per_hour: 2 << 20,
            ..group(LeakKind::Growing, 1_000_000)
        };
        let level = LeakGroup { bytes_per_hour: 0, ..group(LeakKind::Level, 800) };
        LeakReport {
            schema: LeakReport::SCHEMA.to_owned(),
            pid: 4711,
            command: vec!["server".to_owned(), "--port".to_owned(), "80".to_owned()],
            tier: LeakTier::Bpf,
            looks: 13,
            torn_looks: 1,
            elapsed_s: 60.0,
            cpu_s: 0.4,
            older_s: 30.0,
            exposure: 0.0098,
            sampling: Some(sampling()),
            sampled_share: 0.25,
            in_use_bytes: 300 << 20,
            verdict: LeakVerdict {
                kind: LeakKind::Lost,
                because: vec!["5.49 MiB an hour".to_owned(), "1200 blocks are left".to_owned()],
            },
            bytes_per_hour: 96_000 * 60,
            seconds_to_limit: Some(86_400.0),
            coverage: None,
            growth: None,
            omitted_groups: 0,
            mapped_by: Vec::new(),
            next: None,
            groups: vec![lost, growing, level],
            notes: vec!["an arena could not be walked".to_owned()],
        }
    }

    #[test]
    fn a_report_is_one_screen() {
        insta::assert_snapshot!(render(&report(), Screen { width: 100, colour: false }));
    }
}
