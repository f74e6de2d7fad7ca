//! RSS and its largest parts over time.

use lowtide_report::owners::ink;
use lowtide_report::scale::{byte_axis, time_label};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Style};
use ratatui_core::symbols::Marker;
use ratatui_core::widgets::Widget;
use ratatui_widgets::chart::{Axis, Chart, Dataset, GraphType};

use super::state::{Course, FOLLOWED};
use super::view::{RSS_INK, dim, take, write};

/// Below so many columns there is no room for lines beside the labels.
const NARROWEST: u16 = 24;

/// What was never 1 part in so many of the highest RSS would lie on the axis.
const LEAST_PART: u64 = 50;

struct Line {
    name: &'static str,
    colour: Color,
    letter: char,
    points: Vec<(f64, f64)>,
}

/// Draws the lines, with a legend above them: on the chart it would hide what it names.
pub(super) fn draw(course: &Course, colour: bool, mut area: Rect, buffer: &mut Buffer) {
    if area.height < 3 || area.width < NARROWEST {
        return;
    }
    let lines = lines(course);
    let names: Vec<String> = lines
        .iter()
        .map(|l| if colour { l.name.to_owned() } else { format!("{} {}", l.letter, l.name) })
        .collect();
    let legend = take(&mut area, 1);
    write(&format!(" over time: {}", names.join(" · ")), dim(), legend, buffer);
    let top = course.rss.highest(0).max(1) as f64;
    let most = usize::from(area.height / 3).clamp(2, 5);
    let (ceiling, labels) = byte_axis(top, most);
    // Before a second has passed there is nothing to be seen of time.
    let span = course.now_s.max(1.0);
    let since = |t: f64| time_label(((t - span) * 10.0).round() / 10.0, span);
    let times = [since(0.0), since(span / 2.0), "now".to_owned()];
    let sets = lines.iter().map(|line| {
        let marker = if colour { Marker::Braille } else { Marker::Custom(line.letter) };
        Dataset::default()
            .marker(marker)
            .graph_type(GraphType::Line)
            .style(if colour { Style::new().fg(line.colour) } else { Style::new() })
            .data(&line.points)
    });
    Chart::new(sets.collect())
        .x_axis(Axis::default().bounds([0.0, span]).labels(times))
        .y_axis(Axis::default().bounds([0.0, ceiling]).labels(labels))
        .legend_position(None)
        .render(area, buffer);
}

fn lines(course: &Course) -> Vec<Line> {
    // What was seen last stands until something else is seen.
    let until_now = |mut points: Vec<(f64, f64)>| {
        points.extend(points.last().map(|last| (course.now_s, last.1)));
        points
    };
    let rss = until_now(course.rss.line(0));
    let mut lines = vec![Line { name: "RSS", colour: RSS_INK, letter: '*', points: rss }];
    for (which, owner) in FOLLOWED.into_iter().enumerate() {
        if course.owners.highest(which) < course.peak_rss_bytes / LEAST_PART {
            continue;
        }
        let (colour, letter) = ink(owner);
        let points = until_now(course.owners.line(which));
        lines.push(Line { name: owner.name(), colour, letter, points });
    }
    lines
}
