//! Which nodes still wait for a bootstrap service: new tasks of other services go there only once its task serves.
//!
//! Only the first start and the loss of a task make others wait. While an update replaces the task, they do not.

use std::collections::BTreeSet;

use warren_types::{Node, Service, ServiceName, Task};

use crate::reconcile::update::is_complete;
use crate::state::{NodeEligibility, State, is_final};

/// How far the tasks of all bootstrap services are.
pub(super) struct BootstrapProgress<'a> {
    state: &'a State,
    services: Vec<StartedTasks<'a>>,
}

struct StartedTasks<'a> {
    service: &'a Service,
    /// The slots that no node waits for.
    started_slots: BTreeSet<u32>,
    /// The values of the service's label that no node waits for.
    started_values: BTreeSet<&'a str>,
}

impl<'a> BootstrapProgress<'a> {
    pub fn of(state: &'a State) -> Self {
        let services = state.services().filter(|service| service.spec.bootstrap && !service.removing);
        let progress = |service: &'a Service| {
            let started = state.tasks_of(&service.id).filter(|task| has_started(service, task));
            let (slots, values) = started.map(|task| (task.slot, task.label_value())).unzip();
            let values: Vec<_> = values;
            let started_values = values.into_iter().flatten().map(AsRef::as_ref).collect();
            StartedTasks { service, started_slots: slots, started_values }
        };
        Self { state, services: services.map(|service| progress(service)).collect() }
    }

    /// The first bootstrap service that tasks of other services wait for on the node.
    pub fn awaited_on(&self, node: &Node) -> Option<&'a ServiceName> {
        let awaited = self.services.iter().find(|progress| {
            !progress.has_started_on(node)
                && self.state.eligibility(progress.service, node) == NodeEligibility::Eligible
        });
        awaited.map(|progress| &progress.service.spec.name)
    }
}

impl StartedTasks<'_> {
    fn has_started_on(&self, node: &Node) -> bool {
        match &self.service.spec.per {
            Some(label) => {
                label.value_of(&node.labels).is_some_and(|value| self.started_values.contains(value))
            }
            None => self.started_slots.contains(&node.number.into()),
        }
    }
}

/// It serves, has done all that it had to do, or has run and is being updated.
fn has_started(service: &Service, task: &Task) -> bool {
    let serves = task.is_live() && task.observed.ready && task.lost_since().is_none();
    let is_earlier = task.revision.number < service.revision.number && task.observed.attempt > 0;
    serves || is_final(task) || (is_earlier && !is_complete(service))
}
