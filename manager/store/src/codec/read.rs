//! Decodes commands.

use warren_core::state::{HeldVolumes, VolumeData};
use warren_core::{Command, NewTask};
use warren_proto::convert::{
    availability, desired_task_state, node_role, node_status, secret_object_kind, stored_service_spec,
    suffrage,
};
use warren_proto::v1;
use warren_proto::v1::command::Command as Wire;
use warren_types::{Bytes, NodeDescription, TaskId, TaskReport, Timestamp, Violation, Violations};

use super::field::{
    conditions, parse, parse_all, parse_optional, required, sealed_version, timestamp, token_hash,
};
use super::rollout::rollout_step;

pub(super) fn command(wire: Wire) -> Result<Command, Violations> {
    Ok(match wire {
        Wire::CreateCluster(w) => Command::CreateCluster {
            id: parse("id", &w.id)?,
            ranges: parse_all("ranges", &w.ranges)?,
            feature_level: w.feature_level,
            at: timestamp(w.at),
        },
        Wire::UpdateCluster(w) => Command::UpdateCluster {
            version: w.version,
            change: required("change", w.change)?.into(),
            at: timestamp(w.at),
        },
        Wire::CreateService(w) => {
            let spec = stored_service_spec(required("spec", w.spec)?)?;
            Command::CreateService { id: parse("id", &w.id)?, spec, at: timestamp(w.at) }
        }
        Wire::ScaleService(w) => {
            let v1::ScaleService { version, replicas, .. } = w;
            Command::ScaleService { id: parse("id", &w.id)?, version, replicas, at: timestamp(w.at) }
        }
        Wire::RemoveService(w) => {
            Command::RemoveService { id: parse("id", &w.id)?, version: w.version, at: timestamp(w.at) }
        }
        Wire::UpdateService(w) => {
            let spec = stored_service_spec(required("spec", w.spec)?)?;
            let (version, force) = (w.version, w.force);
            Command::UpdateService { id: parse("id", &w.id)?, version, spec, force, at: timestamp(w.at) }
        }
        Wire::RollbackService(w) => {
            let v1::RollbackService { version, revision, .. } = w;
            Command::RollbackService { id: parse("id", &w.id)?, version, revision, at: timestamp(w.at) }
        }
        Wire::AdvanceRollout(w) => Command::AdvanceRollout {
            term: w.term,
            service: parse("serviceId", &w.service_id)?,
            revision: w.revision,
            step: rollout_step(required("step", w.step)?)?,
            at: timestamp(w.at),
        },
        Wire::ResumeRollout(w) => {
            Command::ResumeRollout { id: parse("id", &w.id)?, version: w.version, at: timestamp(w.at) }
        }
        Wire::CreateTasks(w) => create_tasks(w)?,
        Wire::AssignTasks(w) => assign_tasks(w)?,
        Wire::SetDesiredTaskState(w) => {
            let (tasks, desired) = (parse_all("taskIds", &w.task_ids)?, desired_task_state(w.desired)?);
            Command::SetDesiredTaskState { term: w.term, tasks, desired, at: timestamp(w.at) }
        }
        Wire::DeleteTasks(w) => {
            Command::DeleteTasks { term: w.term, tasks: parse_all("taskIds", &w.task_ids)? }
        }
        Wire::DeleteService(w) => Command::DeleteService { term: w.term, id: parse("id", &w.id)? },
        Wire::SetNodeStatus(w) => {
            let (node, status) = (parse("nodeId", &w.node_id)?, node_status(w.status)?);
            Command::SetNodeStatus { term: w.term, node, session: w.session, status, at: timestamp(w.at) }
        }
        Wire::RaiseFeatureLevel(w) => Command::RaiseFeatureLevel { term: w.term, level: w.feature_level },
        Wire::RegisterNode(w) => {
            let description: NodeDescription = required("description", w.description)?.try_into()?;
            let (id, name, role) = (parse("id", &w.id)?, parse("name", &w.name)?, node_role(w.role)?);
            Command::RegisterNode { id, name, role, description, at: timestamp(w.at) }
        }
        Wire::UpdateNode(w) => update_node(w)?,
        Wire::RemoveNode(w) => {
            Command::RemoveNode { id: parse("id", &w.id)?, force: w.force, at: timestamp(w.at) }
        }
        Wire::CreateToken(w) => create_token(w)?,
        Wire::RemoveToken(w) => Command::RemoveToken { id: parse("id", &w.id)?, at: timestamp(w.at) },
        Wire::DeleteTokens(w) => Command::DeleteTokens {
            term: w.term,
            tokens: parse_all("tokenIds", &w.token_ids)?,
            at: timestamp(w.at),
        },
        Wire::JoinNode(w) => join_node(w)?,
        Wire::OpenSession(w) => {
            let description = required("description", w.description)?.try_into()?;
            let (node, manager) = (parse("nodeId", &w.node_id)?, w.manager_member_id);
            Command::OpenSession { node, description, manager, at: timestamp(w.at) }
        }
        Wire::ReportTasks(w) => report_tasks(w)?,
        Wire::CreateSecretObject(w) => create_secret_object(w)?,
        Wire::UpdateSecretObject(w) => {
            let content = sealed_version(required("data", w.data)?)?;
            Command::UpdateSecretObject {
                id: parse("id", &w.id)?,
                version: w.version,
                content,
                at: timestamp(w.at),
            }
        }
        Wire::RemoveSecretObject(w) => {
            Command::RemoveSecretObject { id: parse("id", &w.id)?, at: timestamp(w.at) }
        }
        Wire::CreateVolume(w) => create_volume(w)?,
        Wire::RemoveVolume(w) => remove_volume(&w)?,
        Wire::DeleteVolume(w) => Command::DeleteVolume { id: parse("id", &w.id)?, at: timestamp(w.at) },
        Wire::ReportVolumes(w) => report_volumes(&w)?,
        Wire::SetNodeConditions(w) => {
            let (node, conditions) = (parse("nodeId", &w.node_id)?, conditions(&w.conditions)?);
            Command::SetNodeConditions { node, session: w.session, conditions, at: timestamp(w.at) }
        }
        Wire::RegisterMember(w) => register_member(w)?,
        Wire::JoinManager(w) => join_manager(w)?,
        Wire::UpdateMember(w) => {
            let (expected, address) = (suffrage(w.desired_suffrage)?, parse_optional("address", &w.address)?);
            Command::UpdateMember {
                member: w.member_id,
                version: w.version,
                desired_suffrage: expected,
                address,
                at: timestamp(w.at),
            }
        }
        Wire::RemoveMember(w) => Command::RemoveMember { member: w.member_id, at: timestamp(w.at) },
        Wire::DeleteMember(w) => Command::DeleteMember { term: w.term, member: w.member_id },
    })
}

