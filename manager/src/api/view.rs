//! Objects as they are shown: the replicated state, with what is known beside it.

use warren_core::{Rollout, State, reason, rollout};
use warren_proto::v1;
use warren_types::{Node, NodeStatus, Observed, Service, Task, TaskState};

use super::Api;
use super::heard::Heard;
use super::nodes::without_managers;

impl Api {
    /// A service with its counts.
    pub fn show_service(&self, state: &State, service: &Service) -> v1::Service {
        let counts = state.counts(&service.id);
        v1::Service {
            id: service.id.to_string(),
            version: service.version,
            created_at: service.created_at.0,
            updated_at: service.updated_at.0,
            spec: Some((&*service.spec).into()),
            revision: service.revision.number,
            removing: service.removing,
            running: counts.ready,
            tasks: counts.tasks,
            rollout: Some(show_rollout(rollout(state, service))),
            wanted: state.wanted(service),
            digest: service.pins.get(&service.revision.number).map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// A task, with the newest progress and with the reason why it has no node.
    pub fn show_task(&self, state: &State, task: &Task, heard: &Heard) -> v1::Task {
        let newest = self.progressed(task, heard);
        let task = newest.as_ref().unwrap_or(task);
        let service = state.service(&task.id.service);
        let node = task.node.and_then(|id| state.node(&id));
        let vitals = task.node.map(|id| self.vitals_of(heard, id, &task.id)).unwrap_or_default();
        let runs = task.observed.state == TaskState::Running && !task.observed.removed;
        v1::Task {
            id: task.id.to_string(),
            service_id: task.id.service.to_string(),
            service_name: service.map(|s| s.spec.name.to_string()).unwrap_or_default(),
            slot: task.slot,
            revision: task.revision.number,
            spec: Some((&task.revision.task).into()),
            ports: task.revision.ports.iter().map(Into::into).collect(),
            created_at: task.created_at.0,
            not_before: task.not_before().map(|at| at.0),
            node_id: task.node.map(|id| id.to_string()).unwrap_or_default(),
            node_name: node.map(|n| n.name.to_string()).unwrap_or_default(),
            address: task.address.map(|a| a.to_string()).unwrap_or_default(),
            desired: v1::Desired::from(task.desired).into(),
            state: v1::TaskState::from(task.state()).into(),
            attempt: task.observed.attempt,
            state_since: task.observed.since.0,
            reason: reason(state, Some(&self.refusals.read()), task, self.clock.now()),
            ready: task.observed.ready,
            exit: task.observed.exit().map(Into::into),
            removed: task.observed.removed,
            lost_since: task.lost_since().map(|at| at.0),
            next_attempt: task.observed.next_attempt().map(|at| at.0),
            bound_to: task.bound_to().map(|id| id.to_string()).unwrap_or_default(),
            digest: service
                .and_then(|service| service.pins.get(&task.revision.number))
                .map(ToString::to_string)
                .unwrap_or_default(),
            health: v1::Health::from(task.observed.health).into(),
            checks: vitals.checks,
            // What it used before it ended says nothing of what is used.
            usage: vitals.usage.filter(|_| runs),
            contents: task.revision.contents.iter().map(Into::into).collect(),
        }
    }

    /// The task with what its worker said last, if that is newer than what was replicated.
    fn progressed(&self, task: &Task, heard: &Heard) -> Option<Task> {
        let said = task.node.and_then(|node| self.progress_of(heard, node, &task.id))?;
        let Observed { attempt, state, since, removed, .. } = task.observed;
        if removed || (said.attempt, said.state) < (attempt, state) {
            return None;
        }
        let mut task = task.clone();
        task.observed.attempt = said.attempt;
        task.observed.state = said.state;
        // A worker whose clock is behind does not make time go back.
        task.observed.since = said.since.max(since);
        task.observed.trouble.change(|trouble| {
            trouble.reason = said.reason.into();
            trouble.exit = said.exit.or(trouble.exit);
            trouble.next_attempt = said.next_attempt;
        });
        Some(task)
    }

    /// A node with what its tasks reserve.
    pub fn show_node(&self, state: &State, node: &Node, heard: &Heard) -> v1::Node {
        let used = state.usage(&node.id);
        let usage = (node.status == NodeStatus::Ready).then(|| self.usage_of(heard, node.id)).flatten();
        let manager = node.manager.and_then(|manager| state.member(manager));
        v1::Node {
            id: node.id.to_string(),
            name: node.name.to_string(),
            version: node.version,
            created_at: node.created_at.0,
            description: Some((&node.description).into()),
            subnet: node.subnet.to_string(),
            status: v1::NodeStatus::from(node.status).into(),
            status_since: node.status_since.0,
            reserved: Some(used.reserved.into()),
            tasks: used.tasks,
            usage,
            role: v1::NodeRole::from(node.role).into(),
            labels: node.labels.clone(),
            availability: v1::Availability::from(node.availability).into(),
            manager: manager.map(|manager| manager.name.to_string()).unwrap_or_default(),
            conditions: node.conditions.iter().map(|it| v1::NodeCondition::from(*it).into()).collect(),
            reason: without_managers(state, node, self.member),
        }
    }
}

fn show_rollout(rollout: Rollout) -> v1::Rollout {
    let Rollout { updated, total, stopped, waiting } = rollout;
    v1::Rollout { updated, total, stopped: stopped.unwrap_or_default(), waiting: waiting.unwrap_or_default() }
}
