//! The state of the live view, from the survey and the keys.

use lowtide_model::bytes::Human;
use lowtide_model::top::{Top, TopGroup, TopProcess};
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::keys::Key;
use super::rows::{GroupKey, SortKey};

/// A request of a key to the loop that drives the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyRequest {
    Quit,
    /// Watch a process.
    Watch(u32),
    /// Release memory of a process.
    Release(u32),
}

/// The mode, which determines the meaning of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Commands.
    Table,
    /// Typing a filter.
    Filter,
    /// The question whether to release memory of this process.
    Question(u32),
    /// Help is shown.
    Help,
}

/// The state of the live view.
#[derive(Debug)]
pub(crate) struct State {
    top: Option<Top>,
    pub(crate) sort: SortKey,
    pub(crate) by: GroupKey,
    pub(crate) mode: Mode,
    /// Only lines with this text are shown.
    pub(crate) filter: String,
    /// The selected process.
    selected: Option<u32>,
    /// The selected line.
    pub(crate) line: usize,
    /// Number of lines of the table that are shown at once.
    pub(crate) page: usize,
    /// The result of the last action, or an error.
    pub(crate) message: Option<String>,
}

impl State {
    pub(crate) fn new(sort: SortKey, by: GroupKey) -> Self {
        Self {
            top: None,
            sort,
            by,
            mode: Mode::Table,
            filter: String::new(),
            selected: None,
            line: 0,
            page: 1,
            message: None,
        }
    }

    /// Returns the table; `None` before the first.
    pub(crate) fn top(&self) -> Option<&Top> {
        self.top.as_ref()
    }

    /// Replaces the table. A process that was selected by a key stays selected.
    pub(crate) fn see(&mut self, top: Top) {
        self.top = Some(top);
        let found = |pid: u32| self.processes().iter().position(|process| process.pid == pid);
        if let Some(line) = self.selected.and_then(found) {
            self.line = line;
        }
        self.line = self.line.min(self.lines().saturating_sub(1));
    }

    /// Returns the number of lines of the table.
    fn lines(&self) -> usize {
        match self.by {
            GroupKey::Process => self.processes().len(),
            _ => self.groups().len(),
        }
    }

    /// Returns the processes that the filter shows.
    pub(crate) fn processes(&self) -> Vec<&TopProcess> {
        let text = self.filter.to_lowercase();
        let is_shown = |process: &&TopProcess| {
            let allocator = process.allocator.as_deref().unwrap_or_default();
            let texts = [&process.command, &process.comm, &process.cgroup, allocator];
            texts.iter().any(|part| part.to_lowercase().contains(&text))
        };
        let all = self.top.iter().flat_map(|top| &top.processes);
        all.filter(is_shown).collect()
    }

    /// Returns the groups that the filter shows.
    pub(crate) fn groups(&self) -> Vec<&TopGroup> {
        let text = self.filter.to_lowercase();
        let all = self.top.iter().flat_map(|top| &top.groups);
        all.filter(|group| group.name.to_lowercase().contains(&text)).collect()
    }

    /// Returns the first line of the table that is shown.
    pub(crate) fn first_line(&self) -> usize {
        (self.line + 1).saturating_sub(self.page.max(1))
    }

    /// Carries out the command of a key, or returns a request to the loop.
    pub(crate) fn press(&mut self, event: KeyEvent) -> Option<KeyRequest> {
        if self.mode == Mode::Filter {
            return self.type_filter(event);
        }
        if let Mode::Question(pid) = self.mode {
            self.mode = Mode::Table;
            let is_yes = matches!(event.code, KeyCode::Char('y' | 'Y'));
            return is_yes.then_some(KeyRequest::Release(pid));
        }
        self.message = None;
        match Key::from_event(event)? {
            Key::Quit => return Some(KeyRequest::Quit),
            Key::Back if self.mode == Mode::Help => self.mode = Mode::Table,
            Key::Back if !self.filter.is_empty() => self.filter.clear(),
            Key::Back => return Some(KeyRequest::Quit),
            Key::Help => self.mode = if self.mode == Mode::Help { Mode::Table } else { Mode::Help },
            Key::Sort => {
                self.sort = self.sort.next();
                self.deselect();
            }
            Key::Group => {
                self.by = self.by.next();
                self.deselect();
            }
            Key::Filter => self.mode = Mode::Filter,
            Key::Watch => return self.selected_process().map(|p| KeyRequest::Watch(p.pid)),
            Key::Release => self.ask(),
            Key::Move(lines) => self.move_by(lines),
            Key::Page(pages) => self.move_by(pages.saturating_mul(self.page.max(1) as isize)),
            Key::Top => self.move_by(isize::MIN),
            Key::Bottom => self.move_by(isize::MAX),
        }
        None
    }

