//! What a cluster holds. ARCHITECTURE.md has the table of who writes which field.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::{
    Bytes, ContentUse, Desired, Exit, Health, ImageDigest, MemberId, NodeId, NodeName, Placement,
    PublishedPort, Resources, Seldom, ServiceId, ServiceSpec, TaskId, TaskSpec, TaskState, Timestamp,
    VolumeName,
};

/// A service and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Made by the client that created it.
    pub id: ServiceId,
    /// Raft index of the last change; updates compare against it.
    pub version: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When a person last changed it.
    pub updated_at: Timestamp,
    /// As wanted.
    pub spec: Arc<ServiceSpec>,
    /// The part of the spec that shapes tasks, shared by all of them.
    pub revision: Arc<Revision>,
    /// Earlier revisions that can be returned to or that tasks still run, oldest first.
    pub history: Vec<Arc<Revision>>,
    /// What the image of a revision is, by its number: said by the first worker that knew, and from then on what
    /// every task of the revision runs.
    pub pins: BTreeMap<u64, ImageDigest>,
    /// Being removed: its tasks go, then the service.
    pub removing: bool,
    /// The number that the next task gets.
    pub next_task: u64,
}

/// One immutable version of what a service's tasks run. Tasks share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// Counts up from 1 within the service.
    pub number: u64,
    /// When a person made it.
    pub created_at: Timestamp,
    /// What each task runs.
    pub task: TaskSpec,
    /// Ports opened for the service.
    pub ports: Vec<PublishedPort>,
    /// Where tasks may run. A task that may stay where it is is not replaced because of it.
    pub placement: Placement,
    /// How often people asked for new tasks of an unchanged spec.
    pub forced: u64,
    /// Which versions of secrets and configs its tasks see, sorted.
    pub contents: Vec<ContentUse>,
    /// The labels of the service that templates ask for, as they were.
    pub labels: BTreeMap<String, String>,
}

/// One placement of a slot on a node. It is never moved, only replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Never used again.
    pub id: TaskId,
    /// Place in the service, 1 to replicas; survives replacement. In a global service the number of the node's
    /// subnet, from 1.
    pub slot: u32,
    /// What it runs.
    pub revision: Arc<Revision>,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its node, once placed.
    pub node: Option<NodeId>,
    /// Its address, from the node's subnet, held until `observed.removed`.
    pub address: Option<Ipv4Addr>,
    /// What managers want of it.
    pub desired: Desired,
    /// What the worker last said.
    pub observed: Observed,
    /// What only some tasks have.
    pub special: Seldom<Special>,
}

/// What only some tasks have. [`Task`] has a method for each of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Special {
    /// Not placed before this (back-off of a slot that keeps failing).
    pub not_before: Option<Timestamp>,
    /// It runs on this node or nowhere: the task of a global service.
    pub bound_to: Option<NodeId>,
    /// What its mounts of volumes stand for on its node, in their order; empty before it is placed.
    pub volumes: Vec<VolumeName>,
    /// Since when its node has been down; `None` while the node is up. Written by managers.
    pub lost_since: Option<Timestamp>,
}

/// What a worker said of a task. Never invented by a manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// How far it is.
    pub state: TaskState,
    /// How often the worker has started the container; 0 before the first.
    pub attempt: u32,
    /// Since when it has been in this state.
    pub since: Timestamp,
    /// Should get traffic now.
    pub ready: bool,
    /// Nothing of it is left on the node: its address and ports are free.
    pub removed: bool,
    /// What its checks say. A task that was told to stop while it was unhealthy stays that, so that its slot knows why.
    pub health: Health,
    /// What is only said of tasks that do not just run.
    pub trouble: Seldom<Trouble>,
}

/// What a worker says of a task that does not just run. [`Observed`] has a method for each of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Why it is not running, in words a person can act on; empty when there is nothing to say.
    pub reason: Arc<str>,
    /// The last end of its process.
    pub exit: Option<Exit>,
    /// When the worker starts it again.
    pub next_attempt: Option<Timestamp>,
}

/// A machine with an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// In its certificate.
    pub id: NodeId,
    /// For people; unique in the cluster.
    pub name: NodeName,
    /// Raft index of the last change.
    pub version: u64,
    /// When it joined.
    pub created_at: Timestamp,
    /// What the machine is in the cluster, as in its certificates.
    pub role: NodeRole,
    /// Given by people; they win over those of the description.
    pub labels: BTreeMap<String, String>,
    /// What people want to run there.
    pub availability: Availability,
    /// What the agent measured.
    pub description: NodeDescription,
    /// Addresses of its tasks; the first host address is the gateway.
    pub subnet: Ipv4Net,
    /// Whether managers hear of it.
    pub status: NodeStatus,
    /// Since when.
    pub status_since: Timestamp,
    /// Number of its newest session; reports of older ones are dropped.
    pub session: u64,
    /// Raft index of the last change to what the node should have.
    pub assignment: u64,
    /// What is wrong with it, as its agent says.
    pub conditions: BTreeSet<NodeCondition>,
    /// The manager that holds its newest session, as a member; `None` before its first one.
    pub manager: Option<MemberId>,
}

