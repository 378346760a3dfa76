//! Snapshots: a sequence of length-delimited records, the cluster first.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use warren_core::state::Parts;
use warren_core::{Applied, Cluster, State};
use warren_proto::convert::{desired, node_status, stored_service_spec};
use warren_proto::v1;
use warren_proto::v1::snapshot_record::Record;
use warren_types::{
    Node, Observed, PublishedPort, Revision, Service, ServiceId, Task, TaskId, TaskReport, TaskSpec,
    Violation, Violations,
};

use super::read::{at, given, text, texts};
use super::{CodecError, supported};

const WHAT: &str = "a snapshot";

/// Writes all of `state`.
///
/// # Errors
/// Those of `out`.
pub fn write_snapshot(state: &State, out: &mut dyn Write) -> io::Result<()> {
    let parts = state.export();
    let mut buffer = Vec::new();
    let mut put = |record: Record| {
        buffer.clear();
        v1::SnapshotRecord { record: Some(record) }
            .encode_length_delimited(&mut buffer)
            .expect("a vector grows as needed");
        out.write_all(&buffer)
    };
    put(Record::Cluster(stored_cluster(&parts)))?;
    parts.services.iter().try_for_each(|service| put(Record::Service(stored_service(service))))?;
    parts.nodes.iter().try_for_each(|(node, cursor)| put(Record::Node(stored_node(node, *cursor))))?;
    parts.tasks.iter().try_for_each(|task| put(Record::Task(stored_task(task))))
}

/// The state that [`write_snapshot`] wrote.
///
/// # Errors
/// [`CodecError`] when it cannot be read, holds what this version does not know, or contradicts itself.
pub fn read_snapshot(bytes: &[u8]) -> Result<State, CodecError> {
    let mut reader = Reader::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (before, unread) = (rest, rest.len());
        let record = v1::SnapshotRecord::decode_length_delimited(&mut rest)
            .map_err(|source| CodecError::Damaged { what: WHAT, source })?;
        if record.encode_length_delimited_to_vec() != before[..unread - rest.len()] {
            return Err(CodecError::Unknown(WHAT));
        }
        let record = record.record.ok_or(CodecError::Unknown(WHAT))?;
        reader.take(record).map_err(field)?;
    }
    let parts = reader.parts.ok_or_else(|| field(Violation::new("cluster", "is missing").into()))?;
    supported(WHAT, parts.level)?;
    State::restore(parts).map_err(|broken| field(Violation::new("", broken).into()))
}

fn field(violations: Violations) -> CodecError {
    CodecError::Field { what: WHAT, violations }
}

/// Collects records. Tasks name their revision by number, so services come before them.
#[derive(Default)]
struct Reader {
    parts: Option<Parts>,
    revisions: BTreeMap<(ServiceId, u64), Arc<Revision>>,
}

impl Reader {
    fn take(&mut self, record: Record) -> Result<(), Violations> {
        let Some(parts) = &mut self.parts else {
            let Record::Cluster(stored) = record else {
                return Err(Violation::new("", "the first record is not the cluster's").into());
            };
            self.parts = Some(self::parts(stored)?);
            return Ok(());
        };
        match record {
            Record::Cluster(_) => return Err(Violation::new("cluster", "is there twice").into()),
            Record::Service(stored) => {
                let service = service(stored)?;
                let key = (service.id, service.revision.number);
                self.revisions.insert(key, service.revision.clone());
                parts.services.push(Arc::new(service));
            }
            Record::Node(stored) => {
                let cursor = stored.address_cursor;
                parts.nodes.push((Arc::new(node(stored)?), cursor));
            }
            Record::Task(stored) => {
                let task = task(stored, &self.revisions)?;
                parts.tasks.push(Arc::new(task));
            }
        }
        Ok(())
    }
}

fn stored_cluster(parts: &Parts) -> v1::StoredCluster {
    let mut stored = v1::StoredCluster {
        level: parts.level,
        applied_term: parts.applied.term,
        applied_index: parts.applied.index,
        last_timestamp: parts.clock.0,
        subnets: parts.subnets,
        digest: parts.digest,
        ..v1::StoredCluster::default()
    };
    if let Some(cluster) = &parts.cluster {
        stored.id = cluster.id.to_string();
        stored.incarnation = cluster.incarnation;
        stored.created_at = cluster.created_at.0;
        stored.ranges = cluster.ranges.iter().map(ToString::to_string).collect();
        stored.node_prefix = cluster.node_prefix.into();
        stored.node_down_after_ms = u64::try_from(cluster.node_down_after.as_millis()).unwrap_or(u64::MAX);
        stored.history = cluster.history;
    }
    stored
}

