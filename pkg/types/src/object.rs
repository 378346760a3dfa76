//! The objects that a cluster stores. ARCHITECTURE.md has the table of who writes which field.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::spec::validate_labels;
use crate::{
    BoxedDefault, Bytes, DesiredTaskState, Health, ImageDigest, MemberId, NetworkId, NoNewPrivileges, NodeId,
    NodeName, NodeVerification, Placement, PublicKeyHash, PublishedPort, Resources, SecretObjectVersion,
    ServiceId, ServiceSpec, Taint, TaskExit, TaskId, TaskSpec, TaskState, Timestamp, UpdatePolicy,
    UserNamespace, Violations, VolumeName, WireGuardKey,
};

/// A service: its spec, its revisions and the counters of its tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Chosen by the client that created it.
    pub id: ServiceId,
    /// Raft index of the last change; updates compare against it.
    pub version: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When a user last changed it.
    pub updated_at: Timestamp,
    /// The desired state, set by the user.
    pub spec: Arc<ServiceSpec>,
    /// The current revision: the part of the spec that shapes tasks, shared by all of them.
    pub revision: Arc<Revision>,
    /// Earlier revisions that a rollback can use or that tasks still run, oldest first.
    pub history: Vec<Arc<Revision>>,
    /// Image digest by revision number, from managers, or from the first report of a worker if workers resolve the
    /// image. Once it is known, every task of the revision runs that digest.
    pub pins: BTreeMap<u64, ImageDigest>,
    /// Being removed: its tasks are removed first, then the service.
    pub removing: bool,
    /// The number of the next task.
    pub next_task_number: u64,
    /// How far it is on its way to its current revision, as far as that must survive a failover.
    pub rollout: RolloutRecord,
    /// Its virtual address on each of its networks.
    pub virtual_addresses: BTreeMap<NetworkId, Ipv4Addr>,
}

/// What managers recorded of the rollout of a service's current revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RolloutRecord {
    /// The number of the newest revision of which every task that could run was ready; 0 for none. That of
    /// the current revision when its rollout is complete.
    pub good_revision: u64,
    /// Which policy the rollout follows.
    pub kind: RolloutKind,
    /// Failures of tasks before this time do not count: a user resumed the rollout.
    pub resumed_at: Timestamp,
    /// How many slots were updated at the last count; kept only with a delay between replacements.
    pub updated: u32,
    /// When that number last rose.
    pub updated_at: Timestamp,
    /// Why a rollout stopped: that of the current revision, after that of the one that was rolled back, if
    /// there is one. At most two.
    pub failures: Vec<RolloutFailure>,
    /// Why managers do not know what the image of the current revision is, or why they use an earlier digest, as text;
    /// empty if neither is the case.
    pub image_reason: Arc<str>,
}

/// Which policy a rollout follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RolloutKind {
    /// A user changed the service.
    #[default]
    Update,
    /// To an earlier revision, by a user or because an update failed.
    Rollback,
}

/// The failure that stopped a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutFailure {
    /// The revision that was rolled out.
    pub revision: u64,
    /// The task that failed.
    pub task: TaskId,
    /// Its slot.
    pub slot: u32,
    /// How it failed, as text: `failed: exited with code 1`.
    pub reason: Arc<str>,
    /// When managers stopped the rollout.
    pub at: Timestamp,
    /// What followed.
    pub outcome: FailureOutcome,
}

/// What followed the failure of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureOutcome {
    /// The tasks of this revision became the current ones again, as the revision after the failed one.
    RolledBack {
        /// The number of that revision.
        to: u64,
    },
    /// No further task is replaced until a user decides.
    Paused(PauseCause),
}

/// Why a failed rollout was paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseCause {
    /// The service's policy says so.
    Policy,
    /// A new task ran with write access to a volume.
    DataMayHaveChanged,
    /// No earlier revision was good.
    NoGoodRevision,
    /// The earlier revision needs something that does not exist any more.
    NotRestorable,
    /// It was a rollback.
    IsRollback,
}

impl Service {
    /// The failure that stopped the rollout of the current revision.
    pub fn rollout_failure(&self) -> Option<&RolloutFailure> {
        self.rollout.failures.last().filter(|failure| failure.revision == self.revision.number)
    }

    /// How the rollout of the current revision replaces tasks.
    pub fn rollout_policy(&self) -> &UpdatePolicy {
        match self.rollout.kind {
            RolloutKind::Update => &self.spec.update,
            RolloutKind::Rollback => &self.spec.rollback,
        }
    }
}

