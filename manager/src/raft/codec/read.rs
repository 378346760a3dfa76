//! Commands from the wire.

use std::fmt::Display;
use std::str::FromStr;

use warren_core::{Command, NewTask};
use warren_proto::convert::{
    availability, content_kind, desired, node_role, node_status, stored_service_spec, suffrage,
};
use warren_proto::v1;
use warren_proto::v1::command::Command as Wire;
use warren_types::{NodeDescription, TaskId, TaskReport, Timestamp, TokenHash, Violation, Violations};

use super::object::{conditions, sealed};

pub(super) fn command(wire: Wire) -> Result<Command, Violations> {
    Ok(match wire {
        Wire::CreateCluster(w) => Command::CreateCluster {
            id: text("id", &w.id)?,
            ranges: texts("ranges", &w.ranges)?,
            level: w.level,
            at: at(w.at),
        },
        Wire::CreateService(w) => {
            let spec = stored_service_spec(given("spec", w.spec)?)?;
            Command::CreateService { id: text("id", &w.id)?, spec, at: at(w.at) }
        }
        Wire::ScaleService(w) => {
            let v1::ScaleService { version, replicas, .. } = w;
            Command::ScaleService { id: text("id", &w.id)?, version, replicas, at: at(w.at) }
        }
        Wire::RemoveService(w) => {
            Command::RemoveService { id: text("id", &w.id)?, version: w.version, at: at(w.at) }
        }
        Wire::UpdateService(w) => {
            let spec = stored_service_spec(given("spec", w.spec)?)?;
            let (version, force) = (w.version, w.force);
            Command::UpdateService { id: text("id", &w.id)?, version, spec, force, at: at(w.at) }
        }
        Wire::RollbackService(w) => {
            let v1::RollbackService { version, revision, .. } = w;
            Command::RollbackService { id: text("id", &w.id)?, version, revision, at: at(w.at) }
        }
        Wire::CreateTasks(w) => create_tasks(w)?,
        Wire::AssignTasks(w) => assign_tasks(w)?,
        Wire::SetDesired(w) => {
            let (tasks, desired) = (texts("taskIds", &w.task_ids)?, desired(w.desired)?);
            Command::SetDesired { term: w.term, tasks, desired, at: at(w.at) }
        }
        Wire::DeleteTasks(w) => Command::DeleteTasks { term: w.term, tasks: texts("taskIds", &w.task_ids)? },
        Wire::DeleteService(w) => Command::DeleteService { term: w.term, id: text("id", &w.id)? },
        Wire::SetNodeStatus(w) => {
            let (node, status) = (text("nodeId", &w.node_id)?, node_status(w.status)?);
            Command::SetNodeStatus { term: w.term, node, session: w.session, status, at: at(w.at) }
        }
        Wire::RaiseLevel(w) => Command::RaiseLevel { term: w.term, level: w.level },
        Wire::RegisterNode(w) => {
            let description: NodeDescription = given("description", w.description)?.try_into()?;
            let (id, name, role) = (text("id", &w.id)?, text("name", &w.name)?, node_role(w.role)?);
            Command::RegisterNode { id, name, role, description, at: at(w.at) }
        }
        Wire::UpdateNode(w) => update_node(w)?,
        Wire::RemoveNode(w) => Command::RemoveNode { id: text("id", &w.id)?, force: w.force, at: at(w.at) },
        Wire::CreateToken(w) => create_token(w)?,
        Wire::RemoveToken(w) => Command::RemoveToken { id: text("id", &w.id)?, at: at(w.at) },
        Wire::DeleteTokens(w) => {
            Command::DeleteTokens { term: w.term, tokens: texts("tokenIds", &w.token_ids)?, at: at(w.at) }
        }
        Wire::JoinNode(w) => join_node(w)?,
        Wire::OpenSession(w) => {
            let description = given("description", w.description)?.try_into()?;
            let (node, manager) = (text("nodeId", &w.node_id)?, w.member);
            Command::OpenSession { node, description, manager, at: at(w.at) }
        }
        Wire::ReportTasks(w) => report_tasks(w)?,
        Wire::CreateContent(w) => create_content(w)?,
        Wire::UpdateContent(w) => {
            let content = sealed(given("content", w.content)?)?;
            Command::UpdateContent { id: text("id", &w.id)?, version: w.version, content, at: at(w.at) }
        }
        Wire::RemoveContent(w) => Command::RemoveContent { id: text("id", &w.id)?, at: at(w.at) },
        Wire::CreateVolume(w) => create_volume(w)?,
        Wire::RemoveVolume(w) => {
            Command::RemoveVolume { id: text("id", &w.id)?, purge: w.purge, at: at(w.at) }
        }
        Wire::DeleteVolume(w) => Command::DeleteVolume { id: text("id", &w.id)?, at: at(w.at) },
        Wire::SetNodeConditions(w) => {
            let (node, conditions) = (text("nodeId", &w.node_id)?, conditions(&w.conditions)?);
            Command::SetNodeConditions { node, session: w.session, conditions, at: at(w.at) }
        }
        Wire::RegisterMember(w) => register_member(w)?,
        Wire::JoinManager(w) => join_manager(w)?,
        Wire::UpdateMember(w) => {
            let (wanted, address) = (suffrage(w.wanted)?, optional("address", &w.address)?);
            Command::UpdateMember { member: w.member, version: w.version, wanted, address, at: at(w.at) }
        }
        Wire::RemoveMember(w) => Command::RemoveMember { member: w.member, at: at(w.at) },
        Wire::DeleteMember(w) => Command::DeleteMember { term: w.term, member: w.member },
    })
}

