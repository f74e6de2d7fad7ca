//! The chart of a report on a terminal: memory over time, a line for each treatment.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color as Ink, Style};
use ratatui_core::symbols::Marker;
use ratatui_core::widgets::Widget;
use ratatui_widgets::chart::{Axis, Chart, Dataset, GraphType};

use crate::scale::{byte_axis, time_label};
use crate::screen::{Screen, escape_of};
use crate::text::printable;
use crate::view::View;

/// Colours of the lines.
const INKS: [Ink; 10] = [
    Ink::Blue,
    Ink::Red,
    Ink::Green,
    Ink::Magenta,
    Ink::Yellow,
    Ink::Cyan,
    Ink::LightRed,
    Ink::LightBlue,
    Ink::LightGreen,
    Ink::Gray,
];
/// Minimum width of a terminal that probably has more than 24 lines.
const WIDE: u16 = 100;
/// Glyphs that distinguish the lines without colours.
const GLYPHS: &[u8; 36] = b"1234567890abcdefghijklmnopqrstuvwxyz";

fn glyph(place: usize) -> char {
    char::from(GLYPHS[place % GLYPHS.len()])
}

/// Draws the chart with its legend.
pub(super) fn chart(view: &View, screen: Screen) -> String {
    if view.groups.is_empty() {
        return "there is nothing to draw\n".to_owned();
    }
    let (from, to) = view.span();
    // There is room only for resident memory.
    let highest = |points: &Vec<(f64, f64)>| points.iter().map(|p| p.1).fold(0.0, f64::max);
    let lines: Vec<Vec<(f64, f64)>> = view
        .groups
        .iter()
        .map(|g| {
            let points = g.main().map(|c| c.memory(view.metric)).unwrap_or_default();
            points.into_iter().map(|(t, b)| (t, b as f64)).collect()
        })
        .collect();
    let top = lines.iter().map(highest).fold(1.0, f64::max);
    let (ceiling, y_labels) = byte_axis(top, 4);
    // For a short run, whole seconds are too coarse.
    let step = if to - from < 20.0 { 10.0 } else { 1.0 };
    let x_labels =
        [from, f64::midpoint(from, to), to].map(|t| time_label((t * step).round() / step, to));
    // There is one axis, so the count of requests is scaled to its height.
    let in_flight = view.groups.first().and_then(|g| g.main()).map_or(&[][..], |c| &c.in_flight);
    let most = in_flight.iter().map(|p| p.1).max().unwrap_or(0);
    let scaled: Vec<(f64, f64)> = in_flight
        .iter()
        .map(|(t, count)| (*t, *count as f64 / most.max(1) as f64 * ceiling))
        .collect();
    let drawn = |set: Option<Dataset<'_>>| {
        // With the table of treatments above it, a narrow terminal of 24 lines shows the whole.
        let height = if screen.width < WIDE { 10 } else { 18 };
        let chart = Chart::new(set.into_iter().collect())
            .x_axis(Axis::default().bounds([from, to]).labels(x_labels.clone()))
            .y_axis(Axis::default().bounds([0.0, ceiling]).labels(y_labels.clone()))
            .legend_position(None);
        let area = Rect::new(0, 0, screen.width.max(40), height);
        let mut buffer = Buffer::empty(area);
        chart.render(area, &mut buffer);
        buffer
    };
    let line = |marker, ink, data| {
        let set = Dataset::default().marker(marker).graph_type(GraphType::Line);
        drawn(Some(set.style(Style::default().fg(ink)).data(data)))
    };
    let marker_of_count = if screen.colour { Marker::Dot } else { Marker::Custom(IN_FLIGHT) };
    let counted = (most > 0).then(|| line(marker_of_count, Ink::LightGreen, &scaled));
    let drawn_lines = view.groups.iter().zip(&lines).enumerate().map(|(place, (group, points))| {
        let marker = if screen.colour { Marker::Braille } else { Marker::Custom(glyph(place)) };
        line(marker, INKS[group.colour % INKS.len()], points)
    });
    let buffer = laid_over(drawn(None), counted.as_ref(), &drawn_lines.collect::<Vec<Buffer>>());
    let caption = format!("{} over time since {}\n", view.metric.name(), view.time_from);
    let mut out = caption + &text_of(&buffer, screen) + &legend(view, screen);
    if most > 0 {
        let ink = if screen.colour { escape_of(Ink::LightGreen) } else { "" };
        let end = if screen.colour { "\x1b[0m" } else { "" };
        let of = view.groups.first().map_or("", |g| g.label.as_str());
        let words = format!("requests in flight of {}, at most {most}", printable(of));
        out += &format!(" {ink}{IN_FLIGHT}{IN_FLIGHT}{end} {words}\n");
    }
    out
}

/// Overlays lines that were drawn one by one on the count of requests. Where several lines share a
/// cell, they take turns, so that no line hides another one.
fn laid_over(mut axes: Buffer, counted: Option<&Buffer>, lines: &[Buffer]) -> Buffer {
    let area = axes.area;
    for place in area.rows().flat_map(ratatui_core::layout::Rect::columns) {
        let at = (place.x, place.y);
        let is_drawn = |buffer: &&Buffer| buffer[at].symbol() != axes[at].symbol();
        let here: Vec<&Buffer> = lines.iter().filter(is_drawn).collect();
        let shown = match here.len() {
            0 => counted.filter(is_drawn),
            several => Some(here[usize::from(place.x) % several]),
        };
        if let Some(shown) = shown {
            axes[at] = shown[at].clone();
        }
    }
    axes
}

/// Glyph of the requests in flight, without colours.
const IN_FLIGHT: char = '•';

/// Returns the names of the lines, for below the chart, where they hide none.
fn legend(view: &View, screen: Screen) -> String {
    let mut out = String::new();
    let mut column = 0;
    for (place, group) in view.groups.iter().enumerate() {
        let length = group.label.chars().count() + 5;
        if column > 0 && column + length > usize::from(screen.width) {
            out.push('\n');
            column = 0;
        }
        column += length;
        if screen.colour {
            let ink = escape_of(INKS[group.colour % INKS.len()]);
            out += &format!(" {ink}━━\x1b[0m {} ", printable(&group.label));
        } else {
            out += &format!(" {} {}  ", glyph(place), printable(&group.label));
        }
    }
    format!("{}\n", out.trim_end())
}

/// Returns a buffer as lines of text, with the escape sequences of its colours.
fn text_of(buffer: &Buffer, screen: Screen) -> String {
    let area = buffer.area;
    let mut out = String::new();
    for y in area.top()..area.bottom() {
        let mut line = String::new();
        let mut current = Ink::Reset;
        for x in area.left()..area.right() {
            let cell = &buffer[(x, y)];
            if screen.colour && cell.fg != current {
                line += escape_of(cell.fg);
                current = cell.fg;
            }
            line += cell.symbol();
        }
        let line = line.trim_end();
        out += line;
        if screen.colour && current != Ink::Reset {
            out += "\x1b[0m";
        }
        out.push('\n');
    }
    out
}
