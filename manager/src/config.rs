//! What a manager is told at start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::Ipv4Net;
use warren_log::Engine;
use warren_types::{NodeDescription, NodeName};

use crate::advertise::Advertise;
use crate::raft::snapshot::Bounds;
use crate::store::HISTORY;

/// Settings of one manager. `manager init` remembers them in the data dir.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds the log, snapshots and keys. Made if it does not exist; one process at a time.
    pub data_dir: PathBuf,
    /// Holds the socket.
    pub run_dir: PathBuf,
    /// Where the one port listens.
    pub listen: SocketAddr,
    /// Where other machines reach it; without a port, at the one that is listened on.
    pub advertise: Advertise,
    /// What people call it; unique among managers. Its node is called so too.
    pub name: NodeName,
    /// Address ranges that node subnets come from. Only read when the cluster is created.
    pub ranges: Vec<Ipv4Net>,
    /// The node of this machine, unless it is a manager only.
    pub node: Option<LocalNode>,
    /// What keeps the log. Another than the one that made it is refused.
    pub log_engine: Engine,
    /// It votes even if its data is older than what it acknowledged.
    pub accept_data_loss: bool,
}

/// The machine's own node in hybrid mode; it is called as the manager is.
#[derive(Debug, Clone)]
pub struct LocalNode {
    /// What is known of the machine before its agent has spoken.
    pub description: NodeDescription,
}

/// Seldom is enough to look whether a certificate is due, since a quarter of its life is left then.
pub const CERTIFICATES: Duration = Duration::from_secs(3600);

/// Bounds that nobody has to set, but that a test makes small to come to them sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// When a snapshot is due.
    pub snapshots: Bounds,
    /// Entries before a snapshot that stay in the log.
    pub keep_entries: u64,
    /// How many changes a watcher may be behind before it has to list again.
    pub history: usize,
    /// How often it is looked whether a certificate is due.
    pub certificates: Duration,
}

impl Default for Tuning {
    /// A thousand entries are enough for a member that was away for a moment.
    fn default() -> Self {
        Self {
            snapshots: Bounds::default(),
            keep_entries: 1_000,
            history: HISTORY,
            certificates: CERTIFICATES,
        }
    }
}
