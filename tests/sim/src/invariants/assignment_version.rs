//! A worker never follows an assignment that is older than the one it recorded, in this or another
//! incarnation.

use warren_types::{AssignmentVersion, NodeId};

/// The worker had recorded `had` and follows `has` now.
pub fn holds(node: NodeId, had: AssignmentVersion, has: AssignmentVersion) -> Result<(), String> {
    if has >= had {
        return Ok(());
    }
    Err(format!("assignment versions only increase: {node} follows {has:?} after {had:?}"))
}
