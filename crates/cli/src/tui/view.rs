//! Draws the state of the live view.

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::inspection::Inspection;
use lowtide_report::owners::{facts, ink, places};
use lowtide_report::text::{shortened, wrapped};
use lowtide_report::{Screen, inspection};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::canvas::{ScreenCanvas, bold, dim, fitting, reversed, whole};
use super::history::History;
use super::ledger::LedgerLines;
use super::sign::{sign, signed};
use super::state::{Panel, State};
use super::{arenas, chart, help, report};

/// Minimum height of the chart, in lines.
const MIN_CHART_HEIGHT: u16 = 6;
/// Height of RSS and its bar, in lines.
const RSS_HEIGHT: u16 = 2;

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
    let keys: &[&str] = match state.panel {
        Panel::Overview => &["q quit", "a arenas", "f pins", "l leaks", "? help"],
        Panel::Leaks => &["q quit", "Esc back", "s search for holders", "? help"],
        Panel::Arenas | Panel::Pins | Panel::Help => {
            &["q quit", "Esc back", "j/k scroll", "? help"]
        }
    };
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let room = line.area.width.saturating_sub(at);
    at = line.write(at, &fitting(&keys, " · ", room), dim());
    for text in cost(state) {
        let length = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
        if let Some(from) = line.area.width.checked_sub(length).filter(|from| *from > at) {
            line.write(from, &text, dim());
            return;
        }
    }
}

/// Draws the command and its facts; above a panel also RSS and the bar of owners, which follow the
/// verdict in the overview.
fn head(state: &State, canvas: &mut ScreenCanvas<'_>) {
    let history = state.history();
    let Some(found) = &history.latest else {
        canvas.line(&format!("PID {}", state.pid), bold());
        let text = state.trouble.clone().unwrap_or_else(|| "inspecting …".to_owned());
        canvas.line(&text, dim());
        change_of_rss(history, None, canvas);
        return;
    };
    let pid = format!("  PID {}", found.observation.pid);
    let width = usize::from(canvas.area.width);
    let room = width.saturating_sub(pid.len()).max(8);
    let command = shortened(&found.observation.command.join(" "), room);
    canvas.line(&(command + &pid), bold());
    canvas.line(&shortened(&facts(found).join(" · "), width), Style::new());
    if state.panel != Panel::Overview {
        rss(state, found, canvas);
    }
}

/// Draws RSS and its bar.
fn rss(state: &State, found: &Inspection, canvas: &mut ScreenCanvas<'_>) {
    let history = state.history();
    let age = history.age_s(state.interval).filter(|_| state.ended_s.is_none());
    change_of_rss(history, age, canvas);
    bar(found, canvas);
}

/// Draws RSS over time. `age` is the age of the owners below in seconds, if they are older.
fn change_of_rss(history: &History, age: Option<f64>, canvas: &mut ScreenCanvas<'_>) {
    let Some((bytes, change)) = history.rss() else { return };
    let mut parts = vec![format!("RSS {}", Human(bytes))];
    if history.now_s > 0.0 {
        parts.push(format!("{} in {}", signed(change), whole(history.now_s)));
        parts.push(format!("peak {}", Human(history.peak_rss_bytes)));
    }
    let mut line = canvas.split_top(1);
    let at = line.write(0, &fitting(&parts, "  ", line.area.width), bold());
    let age = age.map(|age| format!("  owners: {} ago", whole(age)));
    let room = usize::from(line.area.width.saturating_sub(at));
    if let Some(age) = age.filter(|age| age.chars().count() <= room) {
        line.write(at, &age, reversed());
    }
}

fn bar(found: &Inspection, canvas: &mut ScreenCanvas<'_>) {
    let mut line = canvas.split_top(1);
    let width = usize::from(line.area.width);
    let ledger = &found.observation.ledger;
    let mut at = 0;
    for (row, count) in places(ledger.rows(), ledger.total(), width) {
        let (text, style) = sign(ink(&row), count, line.colour);
        at = line.write(at, &text, style);
    }
}

/// Draws the verdict and the remedies, then the ledger, the policy and the chart.
fn overview(state: &State, canvas: &mut ScreenCanvas<'_>) {
    let history = state.history();
    let Some(found) = &history.latest else { return };
    let width = canvas.area.width;
    let (verdict, remedies) = (verdict(state, found, width), remedies(found, width));
    let policy = policy(history, width);
    let ledger = LedgerLines::new(history, found, width);
    let height = canvas.area.height.saturating_sub(RSS_HEIGHT);
    let plan =
        ScreenLayout::new(height, ledger.height(), policy.len(), verdict.len(), remedies.len());
    lines(&verdict, plan.verdict, bold(), canvas);
    lines(&remedies, plan.remedies, Style::new(), canvas);
    rss(state, found, canvas);
    ledger.draw(plan.rows, canvas);
    lines(&policy, plan.policy, Style::new(), canvas);
    chart::draw(history, &mut canvas.split_top(plan.chart));
}

/// Draws as many lines as the plan has. The last one ends with `…` if there are more.
fn lines(lines: &[String], planned: u16, style: Style, canvas: &mut ScreenCanvas<'_>) {
    let planned = usize::from(planned);
    for (number, line) in lines.iter().take(planned).enumerate() {
        let is_cut = number + 1 == planned && lines.len() > planned;
        let width = usize::from(canvas.area.width);
        let line = if is_cut { shortened(&format!("{line} …"), width) } else { line.clone() };
        canvas.line(&line, style);
    }
}

/// Returns the remedies, in lines.
fn remedies(found: &Inspection, width: u16) -> Vec<String> {
    let screen = Screen { width: width.max(1), colour: false };
    inspection::remedies(found, false, screen).lines().map(str::to_owned).collect()
}

/// Returns the last error, and the verdict with its reasons, in lines.
fn verdict(state: &State, found: &Inspection, width: u16) -> Vec<String> {
    let verdict = &found.verdict;
    let mut text =
        format!("{}: {}.", verdict.kind.name().replace('_', " "), verdict.because.join("; "));
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
    /// Divides the `height` between head and footer, without RSS and its bar. The verdict has
    /// priority, then the policy and the remedies, then the ledger, then the chart.
    fn new(height: u16, rows: usize, policy: usize, verdict: usize, remedies: usize) -> Self {
        let fit = |count: usize, most: u16| u16::try_from(count).unwrap_or(u16::MAX).min(most);
        let (most_policy, most_verdict, most_remedies) = match height {
            ..8 => (1, 1, 0),
            8..14 => (2, 2, 2),
            14..24 => (3, 6, 4),
            _ => (5, 10, 10),
        };
        let verdict = fit(verdict, most_verdict.min(height));
        let policy = fit(policy, most_policy.min(height - verdict));
        let remedies = fit(remedies, most_remedies.min(height - verdict - policy));
        let left = height - verdict - policy - remedies;
        let rows = fit(rows, left);
        let chart = if left - rows < MIN_CHART_HEIGHT { 0 } else { left - rows };
        Self { rows, chart, policy, verdict, remedies }
    }
}
