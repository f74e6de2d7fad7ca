//! The record of `lowtide leaks`: blocks in use, and the survivors of each group, over time.

use lowtide_model::bytes::Human;
use lowtide_model::leaks::{LeakGroup, LeakKind, LeakReport};

use super::canvas::{Canvas, Picture, Theme};
use super::overview::axes;
use super::{MARGIN, WIDTH};
use crate::leaks::size;
use crate::scale::Scale;

const LEFT: f64 = 66.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 44.0;
const PLOT: f64 = 220.0;
/// Maximum number of groups in the chart.
const MAX_GROUPS: usize = 6;

/// Draws a record, of which the last report is the result.
pub(crate) fn chart(reports: &[LeakReport], theme: Theme) -> Picture {
    let panel = TOP + PLOT + BOTTOM;
    let mut canvas = Canvas::new(WIDTH, panel + 2.0 * MARGIN, theme);
    let width = (WIDTH - 3.0 * MARGIN) / 2.0;
    let in_use = |report: &LeakReport| Some(report.in_use_bytes as f64);
    let all = vec![("blocks in use".to_owned(), points(reports, in_use))];
    draw(&mut canvas, "Blocks in use", &all, [MARGIN, MARGIN, width]);
    let Some(last) = reports.last() else { return canvas.finish() };
    let groups = last.groups.iter().filter(|group| group.verdict != LeakKind::Level);
    let lines: Vec<(String, Vec<(f64, f64)>)> = groups
        .take(MAX_GROUPS)
        .map(|group| {
            let points = points(reports, |report| Some(same(report, group)?.bytes as f64));
            (format!("{} {}", group.verdict.name(), size(group)), points)
        })
        .collect();
    draw(&mut canvas, "Survivors by size", &lines, [2.0 * MARGIN + width, MARGIN, width]);
    canvas.finish()
}

fn points(reports: &[LeakReport], of: impl Fn(&LeakReport) -> Option<f64>) -> Vec<(f64, f64)> {
    reports.iter().filter_map(|report| Some((report.elapsed_s, of(report)?))).collect()
}

/// Returns the group of an earlier report that has the same sizes.
fn same<'r>(report: &'r LeakReport, group: &LeakGroup) -> Option<&'r LeakGroup> {
    let of_size =
        || report.groups.iter().filter(|other| other.size_bytes[0] == group.size_bytes[0]);
    of_size().find(|other| other.verdict == group.verdict).or_else(|| of_size().next())
}

fn draw(
    canvas: &mut Canvas,
    title: &str,
    lines: &[(String, Vec<(f64, f64)>)],
    [left, top, width]: [f64; 3],
) {
    let plot = [left + LEFT, top + TOP, width - LEFT, PLOT];
    let all = || lines.iter().flat_map(|(_, points)| points);
    let highest = all().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
    let latest = all().map(|(t, _)| *t).fold(1.0, f64::max);
    let x = Scale { low: 0.0, high: latest, from: plot[0], to: plot[0] + plot[2] };
    let y = Scale { low: 0.0, high: highest.max(1.0) * 1.1, from: plot[1] + plot[3], to: plot[1] };
    canvas.text(left, top + 12.0, "head", title);
    axes(canvas, plot, x, y, "the first snapshot");
    if lines.is_empty() {
        canvas.text_at(
            plot[0] + plot[2] / 2.0,
            plot[1] + PLOT / 2.0,
            "note",
            "middle",
            "no growth",
        );
    }
    for (place, (name, points)) in lines.iter().enumerate() {
        let (colour, _) = canvas.colours(place);
        canvas.path(points, x, y, &format!("stroke:{colour};stroke-width:2"));
        let last = points.last().map_or(0.0, |(_, bytes)| *bytes);
        let text = format!("{name}: {}", Human(last as u64));
        let row = plot[1] + 14.0 + 16.0 * place as f64;
        canvas.coloured_text(plot[0] + 10.0, row, "start", &colour, &text);
    }
}
