//! A digest of the whole state, so that members can be compared without sending their states.
//!
//! It is updated with every change: each object adds the hash of its fields to a sum, and a change subtracts
//! the old hash and adds the new one. So it costs what the change costs, it depends on the state and not on
//! its history, and it can be recomputed: [`State::check`] does, and a snapshot whose objects do not match
//! its digest is rejected.
//!
//! The hash is XXH3 over 64-bit words, whose output is fixed by its specification on every platform. The list
//! of words is fixed here and never changes, since members of different versions compare their digests: a
//! field that a later version adds is appended after the last word, with a number of its own, and omitted
//! while it has the value that it had before it existed.

mod node;
mod rollout;
mod storage;

use std::borrow::Cow;
use std::collections::BTreeMap;

use ipnet::Ipv4Net;
use serde::Serialize;
use warren_types::{
    AdmissionPolicy, CaPhase, CaRotation, CanonicalImage, ClusterSettings, DEFAULT_NODE_CERTIFICATE_LIFETIME,
    DataPlane, Health, Id, KeyPhase, KeyRotation, NextSecretObjectKey, NoNewPrivileges, RareTaskFields,
    Revision, SealedData, SealedUnlockKey, Service, ServiceSpec, Task, TaskExit, TaskId, TaskSpec,
    TaskStatus, TaskStatusDetails, UserNamespace, VerificationSettings,
};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use self::storage::secret_object_version;
use super::{Cluster, ImportedImage, State};

pub(super) use self::node::{cursor, departed_manager, member, node, removed_node, revoked_key, token, user};
pub(super) use self::storage::{network, secret_object, volume, withdrawn};

/// The digest of a state after the entry at `index`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateDigest {
    /// The newest entry that it contains.
    pub index: u64,
    /// The digest of all objects.
    pub value: u64,
}

impl StateDigest {
    /// Whether the two have the same index and differ: then one of their members is wrong.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.index == other.index && self.value != other.value
    }
}

impl std::fmt::Display for StateDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x} at entry {}", self.value, self.index)
    }
}

impl State {
    /// The digest of the current state.
    pub fn digest(&self) -> StateDigest {
        let DigestSum(objects) = self.digest_sum;
        let known = hash([
            HashKind::State as u64,
            objects,
            self.clock.0,
            self.feature_level.into(),
            self.subnet_cursor,
        ]);
        StateDigest { index: self.applied.index, value: extension(known, 1, self.next_member_id) }
    }
}

/// Sum of the hashes of all objects of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DigestSum(u64);

impl DigestSum {
    /// Recomputes the sum of the whole state.
    pub fn of(state: &State) -> Self {
        let mut sum = Self::default();
        state.cluster().into_iter().for_each(|held| sum.add(cluster(held)));
        state.services().for_each(|held| sum.add(service(held)));
        state.tasks().for_each(|held| sum.add(task(held)));
        state.nodes().for_each(|held| sum.add(node(held)));
        state.tokens().for_each(|held| sum.add(token(held)));
        state.users().for_each(|held| sum.add(user(held)));
        state.secret_objects().for_each(|held| sum.add(secret_object(held)));
        state.volumes().for_each(|held| sum.add(volume(held)));
        state.networks().for_each(|held| sum.add(network(held)));
        state.withdrawn.iter().for_each(|(item, withdrawal)| sum.add(withdrawn(*item, *withdrawal)));
        state.members().for_each(|held| sum.add(member(held)));
        state.removed_nodes.iter().for_each(|(node, index)| sum.add(removed_node(*node, *index)));
        state.departed_managers().for_each(|(manager, left)| sum.add(departed_manager(manager, left)));
        state.revoked_keys().for_each(|(key, revoked)| sum.add(revoked_key(key, revoked)));
        state.imported_images().for_each(|(image, imported)| sum.add(imported_image(image, imported)));
        state.address_cursors.iter().for_each(|(node, place)| sum.add(cursor(*node, *place)));
        sum
    }

    /// An object, or a part of one, was added.
    pub fn add(&mut self, hash: u64) {
        self.0 = self.0.wrapping_add(hash);
    }

    /// It was removed.
    pub fn remove(&mut self, hash: u64) {
        self.0 = self.0.wrapping_sub(hash);
    }
}

