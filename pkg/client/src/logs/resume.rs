//! Skips lines that were already returned when a log stream resumes.

use std::collections::BTreeMap;

use warren_proto::v1;
use warren_proto::v1::log_entry::Entry;

/// The position in each task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LogPositions(BTreeMap<String, TaskLogPosition>);

/// The position in the log of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TaskLogPosition {
    /// Time of the newest line, in nanoseconds.
    at: u64,
    /// Number of lines with that time.
    lines: u64,
    /// Number of those lines that are still repeated.
    repeated_lines: u64,
    /// Lines up to the position are repeated.
    is_replaying: bool,
    /// The last warning since the newest line, and its count.
    warning: String,
    warning_count: u64,
    /// Number of those warnings that are still repeated.
    repeated_warnings: u64,
}

impl LogPositions {
    /// A new stream repeats lines.
    pub fn start_replay(&mut self) {
        for position in self.0.values_mut() {
            (position.repeated_lines, position.is_replaying) = (position.lines, position.lines > 0);
            position.repeated_warnings = position.warning_count;
        }
    }

    /// The request for the rest of `message`: all tasks from the oldest position.
    pub fn remaining_request(&self, message: &v1::ReadLogsRequest) -> v1::ReadLogsRequest {
        let behind = self
            .0
            .values()
            .filter(|position| position.lines > 0)
            .map(|position| position.at / 1_000_000)
            .min();
        match behind {
            None => message.clone(),
            Some(behind) => {
                let since = message.since.unwrap_or_default().max(behind);
                v1::ReadLogsRequest { since: Some(since), tail: None, ..message.clone() }
            }
        }
    }

    /// Records an entry. `false` if it is a repetition.
    pub fn accept(&mut self, entry: &v1::LogEntry) -> bool {
        let position = self.0.entry(entry.task_id.clone()).or_default();
        match &entry.entry {
            None => true,
            Some(Entry::GapReason(warning)) => position.accept_warning(warning),
            Some(Entry::Line(line)) => position.accept_line(line.at_ns),
        }
    }
}

impl TaskLogPosition {
    fn accept_line(&mut self, at: u64) -> bool {
        if self.is_replaying {
            if at < self.at {
                return false;
            }
            if at == self.at && self.repeated_lines > 0 {
                self.repeated_lines -= 1;
                return false;
            }
            self.is_replaying = false;
        }
        self.lines = if at == self.at { self.lines + 1 } else { 1 };
        self.at = at;
        // A warning after this line is new, even with the same text.
        (self.warning_count, self.repeated_warnings) = (0, 0);
        self.warning.clear();
        true
    }

    fn accept_warning(&mut self, warning: &str) -> bool {
        if self.warning != warning {
            (self.warning_count, self.repeated_warnings) = (0, 0);
            warning.clone_into(&mut self.warning);
        }
        if self.repeated_warnings > 0 {
            self.repeated_warnings -= 1;
            return false;
        }
        self.warning_count += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(task: &str, at_ns: u64, text: &str) -> v1::LogEntry {
        let line = v1::LogLine { at_ns, text: text.as_bytes().to_vec().into(), ..Default::default() };
        v1::LogEntry { task_id: task.into(), entry: Some(Entry::Line(line)), ..Default::default() }
    }

    fn gap_reason(task: &str, text: &str) -> v1::LogEntry {
        v1::LogEntry {
            task_id: task.into(),
            entry: Some(Entry::GapReason(text.into())),
            ..Default::default()
        }
    }

    #[test]
    fn replayed_entries_are_skipped_and_none_is_lost() {
        let all = [
            line("a", 1, "1"),
            line("b", 2, "2"),
            line("a", 3, "3"),
            line("a", 3, "4"),
            line("a", 3, "5"),
            line("b", 4, "6"),
        ];
        for broken in 0..=all.len() {
            for twice in 0..=all.len() {
                let mut seen = LogPositions::default();
                let mut read: Vec<_> = all[..broken].iter().filter(|entry| seen.accept(entry)).collect();
                for until in [twice, all.len()] {
                    seen.start_replay();
                    read.extend(all[..until].iter().filter(|entry| seen.accept(entry)));
                }
                assert_eq!(read, all.iter().collect::<Vec<_>>(), "broken after {broken}, then {twice}");
            }
        }
    }

    #[test]
    fn clock_step_back_hides_no_line() {
        let mut seen = LogPositions::default();
        assert!([5, 4, 6].iter().all(|at| seen.accept(&line("a", *at, ""))));
    }

    #[test]
    fn remaining_request_starts_at_the_slowest_task() {
        let message = v1::ReadLogsRequest { tail: Some(5), since: Some(7), ..Default::default() };
        let mut seen = LogPositions::default();
        assert_eq!(seen.remaining_request(&message), message, "nothing came yet");
        seen.accept(&gap_reason("c", "its node is down"));
        assert_eq!(seen.remaining_request(&message), message);
        seen.accept(&line("a", 20_999_999, ""));
        seen.accept(&line("b", 9_000_000, ""));
        let rest = v1::ReadLogsRequest { tail: None, since: Some(9), ..message.clone() };
        assert_eq!(seen.remaining_request(&message), rest);
        let later = v1::ReadLogsRequest { since: Some(30), ..message };
        assert_eq!(seen.remaining_request(&later).since, Some(30));
    }

    #[test]
    fn repeated_warning_is_kept() {
        let mut seen = LogPositions::default();
        // Twice nine lines were lost: each is told.
        for entry in [
            line("a", 1, ""),
            gap_reason("a", "x"),
            line("a", 2, ""),
            gap_reason("a", "x"),
            gap_reason("a", "x"),
        ] {
            assert!(seen.accept(&entry), "{entry:?}");
        }
        seen.start_replay();
        assert!(!seen.accept(&line("a", 2, "")));
        assert!(!seen.accept(&gap_reason("a", "x")) && !seen.accept(&gap_reason("a", "x")));
        assert!(seen.accept(&gap_reason("a", "x")) && seen.accept(&gap_reason("a", "y")));
        seen.start_replay();
        assert!(!seen.accept(&gap_reason("a", "y")) && seen.accept(&gap_reason("a", "x")));
    }
}
