//! Keys of the work queue. A wake-up has a key, never data.

use warren_types::ServiceId;

/// One object to reconcile. Ordered as a sweep enqueues them: cluster-wide ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReconcileKey {
    /// The feature level of the cluster.
    Level,
    /// The raft membership.
    Members,
    /// Nodes without contact.
    Liveness,
    /// Tasks without a node.
    Schedule,
    /// Expired tokens.
    Tokens,
    /// The tasks of a service.
    Service(ServiceId),
    /// Records of a service that are not needed any more.
    Reap(ServiceId),
}
