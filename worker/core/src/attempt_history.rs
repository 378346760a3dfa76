//! What must be known of a task after a restart of the agent: the number of its attempt, and how the last one
//! ended.
//!
//! Stored as a label of the container, so it is deleted with it. The text begins with its version; parts of
//! later versions that this one does not know are skipped.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use warren_types::{Health, TaskExit, TaskState, Timestamp};

/// The longest stored reason in bytes: a container label holds at most 4096 bytes.
const MAX_REASON: usize = 1024;
/// The most start times that are read from a stored text.
const MAX_STARTS: usize = 64;

/// History of a task's attempts. Written by the driver when [`step()`](crate::step()) returns
/// [`Action::RecordHistory`](crate::Action::RecordHistory).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptHistory {
    /// The current attempt, or the last one; 1 is the first.
    pub attempt: u32,
    /// Phase of that attempt.
    pub phase: AttemptPhase,
    /// How the last process exited; `None` when none has exited or the exit status is unknown.
    pub exit: Option<TaskExit>,
    /// Delay before this attempt; zero before the first.
    pub delay: Duration,
    /// When recent attempts started, oldest first.
    pub starts: Vec<Timestamp>,
}

/// Phase of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptPhase {
    /// Not started; no process is known.
    Pending,
    /// Its process was started.
    Started {
        /// Time of the start.
        at: Timestamp,
        /// Result of its health checks, once that is healthy or unhealthy; `None` before that, and without
        /// checks. It is written before managers receive it, so that the next agent neither revokes that a
        /// task is ready nor reports it of one that never was.
        health: Health,
        /// Its post_start hooks have ended, all with success. Never set if it has none.
        hooks_done: bool,
    },
    /// The previous attempt ended; this one starts later.
    Waiting {
        /// When the previous attempt ended.
        since: Timestamp,
        /// When this one starts.
        until: Timestamp,
    },
    /// There is no further attempt.
    Ended {
        /// Time of the decision.
        at: Timestamp,
        /// The terminal state.
        terminal_state: TerminalState,
        /// The reason, human-readable.
        reason: String,
    },
}

/// The terminal state of a task that is not started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminalState {
    /// Stopped by the managers.
    Shutdown,
    /// Exited with success.
    Completed,
    /// Failed, and no attempt is left.
    Failed,
    /// It can never run on this node as specified.
    Rejected,
}

/// A text that is not an attempt history of a version known here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a task's attempt history (expected: \"v1 attempt=N phase=...\")")]
pub struct ParseAttemptHistoryError {
    found: String,
}

impl TerminalState {
    /// The task's state from then on.
    pub fn state(self) -> TaskState {
        match self {
            Self::Shutdown => TaskState::Shutdown,
            Self::Completed => TaskState::Complete,
            Self::Failed => TaskState::Failed,
            Self::Rejected => TaskState::Rejected,
        }
    }
}

/// The history of a task that was never started.
impl Default for AttemptHistory {
    fn default() -> Self {
        Self {
            attempt: 1,
            phase: AttemptPhase::Pending,
            exit: None,
            delay: Duration::ZERO,
            starts: Vec::new(),
        }
    }
}

impl AttemptHistory {
    /// The attempt's process was started at `at`; the last `keep` start times stay.
    pub(crate) fn with_start(&self, at: Timestamp, keep: usize) -> Self {
        let mut starts = self.starts.clone();
        starts.push(at);
        starts.drain(..starts.len().saturating_sub(keep));
        Self {
            phase: AttemptPhase::Started { at, health: Health::None, hooks_done: false },
            starts,
            ..self.clone()
        }
    }

    /// The health of the started process.
    pub(crate) fn with_health(&self, found: Health) -> Self {
        let phase = match &self.phase {
            AttemptPhase::Started { at, hooks_done, .. } => {
                AttemptPhase::Started { at: *at, health: found, hooks_done: *hooks_done }
            }
            other => other.clone(),
        };
        Self { phase, ..self.clone() }
    }

    /// The post_start hooks of the started process have ended with success.
    pub(crate) fn with_hooks_done(&self) -> Self {
        let phase = match &self.phase {
            AttemptPhase::Started { at, health, .. } => {
                AttemptPhase::Started { at: *at, health: *health, hooks_done: true }
            }
            other => other.clone(),
        };
        Self { phase, ..self.clone() }
    }

