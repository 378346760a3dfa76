//! Encodes commands, grouped by object kind.

use warren_core::state::VolumeData;
use warren_core::{Command, NewTask};
use warren_proto::v1;
use warren_proto::v1::command::Command as Wire;
use warren_types::{NodeId, TaskId};

use super::field::{hash_bytes, stored_sealed_version, wire_conditions};
use super::rollout::wire_rollout_step;

pub(super) fn command(command: &Command) -> Wire {
    match command {
        Command::CreateCluster { id, ranges, feature_level: level, at } => {
            Wire::CreateCluster(v1::CreateCluster {
                id: id.to_string(),
                ranges: ranges.iter().map(ToString::to_string).collect(),
                feature_level: *level,
                at: at.0,
            })
        }
        Command::UpdateCluster { version, change, at } => Wire::UpdateCluster(v1::UpdateCluster {
            version: *version,
            change: Some(change.into()),
            at: at.0,
        }),
        Command::RaiseFeatureLevel { term, level } => {
            Wire::RaiseFeatureLevel(v1::RaiseFeatureLevel { term: *term, feature_level: *level })
        }
        Command::CreateService { .. }
        | Command::ScaleService { .. }
        | Command::UpdateService { .. }
        | Command::RollbackService { .. }
        | Command::AdvanceRollout { .. }
        | Command::ResumeRollout { .. }
        | Command::RemoveService { .. }
        | Command::DeleteService { .. } => service(command),
        Command::CreateTasks { .. }
        | Command::AssignTasks { .. }
        | Command::SetDesiredTaskState { .. }
        | Command::DeleteTasks { .. }
        | Command::ReportTasks { .. } => task(command),
        Command::RegisterNode { .. }
        | Command::UpdateNode { .. }
        | Command::RemoveNode { .. }
        | Command::SetNodeStatus { .. }
        | Command::SetNodeConditions { .. }
        | Command::OpenSession { .. } => node(command),
        Command::CreateToken { .. }
        | Command::RemoveToken { .. }
        | Command::DeleteTokens { .. }
        | Command::JoinNode { .. } => token(command),
        Command::CreateSecretObject { .. }
        | Command::UpdateSecretObject { .. }
        | Command::RemoveSecretObject { .. } => secret_object(command),
        Command::CreateVolume { .. }
        | Command::RemoveVolume { .. }
        | Command::ReportVolumes { .. }
        | Command::DeleteVolume { .. } => volume(command),
        Command::RegisterMember { .. }
        | Command::JoinManager { .. }
        | Command::UpdateMember { .. }
        | Command::RemoveMember { .. }
        | Command::DeleteMember { .. } => member(command),
    }
}

fn service(command: &Command) -> Wire {
    match command {
        Command::CreateService { id, spec, at } => {
            Wire::CreateService(v1::CreateService { id: id.to_string(), spec: Some(spec.into()), at: at.0 })
        }
        Command::ScaleService { id, version, replicas, at } => Wire::ScaleService(v1::ScaleService {
            id: id.to_string(),
            version: *version,
            replicas: *replicas,
            at: at.0,
        }),
        Command::UpdateService { id, version, spec, force, at } => Wire::UpdateService(v1::UpdateService {
            id: id.to_string(),
            version: *version,
            spec: Some(spec.into()),
            force: *force,
            at: at.0,
        }),
        Command::RollbackService { id, version, revision, at } => {
            let (version, revision) = (*version, *revision);
            Wire::RollbackService(v1::RollbackService { id: id.to_string(), version, revision, at: at.0 })
        }
        Command::AdvanceRollout { term, service, revision, step, at } => {
            Wire::AdvanceRollout(v1::AdvanceRollout {
                term: *term,
                service_id: service.to_string(),
                revision: *revision,
                step: Some(wire_rollout_step(step)),
                at: at.0,
            })
        }
        Command::ResumeRollout { id, version, at } => {
            Wire::ResumeRollout(v1::ResumeRollout { id: id.to_string(), version: *version, at: at.0 })
        }
        Command::RemoveService { id, version, at } => {
            Wire::RemoveService(v1::RemoveService { id: id.to_string(), version: *version, at: at.0 })
        }
        Command::DeleteService { term, id } => {
            Wire::DeleteService(v1::DeleteService { term: *term, id: id.to_string() })
        }
        other => unreachable!("sorted by `command`: {other:?}"),
    }
}

