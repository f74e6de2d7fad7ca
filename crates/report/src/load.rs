//! The result of a load for people: a block for each round.

use std::collections::BTreeMap;

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::load::{Latency, LoadReport, LoadRound, Trickle};

use crate::screen::{Screen, bold, hanging};
use crate::text::{printable, thousands, wrapped};

/// Formats one round.
pub fn round(round: &LoadRound, screen: Screen) -> String {
    let target = round.url.as_deref().map(|url| format!("  {}", printable(url)));
    let title = format!("round {}{}", round.round, target.unwrap_or_default());
    let mut out = format!("{}\n", bold(&title, screen));
    for (label, text) in rows(round) {
        out += &row(label, &text, screen);
    }
    out += &answers(round, screen);
    out += &errors(&round.errors, screen);
    out
}

/// Formats the part that is printed once, after all rounds.
pub fn end(report: &LoadReport, screen: Screen) -> String {
    let mut out = String::new();
    for (number, trickle) in trickles(report) {
        out += &hanging("", &format!("after round {number}: {}", trickle_text(trickle)), screen);
        out += &errors(&trickle.errors, screen);
    }
    for note in &report.notes {
        out += &format!("{}\n", wrapped(&format!("note: {note}"), screen.width));
    }
    if report.client_peak_rss_bytes > 0 {
        let peak = Human(report.client_peak_rss_bytes);
        out += &format!("peak RSS of lowtide itself: {peak}\n");
    }
    out
}

fn trickles(report: &LoadReport) -> impl Iterator<Item = (u32, &Trickle)> {
    report.rounds.iter().filter_map(|round| Some((round.round, round.between_rounds.as_ref()?)))
}

fn row(label: &str, text: &str, screen: Screen) -> String {
    hanging(&format!(" {label:<9} "), text, screen)
}

fn rows(round: &LoadRound) -> Vec<(&'static str, String)> {
    let (what, peak) = match round.closed_while_held {
        Some(_) => ("attempts", "open at once at most"),
        None => ("requests", "in flight at most"),
    };
    let mut rows = vec![
        (what, counts(round.requests, round.succeeded, round.failed)),
        ("peak", format!("{} {peak}", thousands(round.peak_in_flight))),
        ("time", time(round)),
    ];
    let latencies = latencies(&Covered::from_round(round));
    let labels = std::iter::once("latency").chain(std::iter::repeat(""));
    rows.extend(labels.zip(latencies));
    if let Some(closed) = round.closed_while_held.filter(|closed| *closed > 0) {
        rows.push((
            "held",
            format!("{} were closed by the server in that time", thousands(closed)),
        ));
    }
    rows
}

fn counts(all: u64, succeeded: u64, failed: u64) -> String {
    let share = match all {
        0 => String::new(),
        _ => format!(" ({} %)", percent(succeeded, all)),
    };
    let (all, failed) = (thousands(all), thousands(failed));
    format!("{all}: {} succeeded{share}, {failed} failed", thousands(succeeded))
}

/// Formats a share in percent with two decimals: as 100 only if it is all, and as 0 only if it is
/// none.
fn percent(part: u64, all: u64) -> String {
    let share = part as f64 / all as f64 * 100.0;
    let (least, most) = if part == 0 || part == all { (0.0, 100.0) } else { (0.01, 99.99) };
    format!("{:.2}", share.clamp(least, most))
}

fn time(round: &LoadRound) -> String {
    let (sent, completed) = (HumanSeconds(round.sent_s), HumanSeconds(round.completed_s));
    match round.closed_while_held {
        Some(_) => format!("started within {sent}, established within {completed}"),
        None => {
            let rate = thousands(round.requests_per_s.round() as u64);
            format!("sent within {sent}, completed within {completed}, {rate} requests/s")
        }
    }
}

/// Latencies, and the requests that they cover.
struct Covered<'a> {
    succeeded: u64,
    failed: u64,
    timed_out: u64,
    latency: &'a Latency,
    with_timeouts: Option<&'a Latency>,
}

impl<'a> Covered<'a> {
    fn from_round(round: &'a LoadRound) -> Self {
        Self {
            succeeded: round.succeeded,
            failed: round.failed,
            timed_out: round.timed_out.unwrap_or(0),
            latency: &round.latency_s,
            with_timeouts: round.latency_with_timeouts_s.as_ref(),
        }
    }

    fn from_trickle(trickle: &'a Trickle) -> Self {
        Self {
            succeeded: trickle.succeeded,
            failed: trickle.failed,
            timed_out: trickle.timed_out.unwrap_or(0),
            latency: &trickle.latency_s,
            with_timeouts: trickle.latency_with_timeouts_s.as_ref(),
        }
    }
}

