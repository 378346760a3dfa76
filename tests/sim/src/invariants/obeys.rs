//! A worker never obeys what is older than what it remembers, of this life of the cluster or of another.

use warren_types::{AssignmentVersion, NodeId};

/// It remembered `had`, and obeys `has` now.
pub fn holds(node: NodeId, had: AssignmentVersion, has: AssignmentVersion) -> Result<(), String> {
    if has >= had {
        return Ok(());
    }
    Err(format!("workers go forward only: {node} obeys {has:?} after {had:?}"))
}