fn parts(stored: v1::StoredCluster) -> Result<Parts, Violations> {
    let cluster = if stored.id.is_empty() {
        None
    } else {
        let prefix = u8::try_from(stored.node_prefix);
        Some(Arc::new(Cluster {
            id: text("cluster.id", &stored.id)?,
            incarnation: stored.incarnation,
            created_at: at(stored.created_at),
            ranges: texts("cluster.ranges", &stored.ranges)?,
            node_prefix: prefix.map_err(|why| Violation::new("cluster.nodePrefix", why))?,
            node_down_after: Duration::from_millis(stored.node_down_after_ms),
            history: stored.history,
        }))
    };
    Ok(Parts {
        applied: Applied { term: stored.applied_term, index: stored.applied_index },
        clock: at(stored.last_timestamp),
        level: stored.level,
        digest: stored.digest,
        cluster,
        subnets: stored.subnets,
        services: Vec::new(),
        nodes: Vec::new(),
        tasks: Vec::new(),
    })
}

fn stored_service(service: &Service) -> v1::StoredService {
    let revision = v1::StoredRevision {
        number: service.revision.number,
        task: Some((&service.revision.task).into()),
        ports: service.revision.ports.iter().map(Into::into).collect(),
    };
    v1::StoredService {
        id: service.id.to_string(),
        version: service.version,
        created_at: service.created_at.0,
        updated_at: service.updated_at.0,
        spec: Some((&*service.spec).into()),
        revisions: vec![revision],
        removing: service.removing,
        next_task: service.next_task,
    }
}

fn service(stored: v1::StoredService) -> Result<Service, Violations> {
    let [revision] = <[_; 1]>::try_from(stored.revisions).map_err(|all| {
        Violation::new("service.revisions", format!("has {}; this version knows services of one", all.len()))
    })?;
    let ports = revision.ports.into_iter().map(PublishedPort::try_from).collect::<Result<_, _>>()?;
    let task = TaskSpec::try_from(given("service.revisions[0].task", revision.task)?)?;
    Ok(Service {
        id: text("service.id", &stored.id)?,
        version: stored.version,
        created_at: at(stored.created_at),
        updated_at: at(stored.updated_at),
        spec: Arc::new(stored_service_spec(given("service.spec", stored.spec)?)?),
        revision: Arc::new(Revision { number: revision.number, task, ports }),
        removing: stored.removing,
        next_task: stored.next_task,
    })
}

fn stored_node(node: &Node, address_cursor: u32) -> v1::StoredNode {
    v1::StoredNode {
        id: node.id.to_string(),
        name: node.name.to_string(),
        version: node.version,
        created_at: node.created_at.0,
        description: Some((&node.description).into()),
        subnet: node.subnet.to_string(),
        status: v1::NodeStatus::from(node.status).into(),
        status_since: node.status_since.0,
        session: node.session,
        assignment: node.assignment,
        address_cursor,
    }
}

fn node(stored: v1::StoredNode) -> Result<Node, Violations> {
    Ok(Node {
        id: text("node.id", &stored.id)?,
        name: text("node.name", &stored.name)?,
        version: stored.version,
        created_at: at(stored.created_at),
        description: given("node.description", stored.description)?.try_into()?,
        subnet: text("node.subnet", &stored.subnet)?,
        status: node_status(stored.status)?,
        status_since: at(stored.status_since),
        session: stored.session,
        assignment: stored.assignment,
    })
}

fn stored_task(task: &Task) -> v1::StoredTask {
    let observed = TaskReport {
        task: task.id,
        attempt: task.observed.attempt,
        state: task.observed.state,
        since: task.observed.since,
        reason: task.observed.reason.to_string(),
        ready: task.observed.ready,
        exit: task.observed.exit,
        removed: task.observed.removed,
    };
    v1::StoredTask {
        service_id: task.id.service.to_string(),
        number: task.id.number,
        slot: task.slot,
        revision: task.revision.number,
        created_at: task.created_at.0,
        not_before: task.not_before.map(|at| at.0),
        node_id: task.node.map(|id| id.to_string()).unwrap_or_default(),
        address: task.address.map(|address| address.to_string()).unwrap_or_default(),
        desired: v1::Desired::from(task.desired).into(),
        observed: Some((&observed).into()),
        lost_since: task.lost_since.map(|at| at.0),
    }
}

fn task(
    stored: v1::StoredTask,
    revisions: &BTreeMap<(ServiceId, u64), Arc<Revision>>,
) -> Result<Task, Violations> {
    let service = text("task.serviceId", &stored.service_id)?;
    let revision = given("task.revision", revisions.get(&(service, stored.revision)).cloned())?;
    let id = TaskId { service, number: stored.number };
    let observed = TaskReport::try_from(given("task.observed", stored.observed)?)?;
    if observed.task != id {
        return Err(Violation::new("task.observed.taskId", format!("is not {id}")).into());
    }
    let optional = |value: &str| (!value.is_empty()).then(|| value.to_string());
    Ok(Task {
        id,
        slot: stored.slot,
        revision,
        created_at: at(stored.created_at),
        not_before: stored.not_before.map(at),
        node: optional(&stored.node_id).map(|id| text("task.nodeId", &id)).transpose()?,
        address: optional(&stored.address).map(|a| text("task.address", &a)).transpose()?,
        desired: desired(stored.desired)?,
        observed: Observed {
            state: observed.state,
            attempt: observed.attempt,
            since: observed.since,
            reason: observed.reason.into(),
            ready: observed.ready,
            exit: observed.exit,
            removed: observed.removed,
        },
        lost_since: stored.lost_since.map(at),
    })
}