/// Describes the latency of the requests that succeeded and, if some timed out, the latency with
/// them. Names the requests if not all are covered.
fn latencies(covered: &Covered<'_>) -> Vec<String> {
    let mut texts = Vec::new();
    let succeeded = thousands(covered.succeeded);
    match (covered.succeeded, covered.failed) {
        (0, _) => {}
        (_, 0) => texts.push(latency(covered.latency)),
        _ => texts.push(format!("of the {succeeded} that succeeded: {}", latency(covered.latency))),
    }
    if let Some(with_timeouts) = covered.with_timeouts {
        let begin = if covered.succeeded > 0 { "with the" } else { "of the" };
        let (count, latency) = (thousands(covered.timed_out), latency(with_timeouts));
        texts.push(format!("{begin} {count} that timed out, at least: {latency}"));
    }
    texts
}

fn latency(latency: &Latency) -> String {
    let parts = [
        ("50%", latency.p50),
        ("90%", latency.p90),
        ("99%", latency.p99),
        ("99.9%", latency.p999),
        ("100%", latency.max),
        ("mean", latency.mean),
    ];
    let cells: Vec<String> =
        parts.iter().map(|(name, value)| format!("{name} {}", HumanSeconds(*value))).collect();
    cells.join(", ")
}

fn answers(round: &LoadRound, screen: Screen) -> String {
    if round.distinct_responses == 0 {
        return String::new();
    }
    if round.responses.is_empty() {
        let bodies = format!("{} different bodies", thousands(round.distinct_responses));
        return row("responses", &bodies, screen);
    }
    table("responses", &round.responses, screen)
}

fn errors(errors: &BTreeMap<String, u64>, screen: Screen) -> String {
    table("errors", errors, screen)
}

/// Formats a count and a text on each line, the most frequent first.
fn table(label: &str, counts: &BTreeMap<String, u64>, screen: Screen) -> String {
    let mut lines: Vec<(&String, u64)> = counts.iter().map(|(text, n)| (text, *n)).collect();
    lines.sort_by_key(|(text, count)| (std::cmp::Reverse(*count), *text));
    let width = lines.iter().map(|(_, count)| thousands(*count).len()).max().unwrap_or(0);
    let mut out = String::new();
    for (place, (text, count)) in lines.into_iter().enumerate() {
        let label = if place == 0 { label } else { "" };
        let count = thousands(count);
        let text = if text.is_empty() { "(empty)".to_owned() } else { printable(text) };
        let most = usize::from(screen.width).max(40) * 3;
        let short: String = match text.chars().count() > most {
            true => text.chars().take(most).chain(['…']).collect(),
            false => text,
        };
        out += &hanging(&format!(" {label:<9} {count:>width$}  "), &short, screen);
    }
    out
}

