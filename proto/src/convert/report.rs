//! Reports of tasks, and their desired and observed states.

use warren_types::{DesiredTaskState, Health, TaskExit, TaskReport, TaskState, Timestamp, Violations};

use super::fields::{FieldReader, optional_text, unknown_enum_value};
use crate::v1;

/// A task's state from its number on the wire. The violation's path is empty: nest it under the field's.
pub fn task_state(wire: i32) -> Result<TaskState, Violations> {
    let known = u16::try_from(wire).ok().and_then(TaskState::from_number);
    known.ok_or_else(|| unknown_enum_value(wire, "a state that this version supports"))
}

/// The desired state of a task, from its number on the wire; as [`task_state`].
pub fn desired_task_state(wire: i32) -> Result<DesiredTaskState, Violations> {
    let known = u16::try_from(wire).ok().and_then(DesiredTaskState::from_number);
    known.ok_or_else(|| unknown_enum_value(wire, "READY, RUNNING, SHUTDOWN or REMOVE"))
}

impl From<TaskState> for v1::TaskState {
    fn from(state: TaskState) -> Self {
        match state {
            TaskState::New => Self::New,
            TaskState::Pending => Self::Pending,
            TaskState::Assigned => Self::Assigned,
            TaskState::Accepted => Self::Accepted,
            TaskState::Preparing => Self::Preparing,
            TaskState::Ready => Self::Ready,
            TaskState::Starting => Self::Starting,
            TaskState::Running => Self::Running,
            TaskState::Complete => Self::Complete,
            TaskState::Shutdown => Self::Shutdown,
            TaskState::Failed => Self::Failed,
            TaskState::Rejected => Self::Rejected,
        }
    }
}

impl From<DesiredTaskState> for v1::DesiredTaskState {
    fn from(desired: DesiredTaskState) -> Self {
        match desired {
            DesiredTaskState::Ready => Self::Ready,
            DesiredTaskState::Running => Self::Running,
            DesiredTaskState::Shutdown => Self::Shutdown,
            DesiredTaskState::Remove => Self::Remove,
        }
    }
}

/// The health of a task, from its number on the wire; as [`task_state`].
pub fn health(wire: i32) -> Result<Health, Violations> {
    match v1::Health::try_from(wire) {
        Ok(v1::Health::None) => Ok(Health::None),
        Ok(v1::Health::Starting) => Ok(Health::Starting),
        Ok(v1::Health::Healthy) => Ok(Health::Healthy),
        Ok(v1::Health::Unhealthy) => Ok(Health::Unhealthy),
        Err(_) => Err(unknown_enum_value(wire, "none, starting, healthy or unhealthy")),
    }
}

impl From<Health> for v1::Health {
    fn from(health: Health) -> Self {
        match health {
            Health::None => Self::None,
            Health::Starting => Self::Starting,
            Health::Healthy => Self::Healthy,
            Health::Unhealthy => Self::Unhealthy,
        }
    }
}

impl From<v1::TaskExit> for TaskExit {
    fn from(wire: v1::TaskExit) -> Self {
        Self { code: wire.code, out_of_memory: wire.out_of_memory }
    }
}

impl From<TaskExit> for v1::TaskExit {
    fn from(exit: TaskExit) -> Self {
        Self { code: exit.code, out_of_memory: exit.out_of_memory }
    }
}

impl TryFrom<v1::TaskReport> for TaskReport {
    type Error = Violations;

    fn try_from(wire: v1::TaskReport) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let task = fields.parse("taskId", &wire.task_id);
        let state = fields.nest("state", task_state(wire.state));
        let image = fields.parse_optional("image", &wire.image);
        let health = fields.nest("health", health(wire.health));
        let built = || {
            Some(Self {
                task: task?,
                attempt: wire.attempt,
                state: state?,
                since: Timestamp(wire.since),
                reason: wire.reason,
                ready: wire.ready,
                exit: wire.exit.map(Into::into),
                removed: wire.removed,
                next_attempt: wire.next_attempt.map(Timestamp),
                image: image?,
                health: health?,
            })
        };
        fields.finish(built())
    }
}

impl From<&TaskReport> for v1::TaskReport {
    fn from(report: &TaskReport) -> Self {
        Self {
            task_id: report.task.to_string(),
            attempt: report.attempt,
            state: v1::TaskState::from(report.state).into(),
            since: report.since.0,
            reason: report.reason.clone(),
            ready: report.ready,
            exit: report.exit.map(Into::into),
            removed: report.removed,
            next_attempt: report.next_attempt.map(|at| at.0),
            image: optional_text(report.image.as_ref()),
            health: v1::Health::from(report.health).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_numbers_match_task_states() {
        for state in TaskState::ALL {
            assert_eq!(v1::TaskState::from(state) as i32, i32::from(state as u16));
            assert_eq!(task_state(v1::TaskState::from(state).into()), Ok(state));
        }
        for expected in DesiredTaskState::ALL {
            assert_eq!(v1::DesiredTaskState::from(expected) as i32, i32::from(expected as u16));
            assert_eq!(desired_task_state(v1::DesiredTaskState::from(expected).into()), Ok(expected));
        }
    }

    #[test]
    fn unknown_state_number_is_refused() {
        let number = |wire| task_state(wire).unwrap_err().0.remove(0).message;
        assert_eq!(
            number(513),
            "value 513 is not known to this version; give a state that this version supports"
        );
        assert!(task_state(-1).is_err() && task_state(65_536 + 512).is_err());
        let unset = desired_task_state(0).unwrap_err().0.remove(0).message;
        assert_eq!(unset, "is missing; give READY, RUNNING, SHUTDOWN or REMOVE");
        assert!(desired_task_state(1).is_err());
    }

    #[test]
    fn invalid_report_names_field() {
        let wire = v1::TaskReport { task_id: "x".into(), state: 1, ..Default::default() };
        let paths = TaskReport::try_from(wire).unwrap_err().0.into_iter().map(|v| v.path);
        assert_eq!(paths.collect::<Vec<_>>(), ["taskId", "state"]);
    }
}
