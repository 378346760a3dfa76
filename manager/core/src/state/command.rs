//! Every write there is, as proposed. Commands are deltas, carry all they need, and are harmless the second
//! time.

mod new_task;
mod when;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::Ipv4Net;
use warren_types::{
    Availability, ClusterId, ContentId, ContentKind, ContentName, Desired, ManagerAddress, ManagerId,
    MemberId, NodeCondition, NodeDescription, NodeId, NodeName, NodeRole, NodeStatus, SealedContent,
    ServiceId, ServiceSpec, Suffrage, TaskId, TaskReport, Timestamp, TokenHash, TokenId, VolumeDriver,
    VolumeId, VolumeName,
};

pub use self::new_task::NewTask;

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
    /// Answer: `Service`. The same id with the same spec again is `Unchanged`, as long as nobody has changed the
    /// service; a new version of a content that it uses is no such change.
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
    /// Planned, once every member supports the level. Lower ones leave it as it is, and so do those that a member does
    /// not support. Answer: `Done`.
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
    /// Answer: `Node`; `Done` when there is no such node.
    RemoveNode {
        /// The node.
        id: NodeId,
        /// Also while it is up and runs tasks.
        force: bool,
        /// When.
        at: Timestamp,
    },
    /// Answer: `Token`. The same id with the same content and about the same lifetime again is `Unchanged`.
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
    /// Answer: `Token`; `Done` when there is no such token.
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
        /// The member that holds it; 0 where there was none to name.
        manager: MemberId,
        /// When.
        at: Timestamp,
    },
    /// Answer: `Content`. The same id, kind, name, labels and bytes again is `Unchanged`, as long as nobody has
    /// updated it.
    CreateContent {
        /// Made by the client.
        id: ContentId,
        /// What it is for.
        kind: ContentKind,
        /// Unique among those of its kind.
        name: ContentName,
        /// Free key-value pairs.
        labels: BTreeMap<String, String>,
        /// Its first version.
        content: SealedContent,
        /// When.
        at: Timestamp,
    },
    /// Adds a version, and to every service whose current revision uses the content a revision with that. Answer:
    /// `Content`. Unchanged, whatever the version, when these are its bytes already.
    UpdateContent {
        /// The content.
        id: ContentId,
        /// Only if the content still has this version.
        version: Option<u64>,
        /// Its new version.
        content: SealedContent,
        /// When.
        at: Timestamp,
    },
    /// Refused while a service or a task uses it. Answer: `Content`.
    RemoveContent {
        /// The content.
        id: ContentId,
        /// When.
        at: Timestamp,
    },
    /// Answer: `Volume`. The same id with the same fields again is `Unchanged`.
    CreateVolume {
        /// Made by the client.
        id: VolumeId,
        /// Unique in the cluster.
        name: VolumeName,
        /// How it is kept.
        driver: VolumeDriver,
        /// What the driver is told.
        options: BTreeMap<String, String>,
        /// Free key-value pairs.
        labels: BTreeMap<String, String>,
        /// Where its data is; `None`: where its first task comes to.
        node: Option<NodeId>,
        /// When.
        at: Timestamp,
    },
    /// Refused while a service or a task uses it. Forgets a volume and leaves its data; with `purge` it is marked, so
    /// that nothing uses it any more, until [`Self::DeleteVolume`] says that its data is gone. One that has no data is
    /// forgotten also then. Answer: `Volume`.
    RemoveVolume {
        /// The volume.
        id: VolumeId,
        /// Its data goes too; refused while managers do not hear of its node.
        purge: bool,
        /// When.
        at: Timestamp,
    },
    /// Forgets a volume whose data was deleted. Answer: `Done`, also when it is gone.
    DeleteVolume {
        /// The volume.
        id: VolumeId,
        /// When.
        at: Timestamp,
    },
    /// What is wrong with a node. Answer: `Done`; unchanged when it is already so.
    SetNodeConditions {
        /// The node.
        node: NodeId,
        /// Number of its session; that of another one is refused.
        session: u64,
        /// All of them.
        conditions: BTreeSet<NodeCondition>,
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
    /// A manager's own word at its start. The first one ever makes the first record, as a voter; after that a manager
    /// is known by its id in the raft group and that in its certificate. Answer: `Member`.
    RegisterMember {
        /// Its id in the raft group.
        member: MemberId,
        /// In its certificate.
        id: ManagerId,
        /// Unique among managers.
        name: NodeName,
        /// Where it is reached; unique among managers.
        address: ManagerAddress,
        /// Up to which level it understands commands.
        level: u32,
        /// When.
        at: Timestamp,
    },
    /// A machine becomes a manager with a token of that role, and uses it once; the same one again does not. It is to
    /// vote. Where a manager is known at its address, it takes that one's place. Answer: `Member`.
    JoinManager {
        /// Of the token's secret.
        hash: TokenHash,
        /// Made from the manager's key.
        id: ManagerId,
        /// Unique among managers, but for the one that it replaces.
        name: NodeName,
        /// Where it is reached.
        address: ManagerAddress,
        /// Up to which level it understands commands: the cluster's, or more.
        level: u32,
        /// When.
        at: Timestamp,
    },
    /// Answer: `Member`. Unchanged, whatever the version, when it is already so.
    UpdateMember {
        /// The manager.
        member: MemberId,
        /// Only if the manager still has this version.
        version: Option<u64>,
        /// What it is to be; `None` leaves it. Refused where nobody would be left to vote.
        wanted: Option<Suffrage>,
        /// Where it is reached; `None` leaves it.
        address: Option<ManagerAddress>,
        /// When.
        at: Timestamp,
    },
    /// Marks a manager: it leaves the raft group, then its record goes. Refused where nobody would be left to vote.
    /// Answer: `Member`; `Done` when there is no such manager.
    RemoveMember {
        /// The manager.
        member: MemberId,
        /// When.
        at: Timestamp,
    },
    /// Planned, once a manager that is being removed or replaced is out of the raft group: forgets it. Answer: `Done`,
    /// also when it is gone.
    DeleteMember {
        /// Of the planner.
        term: u64,
        /// The manager.
        member: MemberId,
    },
}
