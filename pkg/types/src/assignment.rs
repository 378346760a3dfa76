//! What managers and workers tell each other, as data.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::{
    ClusterId, Desired, Exit, Health, ImageDigest, ManagerAddress, NodeId, NodeName, PublishedPort,
    ServiceId, ServiceName, TaskId, TaskSpec, TaskState, Timestamp, VolumeName,
};

/// Orders assignments: workers ignore what is not newer. The incarnation rises with restore and force-new-cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct AssignmentVersion {
    /// Life of the cluster.
    pub incarnation: u64,
    /// Raft index of the last change to what the node should have.
    pub index: u64,
}

/// Everything a node should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// When this was true.
    pub version: AssignmentVersion,
    /// Tasks that the node has not reported as removed.
    pub tasks: Vec<TaskAssignment>,
}

/// One task as its worker must know it. Self-contained, so that it survives in the container's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskAssignment {
    /// The task.
    pub id: TaskId,
    /// Its service's name.
    pub service: ServiceName,
    /// Its place in the service.
    pub slot: u32,
    /// Which version of the spec.
    pub revision: u64,
    /// What to run.
    pub spec: TaskSpec,
    /// What the image is; `None` until a worker has said so ([`TaskReport::image`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<ImageDigest>,
    /// Ports to open on the node.
    pub ports: Vec<PublishedPort>,
    /// Its address in the node's subnet.
    pub address: Ipv4Addr,
    /// What managers want of it.
    pub desired: Desired,
    /// The labels of its service that its templates ask for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_labels: BTreeMap<String, String>,
    /// What its mounts of volumes stand for here: one per such mount, in their order. Their names are not expanded
    /// again, since a label of the node may have changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeAssignment>,
}

/// A volume that a task has mounted, as the worker must know it to make it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAssignment {
    /// The volume.
    pub name: VolumeName,
    /// What its driver is told; see [`Volume::validate`](crate::Volume::validate).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// What a worker says of a task. Ordered by (attempt, state); `removed` is the last word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskReport {
    /// The task.
    pub task: TaskId,
    /// How often the container has been started.
    pub attempt: u32,
    /// How far it is.
    pub state: TaskState,
    /// When it came there, by the worker's clock.
    pub since: Timestamp,
    /// Why it is not running, in words a person can act on.
    pub reason: String,
    /// Should get traffic now.
    pub ready: bool,
    /// The last end of its process.
    pub exit: Option<Exit>,
    /// Nothing of it is left on the node.
    pub removed: bool,
    /// When it is started again, while it waits for that.
    pub next_attempt: Option<Timestamp>,
    /// What its image is here, while the assignment does not say.
    pub image: Option<ImageDigest>,
    /// What its checks say.
    pub health: Health,
}

/// What a node must know that is not per task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSettings {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// The node's own id.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// Its labels: those of its description, and people's over them.
    pub labels: BTreeMap<String, String>,
    /// Addresses of its tasks; the first host address is the gateway.
    pub subnet: Ipv4Net,
    /// All address ranges of the cluster.
    pub ranges: Vec<Ipv4Net>,
    /// How often to send usage and conditions.
    pub heartbeat: Duration,
    /// How often to ask whether the assignment is current.
    pub sync: Duration,
    /// Where managers are reached.
    #[serde(default)]
    pub managers: Vec<ManagerAddress>,
}

impl TaskAssignment {
    /// The service that the task belongs to.
    pub fn service_id(&self) -> ServiceId {
        self.id.service
    }
}