/// The first word of every hash, so that objects of different kinds never have the same words.
#[repr(u64)]
enum HashKind {
    State = 1,
    Cluster = 2,
    Service = 3,
    /// The fields of a service that are not set by users: separate, since most commands touch only them.
    ServiceStatus = 4,
    Revision = 5,
    Task = 6,
    Node = 7,
    Cursor = 8,
    ServiceSpec = 9,
    TaskSpec = 10,
    List = 12,
    NodeDescription = 13,
    Token = 14,
    Extension = 16,
    SecretObject = 17,
    Volume = 18,
    Member = 19,
    RemovedNode = 20,
    DepartedManager = 21,
    Network = 22,
    Withdrawn = 23,
    User = 24,
    ImportedImage = 25,
    AdmissionPolicy = 26,
    RevokedKey = 27,
}

/// The cluster's settings.
pub(super) fn cluster(cluster: &Cluster) -> u64 {
    let Cluster {
        id,
        incarnation,
        created_at,
        ranges,
        node_prefix,
        node_down_after,
        version,
        settings:
            ClusterSettings {
                max_replicas_per_service: max_replicas,
                task_history_limit: history,
                data_plane,
                verification,
                admission_policy,
                default_user_namespace,
                no_new_privileges,
                node_certificate_lifetime: lifetime,
            },
        ca_rotation,
        unlock_key,
        key_rotation,
    } = cluster;
    // Clusters from before this setting have its default.
    let is_default = *max_replicas == ClusterSettings::default().max_replicas_per_service;
    let max_replicas = if is_default { 0 } else { u64::from(*max_replicas) };
    let [high, low] = halves(id.0);
    let known = hash([
        HashKind::Cluster as u64,
        high,
        low,
        *incarnation,
        created_at.0,
        list(ranges.iter().map(net)),
        u64::from(*node_prefix),
        node_down_after.as_secs(),
        node_down_after.subsec_nanos().into(),
        u64::from(*history),
    ]);
    let data_plane = match data_plane {
        DataPlane::Vxlan => 0,
        DataPlane::Wireguard => 1,
        DataPlane::Routes => 2,
    };
    let known = extension(extension(extension(known, 1, *version), 2, max_replicas), 3, data_plane);
    let is_default = *verification == VerificationSettings::default();
    let known = extension(known, 4, if is_default { 0 } else { verification_settings(verification) });
    let known = extension(known, 5, ca_rotation.as_deref().map_or(0, self::ca_rotation));
    let is_default = *admission_policy == AdmissionPolicy::default();
    let policy = if is_default { 0 } else { spec(HashKind::AdmissionPolicy, admission_policy) };
    let known = extension(known, 6, policy);
    let known = extension(known, 7, unlock_key.as_deref().map_or(0, self::unlock_key));
    let known = extension(known, 8, key_rotation.as_deref().map_or(0, self::key_rotation));
    let known = extension(known, 9, user_namespace_word(*default_user_namespace));
    let is_default = *lifetime == DEFAULT_NODE_CERTIFICATE_LIFETIME;
    let lifetime = list([lifetime.as_secs(), lifetime.subsec_nanos().into()].into_iter());
    let known = extension(known, 10, if is_default { 0 } else { lifetime });
    extension(known, 13, u64::from(*no_new_privileges))
}

fn user_namespace_word(namespace: UserNamespace) -> u64 {
    match namespace {
        UserNamespace::Host => 0,
        UserNamespace::Private => 1,
    }
}

fn key_rotation(rotation: &KeyRotation) -> u64 {
    let KeyRotation { number, phase, began_at, sealing, next, managers } = rotation;
    let phase = match phase {
        KeyPhase::Disks => 1,
        KeyPhase::Managers => 2,
        KeyPhase::Objects => 3,
        KeyPhase::Complete => 4,
    };
    let sealing = list(sealing.iter().map(|id| id.0));
    let next = next
        .as_ref()
        .map(|NextSecretObjectKey { id, sealed }| list([id.0].into_iter().chain(sealed_data(sealed))));
    let managers = list(managers.iter().copied());
    list([*number, phase, began_at.0, sealing, next.unwrap_or_default(), managers].into_iter())
}

fn unlock_key(SealedUnlockKey { id, sealed }: &SealedUnlockKey) -> u64 {
    list([id.0].into_iter().chain(sealed_data(sealed)))
}

fn sealed_data(SealedData { size, fingerprint, sealed }: &SealedData) -> [u64; 3] {
    [u64::from(*size), xxh3_64(fingerprint), xxh3_64(sealed)]
}

