//! Why a manager does not start, or cannot go on.

use std::path::PathBuf;
use std::time::Duration;

use warren_types::ParseAddressError;

use crate::ca::CaError;
use crate::raft::driver::DriverError;
use crate::raft::restore::RestoreError;
use crate::recovery::joining::JoiningError;
use crate::recovery::seat::SeatError;
use crate::server::ServeError;
use crate::store::ProposeError;

/// Why a manager did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Log(#[from] warren_log::Error),
    /// The keys cannot be used.
    #[error(transparent)]
    Keys(#[from] CaError),
    /// The port or the socket cannot be had.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A directory cannot be made.
    #[error("cannot make {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// What is on disk cannot be used.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The driver ended at once.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Which manager this is cannot be read.
    #[error(transparent)]
    Seat(#[from] SeatError),
    /// What an earlier join left behind cannot be removed.
    #[error(transparent)]
    Leftover(#[from] JoiningError),
    /// It is none any more.
    #[error(
        "this manager was removed from its cluster; to make the machine one again, `warren manager join` with a token"
    )]
    Removed,
    /// Its cluster went on without it.
    #[error("{}", overtaken(*.0))]
    Overtaken(u64),
    /// It is none yet.
    #[error(
        "{0} says that this machine began to join a cluster, and it is no manager yet: repeat `warren manager join`, \
         or move the directory of that file away to begin again"
    )]
    Begun(PathBuf),
    /// Nobody could reach it there.
    #[error("where the manager is reached: {0}")]
    Advertise(#[from] ParseAddressError),
    /// It did not become leader.
    #[error("this manager did not become leader within {0:?}")]
    NoLeader(Duration),
    /// The first writes were refused.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// Why a manager cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// Its log or its state.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// It is none any more, and says so at its next start as well.
    #[error("this manager was removed from its cluster")]
    Removed,
    /// The cluster goes on in this later life, and the next start says so as well.
    #[error("{}", overtaken(*.0))]
    Overtaken(u64),
}

fn overtaken(life: u64) -> String {
    format!(
        "the cluster went on without this manager, in its life {life}, and what came in the life before is no part of \
         it; to make the machine a manager of that, `warren manager join` with a token; if that life was begun by \
         mistake, stop its managers and make this one the cluster again with `warren manager init \
         --force-new-cluster`; what runs here runs on, with nobody watching over it: the join stops and removes it, \
         the other keeps it"
    )
}