fn create_tasks(w: v1::CreateTasks) -> Result<Command, Violations> {
    let slot = |new: &v1::NewTask| -> Result<NewTask, Violations> {
        Ok(NewTask {
            slot: new.slot,
            not_before: new.not_before.map(Timestamp),
            desired: desired_task_state(new.desired)?,
            replaces: new.replaces,
            bound_to: parse_optional("boundTo", &new.bound_to)?,
        })
    };
    Ok(Command::CreateTasks {
        term: w.term,
        service: parse("serviceId", &w.service_id)?,
        revision: w.revision,
        slots: w.slots.iter().map(slot).collect::<Result<_, _>>()?,
        at: timestamp(w.at),
    })
}

fn update_node(w: v1::UpdateNode) -> Result<Command, Violations> {
    Ok(Command::UpdateNode {
        id: parse("id", &w.id)?,
        version: w.version,
        label_add: w.label_add,
        label_rm: w.label_rm.into_iter().collect(),
        availability: w.availability.map(availability).transpose()?,
        at: timestamp(w.at),
    })
}

fn create_token(w: v1::CreateToken) -> Result<Command, Violations> {
    Ok(Command::CreateToken {
        id: parse("id", &w.id)?,
        role: node_role(w.role)?,
        hash: token_hash("hash", &w.hash)?,
        expires_at: w.expires_at.map(timestamp),
        max_uses: w.max_uses,
        at: timestamp(w.at),
    })
}

