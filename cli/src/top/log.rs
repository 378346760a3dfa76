//! The last lines of the log of a task.

use std::collections::VecDeque;

use warren_daemon::printable;
use warren_proto::v1;
use warren_proto::v1::log_entry::Entry;

/// Lines that are kept.
const MAX_LINES: usize = 1000;
/// Characters of a line that are kept.
const MAX_LINE: usize = 4000;

/// What was read of a log.
#[derive(Debug, Clone, PartialEq)]
pub enum LogEvent {
    Entry(Entry),
    /// The task has ended.
    End,
    /// Why no more can be read.
    Failed(String),
}

/// The log of one task, as far as it is shown.
pub struct LogPane {
    /// Id of the task.
    pub task: String,
    /// Name of the task.
    pub name: String,
    lines: VecDeque<String>,
    /// The last line goes on.
    is_open: bool,
}

impl LogPane {
    pub fn new(task: String, name: String) -> Self {
        Self { task, name, lines: VecDeque::new(), is_open: false }
    }

    pub fn add(&mut self, event: LogEvent) {
        match event {
            LogEvent::Entry(Entry::Line(v1::LogLine { text, partial, .. })) => {
                let text = String::from_utf8_lossy(&text);
                self.push(&text.trim_end_matches('\r').replace('\t', "    "));
                self.is_open = partial;
            }
            LogEvent::Entry(Entry::GapReason(why)) => self.note(&why),
            LogEvent::End => self.note("the task has ended"),
            LogEvent::Failed(why) => self.note(&why),
        }
    }

    fn note(&mut self, text: &str) {
        self.is_open = false;
        self.push(&format!("({text})"));
    }

    fn push(&mut self, text: &str) {
        let mut line = if self.is_open { self.lines.pop_back().unwrap_or_default() } else { String::new() };
        let room = MAX_LINE.saturating_sub(line.chars().count());
        line.extend(printable(text).replace('\n', " ").chars().take(room));
        self.lines.push_back(line);
        if self.lines.len() > MAX_LINES {
            self.lines.pop_front();
        }
    }

    /// The last `count` lines.
    pub fn last(&self, count: usize) -> impl Iterator<Item = &str> {
        self.lines.iter().skip(self.lines.len().saturating_sub(count)).map(String::as_str)
    }
}
