//! What must be known of a task after the agent died: which attempt it is, and how the last one ended.
//!
//! Stored as one label of the container, so it lives and goes with it. The text begins with its version;
//! parts of later versions that this one does not know are skipped.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use warren_types::{Exit, Health, TaskState, Timestamp};

/// How much of a reason is kept: a container label holds at most 4096 bytes.
const MAX_REASON: usize = 1024;
/// How many start times are kept at most, whatever the stored text says.
const MAX_STARTS: usize = 64;

/// History of a task's attempts. Written by the shell when [`step()`](crate::step()) says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// The attempt that is being made, runs, or was the last; 1 is the first.
    pub attempt: u32,
    /// Where that attempt stands.
    pub phase: Phase,
    /// How the last process ended; `None` when none has ended or nobody knows how.
    pub exit: Option<Exit>,
    /// Delay before this attempt; zero before the first.
    pub delay: Duration,
    /// When recent attempts started, oldest first.
    pub starts: Vec<Timestamp>,
}

/// Where an attempt stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// To be started; nothing is known of a process.
    Open,
    /// Its process was started.
    Started {
        /// When.
        at: Timestamp,
        /// What its checks found, once that is healthy or unhealthy; `None` before that, and without checks. It is
        /// written before managers hear of it, so that the next agent neither takes back that a task is ready nor
        /// says it of one that never was.
        health: Health,
    },
    /// The attempt before it ended; this one starts later.
    Waiting {
        /// When the attempt before ended.
        since: Timestamp,
        /// When this one is due.
        until: Timestamp,
    },
    /// There is no further attempt.
    Ended {
        /// When that was decided.
        at: Timestamp,
        /// What became of the task.
        verdict: Verdict,
        /// Why, in words.
        reason: String,
    },
}

/// What became of a task that is not started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Managers wanted it stopped.
    Shutdown,
    /// It did what it was made for.
    Completed,
    /// It ended badly, and there is no attempt left.
    Failed,
    /// It can never run on this node as specified.
    Rejected,
}

/// A text that is no ledger of a version known here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a task's ledger (wanted: \"v1 attempt=N phase=...\")")]
pub struct DecodeLedgerError {
    found: String,
}

impl Verdict {
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

impl Ledger {
    /// Of a task that was never started.
    pub fn first() -> Self {
        Self { attempt: 1, phase: Phase::Open, exit: None, delay: Duration::ZERO, starts: Vec::new() }
    }

    /// The attempt's process was started at `at`; of the start times the last `keep` stay.
    pub(crate) fn started(&self, at: Timestamp, keep: usize) -> Self {
        let mut starts = self.starts.clone();
        starts.push(at);
        starts.drain(..starts.len().saturating_sub(keep));
        Self { phase: Phase::Started { at, health: Health::None }, starts, ..self.clone() }
    }

    /// What is known of the process that was started.
    pub(crate) fn found_to_be(&self, found: Health) -> Self {
        let phase = match &self.phase {
            Phase::Started { at, .. } => Phase::Started { at: *at, health: found },
            other => other.clone(),
        };
        Self { phase, ..self.clone() }
    }

    /// The next attempt's time has come.
    pub(crate) fn opened(&self) -> Self {
        Self { phase: Phase::Open, ..self.clone() }
    }

    /// No further attempt.
    pub(crate) fn ended(&self, at: Timestamp, verdict: Verdict, reason: String) -> Self {
        Self { phase: Phase::Ended { at, verdict, reason: one_line(&reason) }, ..self.clone() }
    }