fn create_tasks(w: v1::CreateTasks) -> Result<Command, Violations> {
    let slot = |new: &v1::NewTask| -> Result<NewTask, Violations> {
        Ok(NewTask {
            slot: new.slot,
            not_before: new.not_before.map(Timestamp),
            desired: desired(new.desired)?,
            replaces: new.replaces,
            bound_to: optional("boundTo", &new.bound_to)?,
        })
    };
    Ok(Command::CreateTasks {
        term: w.term,
        service: text("serviceId", &w.service_id)?,
        revision: w.revision,
        slots: w.slots.iter().map(slot).collect::<Result<_, _>>()?,
        at: at(w.at),
    })
}

fn update_node(w: v1::UpdateNode) -> Result<Command, Violations> {
    Ok(Command::UpdateNode {
        id: text("id", &w.id)?,
        version: w.version,
        label_add: w.label_add,
        label_rm: w.label_rm.into_iter().collect(),
        availability: w.availability.map(availability).transpose()?,
        at: at(w.at),
    })
}

fn create_token(w: v1::CreateToken) -> Result<Command, Violations> {
    Ok(Command::CreateToken {
        id: text("id", &w.id)?,
        role: node_role(w.role)?,
        hash: hash("hash", &w.hash)?,
        expires_at: w.expires_at.map(at),
        max_uses: w.max_uses,
        at: at(w.at),
    })
}

fn join_node(w: v1::JoinNode) -> Result<Command, Violations> {
    Ok(Command::JoinNode {
        hash: hash("hash", &w.hash)?,
        id: text("id", &w.id)?,
        name: text("name", &w.name)?,
        description: given("description", w.description)?.try_into()?,
        at: at(w.at),
    })
}

fn assign_tasks(w: v1::AssignTasks) -> Result<Command, Violations> {
    let placement = |p: &v1::TaskPlacement| -> Result<_, Violations> {
        Ok((text::<TaskId>("taskId", &p.task_id)?, text("nodeId", &p.node_id)?))
    };
    let placements = w.placements.iter().map(placement).collect::<Result<_, _>>()?;
    Ok(Command::AssignTasks { term: w.term, placements, at: at(w.at) })
}

fn report_tasks(w: v1::ReportTasks) -> Result<Command, Violations> {
    let reports = w.reports.into_iter().map(TaskReport::try_from).collect::<Result<_, _>>()?;
    let node = text("nodeId", &w.node_id)?;
    Ok(Command::ReportTasks { node, session: w.session, reports, at: at(w.at) })
}

fn create_content(w: v1::CreateContent) -> Result<Command, Violations> {
    Ok(Command::CreateContent {
        id: text("id", &w.id)?,
        kind: content_kind(w.kind)?,
        name: text("name", &w.name)?,
        labels: w.labels,
        content: sealed(given("content", w.content)?)?,
        at: at(w.at),
    })
}

fn create_volume(w: v1::CreateVolume) -> Result<Command, Violations> {
    Ok(Command::CreateVolume {
        id: text("id", &w.id)?,
        name: text("name", &w.name)?,
        driver: text("driver", &w.driver)?,
        options: w.options,
        labels: w.labels,
        node: optional("nodeId", &w.node_id)?,
        at: at(w.at),
    })
}

fn register_member(w: v1::RegisterMember) -> Result<Command, Violations> {
    Ok(Command::RegisterMember {
        member: w.member,
        id: text("id", &w.id)?,
        name: text("name", &w.name)?,
        address: text("address", &w.address)?,
        level: w.level,
        at: at(w.at),
    })
}

fn join_manager(w: v1::JoinManager) -> Result<Command, Violations> {
    Ok(Command::JoinManager {
        hash: hash("hash", &w.hash)?,
        id: text("id", &w.id)?,
        name: text("name", &w.name)?,
        address: text("address", &w.address)?,
        level: w.level,
        at: at(w.at),
    })
}

pub(super) fn at(millis: u64) -> Timestamp {
    Timestamp(millis)
}

pub(super) fn text<T: FromStr<Err: Display>>(path: &str, text: &str) -> Result<T, Violations> {
    text.parse().map_err(|why| Violation::new(path, why).into())
}

pub(super) fn texts<T: FromStr<Err: Display>>(path: &str, all: &[String]) -> Result<Vec<T>, Violations> {
    all.iter().map(|one| text(path, one)).collect()
}

/// What an empty text says is not there.
pub(super) fn optional<T: FromStr<Err: Display>>(path: &str, found: &str) -> Result<Option<T>, Violations> {
    if found.is_empty() { Ok(None) } else { text(path, found).map(Some) }
}

pub(super) fn hash(path: &str, bytes: &[u8]) -> Result<TokenHash, Violations> {
    let whole = <[u8; 32]>::try_from(bytes);
    whole.map(TokenHash).map_err(|_| Violation::new(path, "is not of 32 bytes").into())
}

pub(super) fn given<T>(path: &str, value: Option<T>) -> Result<T, Violations> {
    value.ok_or_else(|| Violation::new(path, "is missing").into())
}
