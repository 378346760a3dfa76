//! The table of all methods with the role that each requires.

use std::fmt;

use warren_security::Role;
use warren_types::UserRole;

/// The role that a method requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredRole {
    /// A caller without an identity. Callers with an identity are rejected.
    Anonymous,
    /// A caller without an identity, or one with this role, which renews the certificate of its own key.
    Renewal(Role),
    /// Reads.
    Viewer,
    /// Runs workloads, as far as [`super::admission_policy`] allows it.
    Operator,
    /// Membership, users, and settings.
    Admin,
    /// The agent of a node.
    Worker,
    /// A manager. [`warren_replica::MemberDirectory`] decides which managers are admitted.
    Manager,
}

impl fmt::Display for RequiredRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "anonymous",
            Self::Renewal(role) => role.as_str(),
            Self::Viewer => UserRole::Viewer.as_str(),
            Self::Operator => UserRole::Operator.as_str(),
            Self::Admin => UserRole::Admin.as_str(),
            Self::Worker => Role::Worker.as_str(),
            Self::Manager => Role::Manager.as_str(),
        })
    }
}

/// All methods. A method that is not listed is rejected.
pub const METHODS: [(&str, RequiredRole); 92] = [
    ("/warren.v1.Services/Create", RequiredRole::Operator),
    ("/warren.v1.Services/Get", RequiredRole::Viewer),
    ("/warren.v1.Services/List", RequiredRole::Viewer),
    ("/warren.v1.Services/Scale", RequiredRole::Operator),
    ("/warren.v1.Services/Remove", RequiredRole::Operator),
    ("/warren.v1.Services/Update", RequiredRole::Operator),
    ("/warren.v1.Services/Rollback", RequiredRole::Operator),
    ("/warren.v1.Services/Resume", RequiredRole::Operator),
    ("/warren.v1.Services/ListRevisions", RequiredRole::Viewer),
    // Not for viewers: it tells whether bytes are those of a secret.
    ("/warren.v1.Services/Forecast", RequiredRole::Operator),
    ("/warren.v1.Tasks/Get", RequiredRole::Viewer),
    ("/warren.v1.Tasks/List", RequiredRole::Viewer),
    ("/warren.v1.Tasks/Exec", RequiredRole::Operator),
    ("/warren.v1.Tasks/Restart", RequiredRole::Operator),
    ("/warren.v1.Nodes/Get", RequiredRole::Viewer),
    ("/warren.v1.Nodes/List", RequiredRole::Viewer),
    ("/warren.v1.Nodes/Update", RequiredRole::Admin),
    ("/warren.v1.Nodes/Remove", RequiredRole::Admin),
    ("/warren.v1.Nodes/Verify", RequiredRole::Admin),
    ("/warren.v1.Nodes/Upgrade", RequiredRole::Admin),
    ("/warren.v1.Tokens/Create", RequiredRole::Admin),
    ("/warren.v1.Tokens/List", RequiredRole::Admin),
    ("/warren.v1.Tokens/Remove", RequiredRole::Admin),
    ("/warren.v1.Users/Create", RequiredRole::Admin),
    ("/warren.v1.Users/Get", RequiredRole::Admin),
    ("/warren.v1.Users/List", RequiredRole::Admin),
    ("/warren.v1.Users/Update", RequiredRole::Admin),
    ("/warren.v1.Users/Remove", RequiredRole::Admin),
    ("/warren.v1.Users/ListKeys", RequiredRole::Admin),
    ("/warren.v1.Users/RevokeKey", RequiredRole::Admin),
    ("/warren.v1.Users/Login", RequiredRole::Anonymous),
    ("/warren.v1.Users/Renew", RequiredRole::Renewal(Role::User)),
    ("/warren.v1.SecretObjects/Create", RequiredRole::Operator),
    ("/warren.v1.SecretObjects/Update", RequiredRole::Operator),
    ("/warren.v1.SecretObjects/Get", RequiredRole::Viewer),
    ("/warren.v1.SecretObjects/Read", RequiredRole::Operator),
    ("/warren.v1.SecretObjects/List", RequiredRole::Viewer),
    ("/warren.v1.SecretObjects/Remove", RequiredRole::Operator),
    ("/warren.v1.Networks/Create", RequiredRole::Operator),
    ("/warren.v1.Networks/Get", RequiredRole::Viewer),
    ("/warren.v1.Networks/List", RequiredRole::Viewer),
    ("/warren.v1.Networks/Remove", RequiredRole::Operator),
    ("/warren.v1.Volumes/Create", RequiredRole::Operator),
    ("/warren.v1.Volumes/Get", RequiredRole::Viewer),
    ("/warren.v1.Volumes/List", RequiredRole::Viewer),
    ("/warren.v1.Volumes/Remove", RequiredRole::Operator),
    ("/warren.v1.Membership/Join", RequiredRole::Anonymous),
    ("/warren.v1.Membership/Renew", RequiredRole::Renewal(Role::Worker)),
    ("/warren.v1.Membership/Leave", RequiredRole::Worker),
    ("/warren.v1.Managers/Join", RequiredRole::Anonymous),
    ("/warren.v1.Managers/List", RequiredRole::Viewer),
    ("/warren.v1.Managers/Update", RequiredRole::Admin),
    ("/warren.v1.Managers/Remove", RequiredRole::Admin),
    ("/warren.v1.Managers/TransferLeadership", RequiredRole::Admin),
    ("/warren.v1.Managers/Backup", RequiredRole::Admin),
    ("/warren.v1.Logs/Read", RequiredRole::Viewer),
    ("/warren.v1.Cluster/Info", RequiredRole::Viewer),
    ("/warren.v1.Cluster/Update", RequiredRole::Admin),
    ("/warren.v1.Cluster/RotateCa", RequiredRole::Admin),
    ("/warren.v1.Cluster/GetCa", RequiredRole::Viewer),
    ("/warren.v1.Cluster/GetUnlockKey", RequiredRole::Admin),
    ("/warren.v1.Cluster/RotateUnlockKey", RequiredRole::Admin),
    ("/warren.v1.Cluster/RotateKeys", RequiredRole::Admin),
    ("/warren.v1.Cluster/GetKeys", RequiredRole::Viewer),
    ("/warren.v1.Cluster/ListBackgroundTasks", RequiredRole::Viewer),
    ("/warren.v1.Cluster/Watch", RequiredRole::Viewer),
    ("/warren.v1.Cluster/StreamEvents", RequiredRole::Viewer),
    ("/warren.v1.Cluster/Why", RequiredRole::Viewer),
    ("/warren.v1.Images/Import", RequiredRole::Operator),
    ("/warren.v1.Images/Pull", RequiredRole::Operator),
    ("/warren.v1.Images/List", RequiredRole::Viewer),
    ("/warren.v1.Images/Prune", RequiredRole::Admin),
    ("/warren.v1.Images/Copy", RequiredRole::Operator),
    // Uses the credentials of the cluster.
    ("/warren.v1.Images/Resolve", RequiredRole::Operator),
    ("/warren.v1.Images/FindHolders", RequiredRole::Worker),
    ("/warren.v1.Sessions/Establish", RequiredRole::Worker),
    ("/warren.v1.Sessions/Attach", RequiredRole::Worker),
    ("/warren.v1.Sessions/FetchSecretObjects", RequiredRole::Worker),
    ("/warren.v1.Sessions/CheckNode", RequiredRole::Anonymous),
    ("/warren.v1.Peers/StreamRaft", RequiredRole::Manager),
    ("/warren.v1.Peers/InstallSnapshot", RequiredRole::Manager),
    ("/warren.v1.Peers/ForwardProposals", RequiredRole::Manager),
    ("/warren.v1.Peers/ListContacts", RequiredRole::Manager),
    ("/warren.v1.Peers/Status", RequiredRole::Manager),
    ("/warren.v1.Peers/TransferLeadership", RequiredRole::Manager),
    ("/warren.v1.Peers/ListNodeReports", RequiredRole::Manager),
    ("/warren.v1.Peers/WatchProgress", RequiredRole::Manager),
    ("/warren.v1.Peers/AwaitNetwork", RequiredRole::Manager),
    ("/warren.v1.Peers/Relay", RequiredRole::Manager),
    ("/warren.v1.Peers/CheckManager", RequiredRole::Anonymous),
    ("/warren.v1.Peers/ReadAudit", RequiredRole::Manager),
    ("/warren.v1.Cluster/Audit", RequiredRole::Admin),
];

/// What a caller is in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerRole {
    /// A user with a listed key, or somebody who may open the local socket.
    User(UserRole),
    /// The agent of a node.
    Worker,
    /// A manager.
    Manager,
    /// Without a certificate.
    Anonymous,
}

impl fmt::Display for CallerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User(role) => role.as_str(),
            Self::Worker => Role::Worker.as_str(),
            Self::Manager => Role::Manager.as_str(),
            Self::Anonymous => "anonymous",
        })
    }
}

/// Methods of operators that only read.
const OPERATOR_READS: [&str; 1] = ["/warren.v1.SecretObjects/Read"];

/// Whether `path` only reads, so that a repeated call is safe on any manager.
pub(super) fn is_read(path: &str) -> bool {
    METHODS.iter().any(|(method, need)| *method == path && *need == RequiredRole::Viewer)
        || OPERATOR_READS.contains(&path)
}
