//! Draws the state of the live view.

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::Row;
use lowtide_report::owners::{facts, ink, meaning, places};
use lowtide_report::text::{shortened, wrapped};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::canvas::{ScreenCanvas, bold, dim, reversed, whole};
use super::history::History;
use super::state::{Panel, State};
use super::{arenas, chart, help, report};

/// Minimum height of the chart, in lines.
const MIN_CHART_HEIGHT: u16 = 6;

/// Draws the whole view.
pub(crate) fn draw(state: &State, colour: bool, area: Rect, buffer: &mut Buffer) {
    let mut canvas = ScreenCanvas::new(area, colour, buffer);
    if let Some(last) = canvas.split_last_line() {
        footer(state, last);
    }
    head(state, &mut canvas);
    match state.panel {
        Panel::Overview => overview(state, &mut canvas),
        Panel::Arenas => arenas::draw(state, &mut canvas),
        Panel::Leaks => report::leaks(state, &mut canvas),
        Panel::Pins => report::pins(state, &mut canvas),
        Panel::Help => help::draw(&mut canvas),
    }
}

/// Draws the keys, the cost of watching, and whether the view is paused.
fn footer(state: &State, mut line: ScreenCanvas<'_>) {
    let mut at = 0;
    if state.is_paused() {
        at = line.write(0, " paused ", reversed()) + 1;
    }
    let keys = match state.panel {
        Panel::Overview => "q quit · a arenas · f pins · l leaks · ? help",
        Panel::Leaks => "q quit · Esc back · s search for holders · ? help",
        Panel::Arenas | Panel::Pins | Panel::Help => "q quit · Esc back · j/k scroll · ? help",
    };
    at = line.write(at, keys, dim());
    for text in cost(state) {
        let length = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
        if let Some(from) = line.area.width.checked_sub(length).filter(|from| *from > at) {
            line.write(from, &text, dim());
            return;
        }
    }
}

/// Draws the command, its facts, RSS and the bar of owners.
fn head(state: &State, canvas: &mut ScreenCanvas<'_>) {
    let history = state.history();
    let Some(found) = &history.latest else {
        canvas.line(&format!("PID {}", state.pid), bold());
        let text = state.trouble.clone().unwrap_or_else(|| "inspecting …".to_owned());
        canvas.line(&text, dim());
        rss(history, None, canvas);
        return;
    };
    let pid = format!("  PID {}", found.observation.pid);
    let room = usize::from(canvas.area.width).saturating_sub(pid.len()).max(8);
    let command = shortened(&found.observation.command.join(" "), room);
    canvas.line(&(command + &pid), bold());
    canvas.line(&facts(found).join(" · "), Style::new());
    let age = history.age_s(state.interval).filter(|_| state.ended_s.is_none());
    rss(history, age, canvas);
    bar(found, canvas);
}

/// Draws RSS. `age` is the age of the owners below in seconds, if they are older.
fn rss(history: &History, age: Option<f64>, canvas: &mut ScreenCanvas<'_>) {
    let Some((bytes, change)) = history.rss() else { return };
    let mut text = format!("RSS {}", Human(bytes));
    if history.now_s > 0.0 {
        let time = whole(history.now_s);
        text += &format!("  {} in {time}  peak {}", signed(change), Human(history.peak_rss_bytes));
    }
    let mut line = canvas.split_top(1);
    let at = line.write(0, &text, bold());
    if let Some(age) = age {
        line.write(at, &format!("  owners: {} ago", whole(age)), reversed());
    }
}

fn bar(found: &Inspection, canvas: &mut ScreenCanvas<'_>) {
    let mut line = canvas.split_top(1);
    let width = usize::from(line.area.width);
    let ledger = &found.observation.ledger;
    let mut at = 0;
    for (row, count) in places(ledger.rows(), ledger.total(), width) {
        let (text, style) = sign(&row, count, line.colour);
        at = line.write(at, &text, style);
    }
}

/// Returns `count` places in the colour of a row, or with its letter.
fn sign(row: &Row, count: usize, colour: bool) -> (String, Style) {
    let (ink, letter) = ink(row);
    if colour {
        ("█".repeat(count), Style::new().fg(ink))
    } else {
        (letter.to_string().repeat(count), Style::new())
    }
}

/// Draws the ledger, the chart, the policy, the verdict and the remedies.
fn overview(state: &State, canvas: &mut ScreenCanvas<'_>) {
    let history = state.history();
    let Some(found) = &history.latest else { return };
    let verdict = verdict(state, found, canvas.area.width);
    let rows: Vec<Row> =
        found.observation.ledger.rows().iter().copied().filter(|r| r.bytes > 0).collect();
    let policy = policy(history, canvas.area.width);
    let plan = ScreenLayout::new(
        canvas.area.height,
        rows.len(),
        policy.len(),
        verdict.len(),
        found.remedies.len(),
    );
    ledger(history, found, &rows, plan.rows, canvas);
    chart::draw(history, &mut canvas.split_top(plan.chart));
    for line in policy.iter().take(usize::from(plan.policy)) {
        canvas.line(line, Style::new());
    }
    for line in verdict.iter().take(usize::from(plan.verdict)) {
        canvas.line(line, bold());
    }
    for remedy in found.remedies.iter().take(usize::from(plan.remedies)) {
        let bytes = remedy.predicted_bytes.map_or(String::new(), |b| Human(b).to_string());
        canvas.line(
            &format!(" {:<17}  {bytes:>9}  {}", remedy.kind.name(), remedy.how),
            Style::new(),
        );
    }
}

