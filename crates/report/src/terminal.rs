//! A report for a terminal: the table, the course over time, the recommendation.

use std::collections::BTreeSet;

use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ContentArrangement, ContentLineStyle, LineStyle,
    Table as Grid, TableStyle,
};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color as Ink, Style};
use ratatui_core::symbols::Marker;
use ratatui_core::widgets::Widget;
use ratatui_widgets::chart::{Axis, Chart, Dataset, GraphType};

use crate::read::Loaded;
use crate::scale::{byte_axis, time_label};
use crate::table::{self, Cell as TableCell, MEAN_EXCESS, Table};
use crate::view::{View, names};

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Columns.
    pub width: u16,
    /// Whether it shows colours.
    pub colour: bool,
}

/// A report of some records, with the tables of others beside them.
pub fn render(records: &[Loaded], beside: &[Loaded], screen: Screen) -> String {
    let mut out = String::new();
    for (record, name) in records.iter().zip(names(records)) {
        if records.len() > 1 {
            out += &format!("{}\n", bold(&printable(&name), screen));
        }
        out += &grid(&table::summary(&record.study), screen);
        out.push('\n');
        for more in table::more(&record.study) {
            out += &grid(&more, screen);
            out.push('\n');
        }
        if let Some(text) = table::incomplete(&record.study) {
            out += &format!("{}\n", wrapped(&text, screen.width));
        }
        for warning in &record.study.warnings {
            out += &format!("{}\n", wrapped(&format!("warning: {warning}."), screen.width));
        }
        for note in &record.notes {
            out += &format!("note: {}\n", printable(note));
        }
    }
    out += &chart(&View::of(records), screen);
    for record in beside {
        out += &format!(
            "\n{}\n",
            bold(&printable(&format!("Beside it: {}", record.study.name)), screen)
        );
        out += &grid(&table::summary(&record.study), screen);
        if let Some(source) = &record.source {
            out += &format!("{}\n", wrapped(&format!("Figures from: {source}"), screen.width));
        }
    }
    for (record, name) in records.iter().zip(names(records)) {
        if let Some(text) = table::recommendation(&record.study) {
            let text = if records.len() > 1 { format!("{name}: {text}") } else { text };
            out += &format!("\n{}\n", bold(&wrapped(&text, screen.width), screen));
        }
    }
    out
}

/// Whether a character does something else than being seen: control characters, and those that turn the direction
/// of what stands around them, so that a line reads as another one.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text of a record, which may come from anywhere, without what would steer the terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if steers(c) { ' ' } else { c }).collect()
}