fn task(command: &Command) -> Wire {
    match command {
        Command::CreateTasks { term, service, revision, slots, at } => Wire::CreateTasks(v1::CreateTasks {
            term: *term,
            service_id: service.to_string(),
            revision: *revision,
            slots: slots.iter().map(new_task).collect(),
            at: at.0,
        }),
        Command::AssignTasks { term, placements, at } => Wire::AssignTasks(v1::AssignTasks {
            term: *term,
            placements: placements.iter().map(placement).collect(),
            at: at.0,
        }),
        Command::SetDesiredTaskState { term, tasks, desired, at } => {
            Wire::SetDesiredTaskState(v1::SetDesiredTaskState {
                term: *term,
                task_ids: texts(tasks),
                desired: v1::DesiredTaskState::from(*desired).into(),
                at: at.0,
            })
        }
        Command::DeleteTasks { term, tasks } => {
            Wire::DeleteTasks(v1::DeleteTasks { term: *term, task_ids: texts(tasks) })
        }
        Command::ReportTasks { node, session, reports, at } => Wire::ReportTasks(v1::ReportTasks {
            node_id: node.to_string(),
            session: *session,
            reports: reports.iter().map(Into::into).collect(),
            at: at.0,
        }),
        other => unreachable!("sorted by `command`: {other:?}"),
    }
}

fn node(command: &Command) -> Wire {
    match command {
        Command::RegisterNode { id, name, role, description, at } => Wire::RegisterNode(v1::RegisterNode {
            id: id.to_string(),
            name: name.to_string(),
            description: Some(description.into()),
            at: at.0,
            role: v1::NodeRole::from(*role).into(),
        }),
        Command::UpdateNode { id, version, label_add, label_rm, availability, at } => {
            Wire::UpdateNode(v1::UpdateNode {
                id: id.to_string(),
                version: *version,
                label_add: label_add.clone(),
                label_rm: label_rm.iter().cloned().collect(),
                availability: availability.map(|given| v1::Availability::from(given).into()),
                at: at.0,
            })
        }
        Command::RemoveNode { id, force, at } => {
            Wire::RemoveNode(v1::RemoveNode { id: id.to_string(), force: *force, at: at.0 })
        }
        Command::SetNodeStatus { term, node, session, status, at } => {
            Wire::SetNodeStatus(v1::SetNodeStatus {
                term: *term,
                node_id: node.to_string(),
                session: *session,
                status: v1::NodeStatus::from(*status).into(),
                at: at.0,
            })
        }
        Command::SetNodeConditions { node, session, conditions, at } => {
            Wire::SetNodeConditions(v1::SetNodeConditions {
                node_id: node.to_string(),
                session: *session,
                conditions: wire_conditions(conditions),
                at: at.0,
            })
        }
        Command::OpenSession { node, description, manager, at } => Wire::OpenSession(v1::OpenSession {
            node_id: node.to_string(),
            description: Some(description.into()),
            manager_member_id: *manager,
            at: at.0,
        }),
        other => unreachable!("sorted by `command`: {other:?}"),
    }
}

fn token(command: &Command) -> Wire {
    match command {
        Command::CreateToken { id, role, hash, expires_at, max_uses, at } => {
            Wire::CreateToken(v1::CreateToken {
                id: id.to_string(),
                role: v1::NodeRole::from(*role).into(),
                hash: hash_bytes(hash),
                expires_at: expires_at.map(|at| at.0),
                max_uses: *max_uses,
                at: at.0,
            })
        }
        Command::RemoveToken { id, at } => {
            Wire::RemoveToken(v1::RemoveToken { id: id.to_string(), at: at.0 })
        }
        Command::DeleteTokens { term, tokens, at } => {
            Wire::DeleteTokens(v1::DeleteTokens { term: *term, token_ids: texts(tokens), at: at.0 })
        }
        Command::JoinNode { hash, id, name, description, at } => Wire::JoinNode(v1::JoinNode {
            hash: hash_bytes(hash),
            id: id.to_string(),
            name: name.to_string(),
            description: Some(description.into()),
            at: at.0,
        }),
        other => unreachable!("sorted by `command`: {other:?}"),
    }
}