fn ca_rotation(rotation: &CaRotation) -> u64 {
    let CaRotation { digest, sealed, predecessors, phase, began_at, managers, nodes, keys } = rotation;
    let phase = match phase {
        CaPhase::Managers => 1,
        CaPhase::Nodes => 2,
        CaPhase::Complete => 3,
    };
    let [size, fingerprint, sealed] = sealed_data(sealed);
    let words = [
        xxh3_64(digest.as_bytes()),
        size,
        fingerprint,
        sealed,
        list(predecessors.iter().map(|certificate| text(certificate))),
        phase,
        began_at.0,
        list(managers.iter().copied()),
        list(nodes.iter().flat_map(|node| halves(node.0))),
        list(keys.iter().map(|key| xxh3_64(&key.0))),
    ];
    list(words.into_iter())
}

fn verification_settings(settings: &VerificationSettings) -> u64 {
    let VerificationSettings { enabled, remove_after, timeout, checks } = settings;
    let checks = list(checks.iter().map(|check| text(&check.to_string())));
    let timeout = [timeout.as_secs(), timeout.subsec_nanos().into()];
    list([u64::from(*enabled), u64::from(*remove_after), timeout[0], timeout[1], checks].into_iter())
}

/// An imported image.
pub(super) fn imported_image(image: &CanonicalImage, imported: &ImportedImage) -> u64 {
    let ImportedImage { digest, index } = imported;
    hash([HashKind::ImportedImage as u64, text(&image.to_string()), text(digest.as_str()), *index])
}

/// All of a service.
pub(super) fn service(service: &Service) -> u64 {
    let [high, low] = halves(service.id.0);
    let Service { spec, revision: current, history, pins, .. } = service;
    let history = list(history.iter().map(|earlier| revision(earlier)));
    let pins = list(pins.iter().flat_map(|(number, pin)| [*number, text(pin.as_str())]));
    let kind = HashKind::Service as u64;
    hash([kind, high, low, service_spec(spec), revision(current), history, pins])
        .wrapping_add(service_status(service))
}

fn revision(revision: &Revision) -> u64 {
    let Revision {
        number,
        created_at,
        task,
        ports,
        placement,
        force_count: forced,
        secret_objects: contents,
        labels: asked,
        user_namespace,
        default_no_new_privileges,
    } = revision;
    let objects = list(contents.iter().flat_map(secret_object_version));
    let runs = spec(HashKind::TaskSpec, &(&*with_switch(task), ports, placement));
    let known = hash([HashKind::Revision as u64, *number, created_at.0, runs, *forced]);
    let known = extension(extension(known, 1, objects), 2, labels(asked));
    let known = extension(known, 5, user_namespace_word(*user_namespace));
    let known = extension(known, 7, u64::from(*default_no_new_privileges));
    extension(known, 8, privileges_word(task))
}

fn service_spec(spec: &ServiceSpec) -> u64 {
    let known = match spec.task.no_new_privileges {
        NoNewPrivileges::On | NoNewPrivileges::Off => self::spec(HashKind::ServiceSpec, spec),
        NoNewPrivileges::Default => {
            let mut switched = spec.clone();
            switched.task.no_new_privileges = NoNewPrivileges::Off;
            self::spec(HashKind::ServiceSpec, &switched)
        }
    };
    extension(known, 1, privileges_word(&spec.task))
}

/// With `noNewPrivileges` in its JSON, as when that was no more than true or false: [`privileges_word`] has the rest.
fn with_switch(task: &TaskSpec) -> Cow<'_, TaskSpec> {
    match task.no_new_privileges {
        NoNewPrivileges::On | NoNewPrivileges::Off => Cow::Borrowed(task),
        NoNewPrivileges::Default => {
            Cow::Owned(TaskSpec { no_new_privileges: NoNewPrivileges::Off, ..task.clone() })
        }
    }
}

fn privileges_word(task: &TaskSpec) -> u64 {
    u64::from(task.no_new_privileges == NoNewPrivileges::Off)
}

/// A service without its spec and its revisions.
pub(super) fn service_status(service: &Service) -> u64 {
    let Service {
        id,
        version,
        created_at,
        updated_at,
        spec: _,
        revision: _,
        history: _,
        pins: _,
        removing,
        next_task_number: next_task,
        rollout,
        virtual_addresses,
    } = service;
    let [high, low] = halves(id.0);
    let kind = HashKind::ServiceStatus as u64;
    let known =
        hash([kind, high, low, *version, created_at.0, updated_at.0, u64::from(*removing), *next_task]);
    let addresses = virtual_addresses.iter().flat_map(|(network, address)| {
        let [high, low] = halves(network.0);
        [high, low, u64::from(u32::from(*address))]
    });
    extension(extension(known, 1, self::rollout::record(rollout)), 2, list(addresses))
}