fn trickle_text(trickle: &Trickle) -> String {
    let counts = counts(trickle.requests, trickle.succeeded, trickle.failed);
    match latencies(&Covered::from_trickle(trickle)).join("; ") {
        none if none.is_empty() => format!("requests in the pause {counts}"),
        latencies => format!("requests in the pause {counts}; latency {latencies}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: Screen = Screen { width: 90, colour: false };

    fn made_up() -> LoadRound {
        let answer = |port: u32| format!("axum(20027) HTTP/2.0 192.168.0.123:{port}");
        LoadRound {
            round: 57,
            url: Some("http://192.168.0.127:3000/?server=axum&expire=15000".to_owned()),
            requests: 1_000_000,
            succeeded: 606_228,
            failed: 393_772,
            peak_in_flight: 1_000_000,
            sent_s: 2.181,
            completed_s: 67.254,
            requests_per_s: 9014.0,
            latency_s: Latency {
                mean: 17.133,
                p50: 16.718,
                p90: 18.246,
                p99: 19.71,
                p999: 59.925,
                max: 60.001,
            },
            responses: [(answer(7806), 606_000), (answer(7808), 228)].into(),
            distinct_responses: 2,
            errors: [("timed out".to_owned(), 86_967), ("connection refused".to_owned(), 306_805)]
                .into(),
            ..LoadRound::default()
        }
    }

    #[test]
    fn a_round_is_rendered_like_the_published_document() {
        insta::assert_snapshot!(round(&made_up(), SCREEN), @r"
        round 57  http://192.168.0.127:3000/?server=axum&expire=15000
         requests  1,000,000: 606,228 succeeded (60.62 %), 393,772 failed
         peak      1,000,000 in flight at most
         time      sent within 2.18 s, completed within 1 min 7 s, 9,014 requests/s
         latency   of the 606,228 that succeeded: 50% 16.7 s, 90% 18.2 s, 99% 19.7 s, 99.9%
                   59.9 s, 100% 1 min 0 s, mean 17.1 s
         responses 606,000  axum(20027) HTTP/2.0 192.168.0.123:7806
                       228  axum(20027) HTTP/2.0 192.168.0.123:7808
         errors    306,805  connection refused
                    86,967  timed out
        ");
    }

    #[test]
    fn each_latency_line_names_the_requests_it_covers() {
        let latency = |p50| Latency { p50, max: 2.09, ..Latency::default() };
        let mut stalled = LoadRound {
            requests: 200,
            succeeded: 27,
            failed: 173,
            timed_out: Some(173),
            latency_s: latency(1.12),
            latency_with_timeouts_s: Some(latency(2.01)),
            ..LoadRound::default()
        };
        let reported = |round: &LoadRound| latencies(&Covered::from_round(round));
        let parts = |reported: Vec<String>| -> Vec<String> {
            reported.iter().map(|text| text.split(", 90%").next().unwrap().to_owned()).collect()
        };
        assert_eq!(
            parts(reported(&stalled)),
            [
                "of the 27 that succeeded: 50% 1.12 s",
                "with the 173 that timed out, at least: 50% 2.01 s"
            ]
        );
        assert_eq!(self::round(&stalled, SCREEN).matches(" latency ").count(), 1);
        stalled.succeeded = 0;
        assert_eq!(parts(reported(&stalled)), ["of the 173 that timed out, at least: 50% 2.01 s"]);
        stalled.latency_with_timeouts_s = None;
        assert!(reported(&stalled).is_empty());
        (stalled.succeeded, stalled.failed) = (200, 0);
        assert_eq!(parts(reported(&stalled)), ["50% 1.12 s"]);
    }

    #[test]
    fn a_round_of_bare_connections_is_described_in_terms_of_connections() {
        let held = LoadRound {
            round: 1,
            url: Some("tls:localhost:8443".to_owned()),
            requests: 3000,
            succeeded: 3000,
            peak_in_flight: 3000,
            sent_s: 30.0,
            completed_s: 30.01,
            latency_s: Latency { mean: 0.01, p50: 0.01, ..Latency::default() },
            closed_while_held: Some(2),
            ..LoadRound::default()
        };
        insta::assert_snapshot!(round(&held, SCREEN), @r"
        round 1  tls:localhost:8443
         attempts  3,000: 3,000 succeeded (100.00 %), 0 failed
         peak      3,000 open at once at most
         time      started within 30.0 s, established within 30.0 s
         latency   50% 10.0 ms, 90% 0 s, 99% 0 s, 99.9% 0 s, 100% 0 s, mean 10.0 ms
         held      2 were closed by the server in that time
        ");
    }

    #[test]
    fn pause_requests_notes_and_client_memory_follow_the_rounds() {
        let trickle = Trickle { requests: 10, succeeded: 10, ..Trickle::default() };
        let report = LoadReport {
            schema: String::new(),
            client_peak_rss_bytes: 70 << 20,
            rounds: vec![LoadRound {
                round: 1,
                distinct_responses: 101,
                between_rounds: Some(trickle),
                ..LoadRound::default()
            }],
            interrupted: false,
            notes: vec!["the server permits 200 streams".to_owned()],
        };
        let reported = round(&report.rounds[0], SCREEN) + &end(&report, SCREEN);
        insta::assert_snapshot!(reported, @r"
        round 1
         requests  0: 0 succeeded, 0 failed
         peak      0 in flight at most
         time      sent within 0 s, completed within 0 s, 0 requests/s
         responses 101 different bodies
        after round 1: requests in the pause 10: 10 succeeded (100.00 %), 0 failed; latency 50%
        0 s, 90% 0 s, 99% 0 s, 99.9% 0 s, 100% 0 s, mean 0 s
        note: the server permits 200 streams
        peak RSS of lowtide itself: 70.0 MiB
        ");
    }

    #[test]
    fn a_share_below_one_never_rounds_up_to_100_percent() {
        assert_eq!(percent(999_999, 1_000_000), "99.99");
        assert_eq!(percent(1_000_000, 1_000_000), "100.00");
        assert_eq!(percent(1, 1_000_000), "0.01");
        assert_eq!(percent(0, 7), "0.00");
    }
}