    /// The next attempt is due.
    pub(crate) fn with_pending(&self) -> Self {
        Self { phase: AttemptPhase::Pending, ..self.clone() }
    }

    /// There is no further attempt.
    pub(crate) fn with_end(&self, at: Timestamp, verdict: TerminalState, reason: String) -> Self {
        Self {
            phase: AttemptPhase::Ended { at, terminal_state: verdict, reason: one_line(&reason) },
            ..self.clone()
        }
    }

    /// How long the process ran that ended at `end`; zero if its start was not recorded.
    pub(crate) fn last_run(&self, end: Timestamp) -> Duration {
        self.starts.last().map_or(Duration::ZERO, |start| end.saturating_since(*start))
    }

    /// The terminal state, once it is decided.
    pub fn terminal_state(&self) -> Option<TerminalState> {
        match self.phase {
            AttemptPhase::Ended { terminal_state: verdict, .. } => Some(verdict),
            _ => None,
        }
    }
}

fn one_line(text: &str) -> String {
    let mut end = text.len().min(MAX_REASON);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace(['\n', '\r'], " ")
}

impl fmt::Display for AttemptHistory {
    /// The stored form. The reason is last, since it is free text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v1 attempt={} delay={}", self.attempt, self.delay.as_millis())?;
        if let Some(TaskExit { code, out_of_memory }) = self.exit {
            write!(f, " exit={code} oom={}", u8::from(out_of_memory))?;
        }
        if !self.starts.is_empty() {
            let starts: Vec<String> = self.starts.iter().map(|start| start.0.to_string()).collect();
            write!(f, " starts={}", starts.join(","))?;
        }
        match &self.phase {
            AttemptPhase::Pending => write!(f, " phase=open"),
            AttemptPhase::Started { at, health, hooks_done } => {
                write!(f, " phase=started at={}", at.0)?;
                if let Health::Healthy | Health::Unhealthy = health {
                    write!(f, " health={}", health.as_str())?;
                }
                if *hooks_done { f.write_str(" hooks=done") } else { Ok(()) }
            }
            AttemptPhase::Waiting { since, until } => {
                write!(f, " phase=waiting at={} until={}", since.0, until.0)
            }
            AttemptPhase::Ended { at, terminal_state: verdict, reason } => {
                let verdict = match verdict {
                    TerminalState::Shutdown => "shutdown",
                    TerminalState::Completed => "complete",
                    TerminalState::Failed => "failed",
                    TerminalState::Rejected => "rejected",
                };
                write!(f, " phase={verdict} at={} reason={reason}", at.0)
            }
        }
    }
}

/// The parts of the text, as far as they could be parsed.
#[derive(Default)]
struct HistoryFields<'a> {
    attempt: u32,
    delay: u64,
    exit: Option<i32>,
    out_of_memory: bool,
    starts: Vec<Timestamp>,
    phase: &'a str,
    at: u64,
    until: u64,
    health: Health,
    hooks_done: bool,
    reason: &'a str,
}

impl<'a> HistoryFields<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = Self::default();
        let body = text.strip_prefix("v1 ")?;
        let (body, reason) = body.split_once(" reason=").unwrap_or((body, ""));
        parts.reason = reason;
        for (key, value) in body.split(' ').filter_map(|word| word.split_once('=')) {
            match key {
                "hooks" => parts.hooks_done = value == "done",
                "attempt" => parts.attempt = value.parse().ok()?,
                "delay" => parts.delay = value.parse().ok()?,
                "exit" => parts.exit = Some(value.parse().ok()?),
                "oom" => parts.out_of_memory = value == "1",
                "starts" => {
                    let starts = value.split(',').take(MAX_STARTS).map(|start| start.parse().map(Timestamp));
                    parts.starts = starts.collect::<Result<_, _>>().ok()?;
                }
                "phase" => parts.phase = value,
                "at" => parts.at = value.parse().ok()?,
                "health" => {
                    let mut known = [Health::Healthy, Health::Unhealthy].into_iter();
                    parts.health = known.find(|known| known.as_str() == value).unwrap_or_default();
                }
                "until" => parts.until = value.parse().ok()?,
                _ => (),
            }
        }
        Some(parts)
    }

    fn into_history(self) -> Option<AttemptHistory> {
        let at = Timestamp(self.at);
        let ended =
            |verdict| AttemptPhase::Ended { at, terminal_state: verdict, reason: self.reason.to_string() };
        let phase = match self.phase {
            "open" => AttemptPhase::Pending,
            "started" => AttemptPhase::Started { at, health: self.health, hooks_done: self.hooks_done },
            "waiting" => AttemptPhase::Waiting { since: at, until: Timestamp(self.until) },
            "shutdown" => ended(TerminalState::Shutdown),
            "complete" => ended(TerminalState::Completed),
            "failed" => ended(TerminalState::Failed),
            "rejected" => ended(TerminalState::Rejected),
            _ => return None,
        };
        let exit = self.exit.map(|code| TaskExit { code, out_of_memory: self.out_of_memory });
        let delay = Duration::from_millis(self.delay);
        (self.attempt > 0).then_some(AttemptHistory {
            attempt: self.attempt,
            phase,
            exit,
            delay,
            starts: self.starts,
        })
    }
}

