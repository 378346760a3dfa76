//! What a wake-up may name. It carries a key, never data.

use warren_types::ServiceId;

/// One thing to look at again. In the order in which a sweep wakes them: what concerns everything comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Do all members support a higher level than the cluster has?
    Level,
    /// Is the raft group what people want it to be?
    Members,
    /// Is a node silent for too long?
    Liveness,
    /// Are there tasks without a node?
    Schedule,
    /// Are there tokens that expired long ago?
    Tokens,
    /// Has the service the tasks it should have, and no others?
    Service(ServiceId),
    /// Are there records of the service that nobody needs any more?
    Reap(ServiceId),
}
