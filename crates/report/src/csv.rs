//! The samples as CSV: a line for each sample of each trial.

use std::fmt::Write as _;

use lowtide_model::sample::Sample;
use lowtide_record::TrialRecord;
use lowtide_record::v1::{ALIVE_TASKS, INNER_MEMORY};

use crate::read::LoadedRecord;
use crate::text::printable_lines;

/// The columns: bytes, seconds and counts, as in the record. The last ones are those of `pidstat
/// -r`: faults per second since the previous sample, and RSS in percent of the machine's memory. A
/// cell is empty if the value was not read.
const COLUMNS: &str = "record,trial,treatment,repeat,t_s,processes,rss_bytes,anon_bytes,\
file_bytes,shared_bytes,vsz_bytes,swap_bytes,pss_bytes,lazyfree_bytes,anon_huge_bytes,minor_faults,\
major_faults,cpu_s,threads,open_files,sockets_established,requests_in_flight,inner_memory_bytes,\
alive_tasks,minor_faults_per_s,major_faults_per_s,memory_percent";

/// Formats all samples of some records.
pub fn render(records: &[LoadedRecord]) -> String {
    let mut out = format!("{COLUMNS}\n");
    for record in records {
        for (_, trial) in &record.trials {
            let head = format!(
                "{},{},{},{}",
                quoted(&record.study.record),
                trial.trial.number,
                quoted(&trial.trial.treatment.label()),
                trial.trial.repeat
            );
            let memory_bytes = trial.header.machine.memory_bytes.filter(|bytes| *bytes > 0);
            let mut before: Option<&Sample> = None;
            for s in &trial.samples {
                let rate = |count: fn(&Sample) -> u64| {
                    before.and_then(|before| per_second(before, s, count))
                };
                let (r, slow) = (&s.total, s.slow.as_ref());
                let _ = writeln!(
                    out,
                    "{head},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
                    s.t_s,
                    s.processes,
                    r.rss_bytes.0,
                    r.anon_bytes.0,
                    r.file_bytes.0,
                    r.shared_bytes.0,
                    r.vsz_bytes.0,
                    r.swap_bytes.0,
                    cell(slow.map(|s| s.pss_bytes.0)),
                    cell(slow.map(|s| s.lazyfree_bytes.0)),
                    cell(slow.map(|s| s.anon_huge_bytes.0)),
                    r.minor_faults,
                    r.major_faults,
                    r.cpu_s,
                    r.threads,
                    cell(r.open_files),
                    cell(s.sockets_established),
                    cell(in_flight_at(trial, s.t_s)),
                    cell(figure_at(trial, INNER_MEMORY, s.t_s)),
                    cell(figure_at(trial, ALIVE_TASKS, s.t_s)),
                    decimal(rate(|sample| sample.total.minor_faults)),
                    decimal(rate(|sample| sample.total.major_faults)),
                    decimal(memory_bytes.map(|all| r.rss_bytes.0 as f64 / all as f64 * 100.0)),
                );
                before = Some(s);
            }
        }
    }
    out
}

/// Maximum age in seconds of the last value from another program, which reports at its own times.
const LASTS_S: f64 = 2.0;

fn in_flight_at(trial: &TrialRecord, t_s: f64) -> Option<u64> {
    let latest = trial.load_samples.partition_point(|s| s.t_s <= t_s).checked_sub(1)?;
    let sample = &trial.load_samples[latest];
    (t_s - sample.t_s <= LASTS_S).then_some(sample.in_flight)
}

fn figure_at(trial: &TrialRecord, name: &str, t_s: f64) -> Option<u64> {
    let latest = trial.figures.partition_point(|f| f.t_s <= t_s).checked_sub(1)?;
    let figures = &trial.figures[latest];
    let value = figures.values.get(name).filter(|_| t_s - figures.t_s <= LASTS_S)?;
    Some(*value as u64)
}

/// Returns the rate at which a count rose from one sample to the next; `None` if it did not rise.
fn per_second(before: &Sample, now: &Sample, count: fn(&Sample) -> u64) -> Option<f64> {
    let rise = count(now).checked_sub(count(before))?;
    let seconds = now.t_s - before.t_s;
    (seconds > 0.0).then(|| rise as f64 / seconds)
}

/// Returns a number with two decimals, as `pidstat` prints it.
fn decimal(value: Option<f64>) -> String {
    value.map(|value| format!("{value:.2}")).unwrap_or_default()
}

fn cell(value: Option<u64>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

/// Returns a text as one cell (RFC 4180). A text that a spreadsheet would interpret as a formula
/// remains a text.
fn quoted(text: &str) -> String {
    // A newline is part of a cell; other control characters are useless to every reader.
    let text = printable_lines(text);
    let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text };
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_cells_are_quoted_and_formulas_are_escaped() {
        assert_eq!(quoted("glibc"), "glibc");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("=1+1"), "'=1+1");
        assert_eq!(quoted("a\nb"), "\"a\nb\"");
        assert_eq!(quoted("\x1b[2J</script>$(x)"), " [2J</script>$(x)");
    }
}
