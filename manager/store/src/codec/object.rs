//! Snapshots: a sequence of length-delimited records, the cluster first.

mod service;
mod task;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use warren_core::state::{ImportedImage, StateParts, Withdrawal, WithdrawnAddress};
use warren_core::{AppliedIndex, Cluster, DepartedManager, State};
use warren_proto::convert::{WireForm, or_default, read_field};
use warren_proto::v1;
use warren_proto::v1::snapshot_record::Record;
use warren_proto::v1::stored_withdrawal::Item;
use warren_types::{
    CanonicalImage, ClusterSettings, DEFAULT_NODE_CERTIFICATE_LIFETIME, ImageReference, ManagerId, Node,
    PublicKeyHash, Revision, RevokedKey, ServiceId, Timestamp, UserNamespace, Violation, Violations,
};

use self::service::{service, stored_service};
use self::task::{stored_task, task};
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
    parts.tokens.iter().try_for_each(|token| put(Record::Token(token.to_wire())))?;
    parts.users.iter().try_for_each(|user| put(Record::User(user.to_wire())))?;
    parts.secret_objects.iter().try_for_each(|object| put(Record::SecretObject(object.to_wire())))?;
    parts.volumes.iter().try_for_each(|volume| put(Record::Volume(volume.to_wire())))?;
    parts.networks.iter().try_for_each(|network| put(Record::Network(network.to_wire())))?;
    parts.members.iter().try_for_each(|member| put(Record::Member(member.to_wire())))
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
                let node = Node::from_wire(stored)?;
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
            Record::Token(stored) => Record::Token(push(&mut parts.tokens, stored)?),
            Record::User(stored) => Record::User(push(&mut parts.users, stored)?),
            Record::SecretObject(stored) => Record::SecretObject(push(&mut parts.secret_objects, stored)?),
            Record::Volume(stored) => Record::Volume(push(&mut parts.volumes, stored)?),
            Record::Network(stored) => Record::Network(push(&mut parts.networks, stored)?),
            Record::Member(stored) => Record::Member(push(&mut parts.members, stored)?),
        })
    }
}

/// Adds an object and returns its re-encoded form.
fn push<T: WireForm<W>, W>(objects: &mut Vec<Arc<T>>, stored: W) -> Result<W, Violations> {
    let object = T::from_wire(stored)?;
    let taken = object.to_wire();
    objects.push(Arc::new(object));
    Ok(taken)
}

fn stored_node(node: &Node, address_cursor: u32) -> v1::StoredNode {
    v1::StoredNode { address_cursor, ..node.to_wire() }
}

fn stored_cluster(parts: &StateParts) -> v1::StoredCluster {
    let mut stored = v1::StoredCluster {
        feature_level: parts.feature_level,
        applied_term: parts.applied.term,
        applied_index: parts.applied.index,
        last_timestamp: parts.clock.0,
        subnet_cursor: parts.subnet_cursor,
        withdrawn: parts.withdrawn.iter().map(stored_withdrawal).collect(),
        digest: parts.digest,
        next_member_id: parts.next_member_id,
        removed_nodes: parts.removed_nodes.iter().map(|(node, index)| (node.to_string(), *index)).collect(),
        departed_managers: parts.departed_managers.iter().map(stored_departed).collect(),
        revoked_keys: parts.revoked_keys.iter().map(stored_revoked).collect(),
        imported_images: parts.imported_images.iter().map(stored_import).collect(),
        ..v1::StoredCluster::default()
    };
    if let Some(cluster) = &parts.cluster {
        stored.id = cluster.id.to_string();
        stored.incarnation = cluster.incarnation;
        stored.created_at = cluster.created_at.0;
        stored.ranges = cluster.ranges.to_wire();
        stored.node_prefix = cluster.node_prefix.into();
        stored.node_down_after_ms = u64::try_from(cluster.node_down_after.as_millis()).unwrap_or(u64::MAX);
        stored.task_history_limit = cluster.settings.task_history_limit;
        stored.data_plane = cluster.settings.data_plane.to_wire();
        stored.verification = or_default::to_wire(&cluster.settings.verification);
        stored.admission_policy = or_default::to_wire(&cluster.settings.admission_policy);
        stored.ca_rotation = cluster.ca_rotation.to_wire();
        stored.unlock_key = cluster.unlock_key.to_wire();
        stored.key_rotation = cluster.key_rotation.to_wire();
        stored.default_user_namespace = unless_host(cluster.settings.default_user_namespace).to_wire();
        stored.no_new_privileges = cluster.settings.no_new_privileges;
        let lifetime = cluster.settings.node_certificate_lifetime;
        let is_default = lifetime == DEFAULT_NODE_CERTIFICATE_LIFETIME;
        stored.node_certificate_lifetime_ms = if is_default { 0 } else { lifetime.to_wire() };
        stored.version = cluster.version;
        let max_replicas = cluster.settings.max_replicas_per_service;
        let is_default = max_replicas == ClusterSettings::default().max_replicas_per_service;
        stored.max_replicas_per_service = if is_default { 0 } else { max_replicas };
    }
    stored
}

