//! All treatments over time in one plot: the address space in the lighter shade, resident memory in
//! the darker.

use lowtide_analysis::metrics::Metric;

use super::canvas::{Canvas, fitted};
use crate::scale::{Scale, byte_label, byte_ticks, time_label, time_ticks};
use crate::view::{CurveGroup, View};

const LEFT: f64 = 66.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
/// Approximate width of a letter of a label.
const LETTER: f64 = 6.6;
/// Minimum distance between two labels at the ends of their lines.
const LABEL_HEIGHT: f64 = 15.0;

pub(super) fn height(view: &View) -> f64 {
    let labels = view.groups.len() as f64 * LABEL_HEIGHT;
    (TOP + BOTTOM + labels).max(400.0)
}

pub(super) fn draw(canvas: &mut Canvas, view: &View, [left, top, width, height]: [f64; 4]) {
    let letters = view.groups.iter().map(|g| label(g).chars().count()).max().unwrap_or(0);
    let right = (letters as f64 * LETTER + 14.0).min(width / 3.0);
    let plot = [left + LEFT, top + TOP, width - LEFT - right, height - TOP - BOTTOM];
    let (from, to) = view.span();
    let x = Scale { low: from, high: to, from: plot[0], to: plot[0] + plot[2] };
    let y = Scale { low: 0.0, high: view.top(), from: plot[1] + plot[3], to: plot[1] };
    canvas.text(left, top + 12.0, "head", "Memory over time");
    canvas.text_at(plot[0] + plot[2], top + 12.0, "note", "end", key(view.metric));
    axes(canvas, plot, x, y, view.time_from);
    marks(canvas, view, plot, x);
    canvas.clipped([plot[0], plot[1] - 1.0, plot[2] + 1.0, plot[3] + 2.0], |canvas| {
        for group in &view.groups {
            let (_, light) = canvas.colours(group.colour);
            if let Some(curve) = group.main() {
                let vsz: Vec<(f64, f64)> =
                    curve.points.iter().map(|p| (p.t_s, p.vsz as f64)).collect();
                let dashes = Canvas::dashes(group.colour);
                canvas.path(&vsz, x, y, &format!("stroke:{light};stroke-width:1.6{dashes}"));
            }
        }
        for group in &view.groups {
            lines(canvas, view, group, x, y);
        }
    });
    labels(canvas, view, plot, y, right);
}

fn key(metric: Metric) -> &'static str {
    match metric {
        Metric::Rss => "dark: RSS (thin: the other repeats) · light: VSZ",
        Metric::Pss => "dark: PSS of the tree (thin: the other repeats) · light: VSZ",
    }
}

fn lines(canvas: &mut Canvas, view: &View, group: &CurveGroup, x: Scale, y: Scale) {
    let (dark, _) = canvas.colours(group.colour);
    for (place, curve) in group.curves.iter().enumerate().rev() {
        let points: Vec<(f64, f64)> =
            curve.memory(view.metric).into_iter().map(|(t, b)| (t, b as f64)).collect();
        let style =
            if place == 0 { "stroke-width:2.4" } else { "stroke-width:1;stroke-opacity:0.45" };
        let dashes = Canvas::dashes(group.colour);
        let style = format!("stroke:{dark};stroke-linejoin:round;{style}{dashes}");
        canvas.path(&points, x, y, &style);
    }
}

/// Draws grid and axes.
pub(super) fn axes(canvas: &mut Canvas, plot: [f64; 4], x: Scale, y: Scale, time_from: &str) {
    let [left, top, width, height] = plot;
    let bottom = top + height;
    let lines = (height / 46.0) as usize;
    for tick in byte_ticks(y.high, lines.max(2)) {
        let at = y.at(tick);
        canvas.line((left, at), (left + width, at), "class=\"grid\"");
        canvas.text_at(left - 8.0, at + 4.0, "axis", "end", &byte_label(tick, y.high));
    }
    for tick in time_ticks(x.low, x.high, ((width / 72.0) as usize).max(2)) {
        let at = x.at(tick);
        canvas.line((at, bottom), (at, bottom + 4.0), "class=\"frame\"");
        canvas.text_at(at, bottom + 17.0, "axis", "middle", &time_label(tick, x.high));
    }
    canvas.line((left, bottom), (left + width, bottom), "class=\"frame\"");
    let words = format!("time since {time_from}");
    canvas.text_at(left + width / 2.0, bottom + 33.0, "axis", "middle", &words);
}

