//! What managers want of a node, as far as it is known: the one input of whoever has its tasks done.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{
    Assignment, AssignmentVersion, Desired, NodeSettings, TaskAssignment, TaskId, TaskReport,
};

/// What the node should have. From the cache until a manager was heard, from managers after that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// What is not per task; `None` on a node that never had a session.
    pub settings: Option<NodeSettings>,
    /// When the tasks were what managers wanted.
    pub version: AssignmentVersion,
    /// The tasks that the node should have.
    pub tasks: BTreeMap<TaskId, Arc<TaskAssignment>>,
    /// A manager said so to this agent: what is not among the tasks is wanted by nobody. Before that, the
    /// tasks may be out of date and nothing is removed for their sake.
    pub confirmed: bool,
}

/// The base of a diff is not what this node has; the manager must send everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap;

impl Wishes {
    /// Takes over everything that a manager wants. `false` when the node has seen a newer assignment.
    pub fn take_full(&mut self, assignment: Assignment) -> bool {
        if assignment.version < self.version {
            return false;
        }
        self.version = assignment.version;
        self.tasks = assignment.tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect();
        self.confirmed = true;
        true
    }

    /// Takes over what changed since `base`. `Ok(false)` when the node has it already or something newer.
    pub fn take_diff(
        &mut self,
        base: AssignmentVersion,
        version: AssignmentVersion,
        changed: Vec<TaskAssignment>,
        removed: &[TaskId],
    ) -> Result<bool, Gap> {
        if version <= self.version {
            return Ok(false);
        }
        if base != self.version {
            return Err(Gap);
        }
        self.version = version;
        self.tasks.retain(|id, _| !removed.contains(id));
        self.tasks.extend(changed.into_iter().map(|task| (task.id, Arc::new(task))));
        self.confirmed = true;
        Ok(true)
    }

    /// The node was removed from its cluster: no task is wanted. What else is known stays, since it says what the
    /// tasks stand on, and how much of the cluster's history the node has seen.
    pub fn want_nothing(&mut self) {
        self.tasks.clear();
        self.confirmed = true;
    }

    /// Whether the report says that nothing is left of a task that the node should have. That was said when nobody
    /// wanted the task, in another life of the cluster, and means nothing in this one.
    pub fn contradict(&self, report: &TaskReport) -> bool {
        report.removed && self.tasks.get(&report.task).is_some_and(|task| task.desired != Desired::Remove)
    }

    /// A manager said that what the node has is current. `false` when that was known.
    pub fn confirm(&mut self) -> bool {
        !std::mem::replace(&mut self.confirmed, true)
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
            desired: Desired::Running,
            service_labels: BTreeMap::new(),
            volumes: Vec::new(),
        }
    }

    fn at(incarnation: u64, index: u64) -> AssignmentVersion {
        AssignmentVersion { incarnation, index }
    }

    fn numbers(wishes: &Wishes) -> Vec<u64> {
        wishes.tasks.keys().map(|id| id.number).collect()
    }

    #[test]
    fn full_assignments_replace_and_older_ones_are_ignored() {
        let mut wishes = Wishes::default();
        let full = |version, numbers: &[u64]| Assignment {
            version,
            tasks: numbers.iter().map(|number| task(*number)).collect(),
        };
        assert!(wishes.take_full(full(at(1, 5), &[1, 2])) && wishes.confirmed);
        assert!(wishes.take_full(full(at(1, 5), &[1, 2])), "the second time");
        assert!(!wishes.take_full(full(at(1, 4), &[3])));
        assert!(!wishes.take_full(full(at(0, 9), &[3])));
        assert_eq!(numbers(&wishes), [1, 2]);
        assert!(wishes.take_full(full(at(2, 1), &[3])), "a restored cluster");
        assert_eq!(numbers(&wishes), [3]);
    }

    #[test]
    fn diffs_need_their_base() {
        let mut wishes = Wishes::default();
        let empty = Wishes::default();
        assert_eq!(wishes.take_diff(at(1, 1), at(1, 2), vec![task(1)], &[]), Err(Gap));
        assert_eq!(wishes, empty);
        wishes.take_full(Assignment { version: at(1, 1), tasks: vec![task(1), task(2)] });
        let mut changed = task(2);
        changed.desired = Desired::Remove;
        let diff = |wishes: &mut Wishes| {
            wishes.take_diff(at(1, 1), at(1, 2), vec![changed.clone(), task(3)], &[task_id(1)])
        };
        assert_eq!(diff(&mut wishes), Ok(true));
        assert_eq!(diff(&mut wishes), Ok(false), "the second time");
        assert_eq!(numbers(&wishes), [2, 3]);
        assert_eq!(wishes.tasks[&task_id(2)].desired, Desired::Remove);
        assert_eq!(wishes.take_diff(at(1, 1), at(1, 3), vec![], &[]), Err(Gap));
    }

    #[test]
    fn a_removed_node_wants_nothing_and_knows_what_it_has_seen() {
        let mut wishes = Wishes::default();
        wishes.take_full(Assignment { version: at(1, 5), tasks: vec![task(1)] });
        for _ in 0..2 {
            wishes.want_nothing();
            assert_eq!(wishes, Wishes { version: at(1, 5), confirmed: true, ..Wishes::default() });
        }
        // A node that only its cache spoke for yet.
        let mut cached = Wishes { confirmed: false, ..wishes.clone() };
        cached.want_nothing();
        assert_eq!(cached, wishes);
    }

    #[test]
    fn that_nothing_is_left_of_a_task_means_nothing_while_it_is_wanted() {
        let said = |number, removed| TaskReport {
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
        let mut wishes = Wishes::default();
        let desired = [(1, Desired::Running), (2, Desired::Shutdown), (3, Desired::Remove)];
        let tasks = desired.map(|(number, desired)| TaskAssignment { desired, ..task(number) });
        wishes.take_full(Assignment { version: at(2, 1), tasks: tasks.into() });
        let contradicted = |removed| [1, 2, 3, 4].map(|number| wishes.contradict(&said(number, removed)));
        assert_eq!(contradicted(true), [true, true, false, false]);
        assert_eq!(contradicted(false), [false; 4]);
    }

    #[test]
    fn a_confirmation_counts_once() {
        let mut wishes = Wishes::default();
        assert!(wishes.confirm() && !wishes.confirm());
    }
}
