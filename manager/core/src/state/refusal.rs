//! Why a command or a question was refused: what was wanted, what was found, what to do.

use warren_types::{ClusterId, NodeName, NodeStatus, PublishedPort, ServiceName, Violations};

/// A kind of object, as people call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A service.
    Service,
    /// A task.
    Task,
    /// A node.
    Node,
    /// A join token.
    Token,
}

impl Kind {
    /// `service`, `task`, `node`, `token`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Task => "task",
            Self::Node => "node",
            Self::Token => "token",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not exist, or not any more.
    #[error("{kind} {reference:?} does not exist; `warren {kind} ls` shows what does")]
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
    /// There are as many tokens as there may be.
    #[error("there are {found} tokens already; remove some first (`warren token ls`)")]
    TooManyTokens {
        /// How many.
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

impl Refusal {
    pub(crate) fn not_found(kind: Kind, reference: impl ToString) -> Self {
        Self::NotFound { kind, reference: reference.to_string() }
    }
}