/// Draws events as thin lines, of the first treatment only: in the others they happened at nearly
/// the same time, and twenty lines would be unreadable.
fn marks(canvas: &mut Canvas, view: &View, plot: [f64; 4], x: Scale) {
    let Some(curve) = view.groups.first().and_then(CurveGroup::main) else { return };
    draw_marks(canvas, &curve.marks, plot, x);
}

/// Draws hooks on the subject as prominent lines, with their names below those of events.
pub(super) fn draw_acts(canvas: &mut Canvas, acts: &[(f64, String)], plot: [f64; 4], x: Scale) {
    let [left, top, width, height] = plot;
    for (t, word) in acts {
        let at = x.at(*t);
        if at < left || at > left + width {
            continue;
        }
        let style = format!("stroke=\"{}\" stroke-width=\"1.2\"", canvas.ink());
        canvas.line((at, top + 14.0), (at, top + height), &style);
        canvas.text(at + 4.0, top + 23.0, "axis", word);
    }
}

pub(super) fn draw_marks(canvas: &mut Canvas, marks: &[(f64, String)], plot: [f64; 4], x: Scale) {
    let [left, top, width, height] = plot;
    let mut last_text = f64::NEG_INFINITY;
    for (t, word) in marks {
        let at = x.at(*t);
        if at < left || at > left + width {
            continue;
        }
        canvas.line((at, top), (at, top + height), "class=\"frame\" stroke-dasharray=\"3 3\"");
        // A word that would cover the one before is omitted; its line remains.
        let needs = word.chars().count() as f64 * 6.2 + 6.0;
        if at > last_text && at + needs < left + width {
            canvas.text(at + 4.0, top + 10.0, "axis", word);
            last_text = at + needs;
        }
    }
}

/// Draws names at the ends of the lines, moved apart if they would overlap.
fn labels(canvas: &mut Canvas, view: &View, plot: [f64; 4], y: Scale, room: f64) {
    let [left, top, width, height] = plot;
    let mut places: Vec<(f64, &CurveGroup)> = view
        .groups
        .iter()
        .filter_map(|g| {
            let last = g.main()?.memory(view.metric).last()?.1;
            Some((y.at(last as f64).clamp(top, top + height), g))
        })
        .collect();
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    spread(&mut places, top + 6.0, top + height + 4.0);
    for (at, group) in places {
        let (dark, _) = canvas.colours(group.colour);
        let text = fitted_label(group, room - 14.0);
        canvas.coloured_text(left + width + 8.0, at + 4.0, "start", &dark, &text);
    }
}

/// Returns the name of a line, with its settled memory.
fn label(group: &CurveGroup) -> String {
    match group.bars[2] {
        Some(_) => format!("{}  {}", group.label, group.bar_text(2)),
        None => group.label.clone(),
    }
}

/// Returns the same with a shortened name, if there is not enough room.
fn fitted_label(group: &CurveGroup, room: f64) -> String {
    let whole = label(group);
    let figure = whole.strip_prefix(&group.label).unwrap_or_default();
    let room = room - figure.chars().count() as f64 * LETTER;
    format!("{}{figure}", fitted(&group.label, room, LETTER))
}

/// Moves positions apart, downwards first and then back up from the bottom.
fn spread<T>(places: &mut [(f64, T)], top: f64, bottom: f64) {
    let mut least = top;
    for place in places.iter_mut() {
        place.0 = place.0.max(least);
        least = place.0 + LABEL_HEIGHT;
    }
    let mut most = bottom;
    for place in places.iter_mut().rev() {
        place.0 = place.0.min(most);
        most = place.0 - LABEL_HEIGHT;
    }
}