    /// What became of the task, once that is decided.
    pub fn verdict(&self) -> Option<Verdict> {
        match self.phase {
            Phase::Ended { verdict, .. } => Some(verdict),
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

impl fmt::Display for Ledger {
    /// The stored form. The reason is last, since it is free text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v1 attempt={} delay={}", self.attempt, self.delay.as_millis())?;
        if let Some(Exit { code, out_of_memory }) = self.exit {
            write!(f, " exit={code} oom={}", u8::from(out_of_memory))?;
        }
        if !self.starts.is_empty() {
            let starts: Vec<String> = self.starts.iter().map(|start| start.0.to_string()).collect();
            write!(f, " starts={}", starts.join(","))?;
        }
        match &self.phase {
            Phase::Open => write!(f, " phase=open"),
            Phase::Started { at, health } => {
                write!(f, " phase=started at={}", at.0)?;
                match health {
                    Health::Healthy | Health::Unhealthy => write!(f, " health={}", health.as_str()),
                    Health::None | Health::Starting => Ok(()),
                }
            }
            Phase::Waiting { since, until } => write!(f, " phase=waiting at={} until={}", since.0, until.0),
            Phase::Ended { at, verdict, reason } => {
                let verdict = match verdict {
                    Verdict::Shutdown => "shutdown",
                    Verdict::Completed => "complete",
                    Verdict::Failed => "failed",
                    Verdict::Rejected => "rejected",
                };
                write!(f, " phase={verdict} at={} reason={reason}", at.0)
            }
        }
    }
}

/// The parts of the text as far as they could be read.
#[derive(Default)]
struct Parts<'a> {
    attempt: u32,
    delay: u64,
    exit: Option<i32>,
    out_of_memory: bool,
    starts: Vec<Timestamp>,
    phase: &'a str,
    at: u64,
    until: u64,
    health: Health,
    reason: &'a str,
}

impl<'a> Parts<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = Self::default();
        let body = text.strip_prefix("v1 ")?;
        let (body, reason) = body.split_once(" reason=").unwrap_or((body, ""));
        parts.reason = reason;
        for (key, value) in body.split(' ').filter_map(|word| word.split_once('=')) {
            match key {
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

    fn into_ledger(self) -> Option<Ledger> {
        let at = Timestamp(self.at);
        let ended = |verdict| Phase::Ended { at, verdict, reason: self.reason.to_string() };
        let phase = match self.phase {
            "open" => Phase::Open,
            "started" => Phase::Started { at, health: self.health },
            "waiting" => Phase::Waiting { since: at, until: Timestamp(self.until) },
            "shutdown" => ended(Verdict::Shutdown),
            "complete" => ended(Verdict::Completed),
            "failed" => ended(Verdict::Failed),
            "rejected" => ended(Verdict::Rejected),
            _ => return None,
        };
        let exit = self.exit.map(|code| Exit { code, out_of_memory: self.out_of_memory });
        let delay = Duration::from_millis(self.delay);
        (self.attempt > 0).then_some(Ledger {
            attempt: self.attempt,
            phase,
            exit,
            delay,
            starts: self.starts,
        })
    }
}

impl FromStr for Ledger {
    type Err = DecodeLedgerError;

    fn from_str(text: &str) -> Result<Self, DecodeLedgerError> {
        let wrong = || DecodeLedgerError { found: text.chars().take(64).collect() };
        Parts::parse(text).and_then(Parts::into_ledger).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored form of version 1: these texts must stay readable for ever.
    #[test]
    fn the_stored_form_is_kept() {
        let (at, until) = (Timestamp(5), Timestamp(9));
        let exit = Some(Exit { code: 137, out_of_memory: true });
        let starts = vec![Timestamp(1), Timestamp(3)];
        let ledger =
            |phase| Ledger { attempt: 2, phase, exit, delay: Duration::from_secs(1), starts: starts.clone() };
        let base = "v1 attempt=2 delay=1000 exit=137 oom=1 starts=1,3";
        let ended = |verdict| Phase::Ended { at, verdict, reason: "a = b reason=c".into() };
        let cases = [
            (Ledger::first(), "v1 attempt=1 delay=0 phase=open".to_string()),
            (ledger(Phase::Open), format!("{base} phase=open")),
            (ledger(Phase::Started { at, health: Health::None }), format!("{base} phase=started at=5")),
            (
                ledger(Phase::Started { at, health: Health::Healthy }),
                format!("{base} phase=started at=5 health=healthy"),
            ),
            (
                ledger(Phase::Started { at, health: Health::Unhealthy }),
                format!("{base} phase=started at=5 health=unhealthy"),
            ),
            (ledger(Phase::Waiting { since: at, until }), format!("{base} phase=waiting at=5 until=9")),
            (ledger(ended(Verdict::Shutdown)), format!("{base} phase=shutdown at=5 reason=a = b reason=c")),
            (ledger(ended(Verdict::Completed)), format!("{base} phase=complete at=5 reason=a = b reason=c")),
            (ledger(ended(Verdict::Failed)), format!("{base} phase=failed at=5 reason=a = b reason=c")),
            (ledger(ended(Verdict::Rejected)), format!("{base} phase=rejected at=5 reason=a = b reason=c")),
        ];
        for (ledger, text) in cases {
            assert_eq!(ledger.to_string(), text);
            assert_eq!(text.parse(), Ok(ledger));
        }
    }

    #[test]
    fn later_parts_are_skipped_and_nonsense_is_refused() {
        let known = "v1 attempt=1 delay=0 phase=open later=thing".parse();
        assert_eq!(known, Ok(Ledger::first()));
        for text in ["", "v2 attempt=1 phase=open", "v1 ", "v1 attempt=0 phase=open", "v1 attempt=1 phase=x"]
        {
            assert!(text.parse::<Ledger>().is_err(), "{text}");
        }
        assert!("v1 attempt=x phase=open".parse::<Ledger>().is_err());
    }

    #[test]
    fn a_reason_fits_in_a_label() {
        let reason = format!("line\nline {}", "ä".repeat(5000));
        let ledger = Ledger::first().ended(Timestamp(1), Verdict::Rejected, reason);
        let text = ledger.to_string();
        assert!(text.len() < 2048 && !text.contains('\n'));
        assert_eq!(text.parse(), Ok(ledger));
    }
}
