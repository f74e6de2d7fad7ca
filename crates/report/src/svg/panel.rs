//! One treatment: resident memory with its anonymous part, or with the memory that the program
//! reports as allocated; the address space; and on the right axis connections, requests in flight
//! and tasks, if there are any.

use lowtide_analysis::metrics::Metric;

use super::canvas::{Canvas, fitted};
use super::overview::{axes, draw_acts, draw_marks};
use crate::scale::{Scale, count_label, count_ticks};
use crate::view::{Curve, CurveGroup, Point, View};

const LEFT: f64 = 66.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
const SECOND_LINE: f64 = 16.0;

pub(super) fn draw(
    canvas: &mut Canvas,
    view: &View,
    group: &CurveGroup,
    [left, top, width, height]: [f64; 4],
) {
    let Some(curve) = group.main() else { return };
    let most = view.most_counted();
    let right = if most > 0 { 44.0 } else { 10.0 };
    // The legend is beside the name if there is room for both, otherwise below it.
    const NAME_LETTER: f64 = 7.2;
    const KEY_LETTER: f64 = 6.2;
    let key = key(view, curve);
    let beside = key.chars().count() as f64 * KEY_LETTER + 12.0;
    let name_width = group.label.chars().count() as f64 * NAME_LETTER;
    let is_beside = curve.inner.is_empty() && name_width + beside <= width - right;
    let lines = if is_beside { vec![key] } else { in_lines(&key, (width - right) / KEY_LETTER) };
    let below = if is_beside { 0.0 } else { lines.len() as f64 * SECOND_LINE };
    let head = TOP + below;
    let plot = [left + LEFT, top + head, width - LEFT - right, height - head - BOTTOM];
    let (from, to) = view.span();
    let x = Scale { low: from, high: to, from: plot[0], to: plot[0] + plot[2] };
    let y = Scale { low: 0.0, high: view.top(), from: plot[1] + plot[3], to: plot[1] };
    let (dark, light) = canvas.colours(group.colour);
    let name = fitted(&group.label, width - right, NAME_LETTER);
    canvas.coloured_text(left, top + 12.0, "start", &dark, &name);
    for (place, line) in lines.iter().rev().enumerate() {
        let at = top + head - 14.0 - place as f64 * SECOND_LINE;
        canvas.text_at(plot[0] + plot[2], at, "axis", "end", line);
    }
    axes(canvas, plot, x, y, view.time_from);
    draw_marks(canvas, &curve.marks, plot, x);
    draw_acts(canvas, &curve.acts, plot, x);
    let of = |value: &dyn Fn(&Point) -> Option<u64>| -> Vec<(f64, f64)> {
        curve.points.iter().filter_map(|p| Some((p.t_s, value(p)? as f64))).collect()
    };
    canvas.clipped([plot[0], plot[1] - 1.0, plot[2] + 1.0, plot[3] + 2.0], |canvas| {
        let vsz = of(&|p| Some(p.vsz));
        canvas.path(&vsz, x, y, &format!("stroke:{light};stroke-width:1.6"));
        let rss = of(&|p| Some(p.rss));
        if curve.inner.is_empty() {
            canvas.area(&rss, x, y, &format!("fill:{light};fill-opacity:0.7"));
            canvas.area(&of(&|p| Some(p.anon)), x, y, &format!("fill:{dark};fill-opacity:0.35"));
        } else {
            let (outer, inner) = (canvas.outer(), canvas.inner());
            canvas.area(&rss, x, y, &format!("fill:{outer};fill-opacity:0.75"));
            canvas.area(&floats(&curve.inner), x, y, &format!("fill:{inner};fill-opacity:0.85"));
        }
        canvas.path(&of(&|p| Some(p.rss)), x, y, &format!("stroke:{dark};stroke-width:2"));
        if has_lazyfree(curve) {
            let style = format!("stroke:{dark};stroke-width:1.4;stroke-dasharray:2 3");
            canvas.path(&of(&|p| p.lazyfree), x, y, &style);
        }
        if view.metric == Metric::Pss {
            let style = format!("stroke:{dark};stroke-width:1.4;stroke-dasharray:7 3");
            canvas.path(&of(&|p| p.pss), x, y, &style);
        }
    });
    if most > 0 {
        counts(canvas, curve, plot, x, most);
    }
}

/// Breaks a list at its commas into lines of at most `letters` letters.
fn in_lines(text: &str, letters: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line) if ((line.len() + part.len()) as f64) <= letters => line.push_str(part),
            _ => lines.push(part.to_owned()),
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

fn floats(points: &[(f64, u64)]) -> Vec<(f64, f64)> {
    points.iter().map(|(t, value)| (*t, *value as f64)).collect()
}

fn key(view: &View, curve: &Curve) -> String {
    let has_inner = !curve.inner.is_empty();
    let mut words = if has_inner {
        vec!["yellow: RSS", "blue: allocated"]
    } else {
        vec!["RSS (dark part: anonymous)", "VSZ (light line)"]
    };
    if view.metric == Metric::Pss {
        words.push("PSS (dashed)");
    }
    if has_lazyfree(curve) {
        words.push("LazyFree (dotted)");
    }
    let connections = view.most_connections() > 0;
    match (curve.in_flight.is_empty(), curve.tasks.is_empty()) {
        (true, true) if connections => words.push("connections (green)"),
        (true, true) => {}
        (true, false) => words.push("green: connections (dotted: tasks)"),
        (false, true) => words.push("green: requests in flight (dashed: connections)"),
        (false, false) => words.push("green: requests in flight (dotted: tasks)"),
    }
    words.join(", ")
}

fn has_lazyfree(curve: &Curve) -> bool {
    curve.points.iter().any(|p| p.lazyfree.is_some_and(|l| l > 1 << 20))
}

/// Draws the counts on the right axis. Connections are dashed only beside requests in flight.
fn counts(canvas: &mut Canvas, curve: &Curve, plot: [f64; 4], x: Scale, most: u64) {
    let [left, top, width, height] = plot;
    let high = most as f64 * 1.1;
    let y = Scale { low: 0.0, high, from: top + height, to: top };
    for tick in count_ticks(high, 4) {
        canvas.text_at(left + width + 6.0, y.at(tick) + 4.0, "axis", "start", &count_label(tick));
    }
    let style = format!("stroke:{};stroke-width:1.6", canvas.connections());
    let points: Vec<(f64, f64)> =
        curve.points.iter().filter_map(|p| Some((p.t_s, p.connections? as f64))).collect();
    if curve.in_flight.is_empty() {
        canvas.path(&points, x, y, &style);
    } else {
        canvas.path(&points, x, y, &format!("{style};stroke-dasharray:6 3"));
        canvas.path(&floats(&curve.in_flight), x, y, &style);
    }
    canvas.path(&floats(&curve.tasks), x, y, &format!("{style};stroke-dasharray:1.5 3"));
}
