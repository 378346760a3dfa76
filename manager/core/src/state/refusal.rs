//! Why a command or a question was refused: what was wanted, what was found, what to do.

mod kind;

use warren_types::{
    ClusterId, ContentKind, ContentName, ManagerAddress, NodeName, NodeRole, NodeStatus, PublishedPort,
    ServiceName, Violations, VolumeName,
};

pub use self::kind::Kind;
use super::{MAX_CONTENT_BYTES, MAX_MEMBERS};

/// Why nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not exist, or not any more.
    #[error("{kind} {reference:?} does not exist; `warren {}` shows what does", kind.list())]
    NotFound {
        /// What was looked for.
        kind: Kind,
        /// As it was given.
        reference: String,
    },
    /// An id prefix fits more than one.
    #[error("{reference:?} begins more than one {kind} id ({}); give more of it", matches.join(", "))]
    Ambiguous {
        /// What was looked for.
        kind: Kind,
        /// As it was given.
        reference: String,
        /// Some ids that begin so.
        matches: Vec<String>,
    },
    /// The name, or the id with other content, is taken.
    #[error("{kind} {name} already exists; choose another name or remove it first")]
    AlreadyExists {
        /// What should have been created.
        kind: Kind,
        /// Name of what is there.
        name: String,
    },
    /// An earlier request with this id created it, and somebody has changed it since.
    #[error(
        "an earlier request with this id created {kind} {name}, and somebody changed it after that (it is at version \
         {found}): this request changes nothing; see what it is now with `warren {}`",
        kind.show(name)
    )]
    ChangedSinceCreated {
        /// What should have been created.
        kind: Kind,
        /// Its name.
        name: String,
        /// As it is.
        found: u64,
    },
    /// Another service publishes the host port.
    #[error("host port {} is already published by service {owner}; choose another port", port.host_port)]
    PortTaken {
        /// The port that was asked for.
        port: PublishedPort,
        /// Who has it.
        owner: ServiceName,
    },
    /// It changed since it was read.
    #[error("{kind} {name} is at version {found}, not {wanted}: it changed meanwhile; look again and repeat")]
    VersionConflict {
        /// What should have been changed.
        kind: Kind,
        /// Its name.
        name: String,
        /// As the caller knew it.
        wanted: u64,
        /// As it is.
        found: u64,
    },
    /// The tasks to create are of a revision that is not the current one.
    #[error("service {service} is at revision {found}, not {wanted}; plan again")]
    StaleRevision {
        /// The service.
        service: ServiceName,
        /// As the planner knew it.
        wanted: u64,
        /// As it is.
        found: u64,
    },
    /// Fields that say something impossible.
    #[error("{0}")]
    Invalid(Violations),
    /// The service is on its way out.
    #[error("service {service} is being removed; wait until it is gone")]
    Removing {
        /// The service.
        service: ServiceName,
    },
    /// The service cannot be forgotten yet.
    #[error("service {service} still has {tasks} task records or is not being removed; remove it first")]
    InUse {
        /// The service.
        service: ServiceName,
        /// Records it has.
        tasks: u32,
    },
    /// There is no cluster yet.
    #[error("there is no cluster yet; create one first (`warren manager init`)")]
    NoCluster,
    /// There is a cluster, with another id.
    #[error("this manager belongs to cluster {found}, not {wanted}; use another data directory")]
    OtherCluster {
        /// The id that was asked for.
        wanted: ClusterId,
        /// The id it has.
        found: ClusterId,
    },
    /// Planned by an earlier leader.
    #[error("the plan is of term {planned}, the entry of term {current}; plan again")]
    StalePlan {
        /// Term of the planner's state.
        planned: u64,
        /// Term of the entry.
        current: u64,
    },
    /// Said in a session that is not the node's newest.
    #[error("node {node} is in session {current}, this is of session {sent}; open a new session")]
    StaleSession {
        /// The node.
        node: NodeName,
        /// Number that came with it.
        sent: u64,
        /// Number of the newest session.
        current: u64,
    },
    /// The service has no such revision.
    #[error(
        "service {service} has no revision {wanted} to return to; `warren service history {service}` shows those it has"
    )]
    NoRevision {
        /// The service.
        service: ServiceName,
        /// As it was asked for.
        wanted: u64,
    },
    /// The service was never changed.
    #[error("service {service} has only its first revision; there is nothing to return to")]
    NothingBefore {
        /// The service.
        service: ServiceName,
    },
    /// The node cannot be forgotten yet.
    #[error(
        "node {node} is {status} and has {tasks} tasks; drain it or stop it first, or force it and lose them",
        status = status.as_str()
    )]
    NodeInUse {
        /// The node.
        node: NodeName,
        /// Whether managers hear of it.
        status: NodeStatus,
        /// How many tasks hold something there.
        tasks: u32,
    },
    /// There is no token with that secret, or not any more.
    #[error(
        "the token is not known: it was removed, or its end is missing; make a new one with `warren token create`"
    )]
    TokenUnknown,
    /// The token is too old.
    #[error("the token expired; make a new one with `warren token create`")]
    TokenExpired,
    /// The token has been used as often as it may.
    #[error(
        "the token has been used {uses} times, as often as it may; make a new one with `warren token create`"
    )]
    TokenUsedUp {
        /// How often.
        uses: u32,
    },
    /// The token is for machines of another role.
    #[error(
        "the token is for a {found}, not for a {wanted}: join with `warren {found} join`, or make another one with \
         `warren token create --role {wanted}`",
        wanted = wanted.as_str(),
        found = found.as_str()
    )]
    TokenRole {
        /// What the machine wants to be.
        wanted: NodeRole,
        /// What the token makes it.
        found: NodeRole,
    },
    /// There are as many tokens as there may be.
    #[error("there are {found} tokens already; remove some first (`warren token ls`)")]
    TooManyTokens {
        /// How many.
        found: u32,
    },
    /// Services or tasks use the content.
    #[error("{kind} {name} is used by {}; remove or update that first", some(by))]
    ContentInUse {
        /// What it is for.
        kind: ContentKind,
        /// Its name.
        name: ContentName,
        /// Names of the services, all of them.
        by: Vec<String>,
    },
    /// There are as many contents as there may be.
    #[error(
        "there are {found} secrets, configs and credentials already; remove some first (`warren secret ls`, \
         `warren config ls`)"
    )]
    TooManyContents {
        /// How many.
        found: u32,
    },
    /// There is no room for the content's bytes.
    #[error(
        "all secrets, configs and credentials would have {wanted} bytes and may have {MAX_CONTENT_BYTES}; remove \
         some first (`warren secret ls`, `warren config ls`)"
    )]
    ContentsTooLarge {
        /// Of all of them, their kept versions too, sealed.
        wanted: u64,
    },
    /// A revision cannot be returned to, since a secret or config that it uses is gone.
    #[error(
        "revision {revision} of service {service} uses version {number} of {kind} {name}, which is not kept any more; \
         update the service instead"
    )]
    ContentGone {
        /// The service.
        service: ServiceName,
        /// The revision that was asked for.
        revision: u64,
        /// What the content was for.
        kind: ContentKind,
        /// Its name.
        name: ContentName,
        /// Of its version.
        number: u64,
    },
    /// Services or tasks use the volume.
    #[error("volume {name} is used by {}; remove or update that first", some(by))]
    VolumeInUse {
        /// The volume.
        name: VolumeName,
        /// Names of tasks, and of services that no task is known of, all of them.
        by: Vec<String>,
    },
    /// The volume is on its way out.
    #[error(
        "volume {name} is being removed; wait until it is gone (`warren volume rm --purge {name}` goes on with it)"
    )]
    VolumeRemoving {
        /// The volume.
        name: VolumeName,
    },
    /// The volume was not marked for removal.
    #[error("volume {name} is not being removed; remove it first (`warren volume rm --purge {name}`)")]
    VolumeStays {
        /// The volume.
        name: VolumeName,
    },
    /// The data cannot be deleted, since its node cannot be asked.
    #[error(
        "the data of volume {name} is on node {node}, which is {status}; wait for the node, or forget the volume and \
         leave its data (`warren volume rm {name}`)",
        status = status.as_str()
    )]
    VolumeUnreachable {
        /// The volume.
        name: VolumeName,
        /// Where its data is.
        node: NodeName,
        /// Whether managers hear of it.
        status: NodeStatus,
    },
    /// The data cannot be deleted, since its node is not a member any more.
    #[error("the data of volume {name} is on a node that was removed; `warren volume rm {name}` forgets it")]
    VolumeLost {
        /// The volume.
        name: VolumeName,
    },
    /// There are as many volumes as there may be.
    #[error("there are {found} volumes already; remove some first (`warren volume ls`)")]
    TooManyVolumes {
        /// How many.
        found: u32,
    },
    /// Another manager is reached there.
    #[error(
        "{address} is the address of manager {owner}; give this one's own address, or remove {owner} first"
    )]
    AddressTaken {
        /// Where the manager was to be reached.
        address: ManagerAddress,
        /// Who is reached there.
        owner: NodeName,
    },
    /// Without this manager nobody would be left to decide.
    #[error(
        "manager {manager} is the last one that is to vote; add or promote another one first (`warren manager join`, \
         `warren manager promote`)"
    )]
    LastManager {
        /// The manager.
        manager: NodeName,
    },
    /// The manager is on its way out.
    #[error("manager {manager} is being removed; wait until it is gone (`warren manager ls`)")]
    ManagerRemoving {
        /// The manager.
        manager: NodeName,
    },
    /// The manager can only be forgotten when it is not wanted any more.
    #[error(
        "manager {manager} is neither being removed nor replaced; remove it first (`warren manager rm {manager}`)"
    )]
    ManagerStays {
        /// The manager.
        manager: NodeName,
    },
    /// The managers there are have not said who they are.
    #[error("the first manager has not said who it is yet; repeat this in a moment")]
    NoManagers,
    /// There are as many managers as there may be.
    #[error("there are {found} managers and may be {MAX_MEMBERS}; remove one first (`warren manager ls`)")]
    TooManyManagers {
        /// How many, those that are being removed included.
        found: u32,
    },
    /// The manager would not understand the cluster's commands.
    #[error(
        "the cluster is at level {wanted} and this manager's version of Warren supports levels up to {found}; install \
         the version that the other managers have"
    )]
    LevelTooLow {
        /// The cluster's.
        wanted: u32,
        /// Up to which the manager understands commands.
        found: u32,
    },
    /// No node subnet is left.
    #[error("all {given} node subnets of the cluster's address ranges are given out; add a range")]
    Exhausted {
        /// How many there are.
        given: u64,
    },
    /// The entry is not newer than what the state contains.
    #[error("entry {index} is not newer than the applied {applied}; replay only what follows the snapshot")]
    AlreadyApplied {
        /// Of the entry.
        index: u64,
        /// Of the state.
        applied: u64,
    },
}

/// The first names of a list, and how many more there are: `web, api and 3 others`.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 5;
    match names.len() {
        0 => "nothing".into(),
        1 => names[0].clone(),
        2..=SHOWN => {
            let (last, first) = names.split_last().expect("two or more");
            format!("{} and {last}", first.join(", "))
        }
        more => format!("{} and {} others", names[..SHOWN].join(", "), more - SHOWN),
    }
}

impl Refusal {
    pub(crate) fn not_found(kind: Kind, reference: impl ToString) -> Self {
        Self::NotFound { kind, reference: reference.to_string() }
    }
}