/// One immutable version of what a service's tasks run. Tasks share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// Counts up from 1 within the service.
    pub number: u64,
    /// When a user created it.
    pub created_at: Timestamp,
    /// What each task runs.
    pub task: TaskSpec,
    /// Published ports of the service.
    pub ports: Vec<PublishedPort>,
    /// Placement rules. A task whose node still satisfies them is not replaced when they change.
    pub placement: Placement,
    /// How often users requested new tasks for an unchanged spec.
    pub force_count: u64,
    /// Versions of the secrets and configs that its tasks mount, sorted.
    pub secret_objects: Vec<SecretObjectVersion>,
    /// The labels of the service that its templates use, as they were when the revision was created.
    pub labels: BTreeMap<String, String>,
    /// Which users of the node those of its containers are: what the task asks for, or the default of the cluster at
    /// the creation of the revision.
    pub user_namespace: UserNamespace,
    /// The default of the cluster at the creation of the revision is that programs get no new privileges, and the task
    /// says nothing about it.
    pub default_no_new_privileges: bool,
}

impl Revision {
    /// The task as its nodes get it, which do not know the defaults of the cluster.
    pub fn assigned_task(&self) -> Cow<'_, TaskSpec> {
        let mut task = Cow::Borrowed(&self.task);
        if self.user_namespace == UserNamespace::Private && self.task.user_namespace.is_none() {
            task.to_mut().user_namespace = Some(UserNamespace::Private);
        }
        if self.default_no_new_privileges {
            task.to_mut().no_new_privileges = NoNewPrivileges::On;
        }
        task
    }
}

/// One run of a slot on one node. A task is never moved, only replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Never reused.
    pub id: TaskId,
    /// Position in the service, 1 to replicas; survives replacement. In a global service the number of the node, or
    /// with [`ServiceSpec::per`] the number of the value, from 1.
    pub slot: u32,
    /// What it runs.
    pub revision: Arc<Revision>,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its node, once assigned.
    pub node: Option<NodeId>,
    /// Its address, from the node's subnet, held until `observed.removed`.
    pub address: Option<Ipv4Addr>,
    /// Desired state, written by managers.
    pub desired: DesiredTaskState,
    /// Observed state, from the worker's last report.
    pub observed: TaskStatus,
    /// Fields that only some tasks have.
    pub rare: BoxedDefault<RareTaskFields>,
}

/// Fields that only some tasks have. [`Task`] has an accessor for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RareTaskFields {
    /// Not assigned before this time (back-off of a slot that keeps failing).
    pub not_before: Option<Timestamp>,
    /// The only node that may run it: set for tasks of a global service with a task on each node.
    pub bound_to: Option<NodeId>,
    /// Only nodes on which the label [`ServiceSpec::per`] has this value may run it: set for tasks of such a service.
    pub label_value: Option<Arc<str>>,
    /// The volume of each volume mount on its node, in the order of the mounts; empty before it is assigned.
    pub volumes: Vec<VolumeName>,
    /// Since when its node has been down; `None` while the node is up. Written by managers.
    pub lost_since: Option<Timestamp>,
    /// Its slot was removed by a smaller number of replicas: the record stays for its log alone.
    pub surplus: bool,
}

/// What a worker reported of a task. Managers never make one up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStatus {
    /// Observed state.
    pub state: TaskState,
    /// How often the worker has started the container; 0 before the first.
    pub attempt: u32,
    /// Since when it has been in this state.
    pub since: Timestamp,
    /// Receives traffic now.
    pub ready: bool,
    /// Nothing of it is left on the node: its address and ports are free.
    pub removed: bool,
    /// Result of its health checks. A task that was stopped while unhealthy stays unhealthy: that is why its
    /// slot failed.
    pub health: Health,
    /// Fields that only tasks with a problem have.
    pub details: BoxedDefault<TaskStatusDetails>,
}

/// What a worker reports only of tasks that do not simply run. [`TaskStatus`] has an accessor for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskStatusDetails {
    /// Why it is not running, with what to do about it; empty when there is no reason.
    pub reason: Arc<str>,
    /// How its process last exited.
    pub exit: Option<TaskExit>,
    /// When the worker starts it again.
    pub next_attempt: Option<Timestamp>,
}