impl FromStr for AttemptHistory {
    type Err = ParseAttemptHistoryError;

    fn from_str(text: &str) -> Result<Self, ParseAttemptHistoryError> {
        let wrong = || ParseAttemptHistoryError { found: text.chars().take(64).collect() };
        HistoryFields::parse(text).and_then(HistoryFields::into_history).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored form of version 1: these texts must stay readable.
    #[test]
    fn version_1_text_is_stable() {
        let (at, until) = (Timestamp(5), Timestamp(9));
        let exit = Some(TaskExit { code: 137, out_of_memory: true });
        let starts = vec![Timestamp(1), Timestamp(3)];
        let history = |phase| AttemptHistory {
            attempt: 2,
            phase,
            exit,
            delay: Duration::from_secs(1),
            starts: starts.clone(),
        };
        let base = "v1 attempt=2 delay=1000 exit=137 oom=1 starts=1,3";
        let ended =
            |verdict| AttemptPhase::Ended { at, terminal_state: verdict, reason: "a = b reason=c".into() };
        let cases = [
            (AttemptHistory::default(), "v1 attempt=1 delay=0 phase=open".to_string()),
            (history(AttemptPhase::Pending), format!("{base} phase=open")),
            (
                history(AttemptPhase::Started { at, health: Health::None, hooks_done: false }),
                format!("{base} phase=started at=5"),
            ),
            (
                history(AttemptPhase::Started { at, health: Health::Healthy, hooks_done: false }),
                format!("{base} phase=started at=5 health=healthy"),
            ),
            (
                history(AttemptPhase::Started { at, health: Health::Unhealthy, hooks_done: false }),
                format!("{base} phase=started at=5 health=unhealthy"),
            ),
            (
                history(AttemptPhase::Started { at, health: Health::Healthy, hooks_done: true }),
                format!("{base} phase=started at=5 health=healthy hooks=done"),
            ),
            (
                history(AttemptPhase::Waiting { since: at, until }),
                format!("{base} phase=waiting at=5 until=9"),
            ),
            (
                history(ended(TerminalState::Shutdown)),
                format!("{base} phase=shutdown at=5 reason=a = b reason=c"),
            ),
            (
                history(ended(TerminalState::Completed)),
                format!("{base} phase=complete at=5 reason=a = b reason=c"),
            ),
            (
                history(ended(TerminalState::Failed)),
                format!("{base} phase=failed at=5 reason=a = b reason=c"),
            ),
            (
                history(ended(TerminalState::Rejected)),
                format!("{base} phase=rejected at=5 reason=a = b reason=c"),
            ),
        ];
        for (history, text) in cases {
            assert_eq!(history.to_string(), text);
            assert_eq!(text.parse(), Ok(history));
        }
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let known = "v1 attempt=1 delay=0 phase=open later=thing".parse();
        assert_eq!(known, Ok(AttemptHistory::default()));
        for text in ["", "v2 attempt=1 phase=open", "v1 ", "v1 attempt=0 phase=open", "v1 attempt=1 phase=x"]
        {
            assert!(text.parse::<AttemptHistory>().is_err(), "{text}");
        }
        assert!("v1 attempt=x phase=open".parse::<AttemptHistory>().is_err());
    }

    #[test]
    fn reason_is_cut_to_label_size() {
        let reason = format!("line\nline {}", "ä".repeat(5000));
        let history = AttemptHistory::default().with_end(Timestamp(1), TerminalState::Rejected, reason);
        let text = history.to_string();
        assert!(text.len() < 2048 && !text.contains('\n'));
        assert_eq!(text.parse(), Ok(history));
    }
}
