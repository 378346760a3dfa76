//! Snapshots: a sequence of length-delimited records, the cluster first.

mod machine;
mod member;
mod service;
mod storage;
mod task;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use warren_core::state::Parts;
use warren_core::{Applied, Cluster, State};
use warren_proto::v1;
use warren_proto::v1::snapshot_record::Record;
use warren_types::{Revision, ServiceId, Violation, Violations};

use self::machine::{node, stored_node, stored_token, token};
use self::member::{departed, member, stored_departed, stored_member};
use self::service::{service, stored_service};
use self::storage::{content, stored_content, stored_volume, volume};
use self::task::{stored_task, task};
use super::read::{at, text, texts};
use super::{CodecError, supported};

pub(super) use self::machine::{conditions, wire_conditions};
pub(super) use self::storage::{sealed, sealed_content};

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
    parts.tasks.iter().try_for_each(|task| put(Record::Task(stored_task(task))))?;
    parts.tokens.iter().try_for_each(|token| put(Record::Token(stored_token(token))))?;
    parts.contents.iter().try_for_each(|content| put(Record::Content(stored_content(content))))?;
    parts.volumes.iter().try_for_each(|volume| put(Record::Volume(stored_volume(volume))))?;
    parts.members.iter().try_for_each(|member| put(Record::Member(stored_member(member))))
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
        let taken = reader.take(record.record.ok_or(CodecError::Unknown(WHAT))?).map_err(field)?;
        let taken = v1::SnapshotRecord { record: Some(taken) };
        if taken.encode_length_delimited_to_vec() != before[..unread - rest.len()] {
            return Err(CodecError::Unknown(WHAT));
        }
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
    /// Takes a record for what it says, and answers how that is written.
    fn take(&mut self, record: Record) -> Result<Record, Violations> {
        let Some(parts) = &mut self.parts else {
            let Record::Cluster(stored) = record else {
                return Err(Violation::new("", "the first record is not the cluster's").into());
            };
            let parts = self.parts.insert(self::parts(stored)?);
            return Ok(Record::Cluster(stored_cluster(parts)));
        };
        Ok(match record {
            Record::Cluster(_) => return Err(Violation::new("cluster", "is there twice").into()),
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
            Record::Content(stored) => {
                let content = content(stored)?;
                let taken = Record::Content(stored_content(&content));
                parts.contents.push(Arc::new(content));
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

fn stored_cluster(parts: &Parts) -> v1::StoredCluster {
    let mut stored = v1::StoredCluster {
        level: parts.level,
        applied_term: parts.applied.term,
        applied_index: parts.applied.index,
        last_timestamp: parts.clock.0,
        subnets: parts.subnets,
        digest: parts.digest,
        next_member: parts.next_member,
        removed_nodes: parts.removed_nodes.iter().map(|(node, index)| (node.to_string(), *index)).collect(),
        departed: parts.departed.iter().map(stored_departed).collect(),
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
    let removed = |(node, index): (&String, &u64)| Ok((text("cluster.removedNodes", node)?, *index));
    let removed_nodes = stored.removed_nodes.iter().map(removed).collect::<Result<_, Violations>>()?;
    let departed = stored.departed.iter().map(departed).collect::<Result<_, Violations>>()?;
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
        tokens: Vec::new(),
        contents: Vec::new(),
        volumes: Vec::new(),
        members: Vec::new(),
        next_member: stored.next_member,
        removed_nodes,
        departed,
    })
}
