//! Draws the state of the live view.

use lowtide_report::text::{shortened, wrapped};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::rows::{GroupKey, SortKey};
use super::state::{Mode, State};
use super::table::{self, Columns};
use crate::tui::canvas::{ScreenCanvas, bold, dim, reversed};

/// The keys that act on a process, and that of the help.
const ACTIONS: &str = "Enter watch · r release · ? help";

const HELP: [&str; 16] = [
    "reclaimable   free memory in whole pages; lowtide inspect shows what returns it",
    "fragmented    free memory on pages that also hold allocated memory",
    "in use        allocated by the program, or managed by a runtime such as V8",
    "growth/h      growth of RSS per hour, over the last ten minutes",
    "…             not inspected yet; the largest processes come first",
    "-             cannot be read",
    "",
    "s             order by the next column",
    "b             group by program, name, cgroup, allocator; processes again",
    "/             show only lines that contain a text; Esc shows all",
    "Enter         watch the selected process live; q returns",
    "r             release free memory of the selected process, after confirmation",
    "j k g G       next, previous, first, last line, as the arrow and page keys",
    "q             quit",
    "",
    "Values other than RSS and its growth are as old as the last inspection.",
];

/// Draws the whole view.
pub(crate) fn draw(state: &mut State, colour: bool, area: Rect, buffer: &mut Buffer) {
    let mut canvas = ScreenCanvas::new(area, colour, buffer);
    if let Some(last) = canvas.split_last_line() {
        footer(state, last);
    }
    let Some(top) = state.top() else {
        canvas.line("reading the list of processes …", dim());
        return;
    };
    let width = usize::from(canvas.area.width);
    canvas.line(&table::summary(top, width), bold());
    canvas.line(&shortened(&table::remarks_in_short(top).unwrap_or_default(), width), dim());
    if state.mode == Mode::Help {
        let remarks = table::remarks(top).map(|text| wrapped(&text, canvas.area.width));
        for line in HELP.into_iter().chain(remarks.iter().flat_map(|text| text.lines())) {
            canvas.line(line, Style::new());
        }
        return;
    }
    let columns = Columns::fitting(state.by, state.sort, width);
    let whole = |line: &str| format!("{line:<width$}");
    canvas.line(&whole(&columns.heading()), reversed());
    state.page = usize::from(canvas.area.height);
    let (first, selected) = (state.first_line(), state.line);
    let lines: Vec<String> = match state.by {
        GroupKey::Process => {
            state.processes().into_iter().map(|one| columns.process(one)).collect()
        }
        _ => state.groups().into_iter().map(|one| columns.group(one)).collect(),
    };
    for (number, line) in lines.iter().enumerate().skip(first).take(state.page) {
        match number == selected {
            true => canvas.line(&whole(&shortened(line, width)), reversed()),
            false => canvas.line(&shortened(line, width), Style::new()),
        }
    }
    if lines.is_empty() {
        canvas.line("no process matches: Esc shows all", dim());
    }
}

/// Draws the question, the filter, the last message, or the keys.
fn footer(state: &State, mut line: ScreenCanvas<'_>) {
    match (&state.mode, &state.message) {
        (Mode::Question(pid), _) => drop(line.write(0, &state.question(*pid), reversed())),
        (Mode::Filter, _) => drop(line.write(0, &format!("show only: {}_", state.filter), bold())),
        (_, Some(message)) => drop(line.write(0, message, bold())),
        _ => {
            let order = match state.sort {
                SortKey::Reclaimable => "reclaimable",
                SortKey::Rss => "RSS",
                SortKey::Allocated => "in use",
                SortKey::Growth => "growth",
            };
            let filter = match state.filter.as_str() {
                "" => String::new(),
                filter => format!(" · only “{filter}”"),
            };
            let by = state.by.name();
            let keys = [
                format!("q quit · s order: {order} · b by: {by}{filter} · / filter · {ACTIONS}"),
                format!("q quit · s {order} · b {by}{filter} · / filter · {ACTIONS}"),
                format!("q quit · s order · b by · / filter · {ACTIONS}"),
                "q quit · ? help".to_owned(),
            ];
            let room = usize::from(line.area.width);
            let keys = keys.iter().find(|keys| keys.chars().count() <= room);
            line.write(0, keys.map_or("q quit", String::as_str), dim());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::top;
    use super::*;
    use ratatui_core::buffer::Buffer;
    use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    fn picture(state: &mut State, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        draw(state, false, area, &mut buffer);
        let row = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
        (0..height).map(|y| row(y).trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn no_line_of_the_help_is_cut_off_at_80_columns() {
        let long: Vec<&str> = HELP.into_iter().filter(|line| line.chars().count() > 80).collect();
        assert_eq!(long, [""; 0]);
    }

    #[test]
    fn the_view_draws_the_table_the_question_and_the_help() {
        let mut state = State::new(SortKey::Reclaimable, GroupKey::Process);
        insta::assert_snapshot!("before", picture(&mut state, 60, 4));
        state.see(top());
        insta::assert_snapshot!("table", picture(&mut state, 120, 9));
        insta::assert_snapshot!("an_80x24_terminal", picture(&mut state, 80, 24));
        let press = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE);
        state.press(press('r'));
        insta::assert_snapshot!("question", picture(&mut state, 120, 9));
        state.press(press('n'));
        state.press(press('?'));
        insta::assert_snapshot!("help", picture(&mut state, 100, 20));
    }

    #[test]
    fn any_terminal_size_can_be_drawn() {
        let mut state = State::new(SortKey::Rss, GroupKey::Process);
        state.see(top());
        for width in 0..20 {
            for height in 0..6 {
                picture(&mut state, width, height);
            }
        }
    }
}
