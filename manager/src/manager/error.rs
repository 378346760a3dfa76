//! Why a manager does not start, or cannot continue.

use std::path::PathBuf;
use std::time::Duration;

use warren_bootstrap::ca::CaError;
use warren_bootstrap::join::JoinError;
use warren_bootstrap::member_identity::MemberFileError;
use warren_store::ProposeError;
use warren_store::raft::driver::DriverError;
use warren_store::raft::open::OpenStoreError;
use warren_types::ParseManagerAddressError;

use crate::server::ListenError;

/// Why a manager did not start.
#[derive(Debug, thiserror::Error)]
pub enum ManagerStartError {
    /// The data directory is not usable.
    #[error(transparent)]
    Log(#[from] warren_log::Error),
    /// The keys are invalid.
    #[error(transparent)]
    Keys(#[from] CaError),
    /// The port or the socket cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A directory cannot be created.
    #[error("cannot create {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The stored state is not usable.
    #[error(transparent)]
    Restore(#[from] OpenStoreError),
    /// The driver ended at once.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The member file cannot be read.
    #[error(transparent)]
    MemberFile(#[from] MemberFileError),
    /// The leftovers of an earlier join cannot be removed.
    #[error(transparent)]
    JoinLeftovers(#[from] JoinError),
    /// It was removed from the cluster.
    #[error(
        "this manager was removed from its cluster; to make the machine a manager again, run `warren \
         manager join` with a token"
    )]
    Removed,
    /// The cluster is in a later incarnation without it.
    #[error("{}", superseded_message(*.0))]
    Superseded(u64),
    /// It has not completed its join.
    #[error(
        "{0} exists: this machine began to join a cluster and is not a manager yet; repeat `warren manager \
         join`, or move the directory of that file away to start over"
    )]
    JoinPending(PathBuf),
    /// The advertised address is invalid.
    #[error("advertised address: {0}")]
    AdvertiseAddress(#[from] ParseManagerAddressError),
    /// It did not become leader in time.
    #[error("this manager did not become leader within {0:?}")]
    NoLeader(Duration),
    /// The initial writes were rejected.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// Why a manager cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ManagerFailure {
    /// Its log or its state failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// It was removed from the cluster; its next start fails with the same error.
    #[error("this manager was removed from its cluster")]
    Removed,
    /// The cluster is in this later incarnation; the next start fails with the same error.
    #[error("{}", superseded_message(*.0))]
    Superseded(u64),
}

fn superseded_message(incarnation: u64) -> String {
    format!(
        "superseded: the cluster is in incarnation {incarnation}, which was created without this manager \
         and does not contain its later writes; to make the machine a manager of it, run `warren manager \
         join` with a token; if it was created by mistake, stop its managers and create a new cluster from \
         this one with `warren manager init --force-new-cluster`; tasks on this machine keep running \
         without supervision: the join stops and removes them, the new cluster keeps them"
    )
}