fn secret_object(command: &Command) -> Wire {
    match command {
        Command::CreateSecretObject { id, kind, name, labels, data: content, at } => {
            Wire::CreateSecretObject(v1::CreateSecretObject {
                id: id.to_string(),
                kind: v1::SecretObjectKind::from(*kind).into(),
                name: name.to_string(),
                labels: labels.clone(),
                data: Some(stored_sealed_version(content)),
                at: at.0,
            })
        }
        Command::UpdateSecretObject { id, version, content, at } => {
            Wire::UpdateSecretObject(v1::UpdateSecretObject {
                id: id.to_string(),
                version: *version,
                data: Some(stored_sealed_version(content)),
                at: at.0,
            })
        }
        Command::RemoveSecretObject { id, at } => {
            Wire::RemoveSecretObject(v1::RemoveSecretObject { id: id.to_string(), at: at.0 })
        }
        other => unreachable!("sorted by `command`: {other:?}"),
    }
}

fn volume(command: &Command) -> Wire {
    match command {
        Command::CreateVolume { id, name, driver, options, labels, node, reuse, at } => {
            Wire::CreateVolume(v1::CreateVolume {
                id: id.to_string(),
                name: name.to_string(),
                driver: driver.as_str().into(),
                options: options.clone(),
                labels: labels.clone(),
                node_id: node.map(|node| node.to_string()).unwrap_or_default(),
                at: at.0,
                reuse: *reuse,
            })
        }
        Command::RemoveVolume { id, purge, data, at } => {
            let status = match data {
                VolumeData::Unknown => v1::VolumeDataStatus::Unknown,
                VolumeData::Absent => v1::VolumeDataStatus::Absent,
                VolumeData::Present(_) => v1::VolumeDataStatus::Present,
            };
            Wire::RemoveVolume(v1::RemoveVolume {
                id: id.to_string(),
                purge: *purge,
                at: at.0,
                data: status.into(),
                size_bytes: data.size().map(|size| size.0),
            })
        }
        Command::ReportVolumes { node, session, held, at } => Wire::ReportVolumes(v1::ReportVolumes {
            node_id: node.to_string(),
            session: *session,
            held: held.names.iter().map(ToString::to_string).collect(),
            truncated: held.is_truncated,
            at: at.0,
        }),
        Command::DeleteVolume { id, at } => {
            Wire::DeleteVolume(v1::DeleteVolume { id: id.to_string(), at: at.0 })
        }
        other => unreachable!("sorted by `command`: {other:?}"),
    }
}

fn member(command: &Command) -> Wire {
    match command {
        Command::RegisterMember { member, id, name, address, level, at } => {
            Wire::RegisterMember(v1::RegisterMember {
                member_id: *member,
                id: id.to_string(),
                name: name.to_string(),
                address: address.to_string(),
                feature_level: *level,
                at: at.0,
            })
        }
        Command::JoinManager { hash, id, name, address, level, at } => Wire::JoinManager(v1::JoinManager {
            hash: hash_bytes(hash),
            id: id.to_string(),
            name: name.to_string(),
            address: address.to_string(),
            feature_level: *level,
            at: at.0,
        }),
        Command::UpdateMember { member, version, desired_suffrage: wanted, address, at } => {
            let desired = wanted.map_or(v1::Suffrage::Unspecified, v1::Suffrage::from);
            let address = address.as_ref().map(ToString::to_string).unwrap_or_default();
            let (member, version, expected) = (*member, *version, desired.into());
            Wire::UpdateMember(v1::UpdateMember {
                member_id: member,
                version,
                desired_suffrage: expected,
                address,
                at: at.0,
            })
        }
        Command::RemoveMember { member, at } => {
            Wire::RemoveMember(v1::RemoveMember { member_id: *member, at: at.0 })
        }
        Command::DeleteMember { term, member } => {
            Wire::DeleteMember(v1::DeleteMember { term: *term, member_id: *member })
        }
        other => unreachable!("sorted by `command`: {other:?}"),
    }
}

fn texts(all: &[impl ToString]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn new_task(new: &NewTask) -> v1::NewTask {
    v1::NewTask {
        slot: new.slot,
        not_before: new.not_before.map(|at| at.0),
        desired: v1::DesiredTaskState::from(new.desired).into(),
        replaces: new.replaces,
        bound_to: new.bound_to.map(|node| node.to_string()).unwrap_or_default(),
    }
}

fn placement((task, node): &(TaskId, NodeId)) -> v1::TaskPlacement {
    v1::TaskPlacement { task_id: task.to_string(), node_id: node.to_string() }
}
