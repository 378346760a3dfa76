//! The incarnation of the cluster, and rejecting callers that have seen a later one than this manager's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tonic::{Code, Status};
use warren_core::State;
use warren_proto::Problem;
use warren_proto::status::OTHER_INCARNATION;

use crate::store::Store;

/// The latest incarnation of the cluster that users or nodes have seen, if later than this manager's; else 0.
/// Cheap to clone; all clones share one value.
#[derive(Debug, Clone, Default)]
pub struct LaterIncarnation(Arc<AtomicU64>);

impl LaterIncarnation {
    /// The incarnation; 0 if no caller has seen a later one.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Rejects a caller that has seen the incarnation `seen` of the cluster if that is later than the one in
    /// `store`. The claim is not proof, so this manager continues to serve callers that have not seen it.
    ///
    /// # Errors
    /// `Unavailable`, reason `OTHER_INCARNATION`: another manager may be in the later incarnation.
    pub fn check(&self, store: &Store, seen: u64) -> Result<(), Status> {
        let own = incarnation_of(&store.read().state);
        check_incarnation(own, seen).inspect_err(|_| self.record(own, seen))
    }

    fn record(&self, own: u64, seen: u64) {
        if self.0.fetch_max(seen, Ordering::Relaxed) < seen {
            tracing::error!(
                own,
                seen,
                "a caller has seen a later incarnation of the cluster, which may have been created without \
                 this manager: if it was created with --force-new-cluster or a restore, stop this manager, \
                 move the directory `manager` in its data directory away, and run `warren manager join \
                 HOST:PORT --token TOKEN` with a manager of that incarnation"
            );
        }
    }
}

/// Rejects a caller that has seen the incarnation `seen` if that is later than `own`.
///
/// # Errors
/// As [`LaterIncarnation::check`].
pub fn check_incarnation(own: u64, seen: u64) -> Result<(), Status> {
    // Without a state there is no incarnation; the manager catches up first.
    if own == 0 || seen <= own {
        return Ok(());
    }
    let message = format!(
        "this manager is in incarnation {own} of the cluster, the caller has seen incarnation {seen}: ask a \
         manager of that one; if it was created by mistake, make sure that none of its managers runs, and \
         remove the line `incarnation` from the contexts file"
    );
    Err(Problem::new(Code::Unavailable, OTHER_INCARNATION, message).into())
}

/// The incarnation of the cluster in `state`; 0 without a cluster.
pub fn incarnation_of(state: &State) -> u64 {
    state.cluster().map_or(0, |cluster| cluster.incarnation)
}
