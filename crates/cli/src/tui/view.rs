//! Draws the state of the live view, and nothing else.

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::{Owner, Row};
use lowtide_report::owners::{facts, ink, meaning, places};
use lowtide_report::terminal::{printable, wrapped};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use super::state::{Course, Panel, State};
use super::{arenas, chart, help};

/// The chart takes so many lines at least, or there is none.
const LOWEST_CHART: u16 = 6;

/// Draws it all.
pub(crate) fn draw(state: &State, colour: bool, area: Rect, buffer: &mut Buffer) {
    let mut page = Page { left: area, colour, buffer };
    page.footer(state);
    page.head(state);
    match state.panel {
        Panel::Overview => page.overview(state),
        Panel::Arenas => arenas::draw(state, page.left, page.buffer),
        Panel::Help => help::draw(page.left, page.buffer),
    }
}

/// What is left to draw on.
struct Page<'a> {
    left: Rect,
    colour: bool,
    buffer: &'a mut Buffer,
}

/// Writes a line, as far as there is room for it.
pub(super) fn write(text: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    write_from(0, text, style, area, buffer);
}

fn write_from(from: u16, text: &str, style: Style, area: Rect, buffer: &mut Buffer) -> u16 {
    let room = area.width.saturating_sub(from);
    if area.height == 0 || room == 0 {
        return from;
    }
    let x = area.x.saturating_add(from);
    let (end, _) = buffer.set_stringn(x, area.y, printable(text), usize::from(room), style);
    end.saturating_sub(area.x)
}

pub(super) fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

pub(super) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Takes so many lines from the top of an area.
pub(super) fn take(area: &mut Rect, lines: u16) -> Rect {
    let lines = lines.min(area.height);
    let taken = Rect { height: lines, ..*area };
    area.y += lines;
    area.height -= lines;
    taken
}

impl Page<'_> {
    fn line(&mut self, text: &str, style: Style) {
        let line = take(&mut self.left, 1);
        write(text, style, line, self.buffer);
    }

    /// Keys, what looking costs, and how it stands.
    fn footer(&mut self, state: &State) {
        let Some(rest) = self.left.height.checked_sub(1) else { return };
        let line = Rect { y: self.left.y + rest, height: 1, ..self.left };
        self.left.height = rest;
        let mut at = 0;
        if state.is_paused() {
            let marked = Style::new().add_modifier(Modifier::REVERSED);
            at = write_from(0, " paused ", marked, line, self.buffer) + 1;
        }
        let keys = match state.panel {
            Panel::Overview => "q quit · p pause · a arenas · +/- · ? help",
            Panel::Arenas | Panel::Help => "q quit · Esc back · j/k scroll · ? help",
        };
        at = write_from(at, keys, dim(), line, self.buffer);
        for text in cost(state) {
            let length = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
            if let Some(from) = line.width.checked_sub(length).filter(|from| *from > at) {
                write_from(from, &text, dim(), line, self.buffer);
                return;
            }
        }
    }

    fn head(&mut self, state: &State) {
        let course = state.course();
        let Some(found) = &course.latest else {
            self.line(&format!("PID {}", state.pid), bold());
            let text = state.trouble.clone().unwrap_or_else(|| "looking at it …".to_owned());
            self.line(&text, dim());
            self.rss(course, None);
            return;
        };
        let pid = format!("  PID {}", found.observation.pid);
        let room = usize::from(self.left.width).saturating_sub(pid.len()).max(8);
        let command = found.observation.command.join(" ");
        let command = if command.chars().count() > room {
            command.chars().take(room - 1).chain(['…']).collect()
        } else {
            command
        };
        self.line(&(command + &pid), bold());
        self.line(&facts(found).join(" · "), Style::new());
        let age = course.age_s(state.interval).filter(|_| state.ended_s.is_none());
        self.rss(course, age);
        self.bar(found);
    }

    /// `age` is how old what stands below is, in seconds, where it is of before.
    fn rss(&mut self, course: &Course, age: Option<f64>) {
        let Some((bytes, change)) = course.rss() else { return };
        let mut text = format!("RSS {}", Human(bytes));
        if course.now_s > 0.0 {
            let time = whole(course.now_s);
            text +=
                &format!("  {} in {time}  peak {}", signed(change), Human(course.peak_rss_bytes));
        }
        let line = take(&mut self.left, 1);
        let at = write_from(0, &text, bold(), line, self.buffer);
        if let Some(age) = age {
            let text = format!("  owners: {} ago", whole(age));
            write_from(at, &text, Style::new().add_modifier(Modifier::REVERSED), line, self.buffer);
        }
    }

    fn bar(&mut self, found: &Inspection) {
        let line = take(&mut self.left, 1);
        let width = usize::from(line.width);
        let mut at = 0;
        for (owner, count) in
            places(found.observation.ledger.rows(), found.observation.ledger.total(), width)
        {
            let (text, style) = self.sign(owner, count);
            at = write_from(at, &text, style, line, self.buffer);
        }
    }

    /// So many places in the colour of an owner.
    fn sign(&self, owner: Owner, count: usize) -> (String, Style) {
        let (colour, letter) = ink(owner);
        if self.colour {
            ("█".repeat(count), Style::new().fg(colour))
        } else {
            (letter.to_string().repeat(count), Style::new())
        }
    }

    fn overview(&mut self, state: &State) {
        let course = state.course();
        let Some(found) = &course.latest else { return };
        let said = said(state, found, self.left.width);
        let rows: Vec<Row> =
            found.observation.ledger.rows().iter().copied().filter(|r| r.bytes > 0).collect();
        let plan = Plan::of(self.left.height, rows.len(), said.len(), found.remedies.len());
        self.ledger(course, found, &rows, plan.rows);
        let chart = take(&mut self.left, plan.chart);
        chart::draw(course, self.colour, chart, self.buffer);
        for line in said.iter().take(usize::from(plan.verdict)) {
            self.line(line, bold());
        }
        for remedy in found.remedies.iter().take(usize::from(plan.remedies)) {
            let bytes = remedy.predicted_bytes.map_or(String::new(), |b| Human(b).to_string());
            self.line(
                &format!(" {:<17}  {bytes:>9}  {}", remedy.kind.name(), remedy.how),
                Style::new(),
            );
        }
    }

    /// The largest rows, as many as there is room for; the rest of them as one.
    fn ledger(&mut self, course: &Course, found: &Inspection, rows: &[Row], room: u16) {
        let room = usize::from(room);
        let mut shown: Vec<Row> = rows.to_vec();
        if rows.len() > room {
            let mut by_size = rows.to_vec();
            by_size.sort_by_key(|r| std::cmp::Reverse(r.bytes));
            let kept = by_size.get(..room.saturating_sub(1)).unwrap_or_default();
            shown.retain(|r| kept.iter().any(|k| k.owner == r.owner));
        }
        for row in &shown {
            let share = share(row.bytes, found);
            let change = course.change_of(row.owner).map_or(String::new(), signed);
            let about = if row.estimated { "≈" } else { " " };
            let line = take(&mut self.left, 1);
            let (sign, style) = self.sign(row.owner, if self.colour { 2 } else { 1 });
            write_from(1, &sign, style, line, self.buffer);
            let bytes = Human(row.bytes).to_string();
            let text =
                format!("{:<15}{about}{bytes:>10} {share:>5.1} % {change:>11}", row.owner.name());
            let at = write_from(4, &text, Style::new(), line, self.buffer);
            write_from(at + 2, &meaning(found, row.owner), dim(), line, self.buffer);
        }
        if shown.len() < rows.len() && room > 0 {
            let rest: u64 = rows.iter().map(|r| r.bytes).sum::<u64>()
                - shown.iter().map(|r| r.bytes).sum::<u64>();
            let name = format!("{} others", rows.len() - shown.len());
            let bytes = Human(rest).to_string();
            let share = share(rest, found);
            self.line(&format!("    {name:<15} {bytes:>10} {share:>5.1} %"), dim());
        }
    }
}