fn join_node(w: v1::JoinNode) -> Result<Command, Violations> {
    Ok(Command::JoinNode {
        hash: token_hash("hash", &w.hash)?,
        id: parse("id", &w.id)?,
        name: parse("name", &w.name)?,
        description: required("description", w.description)?.try_into()?,
        at: timestamp(w.at),
    })
}

fn assign_tasks(w: v1::AssignTasks) -> Result<Command, Violations> {
    let placement = |p: &v1::TaskPlacement| -> Result<_, Violations> {
        Ok((parse::<TaskId>("taskId", &p.task_id)?, parse("nodeId", &p.node_id)?))
    };
    let placements = w.placements.iter().map(placement).collect::<Result<_, _>>()?;
    Ok(Command::AssignTasks { term: w.term, placements, at: timestamp(w.at) })
}

fn report_tasks(w: v1::ReportTasks) -> Result<Command, Violations> {
    let reports = w.reports.into_iter().map(TaskReport::try_from).collect::<Result<_, _>>()?;
    let node = parse("nodeId", &w.node_id)?;
    Ok(Command::ReportTasks { node, session: w.session, reports, at: timestamp(w.at) })
}

fn create_secret_object(w: v1::CreateSecretObject) -> Result<Command, Violations> {
    Ok(Command::CreateSecretObject {
        id: parse("id", &w.id)?,
        kind: secret_object_kind(w.kind)?,
        name: parse("name", &w.name)?,
        labels: w.labels,
        data: sealed_version(required("data", w.data)?)?,
        at: timestamp(w.at),
    })
}

fn create_volume(w: v1::CreateVolume) -> Result<Command, Violations> {
    Ok(Command::CreateVolume {
        id: parse("id", &w.id)?,
        name: parse("name", &w.name)?,
        driver: parse("driver", &w.driver)?,
        options: w.options,
        labels: w.labels,
        node: parse_optional("nodeId", &w.node_id)?,
        reuse: w.reuse,
        at: timestamp(w.at),
    })
}

fn remove_volume(w: &v1::RemoveVolume) -> Result<Command, Violations> {
    let data = match (w.data(), w.size_bytes) {
        (v1::VolumeDataStatus::Unknown, None) if w.data == 0 => VolumeData::Unknown,
        (v1::VolumeDataStatus::Absent, None) => VolumeData::Absent,
        (v1::VolumeDataStatus::Present, size) => VolumeData::Present(size.map(Bytes)),
        _ => return Err(Violation::new("data", "is unknown to this version").into()),
    };
    Ok(Command::RemoveVolume { id: parse("id", &w.id)?, purge: w.purge, data, at: timestamp(w.at) })
}

fn report_volumes(w: &v1::ReportVolumes) -> Result<Command, Violations> {
    let names = w.held.iter().map(|name| parse("held", name)).collect::<Result<_, _>>()?;
    let held = HeldVolumes { names, is_truncated: w.truncated };
    let (node, session, at) = (parse("nodeId", &w.node_id)?, w.session, timestamp(w.at));
    Ok(Command::ReportVolumes { node, session, held, at })
}

fn register_member(w: v1::RegisterMember) -> Result<Command, Violations> {
    Ok(Command::RegisterMember {
        member: w.member_id,
        id: parse("id", &w.id)?,
        name: parse("name", &w.name)?,
        address: parse("address", &w.address)?,
        level: w.feature_level,
        at: timestamp(w.at),
    })
}

fn join_manager(w: v1::JoinManager) -> Result<Command, Violations> {
    Ok(Command::JoinManager {
        hash: token_hash("hash", &w.hash)?,
        id: parse("id", &w.id)?,
        name: parse("name", &w.name)?,
        address: parse("address", &w.address)?,
        level: w.feature_level,
        at: timestamp(w.at),
    })
}
