//! Whether something was listed and removed again between two comparisons of the state. A node that was told of it by
//! another manager has it still, and no later change would remove it there.

use std::collections::BTreeMap;

use warren_types::{DesiredTaskState, Service, ServiceId, Task, TaskId, TaskState};

/// Where each object was at the last comparison. Listed tasks are not included.
#[derive(Debug, Clone, Default)]
pub(super) struct MissedEntries {
    tasks: BTreeMap<TaskId, TaskProgress>,
    services: BTreeMap<ServiceId, ServiceProgress>,
}

#[derive(Debug, Clone, Copy)]
struct TaskProgress {
    attempt: u32,
    state: TaskState,
    /// It will not be listed any more, or never.
    is_final: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ServiceProgress {
    revision: u64,
    removing: bool,
}

impl MissedEntries {
    /// Records the task. Whether it may have been listed since the last comparison, although it is not now and was not
    /// then.
    pub fn record_task(
        &mut self,
        id: TaskId,
        task: Option<&Task>,
        was_listed: bool,
        is_listed: bool,
    ) -> bool {
        let before = self.tasks.remove(&id);
        if is_listed {
            return false;
        }
        let now = task.map(TaskProgress::of);
        if let Some(now) = now {
            self.tasks.insert(id, now);
        }
        let is_over = before.is_some_and(|before| before.is_final);
        !was_listed && !is_over && now.is_none_or(|now| now.has_run_since(before))
    }

    /// Records the service. Whether it may have been in a network since the last comparison in which it is not now and
    /// was not then.
    pub fn record_service(&mut self, id: ServiceId, service: Option<&Service>) -> bool {
        let now = service
            .map(|service| ServiceProgress { revision: service.revision.number, removing: service.removing });
        let before = match now {
            Some(now) => self.services.insert(id, now),
            None => self.services.remove(&id),
        };
        match now {
            Some(now) => now.revision > before.map_or(1, |before| before.revision + 1),
            None => !before.is_some_and(|before| before.removing),
        }
    }
}

impl TaskProgress {
    fn of(task: &Task) -> Self {
        let has_ended = task.observed.state.is_terminal() && task.desired > DesiredTaskState::Running;
        let is_in_none = task.revision.task.network.attachments().is_empty();
        let is_final = task.observed.removed || has_ended || is_in_none;
        Self { attempt: task.observed.attempt, state: task.observed.state, is_final }
    }

    /// Whether it may have run after `before` until now.
    fn has_run_since(self, before: Option<Self>) -> bool {
        let (attempt, state) = before.map_or((0, TaskState::New), |before| (before.attempt, before.state));
        let next = if state < TaskState::Running { attempt.max(1) } else { attempt + 1 };
        (self.attempt, self.state) > (next, TaskState::Running)
    }
}
