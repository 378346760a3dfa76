//! Every write there is, as proposed. Commands are deltas, carry all they need, and are harmless the second
//! time.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::Ipv4Net;
use warren_types::{
    Availability, ClusterId, Desired, NodeDescription, NodeId, NodeName, NodeRole, NodeStatus, ServiceId,
    ServiceSpec, TaskId, TaskReport, Timestamp, TokenHash, TokenId,
};

/// A write. `at` is the leader's clock and is clamped so that time never goes back. `term`, where there is
/// one, is the term of the planner's state ([`super::State::applied`]): a plan of an older leader is
/// refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The first command of a new cluster. Answer: `Done`.
    CreateCluster {
        /// Made by whoever creates it.
        id: ClusterId,
        /// Where node subnets come from.
        ranges: Vec<Ipv4Net>,
        /// The level it begins at: that of whoever creates it ([`super::LEVEL`]).
        level: u32,
        /// When.
        at: Timestamp,
    },
    /// Answer: `Service`. The same id with the same spec again is `Unchanged`.
    CreateService {
        /// Made by the client, so that a repeated request is recognised.
        id: ServiceId,
        /// As wanted.
        spec: ServiceSpec,
        /// When.
        at: Timestamp,
    },
    /// Answer: `Service`. Unchanged, whatever the version, when the number is already so.
    ScaleService {
        /// The service.
        id: ServiceId,
        /// Only if the service still has this version.
        version: Option<u64>,
        /// Wanted number of tasks.
        replicas: u32,
        /// When.
        at: Timestamp,
    },
    /// Changes the spec. Where task, ports or placement differ, or `force` says so, there is a new revision. Name and
    /// kind of mode must stay. Answer: `Service`. Unchanged, whatever the version, when the spec is already so and
    /// nothing is forced.
    UpdateService {
        /// The service.
        id: ServiceId,
        /// Only if the service still has this version; must be given with `force`, so that it is done once.
        version: Option<u64>,
        /// All of it.
        spec: ServiceSpec,
        /// New tasks also for an unchanged spec.
        force: bool,
        /// When.
        at: Timestamp,
    },
    /// Makes task, ports and placement of an earlier revision the current ones again, as a new revision that keeps
    /// the earlier one's pinned image. Answer: `Service`.
    RollbackService {
        /// The service.
        id: ServiceId,
        /// Only if the service still has this version; must be given where no revision is, so that it is done once.
        version: Option<u64>,
        /// To which revision; `None` is the one before the current.
        revision: Option<u64>,
        /// When.
        at: Timestamp,
    },
    /// Marks the service for removal; its tasks go first. Answer: `Service`.
    RemoveService {
        /// The service.
        id: ServiceId,
        /// Only if the service still has this version.
        version: Option<u64>,
        /// When.
        at: Timestamp,
    },
    /// Planned. Creates a task for each slot that has none, or next to the one that it shall replace
    /// ([`NewTask::replaces`]); other slots are left as they are.
    CreateTasks {
        /// Of the planner.
        term: u64,
        /// The service.
        service: ServiceId,
        /// Number of the revision that the tasks run: the service's current one.
        revision: u64,
        /// Which slots.
        slots: Vec<NewTask>,
        /// When.
        at: Timestamp,
    },
    /// Planned. Gives tasks to nodes. Each placement is checked again; those that do not hold any more are
    /// left.
    AssignTasks {
        /// Of the planner.
        term: u64,
        /// Which task goes where.
        placements: Vec<(TaskId, NodeId)>,
        /// When.
        at: Timestamp,
    },
    /// Planned. Moves what is desired of tasks forward; tasks that are already there or gone are left.
    SetDesired {
        /// Of the planner.
        term: u64,
        /// The tasks.
        tasks: Vec<TaskId>,
        /// What is wanted of them.
        desired: Desired,
        /// When.
        at: Timestamp,
    },
    /// Planned. Forgets tasks that are not wanted and hold nothing; others are left.
    DeleteTasks {
        /// Of the planner.
        term: u64,
        /// The tasks.
        tasks: Vec<TaskId>,
    },
    /// Planned. Forgets a service that is being removed and has no tasks left.
    DeleteService {
        /// Of the planner.
        term: u64,
        /// The service.
        id: ServiceId,
    },
    /// Planned. Whether managers hear of a node.
    SetNodeStatus {
        /// Of the planner.
        term: u64,
        /// The node.
        node: NodeId,
        /// The session that was judged; nothing happens if the node opened a newer one since.
        session: u64,
        /// `Down` or `Ready`.
        status: NodeStatus,
        /// When.
        at: Timestamp,
    },
    /// Planned, once every member supports the level. Lower ones leave it as it is. Answer: `Done`.
    RaiseLevel {
        /// Of the planner.
        term: u64,
        /// From the next entry on.
        level: u32,
    },
    /// A node joins, or joins again with the same id. Answer: `Node`.
    RegisterNode {
        /// As in its certificate.
        id: NodeId,
        /// Unique in the cluster.
        name: NodeName,
        /// What it is in the cluster.
        role: NodeRole,
        /// What the agent measured.
        description: NodeDescription,
        /// When.
        at: Timestamp,
    },
    /// People's part of a node. Answer: `Node`; unchanged when it is already so.
    UpdateNode {
        /// The node.
        id: NodeId,
        /// Only if the node still has this version.
        version: Option<u64>,
        /// Labels to set.
        label_add: BTreeMap<String, String>,
        /// Labels to take away, by key; after `label_add`.
        label_rm: BTreeSet<String>,
        /// `None` leaves it.
        availability: Option<Availability>,
        /// When.
        at: Timestamp,
    },
    /// Forgets a node. Refused while it is READY and holds tasks, unless forced: its tasks are then taken for gone.
    /// Answer: `Done`, also when there is no such node.
    RemoveNode {
        /// The node.
        id: NodeId,
        /// Also while it is up and runs tasks.
        force: bool,
        /// When.
        at: Timestamp,
    },
    /// Answer: `Token`. The same id with the same content again is `Unchanged`.
    CreateToken {
        /// Made by the client.
        id: TokenId,
        /// What the machine becomes.
        role: NodeRole,
        /// Of its secret.
        hash: TokenHash,
        /// From then on it is refused.
        expires_at: Option<Timestamp>,
        /// How many machines may join with it.
        max_uses: Option<u32>,
        /// When.
        at: Timestamp,
    },
    /// Answer: `Done`.
    RemoveToken {
        /// The token.
        id: TokenId,
        /// When.
        at: Timestamp,
    },
    /// Planned. Forgets tokens that expired a while ago; others are left.
    DeleteTokens {
        /// Of the planner.
        term: u64,
        /// The tokens.
        tokens: Vec<TokenId>,
        /// When.
        at: Timestamp,
    },
    /// A machine joins with a token, and uses it once. A node that is there already (its id is made from its key, so
    /// it is the same machine) does not use the token again. Answer: `Node`.
    JoinNode {
        /// Of the token's secret.
        hash: TokenHash,
        /// Made from the node's key.
        id: NodeId,
        /// Unique in the cluster.
        name: NodeName,
        /// What the agent measured.
        description: NodeDescription,
        /// When.
        at: Timestamp,
    },
    /// A node's agent connected. Answer: `Session`. Each time gives a higher number, and only the newest
    /// counts.
    OpenSession {
        /// The node.
        node: NodeId,
        /// What the agent measured.
        description: NodeDescription,
        /// When.
        at: Timestamp,
    },
    /// What a worker says of its tasks.
    ReportTasks {
        /// The node.
        node: NodeId,
        /// Number of its session; reports of another one are refused.
        session: u64,
        /// One or more per task, in the order in which they became true.
        reports: Vec<TaskReport>,
        /// When.
        at: Timestamp,
    },
}

