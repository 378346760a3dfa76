//! Snapshots: a sequence of length-delimited records, the cluster first.

mod member;
mod node;
mod service;
mod storage;
mod task;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use warren_core::state::StateParts;
use warren_core::{AppliedIndex, Cluster, State};
use warren_proto::v1;
use warren_proto::v1::snapshot_record::Record;
use warren_types::{ClusterSettings, Revision, ServiceId, Violation, Violations};

use self::member::{departed, member, stored_departed, stored_member};
use self::node::{node, stored_node, stored_token, token};
use self::service::{service, stored_service};
use self::storage::{secret_object, stored_secret_object, stored_volume, volume};
use self::task::{stored_task, task};
use super::field::{parse, parse_all, timestamp};
use super::{CodecError, check_level};

const SNAPSHOT: &str = "a snapshot";

/// Writes the whole `state`.
///
/// # Errors
/// Errors of `out`.
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
    parts.tasks.iter().try_for_each(|task| put(Record::Task(stored_task(task))))?;
    parts.tokens.iter().try_for_each(|token| put(Record::Token(stored_token(token))))?;
    parts
        .secret_objects
        .iter()
        .try_for_each(|content| put(Record::SecretObject(stored_secret_object(content))))?;
    parts.volumes.iter().try_for_each(|volume| put(Record::Volume(stored_volume(volume))))?;
    parts.members.iter().try_for_each(|member| put(Record::Member(stored_member(member))))
}

/// Reads the output of [`write_snapshot`].
///
/// # Errors
/// [`CodecError`] if it is invalid, inconsistent, or has fields unknown to this version.
pub fn read_snapshot(bytes: &[u8]) -> Result<State, CodecError> {
    let mut reader = SnapshotReader::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (before, unread) = (rest, rest.len());
        let record = v1::SnapshotRecord::decode_length_delimited(&mut rest)
            .map_err(|source| CodecError::Malformed { what: SNAPSHOT, source })?;
        let taken = reader
            .add_record(record.record.ok_or(CodecError::UnknownRecord(SNAPSHOT))?)
            .map_err(invalid_field)?;
        let taken = v1::SnapshotRecord { record: Some(taken) };
        if taken.encode_length_delimited_to_vec() != before[..unread - rest.len()] {
            return Err(CodecError::UnknownRecord(SNAPSHOT));
        }
    }
    let parts = reader.parts.ok_or_else(|| invalid_field(Violation::new("cluster", "is missing").into()))?;
    check_level(SNAPSHOT, parts.feature_level)?;
    State::restore(parts).map_err(|broken| invalid_field(Violation::new("", broken).into()))
}

fn invalid_field(violations: Violations) -> CodecError {
    CodecError::InvalidField { what: SNAPSHOT, violations }
}

/// Collects records. Tasks refer to revisions by number, so services precede them.
#[derive(Default)]
struct SnapshotReader {
    parts: Option<StateParts>,
    revisions: BTreeMap<(ServiceId, u64), Arc<Revision>>,
}

impl SnapshotReader {
    /// Adds a record and returns its re-encoded form.
    fn add_record(&mut self, record: Record) -> Result<Record, Violations> {
        let Some(parts) = &mut self.parts else {
            let Record::Cluster(stored) = record else {
                return Err(Violation::new("", "the first record is not the cluster's").into());
            };
            let parts = self.parts.insert(self::parts(stored)?);
            return Ok(Record::Cluster(stored_cluster(parts)));
        };
        Ok(match record {
            Record::Cluster(_) => return Err(Violation::new("cluster", "is present twice").into()),
            Record::Service(stored) => {
                let service = service(stored)?;
                let revisions = service.history.iter().chain([&service.revision]);
                let shared = revisions.map(|revision| ((service.id, revision.number), revision.clone()));
                self.revisions.extend(shared);
                let taken = Record::Service(stored_service(&service));
                parts.services.push(Arc::new(service));
                taken
            }
            Record::Node(stored) => {
                let cursor = stored.address_cursor;
                let node = node(stored)?;
                let taken = Record::Node(stored_node(&node, cursor));
                parts.nodes.push((Arc::new(node), cursor));
                taken
            }
            Record::Task(stored) => {
                let task = task(stored, &self.revisions)?;
                let taken = Record::Task(stored_task(&task));
                parts.tasks.push(Arc::new(task));
                taken
            }
            Record::Token(stored) => {
                let token = token(stored)?;
                let taken = Record::Token(stored_token(&token));
                parts.tokens.push(Arc::new(token));
                taken
            }
            Record::SecretObject(stored) => {
                let content = secret_object(stored)?;
                let taken = Record::SecretObject(stored_secret_object(&content));
                parts.secret_objects.push(Arc::new(content));
                taken
            }
            Record::Volume(stored) => {
                let volume = volume(stored)?;
                let taken = Record::Volume(stored_volume(&volume));
                parts.volumes.push(Arc::new(volume));
                taken
            }
            Record::Member(stored) => {
                let member = member(stored)?;
                let taken = Record::Member(stored_member(&member));
                parts.members.push(Arc::new(member));
                taken
            }
        })
    }
}

