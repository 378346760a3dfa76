//! The data that managers and workers exchange.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::{
    CaDigest, ClusterId, DataPlane, DesiredTaskState, Health, ImageDigest, LogLimits, ManagerAddress,
    ManagerId, NodeId, NodeName, PublishedPort, ServiceId, ServiceName, TaskExit, TaskId, TaskSpec,
    TaskState, Timestamp, VolumeName,
};

/// The most images that a node reports to have: those that changed last.
pub const MAX_REPORTED_IMAGES: usize = 256;
/// The most volumes whose data a node reports to have.
pub const MAX_REPORTED_VOLUMES: usize = 1024;
/// How long the log of an ended task is retained.
pub const LOG_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Orders assignments: workers ignore what is not newer. The incarnation rises with restore and
/// force-new-cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct AssignmentVersion {
    /// Incarnation of the cluster.
    pub incarnation: u64,
    /// Raft index of the last change to the node's assignment.
    pub index: u64,
}

/// The desired state of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The version at which it was read.
    pub version: AssignmentVersion,
    /// Tasks that the node has not reported as removed.
    pub tasks: Vec<TaskAssignment>,
    /// Ended tasks whose logs the node retains.
    pub retained: Vec<RetainedLog>,
}

/// The log of a task that ended and was removed from its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetainedLog {
    /// The task.
    pub task: TaskId,
    /// Its slot in the service.
    pub slot: u32,
    /// What all retained logs of the slot together may take.
    pub limits: LogLimits,
}

/// One task, as its worker gets it. Self-contained, so that it survives in the container's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskAssignment {
    /// Id of the task.
    pub id: TaskId,
    /// Its service's name.
    pub service: ServiceName,
    /// Its slot in the service.
    pub slot: u32,
    /// Number of the revision.
    pub revision: u64,
    /// What to run.
    pub spec: TaskSpec,
    /// The pinned image digest; `None` until a worker has reported it ([`TaskReport::image`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<ImageDigest>,
    /// Ports to publish on the node.
    pub ports: Vec<PublishedPort>,
    /// Its address in the node's subnet.
    pub address: Ipv4Addr,
    /// Desired state, written by managers.
    pub desired: DesiredTaskState,
    /// The labels of its service that its templates use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_labels: BTreeMap<String, String>,
    /// The volume of each volume mount, in the order of the mounts. Names are not expanded again, since a
    /// label of the node may have changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeAssignment>,
    /// Its service is a bootstrap service: tasks of others on the node start after it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bootstrap: bool,
}

/// A volume that a task mounts, with what the worker needs to create it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAssignment {
    /// The volume.
    pub name: VolumeName,
    /// Options for its driver; see [`Volume::validate`](crate::Volume::validate).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// What a worker reports of a task. Ordered by (attempt, state); a report with `removed` is final.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskReport {
    /// Id of the task.
    pub task: TaskId,
    /// How often the container has been started.
    pub attempt: u32,
    /// Observed state.
    pub state: TaskState,
    /// Since when it has been in this state, by the worker's clock.
    pub since: Timestamp,
    /// Why it is not running, with what to do about it.
    pub reason: String,
    /// Receives traffic now.
    pub ready: bool,
    /// How its process last exited.
    pub exit: Option<TaskExit>,
    /// Nothing of it is left on the node.
    pub removed: bool,
    /// When it is started again, during a restart delay.
    pub next_attempt: Option<Timestamp>,
    /// The image digest on this node, while the assignment has none.
    pub image: Option<ImageDigest>,
    /// Result of its health checks.
    pub health: Health,
}

/// Settings of a node that are not per task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSettings {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// The id of the node.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// Its labels; the user's labels take precedence over those of the description.
    pub labels: BTreeMap<String, String>,
    /// Its number in the data plane.
    pub number: u16,
    /// Addresses of its tasks; the first host address of the first one is the gateway.
    pub subnets: Vec<Ipv4Net>,
    /// All task address ranges of the cluster.
    pub ranges: Vec<Ipv4Net>,
    /// What carries packets to other nodes.
    #[serde(default)]
    pub data_plane: DataPlane,
    /// Interval of heartbeats with usage and conditions.
    pub heartbeat: Duration,
    /// Interval at which the node asks whether its assignment is current.
    pub sync: Duration,
    /// Addresses of the managers.
    #[serde(default)]
    pub managers: Vec<ManagerAddress>,
    /// The only certificate authority that the node trusts; `None`: what it trusts stays.
    #[serde(default)]
    pub authority: Option<CaDigest>,
    /// Managers that have left the cluster, whose certificates are refused.
    #[serde(default)]
    pub revoked_managers: Vec<ManagerId>,
}

impl TaskAssignment {
    /// The service of the task.
    pub fn service_id(&self) -> ServiceId {
        self.id.service
    }
}