/// A host that runs an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The id in its certificate.
    pub id: NodeId,
    /// Human-readable; unique in the cluster.
    pub name: NodeName,
    /// Raft index of the last change.
    pub version: u64,
    /// When it joined.
    pub created_at: Timestamp,
    /// The role in its certificates.
    pub role: NodeRole,
    /// Labels set by users.
    pub labels: BTreeMap<String, String>,
    /// Availability set by the user.
    pub availability: Availability,
    /// Taints given when it joined and changed by users; one per key and effect.
    pub taints: BTreeSet<Taint>,
    /// Reported by the agent.
    pub description: NodeDescription,
    /// Its number in the data plane, from 1; assigned again some time after its removal.
    pub number: u16,
    /// Addresses of its tasks, in the order of their assignment; never empty. The first host address of the first
    /// one is the gateway.
    pub subnets: Vec<Ipv4Net>,
    /// Whether the node has contact with the managers.
    pub status: NodeStatus,
    /// Since when it has had this status.
    pub status_since: Timestamp,
    /// Number of its newest session; reports of older sessions are dropped.
    pub session: u64,
    /// Raft index of the last change to its assignment.
    pub assignment_index: u64,
    /// Conditions that its agent reports.
    pub conditions: BTreeSet<NodeCondition>,
    /// The manager that holds its newest session; `None` before its first session.
    pub manager: Option<MemberId>,
    /// How far its verification is; `None` while the cluster verifies no nodes.
    pub verification: Option<Arc<NodeVerification>>,
    /// The key of its agent; `None` if the id is derived from it.
    pub key: Option<PublicKeyHash>,
}

/// What an agent reports about its host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDescription {
    /// CPU and memory available to tasks.
    pub resources: Resources,
    /// Size of the file system that holds images and containers.
    pub disk: Bytes,
    /// Operating system, with the names of OCI: `linux`.
    pub os: String,
    /// CPU architecture, with the names of OCI: `amd64`, `arm64`.
    pub architecture: String,
    /// Kernel release.
    pub kernel: String,
    /// Container runtime and version: `containerd 1.6.20`.
    pub runtime: String,
    /// Warren's version.
    pub version: String,
    /// Address at which other hosts reach it.
    pub address: String,
    /// Address to which other nodes send packets for its tasks; `None` while it has none.
    pub data_address: Option<Ipv4Addr>,
    /// The public key with which others encrypt these packets; `None`: its agent has told none.
    pub wireguard_key: Option<WireGuardKey>,
    /// Its kernel has AppArmor, and the default profile of containers is not loaded.
    #[serde(default)]
    pub apparmor_missing: bool,
    /// Labels from the agent's configuration, which users may trust or not: only constraints on `engine.labels` see
    /// them.
    pub labels: BTreeMap<String, String>,
}

/// The most bytes of all keys and values of the labels that an agent reports: each session writes them to the log.
const MAX_ENGINE_LABEL_BYTES: usize = 8 * 1024;

/// Adds every invalid label that an agent reports, and their size; paths begin with `labels`.
pub fn validate_engine_labels(labels: &BTreeMap<String, String>, wrong: &mut Violations) {
    validate_labels(labels, wrong);
    let size: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_ENGINE_LABEL_BYTES {
        wrong.add("labels", format!("have {size} bytes together, at most {MAX_ENGINE_LABEL_BYTES}"));
    }
}

/// A problem of a node that is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeCondition {
    /// containerd does not answer.
    RuntimeUnavailable,
    /// The network of the node cannot be set up.
    NetworkUnavailable,
    /// The disk with images, containers and volumes is nearly full.
    DiskPressure,
    /// Almost no memory is free.
    MemoryPressure,
    /// Its clock differs from that of its manager.
    ClockSkew,
    /// A route of the node leads elsewhere with addresses of the cluster.
    RangeConflict,
    /// The routes to some other nodes or some ports in ingress mode are missing. Tasks have their networks.
    NetworkDegraded,
    /// Packets to some other nodes did not come back.
    PeersUnreachable,
}

impl NodeCondition {
    /// All conditions.
    pub const ALL: [Self; 8] = [
        Self::RuntimeUnavailable,
        Self::NetworkUnavailable,
        Self::DiskPressure,
        Self::MemoryPressure,
        Self::ClockSkew,
        Self::RangeConflict,
        Self::NetworkDegraded,
        Self::PeersUnreachable,
    ];

    /// No new task is assigned to a node with this condition.
    pub fn blocks_scheduling(self) -> bool {
        match self {
            Self::RuntimeUnavailable
            | Self::NetworkUnavailable
            | Self::DiskPressure
            | Self::MemoryPressure => true,
            Self::ClockSkew | Self::RangeConflict | Self::NetworkDegraded | Self::PeersUnreachable => false,
        }
    }

