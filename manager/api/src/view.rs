//! Converts objects of the replicated state to API messages, merged with reports that are not replicated.

use warren_core::{
    Rollout, RolloutState, State, awaits_managers, explain_task, rollout, settling_time, uncreated_tasks,
};
use warren_proto::v1;
use warren_types::spec::AWAITS_IMAGE_PIN;
use warren_types::{Node, NodeStatus, Service, ServiceMode, ServiceSpec, Task, TaskState, TaskStatus};

use super::Api;
use super::node_reports::RemoteNodeReports;
use super::nodes::unreachable_managers_hint;

impl Api {
    /// A service with its task counts.
    pub fn show_service(&self, state: &State, service: &Service) -> v1::Service {
        let counts = state.task_counts(&service.id);
        let rollout = rollout(state, service, self.clock.now());
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
            desired_tasks: rollout.total,
            rollout: Some(show_rollout(rollout)),
            uncreated_tasks: uncreated_tasks(state, service),
            virtual_addresses: service
                .virtual_addresses
                .iter()
                .filter_map(|(id, address)| Some((state.network(id)?.name.to_string(), address.to_string())))
                .collect(),
            digest: service.pins.get(&service.revision.number).map(ToString::to_string).unwrap_or_default(),
            earlier_defaults: state.earlier_defaults(service).into_iter().map(str::to_owned).collect(),
        }
    }

    /// What tables show of a service: far less than [`Api::show_service`], since lists are long.
    pub fn summarize_service(&self, state: &State, service: &Service) -> v1::ServiceSummary {
        let ServiceSpec { name, labels, mode, per, bootstrap, task, ports, .. } = &*service.spec;
        let rollout = rollout(state, service, self.clock.now());
        v1::ServiceSummary {
            id: service.id.to_string(),
            name: name.to_string(),
            version: service.version,
            created_at: service.created_at.0,
            revision: service.revision.number,
            removing: service.removing,
            image: task.image.to_string(),
            labels: labels.clone(),
            global: *mode == ServiceMode::Global,
            per: per.as_ref().map(ToString::to_string).unwrap_or_default(),
            bootstrap: *bootstrap,
            ports: ports.iter().map(Into::into).collect(),
            running: state.task_counts(&service.id).ready,
            replicas: service.spec.replicas().unwrap_or(rollout.total),
            uncreated_tasks: uncreated_tasks(state, service),
            rollout: Some(show_rollout(rollout)),
        }
    }

    /// A task with its newest progress and the reason why it has no node.
    pub fn show_task(&self, state: &State, task: &Task, reports: &RemoteNodeReports) -> v1::Task {
        let newest = self.with_latest_progress(state, task, reports);
        let task = newest.as_ref().unwrap_or(task);
        let service = state.service(&task.id.service);
        let node = task.node.and_then(|id| state.node(&id));
        let telemetry = task.node.map(|id| self.task_telemetry(reports, id, &task.id)).unwrap_or_default();
        let runs = task.observed.state == TaskState::Running && !task.observed.removed;
        v1::Task {
            id: task.id.to_string(),
            service_id: task.id.service.to_string(),
            service_name: service.map(|s| s.spec.name.to_string()).unwrap_or_default(),
            slot: task.slot,
            revision: task.revision.number,
            spec: Some((&*task.revision.assigned_task()).into()),
            ports: task.revision.ports.iter().map(Into::into).collect(),
            created_at: task.created_at.0,
            not_before: task.not_before().map(|at| at.0),
            node_id: task.node.map(|id| id.to_string()).unwrap_or_default(),
            node_name: node.map(|n| n.name.to_string()).unwrap_or_default(),
            address: task.address.map(|a| a.to_string()).unwrap_or_default(),
            desired: v1::DesiredTaskState::from(task.desired).into(),
            state: v1::TaskState::from(task.state()).into(),
            attempt: task.observed.attempt,
            state_since: task.observed.since.0,
            reason: explain_task(state, Some(&self.placement_refusals.read()), task, self.clock.now()),
            ready: task.observed.ready,
            exit: task.observed.exit().map(Into::into),
            removed: task.observed.removed,
            lost_since: task.lost_since().map(|at| at.0),
            next_attempt: task.observed.next_attempt().map(|at| at.0),
            bound_to: task.bound_to().map(|id| id.to_string()).unwrap_or_default(),
            label_value: task.label_value().map(ToString::to_string),
            digest: service
                .and_then(|service| service.pins.get(&task.revision.number))
                .map(ToString::to_string)
                .unwrap_or_default(),
            health: v1::Health::from(task.observed.health).into(),
            checks: telemetry.checks,
            // The usage before it ended is not its current usage.
            usage: telemetry.usage.filter(|_| runs),
            secret_objects: task.revision.secret_objects.iter().map(Into::into).collect(),
            settles_in_ms: service
                .and_then(|service| settling_time(service, task, self.clock.now()))
                .map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// The task with its worker's last report, if that is newer than the replicated state. Its reason is that of the
    /// managers, if it waits for them.
    pub(super) fn with_latest_progress(
        &self,
        state: &State,
        task: &Task,
        reports: &RemoteNodeReports,
    ) -> Option<Task> {
        let report = task.node.and_then(|node| self.task_progress(reports, node, &task.id))?;
        let TaskStatus { attempt, state: stored, since, removed, .. } = task.observed;
        if removed || (report.attempt, report.state) < (attempt, stored) {
            return None;
        }
        let awaiting = state.service(&task.id.service).filter(|service| {
            awaits_managers(service)
                && service.revision.number == task.revision.number
                && report.reason.contains(AWAITS_IMAGE_PIN)
        });
        let failure = awaiting.map(|service| &service.rollout.image_reason);
        let failure = failure.filter(|reason| !reason.is_empty()).map(ToString::to_string);
        let reason = failure.unwrap_or(report.reason);
        let mut task = task.clone();
        task.observed.attempt = report.attempt;
        task.observed.state = report.state;
        // A worker whose clock is behind does not move the time backwards.
        task.observed.since = report.since.max(since);
        task.observed.details.update(|details| {
            details.reason = reason.into();
            details.exit = report.exit.or(details.exit);
            details.next_attempt = report.next_attempt;
        });
        Some(task)
    }

    /// A node with the resources that its tasks reserve.
    pub fn show_node(&self, state: &State, node: &Node, reports: &RemoteNodeReports) -> v1::Node {
        let used = state.node_allocation(&node.id);
        let usage = (node.status == NodeStatus::Ready).then(|| self.node_usage(reports, node.id)).flatten();
        let manager = node.manager.and_then(|manager| state.member(manager));
        v1::Node {
            id: node.id.to_string(),
            name: node.name.to_string(),
            version: node.version,
            created_at: node.created_at.0,
            description: Some((&node.description).into()),
            subnets: node.subnets.iter().map(ToString::to_string).collect(),
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
            reason: unreachable_managers_hint(state, node, self.member_id),
            taints: node.taints.iter().map(ToString::to_string).collect(),
            verification: node.verification.as_deref().map(Into::into),
            program_digest: self.program_digest(reports, node.id),
        }
    }
}

fn show_rollout(rollout: Rollout) -> v1::Rollout {
    let Rollout { updated, total, state, stop_reason, waiting_reason, rolled_back, failed_task } = rollout;
    let state = match state {
        RolloutState::Updating => v1::RolloutState::Updating,
        RolloutState::Completed => v1::RolloutState::Completed,
        RolloutState::Paused => v1::RolloutState::Paused,
        RolloutState::RollingBack => v1::RolloutState::RollingBack,
        RolloutState::RolledBack => v1::RolloutState::RolledBack,
        RolloutState::RollbackPaused => v1::RolloutState::RollbackPaused,
    };
    v1::Rollout {
        updated,
        total,
        stop_reason: stop_reason.unwrap_or_default(),
        waiting_reason: waiting_reason.unwrap_or_default(),
        state: state.into(),
        failed_revision: rolled_back.as_ref().map(|update| update.failed).unwrap_or_default(),
        restored_revision: rolled_back.as_ref().map(|update| update.restored).unwrap_or_default(),
        rollback_reason: rolled_back.map(|update| update.reason).unwrap_or_default(),
        failed_task: failed_task.map(|task| task.to_string()).unwrap_or_default(),
    }
}
