//! The chart: RSS and the largest owners over time.

use lowtide_report::owners::ink_of;
use lowtide_report::{byte_axis, time_label};
use ratatui_core::style::{Color, Style};
use ratatui_core::symbols::Marker;
use ratatui_widgets::chart::{Axis, Chart, Dataset, GraphType};

use super::canvas::{ScreenCanvas, dim};
use super::history::{CHARTED, History};

/// Minimum width of a chart in columns; a narrower one has no room for lines beside the labels.
const MIN_WIDTH: u16 = 24;

/// Owners below the peak RSS divided by this are omitted: their lines would coincide with the axis.
const NEGLIGIBLE_SHARE: u64 = 50;

/// The mark of a release, in the first line of the chart.
const RELEASE: char = '▼';

/// The colour of RSS itself, and of releases.
const RSS_INK: Color = Color::White;

struct Polyline {
    name: &'static str,
    colour: Color,
    letter: char,
    points: Vec<(f64, f64)>,
}

/// Draws the lines, with the legend above the chart so that it hides none of them.
pub(super) fn draw(history: &History, canvas: &mut ScreenCanvas<'_>) {
    let colour = canvas.colour;
    if canvas.area.height < 3 || canvas.area.width < MIN_WIDTH {
        return;
    }
    let lines = lines(history);
    let mut names: Vec<String> = lines
        .iter()
        .map(|l| if colour { l.name.to_owned() } else { format!("{} {}", l.letter, l.name) })
        .collect();
    let releases = history.policy.as_ref().map(|policy| policy.releases.line(0));
    let releases = releases.unwrap_or_default();
    if !releases.is_empty() {
        names.insert(1, format!("{RELEASE} release"));
    }
    canvas.line(&format!(" over time: {}", names.join(" · ")), dim());
    let top = history.rss.highest(0).max(1) as f64;
    let most = usize::from(canvas.area.height / 3).clamp(2, 5);
    let (ceiling, labels) = byte_axis(top, most);
    // In the first second, the axis of time is one second long.
    let span = history.now_s.max(1.0);
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
    let marks: Vec<(f64, f64)> = releases.iter().map(|(t_s, _)| (*t_s, ceiling)).collect();
    let marks = Dataset::default()
        .marker(Marker::Custom(RELEASE))
        .graph_type(GraphType::Scatter)
        .style(if colour { Style::new().fg(RSS_INK) } else { Style::new() })
        .data(&marks);
    let chart = Chart::new(sets.chain([marks]).collect())
        .x_axis(Axis::default().bounds([0.0, span]).labels(times))
        .y_axis(Axis::default().bounds([0.0, ceiling]).labels(labels))
        .legend_position(None);
    canvas.render(chart);
}

fn lines(history: &History) -> Vec<Polyline> {
    // The last point holds until now.
    let until_now = |mut points: Vec<(f64, f64)>| {
        points.extend(points.last().map(|last| (history.now_s, last.1)));
        points
    };
    let rss = until_now(history.rss.line(0));
    let mut lines = vec![Polyline { name: "RSS", colour: RSS_INK, letter: '*', points: rss }];
    for (which, owner) in CHARTED.into_iter().enumerate() {
        if history.owners.highest(which) < history.peak_rss_bytes / NEGLIGIBLE_SHARE {
            continue;
        }
        let (colour, letter) = ink_of(owner);
        let points = until_now(history.owners.line(which));
        lines.push(Polyline { name: owner.name(), colour, letter, points });
    }
    lines
}
