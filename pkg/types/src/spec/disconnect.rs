//! What becomes of tasks whose node has no manager, and when managers give up on them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::task::DEFAULT_STOP_GRACE;
use crate::{TaskSpec, Violations};

/// A node that changes its manager may be without one for as long as this.
pub const MIN_STOP_AFTER: Duration = Duration::from_secs(10);
/// The longest time that a task may be left alone, or waited for.
pub const MAX_DISCONNECT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Between the moment at which a task has stopped by itself and the one at which another takes its place: clocks run
/// differently, and the two sides do not lose each other at the same moment.
const REPLACE_MARGIN: Duration = Duration::from_secs(10);

/// What a node does with a task while it reaches no manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnDisconnect {
    /// It runs on. Managers replace it elsewhere, so that it may run twice until the node is back.
    #[default]
    Keep,
    /// It is stopped after this time without any manager, and replaced only after that.
    StopAfter(#[serde(with = "crate::text::duration")] Duration),
}

impl OnDisconnect {
    /// It is the one that needs not be said.
    pub fn is_keep(&self) -> bool {
        *self == Self::Keep
    }

    /// After how long without a manager the task is stopped.
    pub fn stop_after(self) -> Option<Duration> {
        match self {
            Self::Keep => None,
            Self::StopAfter(time) => Some(time),
        }
    }

    /// Everything wrong with it; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if self.stop_after().is_some_and(|time| !(MIN_STOP_AFTER..=MAX_DISCONNECT).contains(&time)) {
            let message =
                "is not between 10 seconds, which a node may need to find another manager, and 30 days";
            wrong.add("stopAfter", message);
        }
        wrong
    }
}

impl fmt::Display for OnDisconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.pad("keep"),
            Self::StopAfter(time) => f.pad(&format!("stop-after={}ms", time.as_millis())),
        }
    }
}

impl TaskSpec {
    /// How long after it was lost such a task has stopped by itself for sure; zero if it never does. A task that may
    /// take longer to end than most gets that time as well.
    pub fn stopped_by_itself_after(&self) -> Duration {
        let margin = REPLACE_MARGIN + self.stop_grace.saturating_sub(DEFAULT_STOP_GRACE);
        self.on_disconnect.stop_after().map_or(Duration::ZERO, |time| time + margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_given_up_when_it_has_stopped_by_itself() {
        let secs = Duration::from_secs;
        let mut task = TaskSpec::new("web:1".parse().unwrap());
        assert_eq!(task.stopped_by_itself_after(), Duration::ZERO);
        for (stop_after, grace, wanted) in
            [(secs(30), DEFAULT_STOP_GRACE, 40), (secs(30), secs(0), 40), (secs(30), secs(60), 90)]
        {
            task.on_disconnect = OnDisconnect::StopAfter(stop_after);
            task.stop_grace = grace;
            assert_eq!(task.stopped_by_itself_after(), secs(wanted));
        }
    }

    #[test]
    fn the_time_has_bounds_and_keeping_is_not_written_down() {
        let faults = |policy: OnDisconnect| policy.validate().0.len();
        assert_eq!(faults(OnDisconnect::Keep), 0);
        assert_eq!(faults(OnDisconnect::StopAfter(MIN_STOP_AFTER)), 0);
        assert_eq!(faults(OnDisconnect::StopAfter(MAX_DISCONNECT)), 0);
        assert_eq!(faults(OnDisconnect::StopAfter(MIN_STOP_AFTER - Duration::from_millis(1))), 1);
        assert_eq!(faults(OnDisconnect::StopAfter(MAX_DISCONNECT + Duration::from_millis(1))), 1);
        let mut task = TaskSpec::new("web:1".parse().unwrap());
        let text = serde_json::to_string(&task).unwrap();
        assert!(!text.contains("onDisconnect"), "agents of before must be able to read it: {text}");
        task.on_disconnect = OnDisconnect::StopAfter(MIN_STOP_AFTER);
        let text = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<TaskSpec>(&text).unwrap(), task);
    }
}