/// `None` for the namespace of objects from before there were others.
fn unless_host(namespace: UserNamespace) -> Option<UserNamespace> {
    (namespace != UserNamespace::Host).then_some(namespace)
}

fn parts(stored: v1::StoredCluster) -> Result<StateParts, Violations> {
    let cluster = if stored.id.is_empty() {
        None
    } else {
        let prefix = u8::try_from(stored.node_prefix);
        Some(Arc::new(Cluster {
            id: read_field("cluster.id", stored.id)?,
            incarnation: stored.incarnation,
            created_at: Timestamp(stored.created_at),
            ranges: read_field("cluster.ranges", stored.ranges)?,
            node_prefix: prefix.map_err(|why| Violation::new("cluster.nodePrefix", why))?,
            node_down_after: Duration::from_millis(stored.node_down_after_ms),
            version: stored.version,
            settings: ClusterSettings {
                max_replicas_per_service: match stored.max_replicas_per_service {
                    0 => ClusterSettings::default().max_replicas_per_service,
                    given => given,
                },
                task_history_limit: stored.task_history_limit,
                data_plane: read_field("cluster.dataPlane", stored.data_plane)?,
                verification: or_default::from_wire(stored.verification)?,
                admission_policy: or_default::from_wire(stored.admission_policy)?,
                default_user_namespace: read_field::<Option<UserNamespace>, _>(
                    "cluster.defaultUserNamespace",
                    stored.default_user_namespace,
                )?
                .unwrap_or_default(),
                no_new_privileges: stored.no_new_privileges,
                node_certificate_lifetime: match stored.node_certificate_lifetime_ms {
                    0 => DEFAULT_NODE_CERTIFICATE_LIFETIME,
                    given => Duration::from_millis(given),
                },
            },
            ca_rotation: read_field("cluster.caRotation", stored.ca_rotation)?,
            unlock_key: read_field("cluster.unlockKey", stored.unlock_key)?,
            key_rotation: read_field("cluster.keyRotation", stored.key_rotation)?,
        }))
    };
    let removed = |(node, index)| Ok((read_field("cluster.removed_nodes", node)?, index));
    let removed_nodes = stored.removed_nodes.into_iter().map(removed).collect::<Result<_, Violations>>()?;
    let departed = stored.departed_managers.into_iter().map(departed).collect::<Result<_, _>>()?;
    let revoked_keys = stored.revoked_keys.into_iter().map(revoked).collect::<Result<_, _>>()?;
    let imported_images = stored.imported_images.into_iter().map(import).collect::<Result<_, _>>()?;
    let withdrawn = stored.withdrawn.into_iter().map(withdrawal).collect::<Result<_, _>>()?;
    Ok(StateParts {
        applied: AppliedIndex { term: stored.applied_term, index: stored.applied_index },
        clock: Timestamp(stored.last_timestamp),
        feature_level: stored.feature_level,
        digest: stored.digest,
        cluster,
        subnet_cursor: stored.subnet_cursor,
        withdrawn,
        networks: Vec::new(),
        services: Vec::new(),
        nodes: Vec::new(),
        tasks: Vec::new(),
        tokens: Vec::new(),
        users: Vec::new(),
        secret_objects: Vec::new(),
        volumes: Vec::new(),
        members: Vec::new(),
        next_member_id: stored.next_member_id,
        removed_nodes,
        departed_managers: departed,
        revoked_keys,
        imported_images,
    })
}

