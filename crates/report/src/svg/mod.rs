//! The charts as SVG, which can be compared as text: all treatments over time, their bars, and a
//! panel for each.

mod bars;
mod canvas;
mod inspection;
mod leaks;
mod overview;
mod panel;

use crate::view::View;
use canvas::{Canvas, fitted};

pub use canvas::Picture;
pub(crate) use canvas::{CONNECTIONS, INNER, OUTER, PALETTE, PALETTE_ON_DARK, Text, Theme};
pub(crate) use inspection::chart as inspection_chart;
pub(crate) use leaks::chart as leaks_chart;

/// Width of the whole picture, in pixels.
pub(crate) const WIDTH: f64 = 1080.0;
/// Width of a picture for a narrow page.
pub(crate) const NARROW: f64 = 400.0;
const MARGIN: f64 = 24.0;
const GAP: f64 = 28.0;
/// Height of a panel.
const PANEL: f64 = 250.0;
/// Height of a title in the middle of a sheet.
const HEADING: f64 = 30.0;

/// The charts on a sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charts {
    /// All treatments over time, and those of the records beside them.
    pub course: bool,
    /// Baseline, peak and settled.
    pub bars: bool,
    /// A panel for each treatment.
    pub panels: bool,
}

/// Draws charts on one sheet, under a title. The first view has all its charts. The others beside
/// it have their course, each on axes of its own, and panels if a program reports metrics; panels
/// alone if the first view has them alone.
pub fn sheet(views: &[View], subtitle: &str, charts: Charts) -> Picture {
    let Some((view, beside)) = views.split_first() else {
        return Canvas::new(WIDTH, 1.0, Theme::Light).finish();
    };
    let inner = WIDTH - 2.0 * MARGIN;
    // The metrics of a program are only drawn in panels.
    let has_panels = |other: &View| charts.panels && (other.has_inner() || !charts.course);
    let beside: &[View] = if charts.course || charts.panels { beside } else { &[] };
    let mut heights = vec![MARGIN + 52.0];
    if charts.course {
        heights.push(overview::height(view));
    }
    if charts.bars {
        heights.push(bars::height(view));
    }
    if charts.panels {
        heights.extend(std::iter::repeat_n(PANEL, rows(view)));
    }
    for other in beside {
        heights.push(HEADING - GAP);
        if charts.course {
            heights.push(overview::height(other));
        }
        if has_panels(other) {
            heights.extend(std::iter::repeat_n(PANEL, rows(other)));
        }
    }
    let height =
        heights.iter().sum::<f64>() + GAP * (heights.len() - 1) as f64 + MARGIN - GAP / 2.0;
    let mut canvas = Canvas::new(WIDTH, height, Theme::Light);
    canvas.text(MARGIN, MARGIN + 16.0, "title", &fitted(&view.title, inner, 11.0));
    canvas.text(MARGIN, MARGIN + 38.0, "note", &fitted(subtitle, inner, 6.4));
    let mut y = MARGIN + 52.0 + GAP / 2.0;
    if charts.course {
        overview::draw(&mut canvas, view, [MARGIN, y, inner, overview::height(view)]);
        y += overview::height(view) + GAP;
    }
    if charts.bars {
        bars::draw(&mut canvas, view, [MARGIN, y, inner, bars::height(view)]);
        y += bars::height(view) + GAP;
    }
    if charts.panels {
        y = panels(&mut canvas, view, y);
    }
    for other in beside {
        canvas.text(MARGIN, y + 14.0, "title", &format!("For comparison: {}", other.title));
        y += HEADING;
        if charts.course {
            let height = overview::height(other);
            overview::draw(&mut canvas, other, [MARGIN, y, inner, height]);
            y += height + GAP;
        }
        if has_panels(other) {
            y = panels(&mut canvas, other, y);
        }
    }
    canvas.finish()
}

/// Returns the number of panels side by side: two, unless there is only one.
fn columns(view: &View) -> usize {
    view.groups.len().clamp(1, 2)
}

fn rows(view: &View) -> usize {
    view.groups.len().div_ceil(columns(view))
}

/// Draws the panels of a view from a height on, and returns the height below them.
fn panels(canvas: &mut Canvas, view: &View, y: f64) -> f64 {
    let columns = columns(view);
    let width = (WIDTH - 2.0 * MARGIN - GAP * (columns - 1) as f64) / columns as f64;
    for (place, group) in view.groups.iter().enumerate() {
        let x = MARGIN + (place % columns) as f64 * (width + GAP);
        let top = y + (place / columns) as f64 * (PANEL + GAP);
        panel::draw(canvas, view, group, [x, top, width, PANEL]);
    }
    y + rows(view) as f64 * (PANEL + GAP)
}

/// Draws all treatments over time.
pub(crate) fn course(view: &View, theme: Theme) -> Picture {
    let height = overview::height(view) + 2.0 * MARGIN;
    let mut canvas = Canvas::new(WIDTH, height, theme);
    let inner = [MARGIN, MARGIN, WIDTH - 2.0 * MARGIN, height - 2.0 * MARGIN];
    overview::draw(&mut canvas, view, inner);
    canvas.finish()
}

/// Draws the bars in a given width.
pub(crate) fn bars(view: &View, theme: Theme, width: f64) -> Picture {
    let height = bars::height(view) + 8.0;
    let mut canvas = Canvas::new(width, height, theme);
    bars::draw(&mut canvas, view, [0.0, 4.0, width, height - 8.0]);
    canvas.finish()
}
