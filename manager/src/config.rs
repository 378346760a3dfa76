//! What a manager is told at start.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::Ipv4Net;
use warren_log::Engine;
use warren_types::{NodeDescription, NodeName};

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
    /// Address ranges that node subnets come from. Only read when the cluster is created.
    pub ranges: Vec<Ipv4Net>,
    /// The node of this machine, unless it is a manager only.
    pub node: Option<LocalNode>,
    /// What keeps the log. Another than the one that made it is refused.
    pub log_engine: Engine,
}

/// The machine's own node in hybrid mode.
#[derive(Debug, Clone)]
pub struct LocalNode {
    /// For people; unique in the cluster.
    pub name: NodeName,
    /// What is known of the machine before its agent has spoken.
    pub description: NodeDescription,
}

/// Bounds that nobody has to set, but that a test makes small to come to them sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// When a snapshot is due.
    pub snapshots: Bounds,
    /// Entries before a snapshot that stay in the log.
    pub keep_entries: u64,
    /// How many changes a watcher may be behind before it has to list again.
    pub history: usize,
}

impl Default for Tuning {
    /// A thousand entries are enough for a member that was away for a moment.
    fn default() -> Self {
        Self { snapshots: Bounds::default(), keep_entries: 1_000, history: HISTORY }
    }
}