/// What an agent says of its machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDescription {
    /// CPU and memory that tasks can have.
    pub resources: Resources,
    /// Size of the file system that holds images and containers.
    pub disk: Bytes,
    /// Operating system in OCI's words: `linux`.
    pub os: String,
    /// Machine architecture in OCI's words: `amd64`, `arm64`.
    pub architecture: String,
    /// Kernel release.
    pub kernel: String,
    /// Container runtime and version: `containerd 1.6.20`.
    pub runtime: String,
    /// Warren's version.
    pub version: String,
    /// Where other machines reach it.
    pub address: String,
    /// Given where the agent was started.
    pub labels: BTreeMap<String, String>,
}

/// What can be wrong with a node that is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeCondition {
    /// containerd does not answer.
    RuntimeDown,
    /// Its part of the network cannot be made.
    NetworkBroken,
    /// The disk with images, containers and volumes is nearly full.
    DiskLow,
    /// Hardly any memory is left.
    MemoryPressure,
    /// Its clock differs from that of its manager.
    ClockOff,
}

impl NodeCondition {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::RuntimeDown, Self::NetworkBroken, Self::DiskLow, Self::MemoryPressure, Self::ClockOff];

    /// No new task is placed on a node like that.
    pub fn keeps_tasks_away(self) -> bool {
        match self {
            Self::RuntimeDown | Self::NetworkBroken | Self::DiskLow | Self::MemoryPressure => true,
            Self::ClockOff => false,
        }
    }

    /// As people see it: `disk low`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RuntimeDown => "containerd down",
            Self::NetworkBroken => "network broken",
            Self::DiskLow => "disk low",
            Self::MemoryPressure => "memory pressure",
            Self::ClockOff => "clock off",
        }
    }
}

/// What a machine is in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    /// Runs tasks.
    Worker,
    /// Keeps the cluster's state; a hybrid node runs tasks as well.
    Manager,
}

impl NodeRole {
    /// As people see it: `worker`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Manager => "manager",
        }
    }
}

/// What people want to run on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Availability {
    /// What fits.
    Active,
    /// What runs there stays, nothing comes.
    Pause,
    /// Nothing: what runs there is replaced elsewhere first.
    Drain,
}

impl Availability {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Active, Self::Pause, Self::Drain];

    /// As people write it: `active`.
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
        known.ok_or_else(|| format!("{text:?} is no availability; give active, pause or drain"))
    }
}

impl Node {
    /// Its labels: those of its description, and people's over them.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).or_else(|| self.description.labels.get(key)).map(String::as_str)
    }

    /// All of them, by key.
    pub fn all_labels(&self) -> BTreeMap<String, String> {
        let own = self.description.labels.iter().chain(&self.labels);
        own.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

/// Whether managers hear of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum NodeStatus {
    /// Has joined, has not opened a session yet.
    Unknown,
    /// Has a session.
    Ready,
    /// Silent for longer than `node-down-after`.
    Down,
}

impl NodeStatus {
    /// As people see it: `READY`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Ready => "READY",
            Self::Down => "DOWN",
        }
    }
}

impl Observed {
    /// Of a task that was just created at `now`.
    pub fn new(now: Timestamp) -> Self {
        Self {
            state: TaskState::New,
            attempt: 0,
            since: now,
            ready: false,
            removed: false,
            health: Health::None,
            trouble: Seldom::default(),
        }
    }

    /// See [`Trouble::reason`].
    pub fn reason(&self) -> &str {
        self.trouble.get().map_or("", |trouble| &trouble.reason)
    }

    /// See [`Trouble::exit`].
    pub fn exit(&self) -> Option<Exit> {
        self.trouble.get().and_then(|trouble| trouble.exit)
    }

    /// See [`Trouble::next_attempt`].
    pub fn next_attempt(&self) -> Option<Timestamp> {
        self.trouble.get().and_then(|trouble| trouble.next_attempt)
    }
}

impl Task {
    /// See [`Special::not_before`].
    pub fn not_before(&self) -> Option<Timestamp> {
        self.special.get().and_then(|special| special.not_before)
    }

    /// See [`Special::bound_to`].
    pub fn bound_to(&self) -> Option<NodeId> {
        self.special.get().and_then(|special| special.bound_to)
    }

    /// See [`Special::volumes`].
    pub fn volumes(&self) -> &[VolumeName] {
        self.special.get().map_or(&[], |special| &special.volumes)
    }

    /// See [`Special::lost_since`].
    pub fn lost_since(&self) -> Option<Timestamp> {
        self.special.get().and_then(|special| special.lost_since)
    }

    /// Occupies its slot: wanted, and not ended.
    pub fn is_live(&self) -> bool {
        self.desired <= Desired::Running && !self.observed.state.is_terminal()
    }

    /// How far it is, as people see it: before the worker's first word, what managers know of its placement.
    pub fn state(&self) -> TaskState {
        let placed = if self.node.is_some() { TaskState::Assigned } else { TaskState::Pending };
        self.observed.state.max(placed)
    }

    /// Holds what it was given on its node (address, ports, resources).
    pub fn holds_node(&self) -> bool {
        self.node.is_some() && !self.observed.removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager holds one for each task that there is. With the counters of its `Arc` and the word of the allocator
    /// it takes 144 bytes; a field that most tasks have no use for goes into [`Special`] or [`Trouble`].
    #[test]
    fn a_task_is_small() {
        assert_eq!(size_of::<Task>(), 120);
    }
}