/// A slot that gets a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewTask {
    /// Place in the service: see [`warren_types::Task::slot`].
    pub slot: u32,
    /// Not placed before this.
    pub not_before: Option<Timestamp>,
    /// What is wanted of it at first: `Ready` where it waits beside the one that it replaces.
    pub desired: Desired,
    /// The number of the live task of the slot that it shall replace: created only if that one is still live and is
    /// the slot's only one. `None`: created only if the slot has no live task.
    pub replaces: Option<u64>,
    /// It runs on this node or nowhere.
    pub bound_to: Option<NodeId>,
}

impl Command {
    /// The term of the planner; `None` for what people and workers ask for.
    pub fn planned_in(&self) -> Option<u64> {
        match self {
            Self::CreateTasks { term, .. }
            | Self::AssignTasks { term, .. }
            | Self::SetDesired { term, .. }
            | Self::DeleteTasks { term, .. }
            | Self::DeleteService { term, .. }
            | Self::DeleteTokens { term, .. }
            | Self::SetNodeStatus { term, .. }
            | Self::RaiseLevel { term, .. } => Some(*term),
            Self::CreateCluster { .. }
            | Self::CreateService { .. }
            | Self::ScaleService { .. }
            | Self::RemoveService { .. }
            | Self::UpdateService { .. }
            | Self::RollbackService { .. }
            | Self::RegisterNode { .. }
            | Self::UpdateNode { .. }
            | Self::RemoveNode { .. }
            | Self::CreateToken { .. }
            | Self::RemoveToken { .. }
            | Self::JoinNode { .. }
            | Self::OpenSession { .. }
            | Self::ReportTasks { .. } => None,
        }
    }

    /// The leader's time; `None` where it does not matter.
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Self::CreateCluster { at, .. }
            | Self::CreateService { at, .. }
            | Self::ScaleService { at, .. }
            | Self::RemoveService { at, .. }
            | Self::CreateTasks { at, .. }
            | Self::AssignTasks { at, .. }
            | Self::SetDesired { at, .. }
            | Self::SetNodeStatus { at, .. }
            | Self::UpdateService { at, .. }
            | Self::RollbackService { at, .. }
            | Self::RegisterNode { at, .. }
            | Self::UpdateNode { at, .. }
            | Self::RemoveNode { at, .. }
            | Self::CreateToken { at, .. }
            | Self::RemoveToken { at, .. }
            | Self::DeleteTokens { at, .. }
            | Self::JoinNode { at, .. }
            | Self::OpenSession { at, .. }
            | Self::ReportTasks { at, .. } => Some(*at),
            Self::DeleteTasks { .. } | Self::DeleteService { .. } | Self::RaiseLevel { .. } => None,
        }
    }
}
