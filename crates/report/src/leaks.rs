//! The report of `lowtide leaks` for people: one screen.

use std::fmt::Write as _;

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::leaks::{LeakGroup, LeakKind, LeakReport};

use crate::screen::{Screen, bold, dim, hanging, title};
use crate::text::{printable, thousands, wrapped};

/// Width of the columns before the description of a group.
const INDENT: usize = 13;
/// Maximum number of level groups that are shown: nothing is wrong with them.
const MAX_LEVEL: usize = 3;

/// Formats a report.
pub fn render(report: &LeakReport, screen: Screen) -> String {
    let mut out = format!(
        "{}\n{}\n\n",
        title(&report.command, report.pid, screen),
        wrapped(&facts(report).join(" · "), screen.width)
    );
    let verdict = &report.verdict;
    let mut sentence = format!("{}: {}.", verdict.kind.name(), verdict.because.join("; "));
    if let Some(left) = report.seconds_to_limit {
        let _ = write!(sentence, " At this rate memory runs out in {}.", HumanSeconds(left));
    }
    out += &bold(&wrapped(&printable(&sentence), screen.width), screen);
    out.push_str("\n\n");
    let is_level = |group: &&LeakGroup| group.verdict == LeakKind::Level;
    let shown = report.groups.iter().filter(|group| !is_level(group));
    let level = report.groups.iter().filter(is_level);
    let groups: Vec<&LeakGroup> = shown.chain(level.take(MAX_LEVEL)).collect();
    if !groups.is_empty() {
        let head = format!(
            " {:<INDENT$}{:>9}  {:>15}  {:>10}  {:>12}",
            "", "blocks", "size", "bytes", "an hour"
        );
        let _ = writeln!(out, "{}", dim(&head, screen));
    }
    for found in groups {
        out += &group(found, report, screen);
    }
    for note in &report.notes {
        out += &wrapped(&printable(&format!("note: {note}")), screen.width);
        out.push('\n');
    }
    let _ = writeln!(out, "{}", next(report));
    out
}

fn facts(report: &LeakReport) -> Vec<String> {
    let mut facts = vec![
        format!("{} snapshots in {}", report.looks, HumanSeconds(report.elapsed_s)),
        format!("blocks in use {}", Human(report.in_use_bytes)),
    ];
    if report.torn_looks > 0 {
        facts.push(format!("{} more could not be read whole", report.torn_looks));
    }
    facts.push(match report.sampled_share {
        share if share < 1.0 => format!("1/{:.0} of the heap sampled", 1.0 / share),
        _ => "all of the heap".to_owned(),
    });
    facts.push(format!("read from outside in {} of CPU", HumanSeconds(report.cpu_s)));
    facts
}

fn group(found: &LeakGroup, report: &LeakReport, screen: Screen) -> String {
    let about = if report.sampled_share < 1.0 { "≈" } else { "" };
    let [smallest, largest] = found.size_bytes;
    let size = match smallest == largest {
        true => format!("{smallest} B"),
        false => format!("{}–{}", short(smallest), short(largest)),
    };
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
    let is_bad = found.verdict != LeakKind::Level;
    let mut out = format!("{}\n", if is_bad { bold(&line, screen) } else { line });
    if !is_bad {
        return out;
    }
    let indent = " ".repeat(INDENT + 1);
    let [low, high] = found.bytes_per_hour_interval;
    if low != high {
        let text = format!("95 % interval: {} to {} an hour", Human(low), Human(high));
        out += &hanging(&indent, &text, screen);
    }
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let types: Vec<String> = found
        .types
        .iter()
        .map(|t| format!("{} {}", percent(t.share), printable(&t.name)))
        .collect();
    if !types.is_empty() {
        out += &hanging(&format!("{indent}type: "), &types.join(", "), screen);
    }
    let holders: Vec<String> = found
        .holders
        .iter()
        .map(|h| format!("{} {}", percent(h.share), printable(&h.what)))
        .collect();
    if !holders.is_empty() {
        out += &hanging(&format!("{indent}held by: "), &holders.join(", "), screen);
    }
    let roots: Vec<String> = found
        .roots
        .iter()
        .map(|h| format!("{} {}", percent(h.share), printable(&h.what)))
        .collect();
    if !roots.is_empty() && found.roots != found.holders {
        out += &hanging(&format!("{indent}reached from: "), &roots.join(", "), screen);
    }
    let is_lost = matches!(found.verdict, LeakKind::Lost | LeakKind::LostBefore);
    if let Some(share) = found.unreachable_share.filter(|share| *share > 0.0 && !is_lost) {
        out +=
            &hanging(&indent, &format!("no pointer leads to {} of them", percent(share)), screen);
    }
    out
}

/// Formats a size in a few characters.
fn short(bytes: u64) -> String {
    if bytes < 10_000 { bytes.to_string() } else { Human(bytes).to_string().replace(' ', "") }
}

/// Returns the next step.
fn next(report: &LeakReport) -> String {
    let pid = report.pid;
    match report.verdict.kind {
        LeakKind::TooEarly => format!("next: lowtide leaks {pid} --duration 5m"),
        LeakKind::Growing | LeakKind::Filling => {
            format!("next: lowtide leaks {pid} --duration 1h, to see whether it stops")
        }
        LeakKind::Level => format!("next: lowtide inspect {pid}, for memory that is free but held"),
        LeakKind::Lost | LeakKind::LostBefore => {
            "next: the type and the size lead to the code that allocates it".to_owned()
        }
    }
}
