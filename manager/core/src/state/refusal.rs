//! Why a command or a query was rejected: what was expected, what was found, what to do.

mod kind;

use warren_types::{
    Bytes, ClusterId, ManagerAddress, NetworkName, NodeName, NodeRole, NodeStatus, PublishedPort,
    SecretObjectKind, SecretObjectName, ServiceName, UserName, Violations, VolumeName,
};

pub use self::kind::ObjectKind;
use super::{MAX_MEMBERS, MAX_NETWORKS, MAX_SECRET_OBJECTS_SIZE};

/// Why nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not exist, or not any more.
    #[error("{kind} {reference:?} does not exist; `warren {}` lists the existing ones", kind.list_command())]
    NotFound {
        /// The kind of the object.
        kind: ObjectKind,
        /// The reference in the request.
        reference: String,
    },
    /// An id prefix matches more than one object.
    #[error("{reference:?} is a prefix of more than one {kind} id ({}); give a longer prefix", matches.join(", "))]
    Ambiguous {
        /// The kind of the object.
        kind: ObjectKind,
        /// The reference in the request.
        reference: String,
        /// Some of the matching ids.
        matches: Vec<String>,
    },
    /// Objects of several kinds have that name.
    #[error("{reference:?} is more than one object ({}); give one of them", candidates.join(", "))]
    AmbiguousName {
        /// The reference in the request.
        reference: String,
        /// The objects, each with its kind: `service/web`.
        candidates: Vec<String>,
    },
    /// No object of any kind has that name.
    #[error(
        "no service, task, node, network, volume, secret or config is named {reference:?}, nor has such an id"
    )]
    NothingNamed {
        /// The reference in the request.
        reference: String,
    },
    /// Objects of that kind have no causes to tell.
    #[error(
        "there is no answer for a {kind}; ask about a service, task, node, network, volume, secret or config, like \
         service/web, or about the certificate of a manager, node or user, like certificate/ann"
    )]
    NoAnswerFor {
        /// The kind.
        kind: ObjectKind,
    },
    /// Nobody with that name, id or key has or had a certificate.
    #[error(
        "no manager, node or user is named {reference:?}, and no other id or key is known that begins so; give a name, \
         the id of a removed machine, or 8 digits of a key of `warren user keys`"
    )]
    NoCertificate {
        /// The reference in the request.
        reference: String,
    },
    /// The name, or the id with other fields, is taken.
    #[error("{kind} {name} already exists; choose another name or remove it first")]
    AlreadyExists {
        /// The kind of the object to create.
        kind: ObjectKind,
        /// Name of the existing object.
        name: String,
    },
    /// An earlier request with this id created it, and it was changed since.
    #[error(
        "an earlier request with this id created {kind} {name}, which was changed since (it is at version \
         {found}): this request changes nothing; see its current state with `warren {}`",
        kind.show_command(name)
    )]
    ChangedSinceCreated {
        /// The kind of the object to create.
        kind: ObjectKind,
        /// Its name.
        name: String,
        /// Its current version.
        found: u64,
    },
    /// Another service publishes the host port.
    #[error(
        "host port {} is already published by service {owner}; a port belongs to one service on all nodes, choose \
         another one",
        port.host_port
    )]
    PortTaken {
        /// The requested port.
        port: PublishedPort,
        /// The service that publishes it.
        owner: ServiceName,
    },
    /// No automatic host port is free.
    #[error(
        "no host port of 30000 to 32767 is free for service {service}; publish another one with --publish \
         HOST:CONTAINER"
    )]
    AutomaticPortsExhausted {
        /// The service.
        service: ServiceName,
    },
    /// It changed since it was read.
    #[error(
        "{kind} {name} is at version {found}, not {expected}: it changed meanwhile; read it again and retry"
    )]
    VersionConflict {
        /// The kind of the object to change.
        kind: ObjectKind,
        /// Its name.
        name: String,
        /// The version in the request.
        expected: u64,
        /// The current version.
        found: u64,
    },
    /// The tasks to create are of a revision that is not the current one.
    #[error("service {service} is at revision {found}, not {wanted}; plan again")]
    StaleRevision {
        /// The service.
        service: ServiceName,
        /// The revision in the plan.
        wanted: u64,
        /// The current revision.
        found: u64,
    },
    /// Invalid fields.
    #[error("{0}")]
    Invalid(Violations),
    /// More replicas than the cluster's setting allows.
    #[error(
        "{wanted} replicas are more than {limit}, the cluster's limit per service (max-replicas-per-service); \
         give fewer, confirm the number with --yes, or raise the limit with \
         `warren cluster update --max-replicas-per-service {wanted}`"
    )]
    TooManyReplicas {
        /// The desired number.
        wanted: u32,
        /// The cluster's limit.
        limit: u32,
    },
    /// The service is being removed.
    #[error("service {service} is being removed; wait until it is removed")]
    ServiceRemoving {
        /// The service.
        service: ServiceName,
    },
    /// Tasks of other services wait for those of a bootstrap service.
    #[error(
        "service {service} is a bootstrap service: tasks of other services on its nodes may depend on it; remove it \
         with `warren service rm --force {service}`"
    )]
    BootstrapService {
        /// The service.
        service: ServiceName,
    },
    /// The service cannot be deleted yet.
    #[error("service {service} still has {tasks} task records or is not being removed; remove it first")]
    ServiceInUse {
        /// The service.
        service: ServiceName,
        /// The number of its task records.
        tasks: u32,
    },
    /// There is no cluster yet.
    #[error("there is no cluster yet; create one first (`warren manager init`)")]
    NoCluster,
    /// There is a cluster, with another id.
    #[error("this manager belongs to cluster {found}, not {wanted}; use another data directory")]
    ClusterMismatch {
        /// The id in the request.
        wanted: ClusterId,
        /// The id of the cluster.
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
    /// Sent in a session that is not the node's newest.
    #[error("node {node} is in session {current}, this is of session {sent}; open a new session")]
    StaleSession {
        /// The node.
        node: NodeName,
        /// Number of the session in the request.
        sent: u64,
        /// Number of the newest session.
        current: u64,
    },
    /// The service has no such revision.
    #[error(
        "service {service} has no revision {wanted}; list its revisions with `warren service history {service}`"
    )]
    RevisionNotFound {
        /// The service.
        service: ServiceName,
        /// The requested revision.
        wanted: u64,
    },
    /// There is no revision to go back to.
    #[error("service {service} has no earlier revision; a rollback is not possible")]
    NoEarlierRevision {
        /// The service.
        service: ServiceName,
    },
    /// The node cannot be deleted yet.
    #[error(
        "node {node} is {status} and has {tasks} tasks; drain it or stop it first, or use force to give up its tasks",
        status = status.as_str()
    )]
    NodeInUse {
        /// The node.
        node: NodeName,
        /// Its status.
        status: NodeStatus,
        /// How many tasks hold resources there.
        tasks: u32,
    },
    /// There is no token with that secret, or not any more.
    #[error("unknown token: it was removed or is incomplete; create a new one with `warren token create`")]
    TokenNotFound,
    /// The token has expired.
    #[error("the token has expired; create a new one with `warren token create`")]
    TokenExpired,
    /// The token has reached its limit of uses.
    #[error(
        "the token has been used {uses} times, which is its limit; create a new one with `warren token create`"
    )]
    TokenExhausted {
        /// The number of uses.
        uses: u32,
    },
    /// The token is for another role.
    #[error(
        "the token is for a {found}, not for a {wanted}: join with `warren {found} join`, or create one with \
         `warren token create --role {wanted}`",
        wanted = wanted.as_str(),
        found = found.as_str()
    )]
    TokenRoleMismatch {
        /// The role of the host that joins.
        wanted: NodeRole,
        /// The role of the token.
        found: NodeRole,
    },
    /// The limit of tokens is reached.
    #[error("there are {found} tokens already; remove some first (`warren token ls`)")]
    TooManyTokens {
        /// The number of tokens.
        found: u32,
    },
    /// The limit of users is reached.
    #[error("there are {found} users already; remove some first (`warren user ls`)")]
    TooManyUsers {
        /// The number of users.
        found: u32,
    },
    /// There is no login token with that secret, or not any more.
    #[error(
        "unknown login token: it was used, replaced or removed; an administrator makes a new one with `warren user \
         token NAME`"
    )]
    LoginTokenNotFound,
    /// The login token has expired.
    #[error("the login token has expired; an administrator makes a new one with `warren user token NAME`")]
    LoginTokenExpired,
    /// The user is not accepted any more.
    #[error("user {user} has expired")]
    UserExpired {
        /// The user.
        user: UserName,
    },
    /// The user is logged in on too many machines.
    #[error(
        "user {user} is logged in on {found} machines already; end these logins with `warren user logout {user}`"
    )]
    TooManyUserKeys {
        /// The user.
        user: UserName,
        /// The number of keys.
        found: u32,
    },
    /// Services or tasks use the secret object.
    #[error("{kind} {name} is used by {}; remove or update that first", join_names(users))]
    SecretObjectInUse {
        /// The kind of the secret object.
        kind: SecretObjectKind,
        /// Its name.
        name: SecretObjectName,
        /// Names of all services that use it.
        users: Vec<String>,
    },
    /// The limit of secret objects is reached.
    #[error(
        "there are {found} secrets, configs and credentials already; remove some first (`warren secret ls`, \
         `warren config ls`)"
    )]
    TooManySecretObjects {
        /// The number of secret objects.
        found: u32,
    },
    /// The limit of the total size of secret objects is reached.
    #[error(
        "all secrets, configs and credentials would have {wanted} bytes; the limit is {MAX_SECRET_OBJECTS_SIZE}; \
         remove some first (`warren secret ls`, `warren config ls`)"
    )]
    SecretObjectsTooLarge {
        /// Bytes of all of them, their kept versions too, sealed.
        wanted: u64,
    },
    /// It is sealed with an earlier key, or has not been sealed again yet.
    #[error(
        "the keys of the cluster are being replaced; try again in a moment, or see `warren cluster key status`"
    )]
    SecretObjectKeyReplaced,
    /// A rollback is impossible, since a secret or config that the revision uses is deleted.
    #[error(
        "revision {revision} of service {service} uses version {number} of {kind} {name}, which has been deleted; \
         update the service instead"
    )]
    SecretObjectVersionGone {
        /// The service.
        service: ServiceName,
        /// The requested revision.
        revision: u64,
        /// Secret or config.
        kind: SecretObjectKind,
        /// Its name.
        name: SecretObjectName,
        /// The number of its version.
        number: u64,
    },
    /// Services or tasks use the volume.
    #[error("volume {name} is used by {}; remove or update that first", join_names(by))]
    VolumeInUse {
        /// The volume.
        name: VolumeName,
        /// Names of all its tasks, and of services without a task that has it.
        by: Vec<String>,
    },
    /// The volume is being removed.
    #[error(
        "volume {name} is being removed; wait until it is removed \
         (`warren volume rm --purge {name}` continues the removal)"
    )]
    VolumeRemoving {
        /// The volume.
        name: VolumeName,
    },
    /// The volume was removed, and its data remains.
    #[error(
        "volume {name} was removed, and its data{} is still on {node}; use it with `warren volume create {name} \
         --reuse`, delete it with `warren volume purge {name}`, or choose another name",
        size.map(|size| format!(" ({size})")).unwrap_or_default()
    )]
    VolumeReleased {
        /// The volume.
        name: VolumeName,
        /// Name of the node that has the data.
        node: String,
        /// Its size, if the node reported it.
        size: Option<Bytes>,
    },
    /// The volume is not marked for removal.
    #[error("volume {name} is not being removed; remove it first (`warren volume rm --purge {name}`)")]
    VolumeNotRemoving {
        /// The volume.
        name: VolumeName,
    },
    /// The data cannot be deleted, since its node is not reachable.
    #[error(
        "the data of volume {name} is on node {node}, which is {status}; wait for the node, or forget the volume and \
         leave its data (`warren volume rm {name}`)",
        status = status.as_str()
    )]
    VolumeUnreachable {
        /// The volume.
        name: VolumeName,
        /// The node of its data.
        node: NodeName,
        /// Its status.
        status: NodeStatus,
    },
    /// The data cannot be deleted, since its node is not a member any more.
    #[error(
        "the data of volume {name} is on a node that was removed; delete its record with `warren volume rm {name}`"
    )]
    VolumeLost {
        /// The volume.
        name: VolumeName,
    },
    /// The limit of volumes is reached.
    #[error("there are {found} volumes already; remove some first (`warren volume ls`)")]
    TooManyVolumes {
        /// The number of volumes.
        found: u32,
    },
    /// Services or tasks are in the network.
    #[error("network {name} is used by {}; remove or update that first", join_names(by))]
    NetworkInUse {
        /// The network.
        name: NetworkName,
        /// Names of all services that are in it.
        by: Vec<String>,
    },
    /// A rollback is impossible, since a network of the revision was removed.
    #[error(
        "revision {revision} of service {service} is in network {network}, which was removed; update the service \
         instead"
    )]
    NetworkGone {
        /// The service.
        service: ServiceName,
        /// The requested revision.
        revision: u64,
        /// The network.
        network: NetworkName,
    },
    /// The default network cannot be removed.
    #[error("the network default always exists; remove another one, or attach services to other networks")]
    DefaultNetwork,
    /// The limit of networks is reached.
    #[error("there are {MAX_NETWORKS} networks already; remove some first (`warren network ls`)")]
    TooManyNetworks,
    /// No virtual address is free.
    #[error(
        "no virtual address is free for service {service}; extend the address ranges with `warren cluster update \
         --range-add CIDR`, or create it with --endpoint-mode dnsrr"
    )]
    VirtualAddressesExhausted {
        /// The service.
        service: ServiceName,
    },
    /// No number is free for a node.
    #[error(
        "no node number is free; remove nodes that do not exist any more (`warren node ls`, `warren node rm`)"
    )]
    NodeNumbersExhausted,
    /// Another manager has the address.
    #[error("{address} is the address of manager {owner}; use another address, or remove {owner} first")]
    ManagerAddressTaken {
        /// The requested address.
        address: ManagerAddress,
        /// The manager that has it.
        owner: NodeName,
    },
    /// No voter would be left without this manager.
    #[error(
        "manager {manager} is the last desired voter; add or promote another one first (`warren manager join`, \
         `warren manager promote`)"
    )]
    LastManager {
        /// The manager.
        manager: NodeName,
    },
    /// The manager is being removed.
    #[error("manager {manager} is being removed; wait until it is removed (`warren manager ls`)")]
    ManagerRemoving {
        /// The manager.
        manager: NodeName,
    },
    /// The manager can only be deleted when it is being removed or replaced.
    #[error(
        "manager {manager} is not being removed or replaced; remove it first (`warren manager rm {manager}`)"
    )]
    ManagerNotRemoving {
        /// The manager.
        manager: NodeName,
    },
    /// No manager has registered itself yet.
    #[error("no manager has registered yet; try again shortly")]
    NoRegisteredManager,
    /// The limit of managers is reached.
    #[error(
        "there are {found} managers, which is the limit of {MAX_MEMBERS}; remove one first (`warren manager ls`)"
    )]
    TooManyManagers {
        /// The number of managers, those that are being removed included.
        found: u32,
    },
    /// The manager does not support the cluster's feature level.
    #[error(
        "the cluster is at feature level {wanted} and this manager's version of Warren supports feature levels up to \
         {found}; install the version that the other managers have"
    )]
    FeatureLevelTooLow {
        /// The cluster's feature level.
        wanted: u32,
        /// The highest feature level that the manager supports.
        found: u32,
    },
    /// No node subnet is left.
    #[error("all {allocated} node subnets of the cluster's address ranges are allocated; add a range")]
    SubnetsExhausted {
        /// The number of allocated subnets.
        allocated: u64,
    },
    /// The entry is not newer than the state.
    #[error("entry {index} is not newer than the applied {applied}; replay only what follows the snapshot")]
    AlreadyApplied {
        /// Index of the entry.
        index: u64,
        /// Index of the state.
        applied: u64,
    },
}

/// The first names of a list, and how many more there are: `web, api and 3 others`.
fn join_names(names: &[String]) -> String {
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
    pub(crate) fn not_found(kind: ObjectKind, reference: impl ToString) -> Self {
        Self::NotFound { kind, reference: reference.to_string() }
    }
}