/// A task. Its revision never changes, so that its number is enough.
pub(super) fn task(task: &Task) -> u64 {
    let Task { id, slot, revision, created_at, node, address, desired, observed, rare: special } = task;
    let usual = RareTaskFields::default();
    let RareTaskFields { not_before, bound_to, label_value, volumes, lost_since, surplus } =
        special.get().unwrap_or(&usual);
    let TaskStatus { state, attempt, since, ready, removed, health, details } = observed;
    let none = TaskStatusDetails::default();
    let TaskStatusDetails { reason, exit, next_attempt } = details.get().unwrap_or(&none);
    let TaskId { service, number } = id;
    let TaskExit { code, out_of_memory } = exit.unwrap_or(TaskExit { code: 0, out_of_memory: false });
    let given = [
        not_before.is_some(),
        node.is_some(),
        address.is_some(),
        exit.is_some(),
        lost_since.is_some(),
        bound_to.is_some(),
        next_attempt.is_some(),
    ];
    let output = [out_of_memory, *ready, *removed];
    let [service_high, service_low] = halves(service.0);
    let [node_high, node_low] = halves(node.map_or(Id(0), |node| node.0));
    let [bound_high, bound_low] = halves(bound_to.map_or(Id(0), |node| node.0));
    let known = hash([
        HashKind::Task as u64,
        service_high,
        service_low,
        *number,
        pair(*slot, *attempt),
        revision.number,
        created_at.0,
        not_before.unwrap_or_default().0,
        node_high,
        node_low,
        pair(address.map_or(0, u32::from), code.cast_unsigned()),
        pair(*state as u32, *desired as u32),
        since.0,
        text(reason),
        lost_since.unwrap_or_default().0,
        pair(flags(given), flags(output)),
        bound_high,
        bound_low,
        next_attempt.unwrap_or_default().0,
    ]);
    let health = match health {
        Health::None => 0,
        Health::Starting => 1,
        Health::Healthy => 2,
        Health::Unhealthy => 3,
    };
    let known =
        extension(extension(known, 1, list(volumes.iter().map(|name| text(name.as_str())))), 2, health);
    let known = extension(known, 3, u64::from(*surplus));
    extension(known, 4, list(label_value.iter().map(|value| text(value))))
}

fn labels(labels: &BTreeMap<String, String>) -> u64 {
    list(labels.iter().flat_map(|(key, value)| [text(key), text(value)]))
}

/// A spec by its JSON, so that every field counts. A field that a later version adds must be skipped while it
/// has its default.
fn spec(kind: HashKind, spec: &impl Serialize) -> u64 {
    let json = serde_json::to_vec(spec).expect("the keys of a spec's maps are text");
    hash([kind as u64, xxh3_64(&json)])
}

fn net(range: &Ipv4Net) -> u64 {
    pair(range.addr().into(), range.prefix_len().into())
}

fn text(text: &str) -> u64 {
    if text.is_empty() { 0 } else { xxh3_64(text.as_bytes()) }
}

/// A list of any length; the order counts.
fn list(words: impl Iterator<Item = u64>) -> u64 {
    let mut hasher = None;
    for word in words {
        let hasher = hasher.get_or_insert_with(Xxh3Default::new);
        hasher.update(&word.to_le_bytes());
    }
    hasher.map_or(0, |hasher| hash([HashKind::List as u64, hasher.digest()]))
}

fn hash<const N: usize>(words: [u64; N]) -> u64 {
    let bytes = words.map(u64::to_le_bytes);
    xxh3_64(bytes.as_flattened())
}

/// A field that was added later, after all earlier ones, with a number of its own within the object. Omitted
/// while it has the value that it had before it existed, which is 0 here.
fn extension(known: u64, number: u64, word: u64) -> u64 {
    if word == 0 { known } else { hash([HashKind::Extension as u64, known, number, word]) }
}

fn halves(id: Id) -> [u64; 2] {
    [(id.0 >> 64) as u64, id.0 as u64]
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn flags<const N: usize>(flags: [bool; N]) -> u32 {
    flags.into_iter().fold(0, |bits, flag| bits << 1 | u32::from(flag))
}

#[cfg(test)]
mod tests;
