//! The pictures as SVG, text that can be compared: the course of all treatments over time, their
//! bars, and a panel for each.

mod bars;
mod canvas;
mod overview;
mod panel;

use crate::view::View;
use canvas::Canvas;

pub use canvas::{CONNECTIONS, PALETTE, PALETTE_ON_DARK, Theme};

/// Width of the whole picture, in pixels.
pub const WIDTH: f64 = 1080.0;
const MARGIN: f64 = 24.0;
const GAP: f64 = 28.0;

/// A picture, and its size in pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// The SVG document.
    pub svg: String,
    /// Its width.
    pub width: f64,
    /// Its height.
    pub height: f64,
}

/// Everything on one sheet: title, course, bars, panels.
pub fn sheet(view: &View, subtitle: &str, theme: Theme) -> Picture {
    let inner = WIDTH - 2.0 * MARGIN;
    let panels = view.groups.len();
    let columns = if panels == 1 { 1 } else { 2 };
    let rows = panels.div_ceil(columns);
    let bars_height = bars::height(view);
    let overview_height = overview::height(view);
    let panel_height = 250.0;
    let height = MARGIN
        + 52.0
        + overview_height
        + GAP
        + bars_height
        + rows as f64 * (GAP + panel_height)
        + MARGIN;
    let mut canvas = Canvas::new(WIDTH, height, theme);
    canvas.text(MARGIN, MARGIN + 16.0, "title", &view.title);
    canvas.text(MARGIN, MARGIN + 38.0, "note", subtitle);
    let mut y = MARGIN + 52.0;
    overview::draw(&mut canvas, view, [MARGIN, y, inner, overview_height]);
    y += overview_height + GAP;
    bars::draw(&mut canvas, view, [MARGIN, y, inner, bars_height]);
    y += bars_height;
    let width = (inner - GAP * (columns - 1) as f64) / columns as f64;
    for (place, group) in view.groups.iter().enumerate() {
        let x = MARGIN + (place % columns) as f64 * (width + GAP);
        let top = y + GAP + (place / columns) as f64 * (panel_height + GAP);
        panel::draw(&mut canvas, view, group, [x, top, width, panel_height]);
    }
    Picture { svg: canvas.finish(), width: WIDTH, height }
}

/// The course of all treatments alone.
pub fn course(view: &View, theme: Theme) -> Picture {
    let height = overview::height(view) + 2.0 * MARGIN;
    let mut canvas = Canvas::new(WIDTH, height, theme);
    let inner = [MARGIN, MARGIN, WIDTH - 2.0 * MARGIN, height - 2.0 * MARGIN];
    overview::draw(&mut canvas, view, inner);
    Picture { svg: canvas.finish(), width: WIDTH, height }
}

/// The bars alone.
pub fn bars(view: &View, theme: Theme) -> Picture {
    let height = bars::height(view) + 8.0;
    let mut canvas = Canvas::new(WIDTH, height, theme);
    bars::draw(&mut canvas, view, [0.0, 4.0, WIDTH, height - 8.0]);
    Picture { svg: canvas.finish(), width: WIDTH, height }
}

#[cfg(test)]
mod tests;