/// The same for text of several lines, which stay lines.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Text that stands out.
pub(crate) fn bold(text: &str, screen: Screen) -> String {
    if screen.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// Text that stands back.
pub(crate) fn dim(text: &str, screen: Screen) -> String {
    if screen.colour { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
}

/// A command and its number, on one line.
pub(crate) fn title(command: &[String], pid: u32, screen: Screen) -> String {
    let command = printable(&command.join(" "));
    let room = usize::from(screen.width).saturating_sub(16);
    let short: String = if command.chars().count() > room {
        command.chars().take(room.saturating_sub(1)).chain(['…']).collect()
    } else {
        command
    };
    bold(&format!("{short}  PID {pid}"), screen)
}

/// Text behind the beginning of its first line; further lines stand below where it begins.
pub(crate) fn hanging(begin: &str, text: &str, screen: Screen) -> String {
    let indent = begin.chars().count();
    let room = usize::from(screen.width).saturating_sub(indent).max(30);
    let text = wrapped(text, u16::try_from(room).unwrap_or(u16::MAX));
    format!("{begin}{}\n", text.replace('\n', &format!("\n{}", " ".repeat(indent))))
}

/// `1204` as `1,204`.
pub(crate) fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Breaks lines between words.
pub fn wrapped(text: &str, width: u16) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in printable(text).split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > usize::from(width) {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

/// The widest form of a table that fits.
fn grid(table: &Table, screen: Screen) -> String {
    let full = drawn(table, screen, &|_, cell| cell.full.clone());
    let fits = |text: &str| {
        let widest = text.lines().map(|l| visible(l).chars().count()).max().unwrap_or(0);
        widest <= usize::from(screen.width)
    };
    let without_excess = |head: &str, cell: &TableCell| -> String {
        if head == MEAN_EXCESS { cell.short.clone() } else { cell.full.clone() }
    };
    let mut out = full;
    if !fits(&out) {
        out = drawn(table, screen, &without_excess);
    }
    if !fits(&out) {
        out = drawn(table, screen, &|_, cell| cell.short.clone());
    }
    // Still too wide: shorten the names, then leave out what says least, from the second column on.
    let mut narrow = table.clone();
    if !fits(&out) {
        let most = usize::from(screen.width) / 3;
        let cells = || narrow.rows.iter().filter_map(|row| row.cells.first());
        let names = cut_apart(&cells().map(|cell| cell.short.as_str()).collect::<Vec<_>>(), most);
        let cells = narrow.rows.iter_mut().filter_map(|row| row.cells.first_mut());
        cells.zip(names).for_each(|(cell, name)| cell.short = name);
        out = drawn(&narrow, screen, &|_, cell| cell.short.clone());
    }
    while !fits(&out) && narrow.heads.len() > 3 {
        let least = [
            "baseline",
            "per connection",
            MEAN_EXCESS,
            "latency",
            "load took",
            "peak",
            // Of a ledger, what no allocator has a part in.
            "program data",
            "stacks",
            "shared",
            "files",
            "rest",
            "cached",
        ];
        let place = least.iter().find_map(|l| narrow.heads.iter().position(|h| h == l));
        let place = place.unwrap_or(1);
        narrow.heads.remove(place);
        for row in &mut narrow.rows {
            row.cells.remove(place);
        }
        out = drawn(&narrow, screen, &|_, cell| cell.short.clone());
    }
    out += &format!("{}\n", wrapped(&table.caption, screen.width));
    for row in &table.rows {
        if let Some(warning) = &row.warning {
            let name = row.cells.first().map_or("", |c| c.full.as_str());
            out += &format!("{}\n", wrapped(&format!("! {name}: {warning}"), screen.width));
        }
    }
    out
}

/// Names in so many characters. They are cut in the middle, as their ends may tell a policy, or a moment; or
/// elsewhere, where that tells more of them apart.
fn cut_apart(names: &[&str], most: usize) -> Vec<String> {
    let all = |begin: usize| names.iter().map(|name| cut(name, most, begin)).collect::<Vec<_>>();
    let different = |names: &[String]| names.iter().collect::<BTreeSet<_>>().len();
    let middle = all(most.saturating_sub(1) / 2);
    // Of those that tell as many apart, the last one is taken.
    let tried = (0..most).map(all).chain([middle]);
    tried.max_by_key(|names| different(names)).unwrap_or_default()
}

/// A name in so many characters, of which so many are of its beginning, and the others of its end.
fn cut(name: &str, most: usize, begin: usize) -> String {
    let name: Vec<char> = name.chars().collect();
    if name.len() <= most {
        return name.into_iter().collect();
    }
    let end = most.saturating_sub(1 + begin);
    name[..begin].iter().chain(&['…']).chain(&name[name.len() - end..]).collect()
}

fn drawn(table: &Table, screen: Screen, text: &dyn Fn(&str, &TableCell) -> String) -> String {
    let mut grid = Grid::new();
    grid.load_style(
        TableStyle::new()
            .header_separator(LineStyle::none().fill('─').junction('─'))
            .header_lines(ContentLineStyle::none())
            .content_lines(ContentLineStyle::none()),
    )
    .set_content_arrangement(ContentArrangement::Disabled);
    if screen.colour {
        grid.enforce_styling();
    } else {
        grid.force_no_tty();
    }
    grid.set_header(
        table.heads.iter().map(|h| Cell::new(printable(h)).add_attribute(Attribute::Dim)),
    );
    for row in &table.rows {
        let cells = row.cells.iter().zip(&table.heads).map(|(cell, head)| {
            let cell = Cell::new(printable(&text(head, cell)));
            match (&row.warning, row.recommended) {
                (Some(_), _) => cell.fg(Color::Yellow),
                (None, true) => cell.fg(Color::Green),
                (None, false) => cell,
            }
        });
        grid.add_row(cells);
    }
    for column in grid.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    grid.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A line without the escape sequences of its colours.
fn visible(line: &str) -> String {
    let mut out = String::new();
    let mut parts = line.split('\x1b');
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        out.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    out
}

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
/// Without colours, the lines are told apart by the figures that they are made of.
const FIGURES: &[u8; 36] = b"1234567890abcdefghijklmnopqrstuvwxyz";

fn figure(place: usize) -> char {
    char::from(FIGURES[place % FIGURES.len()])
}

fn chart(view: &View, screen: Screen) -> String {
    if view.groups.is_empty() {
        return "nothing was recorded that could be drawn\n".to_owned();
    }
    let (from, to) = view.span();
    // Here the resident memory is all that there is room for.
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
    // Of a short run, whole seconds would say too little.
    let step = if to - from < 20.0 { 10.0 } else { 1.0 };
    let x_labels =
        [from, f64::midpoint(from, to), to].map(|t| time_label((t * step).round() / step, to));
    // There is one axis: what is counted is drawn as high as there is room.
    let in_flight = view.groups.first().and_then(|g| g.main()).map_or(&[][..], |c| &c.in_flight);
    let most = in_flight.iter().map(|p| p.1).max().unwrap_or(0);
    let scaled: Vec<(f64, f64)> = in_flight
        .iter()
        .map(|(t, count)| (*t, *count as f64 / most.max(1) as f64 * ceiling))
        .collect();
    let drawn = |set: Option<Dataset<'_>>| {
        const HEIGHT: u16 = 18;
        let chart = Chart::new(set.into_iter().collect())
            .x_axis(Axis::default().bounds([from, to]).labels(x_labels.clone()))
            .y_axis(Axis::default().bounds([0.0, ceiling]).labels(y_labels.clone()))
            .legend_position(None);
        let area = Rect::new(0, 0, screen.width.max(40), HEIGHT);
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
        let marker = if screen.colour { Marker::Braille } else { Marker::Custom(figure(place)) };
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

/// Lines that were drawn one by one, over what was counted. Where several lines come by the same place, each is seen
/// in turn: of lines that lie upon each other none is hidden.
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

/// The line of requests in flight, without colours.
const IN_FLIGHT: char = '•';

/// The names of the lines, below the chart: on it they would hide what they name.
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
            out += &format!(" {} {}  ", figure(place), printable(&group.label));
        }
    }
    format!("{}\n", out.trim_end())
}

/// A drawn buffer as lines of text, with the escape sequences of its colours.
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

/// The escape sequence of a colour.
pub(crate) fn escape_of(ink: Ink) -> &'static str {
    match ink {
        Ink::Blue => "\x1b[34m",
        Ink::Red => "\x1b[31m",
        Ink::Green => "\x1b[32m",
        Ink::Magenta => "\x1b[35m",
        Ink::Yellow => "\x1b[33m",
        Ink::Cyan => "\x1b[36m",
        Ink::LightRed => "\x1b[91m",
        Ink::LightBlue => "\x1b[94m",
        Ink::LightGreen => "\x1b[92m",
        Ink::Gray => "\x1b[37m",
        Ink::DarkGray => "\x1b[90m",
        Ink::LightYellow => "\x1b[93m",
        Ink::LightMagenta => "\x1b[95m",
        Ink::LightCyan => "\x1b[96m",
        _ => "\x1b[0m",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_where_they_are_told_apart_if_they_can_in_the_middle() {
        let names = |all: &[&str]| cut_apart(all, 26);
        let name = "glibc/node-24.21.0 + release after a collection";
        let (peak, settled) = (format!("{name}, peak"), format!("{name}, settled"));
        let short = ["glibc/node-2…lection, peak", "glibc/node-2…tion, settled", "glibc"];
        assert_eq!(names(&[&peak, &settled, "glibc"]), short);
        let alike = names(&["glibc 2.36/tasks-runtime-each", "glibc 2.36/tcp-runtime-each"]);
        assert!(alike[0] != alike[1] && alike.iter().all(|n| n.chars().count() == 26), "{alike:?}");
    }
}
