//! When a worker restarts a task's container.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Violations;

/// The longest delay between two attempts; doubling stops here.
pub const MAX_RESTART_DELAY: Duration = Duration::from_secs(5 * 60);
/// The shortest delay: without one, a program that fails immediately would keep the node busy.
pub const MIN_RESTART_DELAY: Duration = Duration::from_millis(100);
/// The longest window in which restarts are counted.
pub const MAX_RESTART_WINDOW: Duration = Duration::from_secs(24 * 3600);
/// The most restarts within a window. The agent keeps a start time for each.
pub const MAX_RESTARTS: u32 = 32;

/// How a worker restarts a task in place. When the policy allows no further restart, the task is FAILED and
/// managers replace it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RestartPolicy {
    /// Which exits lead to a restart.
    pub condition: RestartCondition,
    /// Before the first restart; doubles with each further one up to [`MAX_RESTART_DELAY`], and is reset
    /// after an attempt that ran for longer than `window`.
    #[serde(with = "crate::text::duration")]
    pub delay: Duration,
    /// More restarts than this within `window` make the task FAILED; 0 disables restarts.
    pub max: u32,
    /// The time in which restarts are counted.
    #[serde(with = "crate::text::duration")]
    pub window: Duration,
}

/// Which exits lead to a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartCondition {
    /// Every exit.
    Any,
    /// An exit code other than 0, a signal, or running out of memory.
    OnFailure,
    /// None, and managers do not replace the task either: it stays COMPLETE or FAILED.
    None,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        let (delay, window) = (Duration::from_secs(1), Duration::from_secs(5 * 60));
        Self { condition: RestartCondition::Any, delay, max: 3, window }
    }
}

impl RestartCondition {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Any, Self::OnFailure, Self::None];

    /// As in files and flags: `on-failure`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::OnFailure => "on-failure",
            Self::None => "none",
        }
    }
}

impl std::str::FromStr for RestartCondition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|condition| condition.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not a restart condition; give any, on-failure or none"))
    }
}

impl RestartPolicy {
    /// All violations of the policy; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let Self { condition: _, delay, max, window } = *self;
        let mut violations = Violations::default();
        if !(MIN_RESTART_DELAY..=MAX_RESTART_DELAY).contains(&delay) {
            violations.add("delay", "is not between 100 ms and 5 minutes");
        }
        if max > MAX_RESTARTS {
            violations.add("max", format!("{max} is more than {MAX_RESTARTS}"));
        }
        if window < Duration::from_secs(1) || window > MAX_RESTART_WINDOW {
            violations.add("window", "is not between 1 second and 24 hours");
        }
        violations
    }
}
