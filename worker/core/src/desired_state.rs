//! The desired state of a node, as far as it is known: the only input of the code that runs its tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_types::{
    Assignment, AssignmentVersion, DesiredTaskState, NodeSettings, RetainedLog, TaskAssignment, TaskId,
    TaskReport,
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
    /// Ended tasks whose logs are retained.
    pub retained: BTreeMap<TaskId, RetainedLog>,
    /// The tasks that stop and that no other node sends new clients.
    pub withdrawn: BTreeSet<TaskId>,
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
        self.retained = assignment.retained.into_iter().map(|log| (log.task, log)).collect();
        self.withdrawn.retain(|task| self.tasks.contains_key(task));
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
        retained: Vec<RetainedLog>,
    ) -> Result<bool, BaseMismatch> {
        if version <= self.version {
            return Ok(false);
        }
        if base != self.version {
            return Err(BaseMismatch);
        }
        self.version = version;
        for id in removed.iter().chain(retained.iter().map(|log| &log.task)) {
            self.tasks.remove(id);
            self.withdrawn.remove(id);
        }
        for id in removed.iter().chain(changed.iter().map(|task| &task.id)) {
            self.retained.remove(id);
        }
        self.tasks.extend(changed.into_iter().map(|task| (task.id, Arc::new(task))));
        self.retained.extend(retained.into_iter().map(|log| (log.task, log)));
        self.is_confirmed = true;
        Ok(true)
    }

    /// The node was removed from its cluster: no task is desired. Settings and version stay, since running
    /// tasks depend on the settings, and the version is the newest incarnation that the node has seen.
    pub fn remove_all(&mut self) {
        self.tasks.clear();
        self.retained.clear();
        self.withdrawn.clear();
        self.is_confirmed = true;
    }

    /// No other node sends these tasks new clients. Those that do not stop are ignored.
    pub fn record_withdrawn(&mut self, tasks: impl IntoIterator<Item = TaskId>) {
        let stops =
            |task: &TaskId| self.tasks.get(task).is_some_and(|it| it.desired > DesiredTaskState::Running);
        let stopping: Vec<TaskId> = tasks.into_iter().filter(stops).collect();
        self.withdrawn.extend(stopping);
    }

    /// Whether the node should have files of the task: it is assigned, or its log is retained.
    pub fn keeps_files_of(&self, task: &TaskId) -> bool {
        self.tasks.contains_key(task) || self.retained.contains_key(task)
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
    use warren_types::fixtures::{task_assignment, task_report};
    use warren_types::{Id, LogLimits, ServiceId, TaskState};

    use super::*;

    fn task_id(number: u64) -> TaskId {
        TaskId { service: ServiceId(Id(7)), number }
    }

    fn task(number: u64) -> TaskAssignment {
        task_assignment(task_id(number))
    }

    fn at(incarnation: u64, index: u64) -> AssignmentVersion {
        AssignmentVersion { incarnation, index }
    }

    fn full(version: AssignmentVersion, numbers: &[u64]) -> Assignment {
        let tasks = numbers.iter().map(|number| task(*number)).collect();
        Assignment { version, tasks, retained: Vec::new() }
    }

    fn log(number: u64) -> RetainedLog {
        RetainedLog { task: task_id(number), slot: 1, limits: LogLimits::default() }
    }

    fn numbers(desired_state: &DesiredState) -> Vec<u64> {
        desired_state.tasks.keys().map(|id| id.number).collect()
    }

    #[test]
    fn older_full_assignment_is_ignored() {
        let mut desired_state = DesiredState::default();
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
        assert_eq!(
            desired_state.apply_update(at(1, 1), at(1, 2), vec![task(1)], &[], vec![]),
            Err(BaseMismatch)
        );
        assert_eq!(desired_state, empty);
        desired_state.apply_full(full(at(1, 1), &[1, 2]));
        let mut changed = task(2);
        changed.desired = DesiredTaskState::Remove;
        let diff = |desired_state: &mut DesiredState| {
            desired_state.apply_update(
                at(1, 1),
                at(1, 2),
                vec![changed.clone(), task(3)],
                &[task_id(1)],
                vec![],
            )
        };
        assert_eq!(diff(&mut desired_state), Ok(true));
        assert_eq!(diff(&mut desired_state), Ok(false), "the second time");
        assert_eq!(numbers(&desired_state), [2, 3]);
        assert_eq!(desired_state.tasks[&task_id(2)].desired, DesiredTaskState::Remove);
        assert_eq!(desired_state.apply_update(at(1, 1), at(1, 3), vec![], &[], vec![]), Err(BaseMismatch));
    }

    #[test]
    fn log_of_ended_task_is_retained_until_it_is_removed() {
        let mut desired_state = DesiredState::default();
        desired_state.apply_full(Assignment { retained: vec![log(1)], ..full(at(1, 1), &[2, 3]) });
        let kept =
            |desired_state: &DesiredState| [1, 2, 3].map(|n| desired_state.keeps_files_of(&task_id(n)));
        assert_eq!(kept(&desired_state), [true; 3]);
        let update = |desired_state: &mut DesiredState, index, removed: &[TaskId], retained| {
            desired_state.apply_update(at(1, index - 1), at(1, index), vec![], removed, retained)
        };
        assert_eq!(update(&mut desired_state, 2, &[], vec![log(2)]), Ok(true));
        assert_eq!((numbers(&desired_state), kept(&desired_state)), (vec![3], [true; 3]));
        assert_eq!(update(&mut desired_state, 3, &[task_id(1), task_id(3)], vec![]), Ok(true));
        assert_eq!((numbers(&desired_state), kept(&desired_state)), (vec![], [false, true, false]));
        desired_state.apply_full(full(at(1, 4), &[]));
        assert_eq!(kept(&desired_state), [false; 3]);
    }

    #[test]
    fn removed_node_keeps_version_without_tasks() {
        let mut desired_state = DesiredState::default();
        desired_state.apply_full(full(at(1, 5), &[1]));
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
        let output =
            |number, removed| TaskReport { removed, ..task_report(task_id(number), 1, TaskState::Shutdown) };
        let mut desired_state = DesiredState::default();
        let desired =
            [(1, DesiredTaskState::Running), (2, DesiredTaskState::Shutdown), (3, DesiredTaskState::Remove)];
        let tasks = desired.map(|(number, desired)| TaskAssignment { desired, ..task(number) });
        desired_state.apply_full(Assignment { version: at(2, 1), tasks: tasks.into(), retained: Vec::new() });
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