fn stored_departed((manager, departed): &(ManagerId, DepartedManager)) -> v1::StoredDepartedManager {
    let DepartedManager { member, index } = *departed;
    v1::StoredDepartedManager { id: manager.to_wire(), member_id: member, index }
}

fn departed(stored: v1::StoredDepartedManager) -> Result<(ManagerId, DepartedManager), Violations> {
    let v1::StoredDepartedManager { id, member_id: member, index } = stored;
    Ok((read_field("cluster.departed_managers", id)?, DepartedManager { member, index }))
}

fn stored_revoked((key, revoked): &(PublicKeyHash, RevokedKey)) -> v1::StoredRevokedKey {
    let RevokedKey { holder, revoked_at } = revoked;
    v1::StoredRevokedKey { hash: key.to_wire(), holder: holder.clone(), revoked_at: revoked_at.0 }
}

fn revoked(stored: v1::StoredRevokedKey) -> Result<(PublicKeyHash, RevokedKey), Violations> {
    let v1::StoredRevokedKey { hash, holder, revoked_at } = stored;
    let revoked = RevokedKey { holder, revoked_at: Timestamp(revoked_at) };
    Ok((read_field("cluster.revoked_keys", hash)?, revoked))
}

fn stored_import((image, imported): &(CanonicalImage, ImportedImage)) -> v1::StoredImportedImage {
    let ImportedImage { digest, index } = imported;
    v1::StoredImportedImage { image: image.to_string(), digest: digest.to_wire(), index: *index }
}

fn import(stored: v1::StoredImportedImage) -> Result<(CanonicalImage, ImportedImage), Violations> {
    let v1::StoredImportedImage { image, digest, index } = stored;
    let image: ImageReference = read_field("cluster.imported_images.image", image)?;
    let digest = read_field("cluster.imported_images.digest", digest)?;
    Ok((CanonicalImage::of(&image), ImportedImage { digest, index }))
}

fn stored_withdrawal((item, withdrawal): &(WithdrawnAddress, Withdrawal)) -> v1::StoredWithdrawal {
    let item = match item {
        WithdrawnAddress::Address(address) => Item::Address(address.to_wire()),
        WithdrawnAddress::Subnet(subnet) => Item::Subnet(subnet.to_wire()),
        WithdrawnAddress::NodeNumber(number) => Item::NodeNumber(number.to_wire()),
    };
    v1::StoredWithdrawal { item: Some(item), at: withdrawal.at.0, index: withdrawal.index }
}

fn withdrawal(stored: v1::StoredWithdrawal) -> Result<(WithdrawnAddress, Withdrawal), Violations> {
    let path = "cluster.withdrawn";
    let item = match stored.item {
        Some(Item::Address(address)) => WithdrawnAddress::Address(read_field(path, address)?),
        Some(Item::Subnet(subnet)) => WithdrawnAddress::Subnet(read_field(path, subnet)?),
        Some(Item::NodeNumber(number)) => WithdrawnAddress::NodeNumber(read_field(path, number)?),
        None => return Err(Violation::new(path, "has an item without a value").into()),
    };
    Ok((item, Withdrawal { at: Timestamp(stored.at), index: stored.index }))
}