fn share(bytes: u64, found: &Inspection) -> f64 {
    bytes as f64 / found.observation.ledger.total().max(1) as f64 * 100.0
}

/// A time in which fractions of a second say nothing.
fn whole(seconds: f64) -> String {
    if seconds < 59.5 {
        format!("{:.0} s", seconds.max(1.0))
    } else {
        HumanSeconds(seconds).to_string()
    }
}

/// A change in bytes: `+12.3 MiB`, `−4.00 KiB`, `±0`.
pub(super) fn signed(change: i64) -> String {
    match change {
        0 => "±0".to_owned(),
        _ => format!("{}{}", if change < 0 { "−" } else { "+" }, Human(change.unsigned_abs())),
    }
}

/// The verdict and what went wrong, in lines.
fn said(state: &State, found: &Inspection, width: u16) -> Vec<String> {
    let verdict = &found.verdict;
    let mut text = format!("{}: {}.", verdict.kind.name(), verdict.because.join("; "));
    if let Some(trouble) = &state.trouble {
        text = format!("! {trouble}. {text}");
    }
    wrapped(&text, width.max(1)).lines().map(str::to_owned).collect()
}

/// What looking costs, in many words and in few.
fn cost(state: &State) -> Vec<String> {
    let interval = state.interval.as_secs_f64();
    let every = HumanSeconds(interval);
    let Some(look) = state.look_s() else { return vec![format!("every {every}")] };
    let (between, look) = (state.between_looks_s(), HumanSeconds(look));
    if between > interval {
        let between = HumanSeconds(between);
        vec![
            format!("samples every {every}; a look takes {look}, so one every {between}"),
            format!("a look takes {look}: every {between}"),
            format!("looks every {between}"),
        ]
    } else {
        vec![format!("every {every}; a look takes {look}"), format!("every {every}")]
    }
}

/// How many lines each part gets.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    rows: u16,
    chart: u16,
    verdict: u16,
    remedies: u16,
}

impl Plan {
    /// `height` is what is between the head and the footer. The verdict comes first, then the largest
    /// rows, then a chart, then the rest of the rows and the remedies.
    fn of(height: u16, rows: usize, verdict: usize, remedies: usize) -> Self {
        let fit = |count: usize, most: u16| u16::try_from(count).unwrap_or(u16::MAX).min(most);
        let (most_said, most_remedies) = match height {
            ..8 => (1, 0),
            8..14 => (2, 1),
            14..24 => (2, 2),
            _ => (4, 5),
        };
        let verdict = fit(verdict, most_said.min(height));
        let remedies = fit(remedies, most_remedies.min(height - verdict));
        let left = height - verdict - remedies;
        let rows = fit(rows, left);
        let few = rows.min(6);
        if left < few + LOWEST_CHART {
            return Self { rows, chart: 0, verdict, remedies };
        }
        let rows = rows.min(left - LOWEST_CHART).max(few);
        Self { rows, chart: left - rows, verdict, remedies }
    }
}

/// The colour of RSS itself.
pub(super) const RSS_INK: Color = Color::White;
