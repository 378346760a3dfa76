//! What happens to tasks whose node has no contact with a manager, and when managers consider them lost.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Violations;

/// The shortest limit: a node that changes its manager may be without one for this long.
pub const MIN_STOP_AFTER: Duration = Duration::from_secs(10);
/// The longest disconnect limit, and the longest time before a lost task is replaced.
pub const MAX_DISCONNECT_TIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// What a node does with a task while it reaches no manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnDisconnect {
    /// The task runs on. Managers replace it on another node, so it may run twice until the node returns.
    #[default]
    Keep,
    /// The task is stopped after this time without a manager, and replaced only after that.
    StopAfter(#[serde(with = "crate::text::duration")] Duration),
}

impl OnDisconnect {
    /// Whether it is the default.
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

    /// All violations of the setting; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if self.stop_after().is_some_and(|time| !(MIN_STOP_AFTER..=MAX_DISCONNECT_TIME).contains(&time)) {
            let message =
                "is not between 10 seconds, which a node may need to connect to another manager, and 30 days";
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TaskSpec;

    #[test]
    fn stop_after_is_bounded_and_keep_is_omitted() {
        let faults = |policy: OnDisconnect| policy.validate().0.len();
        assert_eq!(faults(OnDisconnect::Keep), 0);
        assert_eq!(faults(OnDisconnect::StopAfter(MIN_STOP_AFTER)), 0);
        assert_eq!(faults(OnDisconnect::StopAfter(MAX_DISCONNECT_TIME)), 0);
        assert_eq!(faults(OnDisconnect::StopAfter(MIN_STOP_AFTER - Duration::from_millis(1))), 1);
        assert_eq!(faults(OnDisconnect::StopAfter(MAX_DISCONNECT_TIME + Duration::from_millis(1))), 1);
        let mut task = TaskSpec::new("web:1".parse().unwrap());
        let text = serde_json::to_string(&task).unwrap();
        assert!(!text.contains("onDisconnect"), "agents of before must be able to read it: {text}");
        task.on_disconnect = OnDisconnect::StopAfter(MIN_STOP_AFTER);
        let text = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<TaskSpec>(&text).unwrap(), task);
    }
}
