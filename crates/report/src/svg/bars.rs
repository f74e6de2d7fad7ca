//! Baseline, peak and settled memory of each treatment, as bars with the range of the median.

use super::canvas::{Canvas, fitted};
use crate::scale::{Scale, byte_label, byte_ticks};
use crate::view::{BARS, CurveGroup, View};

/// Approximate width of a letter of a label.
const LETTER: f64 = 7.2;
/// Room for `baseline`, `peak`, `settled` before the bars.
const NAMES: f64 = 66.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 22.0;
const BAR: f64 = 12.0;
const GROUP: f64 = 3.0 * (BAR + 3.0) + 14.0;

pub(super) fn height(view: &View) -> f64 {
    TOP + BOTTOM + view.groups.len() as f64 * GROUP
}

pub(super) fn draw(canvas: &mut Canvas, view: &View, [left, top, width, height]: [f64; 4]) {
    canvas.text(left, top + 12.0, "head", "Baseline, peak and settled");
    canvas.text_at(left + width - RIGHT, top + 12.0, "note", "end", view.metric.name());
    let ends = view.groups.iter().flat_map(|g| g.bars.iter().flatten()).map(|e| e.high);
    let highest = ends.fold(1.0, f64::max);
    // At most a third of the sheet.
    let letters = view.groups.iter().map(|g| g.label.chars().count()).max().unwrap_or(0);
    let labels = (letters as f64 * LETTER + 14.0).clamp(60.0, width / 3.0);
    let from = left + labels + NAMES;
    let x = Scale { low: 0.0, high: highest * 1.02, from, to: left + width - RIGHT };
    let bottom = top + height - BOTTOM;
    for tick in byte_ticks(x.high, ((x.to - x.from) / 90.0).clamp(2.0, 8.0) as usize) {
        let at = x.at(tick);
        canvas.line((at, top + TOP - 6.0), (at, bottom), "class=\"grid\"");
        canvas.text_at(at, bottom + 15.0, "axis", "middle", &byte_label(tick, x.high));
    }
    for (place, group) in view.groups.iter().enumerate() {
        let name = fitted(&group.label, labels - 8.0, LETTER);
        one(canvas, group, &name, x, top + TOP + place as f64 * GROUP);
    }
}

fn one(canvas: &mut Canvas, group: &CurveGroup, name: &str, x: Scale, top: f64) {
    let (dark, light) = canvas.colours(group.colour);
    let middle = top + 1.5 * (BAR + 3.0);
    canvas.coloured_text(x.from - NAMES, middle + 3.0, "end", &dark, name);
    for (place, name) in BARS.iter().enumerate() {
        let y = top + place as f64 * (BAR + 3.0);
        canvas.text_at(x.from - 8.0, y + BAR - 2.0, "axis", "end", name);
        let Some(estimate) = group.bars[place] else {
            canvas.text(x.from + 4.0, y + BAR - 2.0, "axis", "not reached");
            continue;
        };
        // Settled memory is the result, so it has the full colour.
        let fill = match place {
            0 => format!("fill:{dark};fill-opacity:0.35"),
            1 => format!("fill:{light}"),
            _ => format!("fill:{dark}"),
        };
        let text = group.bar_text(place);
        let end = x.at(estimate.median);
        let title = format!("{}: {name} {text}", group.label);
        canvas.rect([x.from, y, (end - x.from).max(1.0), BAR], &fill, &title);
        let mut clear = end;
        if estimate.n > 1 && x.at(estimate.high) - x.at(estimate.low) >= 2.0 {
            let at = y + BAR / 2.0;
            canvas.line(
                (x.at(estimate.low), at),
                (x.at(estimate.high), at),
                &format!("style=\"stroke:{};stroke-opacity:0.75\"", canvas.ink()),
            );
            clear = clear.max(x.at(estimate.high));
        }
        canvas.text(clear + 6.0, y + BAR - 2.0, "axis", &text);
    }
}
