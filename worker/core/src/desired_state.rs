//! The desired state of a node, as far as it is known: the only input of the code that runs its tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{
    Assignment, AssignmentVersion, DesiredTaskState, NodeSettings, TaskAssignment, TaskId, TaskReport,
};

/// The desired state of the node. From the cache until the first contact with a manager, from managers after
/// that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// Settings that are not per task; `None` on a node that never had a session.
    pub settings: Option<NodeSettings>,
    /// The version of the assignment.
    pub version: AssignmentVersion,
    /// The desired tasks.
    pub tasks: BTreeMap<TaskId, Arc<TaskAssignment>>,
    /// A manager confirmed it to this agent: a task that is not listed is not desired. Before that, the list
    /// may be out of date and no task is removed because of it.
    pub is_confirmed: bool,
}

/// The base of an update is not what this node has; the manager must send the full assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseMismatch;

impl DesiredState {
    /// Replaces the assignment. `false` if the node has a newer one.
    pub fn apply_full(&mut self, assignment: Assignment) -> bool {
        if assignment.version < self.version {
            return false;
        }
        self.version = assignment.version;
        self.tasks = assignment.tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect();
        self.is_confirmed = true;
        true
    }

    /// Applies what changed since `base`. `Ok(false)` if the node has it already or something newer.
    pub fn apply_update(
        &mut self,
        base: AssignmentVersion,
        version: AssignmentVersion,
        changed: Vec<TaskAssignment>,
        removed: &[TaskId],
    ) -> Result<bool, BaseMismatch> {
        if version <= self.version {
            return Ok(false);
        }
        if base != self.version {
            return Err(BaseMismatch);
        }
        self.version = version;
        self.tasks.retain(|id, _| !removed.contains(id));
        self.tasks.extend(changed.into_iter().map(|task| (task.id, Arc::new(task))));
        self.is_confirmed = true;
        Ok(true)
    }

    /// The node was removed from its cluster: no task is desired. Settings and version stay, since running
    /// tasks depend on the settings, and the version is the newest incarnation that the node has seen.
    pub fn remove_all(&mut self) {
        self.tasks.clear();
        self.is_confirmed = true;
    }

    /// Whether the report states that nothing is left of a task that is desired. It was sent while the task
    /// was not desired, in another incarnation of the cluster, and does not apply to this one.
    pub fn contradicts(&self, report: &TaskReport) -> bool {
        report.removed
            && self.tasks.get(&report.task).is_some_and(|task| task.desired != DesiredTaskState::Remove)
    }

    /// A manager confirmed that the assignment is current. `false` if that was known.
    pub fn confirm(&mut self) -> bool {
        !std::mem::replace(&mut self.is_confirmed, true)
    }
}

#[cfg(test)]
mod tests {
    use warren_types::{Health, Id, ServiceId, TaskSpec, TaskState, Timestamp};

    use super::*;

    fn task_id(number: u64) -> TaskId {
        TaskId { service: ServiceId(Id(7)), number }
    }

    fn task(number: u64) -> TaskAssignment {
        TaskAssignment {
            id: task_id(number),
            service: "web".parse().unwrap(),
            slot: 1,
            revision: 1,
            spec: TaskSpec::new("demo:1".parse().unwrap()),
            digest: None,
            ports: Vec::new(),
            address: std::net::Ipv4Addr::new(10, 210, 0, 9),
            desired: DesiredTaskState::Running,
            service_labels: BTreeMap::new(),
            volumes: Vec::new(),
        }
    }

    fn at(incarnation: u64, index: u64) -> AssignmentVersion {
        AssignmentVersion { incarnation, index }
    }

    fn numbers(desired_state: &DesiredState) -> Vec<u64> {
        desired_state.tasks.keys().map(|id| id.number).collect()
    }

    #[test]
    fn older_full_assignment_is_ignored() {
        let mut desired_state = DesiredState::default();
        let full = |version, numbers: &[u64]| Assignment {
            version,
            tasks: numbers.iter().map(|number| task(*number)).collect(),
        };
        assert!(desired_state.apply_full(full(at(1, 5), &[1, 2])) && desired_state.is_confirmed);
        assert!(desired_state.apply_full(full(at(1, 5), &[1, 2])), "the second time");
        assert!(!desired_state.apply_full(full(at(1, 4), &[3])));
        assert!(!desired_state.apply_full(full(at(0, 9), &[3])));
        assert_eq!(numbers(&desired_state), [1, 2]);
        assert!(desired_state.apply_full(full(at(2, 1), &[3])), "a restored cluster");
        assert_eq!(numbers(&desired_state), [3]);
    }

    #[test]
    fn update_with_other_base_is_rejected() {
        let mut desired_state = DesiredState::default();
        let empty = DesiredState::default();
        assert_eq!(desired_state.apply_update(at(1, 1), at(1, 2), vec![task(1)], &[]), Err(BaseMismatch));
        assert_eq!(desired_state, empty);
        desired_state.apply_full(Assignment { version: at(1, 1), tasks: vec![task(1), task(2)] });
        let mut changed = task(2);
        changed.desired = DesiredTaskState::Remove;
        let diff = |desired_state: &mut DesiredState| {
            desired_state.apply_update(at(1, 1), at(1, 2), vec![changed.clone(), task(3)], &[task_id(1)])
        };
        assert_eq!(diff(&mut desired_state), Ok(true));
        assert_eq!(diff(&mut desired_state), Ok(false), "the second time");
        assert_eq!(numbers(&desired_state), [2, 3]);
        assert_eq!(desired_state.tasks[&task_id(2)].desired, DesiredTaskState::Remove);
        assert_eq!(desired_state.apply_update(at(1, 1), at(1, 3), vec![], &[]), Err(BaseMismatch));
    }

    #[test]
    fn removed_node_keeps_version_without_tasks() {
        let mut desired_state = DesiredState::default();
        desired_state.apply_full(Assignment { version: at(1, 5), tasks: vec![task(1)] });
        for _ in 0..2 {
            desired_state.remove_all();
            assert_eq!(
                desired_state,
                DesiredState { version: at(1, 5), is_confirmed: true, ..DesiredState::default() }
            );
        }
        // A node that has only its cache yet.
        let mut cached = DesiredState { is_confirmed: false, ..desired_state.clone() };
        cached.remove_all();
        assert_eq!(cached, desired_state);
    }

    #[test]
    fn removal_report_of_desired_task_is_ignored() {
        let output = |number, removed| TaskReport {
            task: task_id(number),
            attempt: 1,
            state: TaskState::Shutdown,
            since: Timestamp(0),
            reason: String::new(),
            ready: false,
            exit: None,
            removed,
            next_attempt: None,
            image: None,
            health: Health::None,
        };
        let mut desired_state = DesiredState::default();
        let desired =
            [(1, DesiredTaskState::Running), (2, DesiredTaskState::Shutdown), (3, DesiredTaskState::Remove)];
        let tasks = desired.map(|(number, desired)| TaskAssignment { desired, ..task(number) });
        desired_state.apply_full(Assignment { version: at(2, 1), tasks: tasks.into() });
        let contradicted =
            |removed| [1, 2, 3, 4].map(|number| desired_state.contradicts(&output(number, removed)));
        assert_eq!(contradicted(true), [true, true, false, false]);
        assert_eq!(contradicted(false), [false; 4]);
    }

    #[test]
    fn confirm_is_idempotent() {
        let mut desired_state = DesiredState::default();
        assert!(desired_state.confirm() && !desired_state.confirm());
    }
}