    /// Returns the question whether to release memory of a process.
    pub(crate) fn question(&self, pid: u32) -> String {
        let process = self.top.iter().flat_map(|top| &top.processes).find(|p| p.pid == pid);
        let bytes = process.and_then(|process| process.reclaimable_bytes);
        let bytes = bytes.map_or(String::new(), |bytes| format!(" of about {}", Human(bytes)));
        let name = process.map_or("", |process| process.comm.as_str());
        format!("Release free memory{bytes} of process {pid} ({name})? [y/N]")
    }

    /// Clears the selection, and moves to the first line.
    fn deselect(&mut self) {
        (self.selected, self.line) = (None, 0);
    }

    fn ask(&mut self) {
        match self.selected_process() {
            Some(process) => self.mode = Mode::Question(process.pid),
            None => {
                self.message = Some("select a process first: b shows processes again".to_owned());
            }
        }
    }

    fn selected_process(&self) -> Option<&TopProcess> {
        if self.by != GroupKey::Process {
            return None;
        }
        self.processes().get(self.line).copied()
    }

    fn type_filter(&mut self, event: KeyEvent) -> Option<KeyRequest> {
        match event.code {
            KeyCode::Char('c') if event.modifiers.contains(KeyModifiers::CONTROL) => {
                return Some(KeyRequest::Quit);
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            _ => {}
        }
        self.move_to(0);
        None
    }

    fn move_by(&mut self, lines: isize) {
        self.move_to((self.line as isize).saturating_add(lines));
    }

    fn move_to(&mut self, line: isize) {
        self.line = line.clamp(0, self.lines().saturating_sub(1) as isize) as usize;
        self.selected = self.selected_process().map(|process| process.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::process;
    use super::super::table::tests::top;
    use super::*;

    fn state() -> State {
        let mut state = State::new(SortKey::Reclaimable, GroupKey::Process);
        state.see(top());
        state
    }

    fn press(state: &mut State, letters: &str) -> Option<KeyRequest> {
        let event = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE);
        letters.chars().map(|letter| state.press(event(letter))).last().flatten()
    }

    #[test]
    fn memory_is_released_only_after_a_confirmation() {
        let mut state = state();
        assert_eq!(press(&mut state, "jr"), None);
        assert_eq!(state.mode, Mode::Question(2));
        assert!(state.question(2).contains("of process 2 (server)"), "{}", state.question(2));
        assert_eq!(press(&mut state, "n"), None);
        assert_eq!(press(&mut state, "ry"), Some(KeyRequest::Release(2)));
    }

    #[test]
    fn the_selected_process_stays_selected_when_the_order_changes() {
        let mut state = state();
        press(&mut state, "j");
        let mut other = top();
        other.processes.reverse();
        state.see(other);
        let enter = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert_eq!(state.press(enter), Some(KeyRequest::Watch(2)));
    }

    #[test]
    fn the_first_line_stays_selected_until_a_key_selects_another() {
        let mut state = state();
        let mut other = top();
        other.processes.reverse();
        state.see(other);
        assert_eq!(state.line, 0);
        let enter = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert_eq!(state.press(enter), Some(KeyRequest::Watch(4)));
    }

    #[test]
    fn a_filter_shows_only_what_it_matches() {
        let mut state = state();
        press(&mut state, "/number 3");
        assert_eq!(state.processes().len(), 1);
        let esc = KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE);
        assert_eq!(state.press(esc), None);
        assert_eq!(state.processes().len(), 4);
    }

    #[test]
    fn the_release_key_on_a_group_only_shows_a_message() {
        let mut state = state();
        press(&mut state, "br");
        assert_eq!((state.by, &state.mode), (GroupKey::Exe, &Mode::Table));
        assert!(state.message.is_some());
    }

    #[test]
    fn the_selection_stays_valid_when_processes_end() {
        let mut state = state();
        press(&mut state, "G");
        state.see(Top { processes: vec![process(9, 1, None)], ..top() });
        assert_eq!(state.line, 0);
        state.see(Top { processes: Vec::new(), ..top() });
        assert_eq!(press(&mut state, "r"), None);
    }
}
