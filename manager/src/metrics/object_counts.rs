//! Object counts, computed once per applied index.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use warren_core::State;
use warren_store::PublishedState;
use warren_types::{NodeStatus, TaskState};

/// Counts by the status names that users see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ObjectCounts {
    pub services: usize,
    /// All statuses, including those with 0 nodes.
    pub nodes: BTreeMap<&'static str, usize>,
    /// All states, including those with 0 tasks.
    pub tasks: BTreeMap<&'static str, usize>,
    /// Live tasks without a node.
    pub unplaced: usize,
}

/// The newest counts. Counting visits all tasks, so it runs at most once per applied entry, and only when
/// requested.
#[derive(Debug, Default)]
pub(super) struct ObjectCountCache {
    latest: Mutex<Option<(u64, Arc<ObjectCounts>)>>,
}

impl ObjectCountCache {
    /// The counts of this state.
    pub fn get(&self, published: &PublishedState) -> Arc<ObjectCounts> {
        // Locked while counting: concurrent callers get the same result.
        let mut newest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*newest {
            Some((index, counts)) if *index == published.index => Arc::clone(counts),
            _ => {
                let counts = Arc::new(count(&published.state));
                *newest = Some((published.index, Arc::clone(&counts)));
                counts
            }
        }
    }
}

fn count(state: &State) -> ObjectCounts {
    let statuses = [NodeStatus::Unknown, NodeStatus::Ready, NodeStatus::Down];
    let mut nodes = BTreeMap::from(statuses.map(|status| (status.as_str(), 0)));
    for node in state.nodes() {
        *nodes.entry(node.status.as_str()).or_default() += 1;
    }
    let mut tasks = [0; TaskState::ALL.len()];
    let mut unplaced = 0;
    for task in state.tasks() {
        let state = task.state();
        let position = TaskState::ALL.iter().position(|known| *known == state);
        tasks[position.expect("ALL has every state")] += 1;
        unplaced += usize::from(task.node.is_none() && task.is_live());
    }
    let tasks = TaskState::ALL.iter().map(|state| state.as_str()).zip(tasks).collect();
    ObjectCounts { services: state.services().count(), nodes, tasks, unplaced }
}

#[cfg(test)]
mod tests {
    use warren_core::{Command, NewTask};
    use warren_types::{
        ClusterId, DesiredTaskState, Id, NodeDescription, NodeId, NodeRole, ServiceId, ServiceMode,
        ServiceSpec, TaskSpec, Timestamp,
    };

    use super::*;

    const AT: Timestamp = Timestamp(1);

    /// A cluster with a service, a node without contact, and `tasks` tasks without a node.
    fn state(tasks: u32) -> State {
        let (service, mut state) = (ServiceId(Id(2)), State::new());
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let spec = ServiceSpec {
            mode: ServiceMode::Replicated { replicas: tasks },
            ..ServiceSpec::new("web".parse().unwrap(), TaskSpec::new("demo:1".parse().unwrap()))
        };
        let new = |slot| NewTask {
            slot,
            not_before: None,
            desired: DesiredTaskState::Running,
            replaces: None,
            bound_to: None,
            label_value: None,
        };
        let slots: Vec<_> = (1..=tasks).map(new).collect();
        let (name, description) = ("n1".parse().unwrap(), NodeDescription::default());
        let mut commands = vec![
            Command::CreateCluster { id, ranges, feature_level: warren_core::FEATURE_LEVEL, at: AT },
            Command::RegisterNode {
                id: NodeId(Id(3)),
                name,
                role: NodeRole::Worker,
                description,
                taints: Default::default(),
                at: AT,
            },
            Command::CreateService { id: service, spec, at: AT },
        ];
        commands.extend(slots.chunks(1000).map(|slots| Command::CreateTasks {
            term: 1,
            service,
            revision: 1,
            slots: slots.to_vec(),
            at: AT,
        }));
        for (index, command) in (1..).zip(commands) {
            let outcome = state.apply(1, index, &command);
            assert!(matches!(outcome, warren_core::ApplyOutcome::Applied { .. }), "{command:?}: {outcome:?}");
        }
        state
    }

    #[test]
    fn counts_are_cached_per_index() {
        let object_counts = ObjectCountCache::default();
        let published = PublishedState::initial(state(3));
        let counts = object_counts.get(&published);
        assert_eq!((counts.services, counts.unplaced), (1, 3));
        assert_eq!(counts.nodes, BTreeMap::from([("UNKNOWN", 1), ("READY", 0), ("DOWN", 0)]));
        assert_eq!(counts.tasks.len(), TaskState::ALL.len());
        assert_eq!((counts.tasks["PENDING"], counts.tasks["RUNNING"]), (3, 0));
        assert!(Arc::ptr_eq(&counts, &object_counts.get(&published)), "nothing is counted twice");
        let later = PublishedState { index: published.index + 1, ..PublishedState::initial(State::new()) };
        assert_eq!(object_counts.get(&later).tasks["PENDING"], 0);
    }
}