/// Draws the largest rows, as many as fit into `room` lines, and the sum of the others.
fn ledger(
    history: &History,
    found: &Inspection,
    rows: &[Row],
    room: u16,
    canvas: &mut ScreenCanvas<'_>,
) {
    let room = usize::from(room);
    let mut shown: Vec<Row> = rows.to_vec();
    if rows.len() > room {
        let mut by_size = rows.to_vec();
        by_size.sort_by_key(|r| std::cmp::Reverse(r.bytes));
        let kept = by_size.get(..room.saturating_sub(1)).unwrap_or_default();
        shown.retain(|r| kept.contains(r));
    }
    for row in &shown {
        let share = share(row.bytes, found);
        let change = history.change_of(row).map_or(String::new(), signed);
        let about = if row.estimated { "≈" } else { " " };
        let mut line = canvas.split_top(1);
        let (sign, style) = sign(row, if line.colour { 2 } else { 1 }, line.colour);
        line.write(1, &sign, style);
        let bytes = Human(row.bytes).to_string();
        let text =
            format!("{:<15}{about}{bytes:>10} {share:>5.1} % {change:>11}", row.owner.name());
        let at = line.write(4, &text, Style::new());
        line.write(at + 2, &meaning(found, row), dim());
    }
    if shown.len() < rows.len() && room > 0 {
        let rest: u64 =
            rows.iter().map(|r| r.bytes).sum::<u64>() - shown.iter().map(|r| r.bytes).sum::<u64>();
        let name = format!("{} others", rows.len() - shown.len());
        let bytes = Human(rest).to_string();
        let share = share(rest, found);
        canvas.line(&format!("    {name:<15} {bytes:>10} {share:>5.1} %"), dim());
    }
}

fn share(bytes: u64, found: &Inspection) -> f64 {
    bytes as f64 / found.observation.ledger.total().max(1) as f64 * 100.0
}

/// Formats a change in bytes: `+12.3 MiB`, `−4.00 KiB`, `±0`.
pub(super) fn signed(change: i64) -> String {
    match change {
        0 => "±0".to_owned(),
        _ => format!("{}{}", if change < 0 { "−" } else { "+" }, Human(change.unsigned_abs())),
    }
}

/// Returns the last error, and the verdict with its reasons, in lines.
fn verdict(state: &State, found: &Inspection, width: u16) -> Vec<String> {
    let verdict = &found.verdict;
    let mut text = format!("{}: {}.", verdict.kind.name(), verdict.because.join("; "));
    if let Some(trouble) = &state.trouble {
        text = format!("! {trouble}. {text}");
    }
    wrapped(&text, width.max(1)).lines().map(str::to_owned).collect()
}

/// Returns the sentences about the policy, in lines; the most important first.
fn policy(history: &History, width: u16) -> Vec<String> {
    let texts = history.policy.as_ref().map(|policy| policy.texts(history.now_s));
    let texts = texts.unwrap_or_default();
    let wrapped = texts.iter().map(|text| wrapped(text, width.max(1)));
    wrapped.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Returns the cost of watching, from the longest wording to the shortest.
fn cost(state: &State) -> Vec<String> {
    let interval = state.interval.as_secs_f64();
    let every = HumanSeconds(interval);
    let Some(look) = state.inspection_s() else { return vec![format!("every {every}")] };
    let (between, look) = (state.between_inspections_s(), HumanSeconds(look));
    if between > interval {
        let between = HumanSeconds(between);
        vec![
            format!("samples every {every}; an inspection takes {look}, so one every {between}"),
            format!("inspection: {look}, every {between}"),
            format!("inspected every {between}"),
        ]
    } else {
        vec![format!("every {every}; inspection takes {look}"), format!("every {every}")]
    }
}

/// The number of lines of each part.
#[derive(Debug, PartialEq, Eq)]
struct ScreenLayout {
    rows: u16,
    chart: u16,
    policy: u16,
    verdict: u16,
    remedies: u16,
}

impl ScreenLayout {
    /// Divides the `height` between head and footer. The verdict has priority, then the policy,
    /// then the largest rows, then the chart, then the other rows and the remedies.
    fn new(height: u16, rows: usize, policy: usize, verdict: usize, remedies: usize) -> Self {
        let fit = |count: usize, most: u16| u16::try_from(count).unwrap_or(u16::MAX).min(most);
        let (most_policy, most_said, most_remedies) = match height {
            ..8 => (1, 1, 0),
            8..14 => (2, 2, 1),
            14..24 => (3, 2, 2),
            _ => (5, 4, 5),
        };
        let verdict = fit(verdict, most_said.min(height));
        let policy = fit(policy, most_policy.min(height - verdict));
        let remedies = fit(remedies, most_remedies.min(height - verdict - policy));
        let left = height - verdict - policy - remedies;
        let rows = fit(rows, left);
        let few = rows.min(6);
        if left < few + MIN_CHART_HEIGHT {
            return Self { rows, chart: 0, policy, verdict, remedies };
        }
        let rows = rows.min(left - MIN_CHART_HEIGHT).max(few);
        Self { rows, chart: left - rows, policy, verdict, remedies }
    }
}
