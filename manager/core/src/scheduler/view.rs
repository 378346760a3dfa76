//! The nodes as they will be once the plan so far is applied.

use std::sync::Arc;
use std::time::Duration;

use warren_types::{Health, Node, NodeId, PublishedPort, ServiceId, Task, TaskState, Timestamp};

use super::Group;
use crate::state::{State, Usage};

/// For how long a failure makes a node less attractive for the revision that failed there.
const FAILURE_MEMORY: Duration = Duration::from_secs(5 * 60);

/// How long ago the task failed, or was stopped because it was unhealthy; for ever where it did not.
fn failed_before(task: &Task, now: Timestamp) -> Duration {
    let unhealthy = task.observed.health == Health::Unhealthy && !task.is_live();
    match task.observed.state {
        TaskState::Failed | TaskState::Rejected => now.since(task.observed.since),
        state if unhealthy && state.is_terminal() => now.since(task.observed.since),
        _ if unhealthy => Duration::ZERO,
        _ => Duration::MAX,
    }
}

/// A working copy of what a plan changes.
pub(super) struct View<'a> {
    /// By node id.
    pub candidates: Vec<Candidate<'a>>,
    /// Whose tasks `Candidate::of_service` counts, and of which of its revisions the failures.
    counted: Option<(ServiceId, u64)>,
    state: &'a State,
}

/// A node as it will be.
pub(crate) struct Candidate<'a> {
    pub node: &'a Node,
    pub usage: Usage,
    /// Live tasks of the service whose turn it is, without those that are being replaced.
    pub of_service: u32,
    /// All its live tasks.
    pub occupied: u32,
    /// Recent failures here of the revision whose turn it is, and its unhealthy tasks.
    pub failures: u32,
    /// Ports that this plan opens.
    pub opened: Vec<(PublishedPort, ServiceId)>,
}

impl<'a> View<'a> {
    pub fn new(state: &'a State) -> Self {
        // Every node has its usage, and both are in the order of the node ids.
        let nodes = state.nodes().zip(state.index().usage.values());
        let candidate = |(node, usage): (&'a Arc<Node>, &Usage)| Candidate {
            node,
            usage: *usage,
            of_service: 0,
            occupied: 0,
            failures: 0,
            opened: Vec::new(),
        };
        Self { candidates: nodes.map(candidate).collect(), counted: None, state }
    }

    /// Counts what the scores of this group depend on. Groups of one service follow each other, so what the
    /// plan itself placed stays counted.
    pub fn begin(&mut self, group: &Group<'_>, now: Timestamp) {
        let service = group.service.id;
        let counted = self.counted.replace((service, group.revision.number));
        if counted == self.counted {
            return;
        }
        if counted.is_none_or(|(before, _)| before != service) {
            self.count(service);
        }
        self.candidates.iter_mut().for_each(|candidate| candidate.failures = 0);
        let state = self.state;
        let unhealthy = state.unhealthy_of(&service).filter(|task| task.lost_since().is_none());
        let ended = state.unsettled_of(&service).filter(|task| failed_before(task, now) < FAILURE_MEMORY);
        for task in unhealthy.chain(ended) {
            if task.revision.number == group.revision.number {
                let candidate = task.node.and_then(|node| self.candidate(node));
                candidate.into_iter().for_each(|candidate| candidate.failures += 1);
            }
        }
    }

    /// Counts the tasks of the service per node.
    fn count(&mut self, service: ServiceId) {
        // Both are in the order of the node ids.
        let mut counts = self.state.index().spread.range(service, ..).peekable();
        for candidate in &mut self.candidates {
            let here = counts.next_if(|(node, _)| **node == candidate.node.id);
            candidate.occupied = here.map_or(0, |(_, tasks)| *tasks);
            candidate.of_service = candidate.occupied;
        }
        // The first of two tasks of a slot goes as soon as the second runs: a node is not crowded because of it.
        for (_, slot) in self.state.index().paired.range((service, 0)..=(service, u32::MAX)) {
            let replaced = self.state.live_task(&service, *slot).and_then(|task| task.node);
            let candidate = replaced.and_then(|node| self.candidate(node));
            candidate.into_iter().for_each(|candidate| {
                candidate.of_service = candidate.of_service.saturating_sub(1);
            });
        }
    }

    /// The node of that id.
    pub fn candidate(&mut self, id: NodeId) -> Option<&mut Candidate<'a>> {
        let place = self.candidates.binary_search_by_key(&id, |candidate| candidate.node.id).ok()?;
        self.candidates.get_mut(place)
    }
}

impl Candidate<'_> {
    /// Accounts one more task of the group.
    pub fn take(&mut self, group: &Group<'_>) {
        self.usage.take(group.revision.task.reservations);
        self.usage.tasks += 1;
        self.of_service += 1;
        self.occupied += 1;
        for port in &group.revision.ports {
            if self.opener(group, port).is_none() {
                self.opened.push((*port, group.service.id));
            }
        }
    }

    /// The service that has the port open here, or will have.
    pub fn opener(&self, group: &Group<'_>, port: &PublishedPort) -> Option<ServiceId> {
        let planned = self.opened.iter().find(|(other, _)| other.collides(port)).map(|(_, service)| *service);
        planned.or_else(|| group.state.index().opener(self.node.id, port))
    }
}
