//! What a key does.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{LogPane, TaskOrder, TopModel};

/// Tasks that a page key passes.
const PAGE: usize = 10;

/// What is to be done beside a new picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopAction {
    Continue,
    /// The command ends.
    Quit,
    /// The log of this task is read, and no other.
    ReadLog(String),
    /// No log is read any more.
    EndLog,
}

impl TopModel {
    /// What a key changes, and what is to be done.
    pub fn press(&mut self, key: KeyEvent) -> TopAction {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => TopAction::Continue,
            KeyCode::Char('c') if is_control => TopAction::Quit,
            _ if is_control => TopAction::Continue,
            code if self.is_filter_edited => self.edit_filter(code),
            code => self.command(code),
        }
    }

    fn edit_filter(&mut self, code: KeyCode) -> TopAction {
        let at = self.chosen_position().unwrap_or_default();
        match code {
            KeyCode::Char(character) => self.filter.push(character),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.is_filter_edited = false,
            KeyCode::Esc => (self.filter, self.is_filter_edited) = (String::new(), false),
            _ => {}
        }
        self.arrange(at);
        TopAction::Continue
    }

    fn command(&mut self, code: KeyCode) -> TopAction {
        let at = self.chosen_position().unwrap_or_default();
        match code {
            KeyCode::Char('q') => return TopAction::Quit,
            KeyCode::Char('c') => self.sort(TaskOrder::Cpu),
            KeyCode::Char('m') => self.sort(TaskOrder::Memory),
            KeyCode::Char('n') => self.sort(TaskOrder::Name),
            KeyCode::Char('s') => self.sort(TaskOrder::State),
            KeyCode::Char('/') => self.is_filter_edited = true,
            KeyCode::Up | KeyCode::Char('k') => self.choose(at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(at + 1),
            KeyCode::PageUp => self.choose(at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.choose(at + PAGE),
            KeyCode::Home => self.choose(0),
            KeyCode::End => self.choose(usize::MAX),
            KeyCode::Enter => return self.open_log(),
            KeyCode::Esc if self.log.take().is_some() => return TopAction::EndLog,
            KeyCode::Esc => {
                self.filter.clear();
                self.arrange(at);
            }
            _ => {}
        }
        TopAction::Continue
    }

    /// Sorts by that; the other way round if the order is that already.
    fn sort(&mut self, order: TaskOrder) {
        let at = self.chosen_position().unwrap_or_default();
        self.is_reversed = self.order == order && !self.is_reversed;
        self.order = order;
        self.arrange(at);
    }

    /// Shows the log of the chosen task, or hides it.
    fn open_log(&mut self) -> TopAction {
        let Some(position) = self.chosen_position() else { return TopAction::Continue };
        let task = self.picture.tasks[self.shown[position]].task();
        let (id, name) = (task.id().to_owned(), task.name().to_owned());
        if self.log.take().is_some_and(|log| log.task == id) {
            return TopAction::EndLog;
        }
        self.log = Some(LogPane::new(id.clone(), name));
        TopAction::ReadLog(id)
    }
}
