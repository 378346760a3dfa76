//! How many there are of what, counted once for each state of the cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use warren_core::State;
use warren_types::{NodeStatus, TaskState};

use crate::store::Published;

/// How many there are, by the words that people see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub services: usize,
    /// Every status, also those of no node.
    pub nodes: BTreeMap<&'static str, usize>,
    /// Every state, also those of no task.
    pub tasks: BTreeMap<&'static str, usize>,
    /// Tasks that are wanted and have no node.
    pub unplaced: usize,
}

/// The newest count. Counting goes through all tasks, so it is done at most once for each applied entry, whoever asks,
/// and not at all where nobody does.
#[derive(Debug, Default)]
pub(super) struct Census {
    newest: Mutex<Option<(u64, Arc<Counts>)>>,
}

impl Census {
    /// The counts of this state.
    pub fn of(&self, published: &Published) -> Arc<Counts> {
        // Held while it counts: who asks meanwhile gets the same.
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
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

fn count(state: &State) -> Counts {
    let statuses = [NodeStatus::Unknown, NodeStatus::Ready, NodeStatus::Down];
    let mut nodes = BTreeMap::from(statuses.map(|status| (status.as_str(), 0)));
    for node in state.nodes() {
        *nodes.entry(node.status.as_str()).or_default() += 1;
    }
    let mut tasks = [0; TaskState::ALL.len()];
    let mut unplaced = 0;
    for task in state.tasks() {
        let state = task.state();
        let place = TaskState::ALL.iter().position(|known| *known == state);
        tasks[place.expect("ALL has every state")] += 1;
        unplaced += usize::from(task.node.is_none() && task.is_live());
    }
    let tasks = TaskState::ALL.iter().map(|state| state.as_str()).zip(tasks).collect();
    Counts { services: state.services().count(), nodes, tasks, unplaced }
}

#[cfg(test)]
mod tests {
    use warren_core::{Command, NewTask};
    use warren_types::{
        ClusterId, Desired, Id, Mode, NodeDescription, NodeId, NodeRole, Placement, ServiceId, ServiceSpec,
        TaskSpec, Timestamp,
    };

    use super::*;

    const AT: Timestamp = Timestamp(1);

    /// A cluster with a service, a node that nobody has heard of, and so many tasks, none of them placed.
    fn state(tasks: u32) -> State {
        let (service, mut state) = (ServiceId(Id(2)), State::new());
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let spec = ServiceSpec {
            name: "web".parse().unwrap(),
            labels: BTreeMap::new(),
            mode: Mode::Replicated { replicas: tasks },
            task: TaskSpec::new("demo:1".parse().unwrap()),
            ports: Vec::new(),
            placement: Placement::default(),
            replace_after: Default::default(),
        };
        let new = |slot| NewTask {
            slot,
            not_before: None,
            desired: Desired::Running,
            replaces: None,
            bound_to: None,
        };
        let slots: Vec<_> = (1..=tasks).map(new).collect();
        let (name, description) = ("n1".parse().unwrap(), NodeDescription::default());
        let mut commands = vec![
            Command::CreateCluster { id, ranges, level: warren_core::LEVEL, at: AT },
            Command::RegisterNode { id: NodeId(Id(3)), name, role: NodeRole::Worker, description, at: AT },
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
            assert!(matches!(outcome, warren_core::Outcome::Applied { .. }), "{command:?}: {outcome:?}");
        }
        state
    }

    #[test]
    fn everything_is_counted_once_for_a_state() {
        let census = Census::default();
        let published = Published::first(state(3));
        let counts = census.of(&published);
        assert_eq!((counts.services, counts.unplaced), (1, 3));
        assert_eq!(counts.nodes, BTreeMap::from([("UNKNOWN", 1), ("READY", 0), ("DOWN", 0)]));
        assert_eq!(counts.tasks.len(), TaskState::ALL.len());
        assert_eq!((counts.tasks["PENDING"], counts.tasks["RUNNING"]), (3, 0));
        assert!(Arc::ptr_eq(&counts, &census.of(&published)), "nothing is counted twice");
        let later = Published { index: published.index + 1, ..Published::first(State::new()) };
        assert_eq!(census.of(&later).tasks["PENDING"], 0);
    }
}
