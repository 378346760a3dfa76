//! When a running task counts as ready for updates and for those who wait.

use std::time::Duration;

use warren_types::{DesiredTaskState, Service, Task, Timestamp};

/// How much longer the task must run until it counts as ready: zero once it does, `None` for one that receives
/// no traffic, or is not to run. A program without a health check may end at once, so it must run for the
/// monitor period of the service. A healthy task counts immediately.
pub fn settling_time(service: &Service, task: &Task, now: Timestamp) -> Option<Duration> {
    let serves = task.is_live()
        && task.desired == DesiredTaskState::Running
        && task.observed.ready
        && task.lost_since().is_none();
    let monitor = match task.revision.task.health {
        Some(_) => Duration::ZERO,
        None => service.rollout_policy().monitor,
    };
    serves.then(|| monitor.saturating_sub(now.saturating_since(task.observed.since)))
}
