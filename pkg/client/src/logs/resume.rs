//! Which lines were read already, when they are read again.

use std::collections::BTreeMap;

use warren_proto::v1;
use warren_proto::v1::log_entry::Entry;

/// What was read of each task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen(BTreeMap<String, Place>);

/// How far one task's lines were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    /// The newest line's time, in nanoseconds.
    at: u64,
    /// How many lines of that time there were.
    lines: u64,
    /// How many of them still come again.
    again: u64,
    /// Everything is read again up to there.
    repeating: bool,
    /// What was said last instead of lines, since the newest of them, and how often.
    trouble: String,
    times: u64,
    /// How many of those times still come again.
    times_again: u64,
}

impl Seen {
    /// The stream begins anew; lines come again.
    pub fn begin_again(&mut self) {
        for place in self.0.values_mut() {
            (place.again, place.repeating) = (place.lines, place.lines > 0);
            place.times_again = place.times;
        }
    }

    /// What to ask for to get the rest of `message`: all tasks from where the one that is furthest behind is.
    pub fn rest_of(&self, message: &v1::ReadLogsRequest) -> v1::ReadLogsRequest {
        let behind = self.0.values().filter(|place| place.lines > 0).map(|place| place.at / 1_000_000).min();
        match behind {
            None => message.clone(),
            Some(behind) => {
                let since = message.since.unwrap_or_default().max(behind);
                v1::ReadLogsRequest { since: Some(since), tail: None, ..message.clone() }
            }
        }
    }

    /// Notes an entry. `false` if it was read before.
    pub fn take(&mut self, entry: &v1::LogEntry) -> bool {
        let place = self.0.entry(entry.task_id.clone()).or_default();
        match &entry.entry {
            None => true,
            Some(Entry::Trouble(trouble)) => place.hear(trouble),
            Some(Entry::Line(line)) => place.take(line.at_ns),
        }
    }
}

impl Place {
    fn take(&mut self, at: u64) -> bool {
        if self.repeating {
            if at < self.at {
                return false;
            }
            if at == self.at && self.again > 0 {
                self.again -= 1;
                return false;
            }
            self.repeating = false;
        }
        self.lines = if at == self.at { self.lines + 1 } else { 1 };
        self.at = at;
        // What is said after this line is about something else, though it may be the same words.
        (self.times, self.times_again) = (0, 0);
        self.trouble.clear();
        true
    }

    fn hear(&mut self, trouble: &str) -> bool {
        if self.trouble != trouble {
            (self.times, self.times_again) = (0, 0);
            trouble.clone_into(&mut self.trouble);
        }
        if self.times_again > 0 {
            self.times_again -= 1;
            return false;
        }
        self.times += 1;
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

    fn trouble(task: &str, text: &str) -> v1::LogEntry {
        v1::LogEntry { task_id: task.into(), entry: Some(Entry::Trouble(text.into())), ..Default::default() }
    }

    #[test]
    fn what_was_read_does_not_come_again_and_nothing_else_is_lost() {
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
                let mut seen = Seen::default();
                let mut read: Vec<_> = all[..broken].iter().filter(|entry| seen.take(entry)).collect();
                for until in [twice, all.len()] {
                    seen.begin_again();
                    read.extend(all[..until].iter().filter(|entry| seen.take(entry)));
                }
                assert_eq!(read, all.iter().collect::<Vec<_>>(), "broken after {broken}, then {twice}");
            }
        }
    }

    #[test]
    fn a_clock_that_goes_back_hides_nothing_in_an_unbroken_stream() {
        let mut seen = Seen::default();
        assert!([5, 4, 6].iter().all(|at| seen.take(&line("a", *at, ""))));
    }

    #[test]
    fn the_rest_is_asked_for_from_where_the_last_task_is() {
        let message = v1::ReadLogsRequest { tail: Some(5), since: Some(7), ..Default::default() };
        let mut seen = Seen::default();
        assert_eq!(seen.rest_of(&message), message, "nothing came yet");
        seen.take(&trouble("c", "its node is down"));
        assert_eq!(seen.rest_of(&message), message);
        seen.take(&line("a", 20_999_999, ""));
        seen.take(&line("b", 9_000_000, ""));
        let rest = v1::ReadLogsRequest { tail: None, since: Some(9), ..message.clone() };
        assert_eq!(seen.rest_of(&message), rest);
        let later = v1::ReadLogsRequest { since: Some(30), ..message };
        assert_eq!(seen.rest_of(&later).since, Some(30));
    }

    #[test]
    fn the_same_trouble_is_said_as_often_as_it_was() {
        let mut seen = Seen::default();
        // Twice nine lines were lost: each is told.
        for entry in
            [line("a", 1, ""), trouble("a", "x"), line("a", 2, ""), trouble("a", "x"), trouble("a", "x")]
        {
            assert!(seen.take(&entry), "{entry:?}");
        }
        seen.begin_again();
        assert!(!seen.take(&line("a", 2, "")));
        assert!(!seen.take(&trouble("a", "x")) && !seen.take(&trouble("a", "x")));
        assert!(seen.take(&trouble("a", "x")) && seen.take(&trouble("a", "y")));
        seen.begin_again();
        assert!(!seen.take(&trouble("a", "y")) && seen.take(&trouble("a", "x")));
    }
}