    /// Human-readable: `disk pressure`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RuntimeUnavailable => "runtime unavailable",
            Self::NetworkUnavailable => "network unavailable",
            Self::DiskPressure => "disk pressure",
            Self::MemoryPressure => "memory pressure",
            Self::ClockSkew => "clock skew",
            Self::RangeConflict => "range conflict",
            Self::NetworkDegraded => "network degraded",
            Self::PeersUnreachable => "peers unreachable",
        }
    }
}

/// The role of a host in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    /// Runs tasks.
    Worker,
    /// Stores the cluster's state; a hybrid node runs tasks as well.
    Manager,
}

impl NodeRole {
    /// Human-readable: `worker`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Manager => "manager",
        }
    }
}

/// Whether a node accepts and keeps tasks, set by the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Availability {
    /// Accepts new tasks.
    Active,
    /// Keeps its tasks, accepts no new ones.
    Pause,
    /// Runs no tasks: each is first replaced on another node.
    Drain,
}

impl Availability {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Active, Self::Pause, Self::Drain];

    /// As in files and flags: `active`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Pause => "pause",
            Self::Drain => "drain",
        }
    }
}

impl std::str::FromStr for Availability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|availability| availability.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not an availability; give active, pause or drain"))
    }
}

/// Whether a node has contact with the managers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum NodeStatus {
    /// Joined, but has not opened a session yet.
    Unknown,
    /// Has a session.
    Ready,
    /// No contact for longer than `node-down-after`.
    Down,
}

impl NodeStatus {
    /// Human-readable: `READY`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Ready => "READY",
            Self::Down => "DOWN",
        }
    }
}

impl TaskStatus {
    /// The status of a task created at `now`.
    pub fn new(now: Timestamp) -> Self {
        Self {
            state: TaskState::New,
            attempt: 0,
            since: now,
            ready: false,
            removed: false,
            health: Health::None,
            details: BoxedDefault::default(),
        }
    }

    /// See [`TaskStatusDetails::reason`].
    pub fn reason(&self) -> &str {
        self.details.get().map_or("", |details| &details.reason)
    }

    /// See [`TaskStatusDetails::exit`].
    pub fn exit(&self) -> Option<TaskExit> {
        self.details.get().and_then(|details| details.exit)
    }

    /// See [`TaskStatusDetails::next_attempt`].
    pub fn next_attempt(&self) -> Option<Timestamp> {
        self.details.get().and_then(|details| details.next_attempt)
    }
}

impl Task {
    /// See [`RareTaskFields::not_before`].
    pub fn not_before(&self) -> Option<Timestamp> {
        self.rare.get().and_then(|special| special.not_before)
    }

    /// See [`RareTaskFields::bound_to`].
    pub fn bound_to(&self) -> Option<NodeId> {
        self.rare.get().and_then(|special| special.bound_to)
    }

    /// See [`RareTaskFields::label_value`].
    pub fn label_value(&self) -> Option<&Arc<str>> {
        self.rare.get().and_then(|special| special.label_value.as_ref())
    }

    /// See [`RareTaskFields::volumes`].
    pub fn volumes(&self) -> &[VolumeName] {
        self.rare.get().map_or(&[], |special| &special.volumes)
    }

    /// See [`RareTaskFields::lost_since`].
    pub fn lost_since(&self) -> Option<Timestamp> {
        self.rare.get().and_then(|special| special.lost_since)
    }

    /// See [`RareTaskFields::surplus`].
    pub fn is_surplus(&self) -> bool {
        self.rare.get().is_some_and(|special| special.surplus)
    }

    /// The node that retains its log after its end; `None` if it holds resources there, or never ran.
    pub fn log_node(&self) -> Option<NodeId> {
        self.node.filter(|_| self.observed.removed && self.observed.attempt > 0)
    }

    /// Occupies its slot: desired, and not terminal.
    pub fn is_live(&self) -> bool {
        self.desired <= DesiredTaskState::Running && !self.observed.state.is_terminal()
    }

    /// The state that users see: before the worker's first report it follows from the task's assignment.
    pub fn state(&self) -> TaskState {
        let placed = if self.node.is_some() { TaskState::Assigned } else { TaskState::Pending };
        self.observed.state.max(placed)
    }

    /// Holds resources on its node (address, ports, CPU and memory).
    pub fn holds_resources(&self) -> bool {
        self.node.is_some() && !self.observed.removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager stores one for each task. With the counters of its `Arc` and the header of the allocator it
    /// takes 144 bytes; a field that most tasks do not use goes into [`RareTaskFields`] or
    /// [`TaskStatusDetails`].
    #[test]
    fn task_fits_in_128_bytes() {
        assert_eq!(size_of::<Task>(), 120);
    }
}
