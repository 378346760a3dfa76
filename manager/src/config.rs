//! Configuration of a manager.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use warren_docker_api::server::DockerEndpoints;
use warren_log::LogEngine;
use warren_registry::ResolveNames;
use warren_security::UnlockKey;
use warren_store::raft::open::ReplicaTuning;
use warren_types::{DataPlane, NodeDescription, NodeName, Taint};

use crate::advertise::AdvertiseAddress;

/// Settings of one manager. `manager init` stores them in the data directory.
#[derive(Debug, Clone)]
pub struct ManagerConfig {
    /// Directory of the log, snapshots and keys. Created if missing; used by one process at a time.
    pub data_dir: PathBuf,
    /// Directory of the socket.
    pub run_dir: PathBuf,
    /// Listen address.
    pub listen: SocketAddr,
    /// Address that other machines use; without a port, the listen port.
    pub advertise: AdvertiseAddress,
    /// Name, unique among managers; also the name of its node.
    pub name: NodeName,
    /// Address ranges of node subnets. Only read when the cluster is created.
    pub cluster_ranges: Vec<Ipv4Net>,
    /// What carries packets between nodes. Only read when the cluster is created.
    pub data_plane: DataPlane,
    /// The node on this machine; `None` for a manager without a worker.
    pub node: Option<LocalNode>,
    /// Storage engine of the log. It must be the engine that created the log.
    pub log_engine: LogEngine,
    /// Vote although the log lacks acknowledged entries.
    pub is_data_loss_accepted: bool,
    /// Where Docker's API is served.
    pub docker: DockerEndpoints,
    /// Tells what the tags of images stand for.
    pub registries: Arc<dyn ResolveNames>,
    /// Opens the keys on the disk, if they are locked.
    pub unlock_key: Option<UnlockKey>,
}

/// The machine's own node in hybrid mode; it has the manager's name.
#[derive(Debug, Clone)]
pub struct LocalNode {
    /// The description of the machine until its agent reports one.
    pub description: NodeDescription,
    /// Its taints when it is registered for the first time.
    pub taints: BTreeSet<Taint>,
}

/// A quarter of the certificate's lifetime is left when it is due. Shorter than that needs, for a machine that was
/// suspended, or whose clock was set: its certificate may have expired at once.
pub const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Limits with fixed defaults; tests set smaller ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManagerTuning {
    /// Limits of the log and the store.
    pub replica: ReplicaTuning,
    /// Interval of the check whether a certificate is due for renewal.
    pub certificate_check_interval: Duration,
}

impl Default for ManagerTuning {
    fn default() -> Self {
        Self { replica: ReplicaTuning::default(), certificate_check_interval: CERTIFICATE_CHECK_INTERVAL }
    }
}