fn stored_cluster(parts: &StateParts) -> v1::StoredCluster {
    let mut stored = v1::StoredCluster {
        feature_level: parts.feature_level,
        applied_term: parts.applied.term,
        applied_index: parts.applied.index,
        last_timestamp: parts.clock.0,
        allocated_subnets: parts.allocated_subnets,
        digest: parts.digest,
        next_member_id: parts.next_member_id,
        removed_nodes: parts.removed_nodes.iter().map(|(node, index)| (node.to_string(), *index)).collect(),
        departed_managers: parts.departed_managers.iter().map(stored_departed).collect(),
        ..v1::StoredCluster::default()
    };
    if let Some(cluster) = &parts.cluster {
        stored.id = cluster.id.to_string();
        stored.incarnation = cluster.incarnation;
        stored.created_at = cluster.created_at.0;
        stored.ranges = cluster.ranges.iter().map(ToString::to_string).collect();
        stored.node_prefix = cluster.node_prefix.into();
        stored.node_down_after_ms = u64::try_from(cluster.node_down_after.as_millis()).unwrap_or(u64::MAX);
        stored.task_history_limit = cluster.settings.task_history_limit;
        stored.version = cluster.version;
        let max_replicas = cluster.settings.max_replicas_per_service;
        let is_default = max_replicas == ClusterSettings::default().max_replicas_per_service;
        stored.max_replicas_per_service = if is_default { 0 } else { max_replicas };
    }
    stored
}

fn parts(stored: v1::StoredCluster) -> Result<StateParts, Violations> {
    let cluster = if stored.id.is_empty() {
        None
    } else {
        let prefix = u8::try_from(stored.node_prefix);
        Some(Arc::new(Cluster {
            id: parse("cluster.id", &stored.id)?,
            incarnation: stored.incarnation,
            created_at: timestamp(stored.created_at),
            ranges: parse_all("cluster.ranges", &stored.ranges)?,
            node_prefix: prefix.map_err(|why| Violation::new("cluster.nodePrefix", why))?,
            node_down_after: Duration::from_millis(stored.node_down_after_ms),
            version: stored.version,
            settings: ClusterSettings {
                max_replicas_per_service: match stored.max_replicas_per_service {
                    0 => ClusterSettings::default().max_replicas_per_service,
                    given => given,
                },
                task_history_limit: stored.task_history_limit,
            },
        }))
    };
    let removed = |(node, index): (&String, &u64)| Ok((parse("cluster.removedNodes", node)?, *index));
    let removed_nodes = stored.removed_nodes.iter().map(removed).collect::<Result<_, Violations>>()?;
    let departed = stored.departed_managers.iter().map(departed).collect::<Result<_, Violations>>()?;
    Ok(StateParts {
        applied: AppliedIndex { term: stored.applied_term, index: stored.applied_index },
        clock: timestamp(stored.last_timestamp),
        feature_level: stored.feature_level,
        digest: stored.digest,
        cluster,
        allocated_subnets: stored.allocated_subnets,
        services: Vec::new(),
        nodes: Vec::new(),
        tasks: Vec::new(),
        tokens: Vec::new(),
        secret_objects: Vec::new(),
        volumes: Vec::new(),
        members: Vec::new(),
        next_member_id: stored.next_member_id,
        removed_nodes,
        departed_managers: departed,
    })
}
