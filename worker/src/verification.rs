//! The checks of this node that managers ask for before it gets tasks. Start reading at [`NodeVerifier::run`].
//!
//! A manager decides when they run and what follows; this module only finds out. What it reports about another node
//! is a warning here and changes nothing for that node.

mod network;
mod ping;
mod programs;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use warren_control::{BackgroundTasks, BoxError};
use warren_proto::convert::read_field;
use warren_proto::v1;
use warren_task::DesiredState;
use warren_types::{
    BuiltInCheck, CheckProgram, NetworkView, NodeCheck, NodeCheckOutcome, NodeCheckResult, NodeCondition,
    Violations,
};

use crate::network::desired::gateway;
use crate::network::dns::HOST_RESOLV_CONF;
use crate::node::conditions::NodeConditions;
use network::{PacketPath, Registry, check_dns, check_managers, check_registries};
pub(crate) use programs::CheckContainers;

/// Name of the background task that repeats packets to nodes that were not reached.
const PEER_PROBE: &str = "worker.unreachable-peers";
/// Its interval.
const PEER_PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// What is written to the data directory.
const DISK_SAMPLE: usize = 1 << 20;
/// The most names in one message.
const MAX_NAMES: usize = 8;

/// A request, as the agent understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VerificationRequest {
    timeout: Duration,
    peers: Vec<Peer>,
    registries: Vec<Registry>,
    checks: Vec<NodeCheck>,
}

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Peer {
    name: String,
    gateway: Ipv4Addr,
}

impl TryFrom<v1::VerifyNode> for VerificationRequest {
    type Error = Violations;

    fn try_from(wire: v1::VerifyNode) -> Result<Self, Violations> {
        let v1::VerifyNode { timeout_ms, peers, registries, checks } = wire;
        let peer = |v1::VerificationPeer { name, gateway }| {
            Ok(Peer { name, gateway: read_field("gateway", gateway)? })
        };
        let registry = |v1::VerificationRegistry { host, required }| Registry { host, is_required: required };
        Ok(Self {
            timeout: Duration::from_millis(timeout_ms),
            peers: peers.into_iter().map(peer).collect::<Result<_, Violations>>()?,
            registries: registries.into_iter().map(registry).collect(),
            checks: read_field("checks", checks)?,
        })
    }
}

/// How a check went, with a message.
type Finding = (NodeCheckOutcome, String);

fn passed(message: impl Into<String>) -> Finding {
    (NodeCheckOutcome::Passed, message.into())
}

fn warning(message: impl Into<String>) -> Finding {
    (NodeCheckOutcome::Warning, message.into())
}

fn failed(message: impl Into<String>) -> Finding {
    (NodeCheckOutcome::Failed, message.into())
}

/// Runs the checks of this node.
pub(crate) struct NodeVerifier {
    conditions: Arc<NodeConditions>,
    desired_state: watch::Receiver<DesiredState>,
    network_view: watch::Receiver<NetworkView>,
    data_dir: PathBuf,
    containers: Arc<CheckContainers>,
    packets: Arc<dyn PacketPath>,
    /// Those that did not answer last.
    unreachable: Mutex<Vec<Peer>>,
}

impl NodeVerifier {
    /// Checks that read these states of the node, write to `data_dir` and run `containers`.
    pub fn new(
        conditions: Arc<NodeConditions>,
        desired_state: watch::Receiver<DesiredState>,
        network_view: watch::Receiver<NetworkView>,
        data_dir: PathBuf,
        containers: CheckContainers,
    ) -> Self {
        Self {
            conditions,
            desired_state,
            network_view,
            data_dir,
            containers: Arc::new(containers),
            packets: Arc::new(ping::IcmpEcho),
            unreachable: Mutex::default(),
        }
    }

    fn unreachable(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what an earlier agent left, and repeats packets to nodes that were not reached.
    pub fn start(self: &Arc<Self>, background_tasks: &BackgroundTasks) {
        let verifier = Arc::clone(self);
        let mut has_leftovers = true;
        background_tasks.spawn(PEER_PROBE, PEER_PROBE_INTERVAL, move || {
            let (verifier, is_first) = (Arc::clone(&verifier), std::mem::take(&mut has_leftovers));
            async move {
                if is_first {
                    verifier.containers.remove_leftovers().await;
                }
                let known = verifier.unreachable().clone();
                if !known.is_empty() {
                    verifier.probe_peers(known).await;
                }
                Ok::<_, BoxError>(())
            }
        });
    }

    /// Runs all checks, those of users one after the other, and sends each result. Ends early when nobody receives
    /// them.
    pub async fn run(&self, request: VerificationRequest, results: &mpsc::Sender<NodeCheckResult>) {
        let VerificationRequest { timeout: within, peers, registries, checks } = request;
        let found = BuiltInCheck::ALL.map(|check| {
            let (peers, registries) = (peers.clone(), &registries);
            async move {
                let found = timeout(within, self.run_built_in(check, peers, registries)).await;
                (check, found.unwrap_or_else(|_| failed(format!("no result within {within:?}"))))
            }
        });
        for (check, (outcome, message)) in futures::future::join_all(found).await {
            if results.send(NodeCheckResult::new(check.as_str(), outcome, &message)).await.is_err() {
                return;
            }
        }
        for NodeCheck { name, program } in checks {
            let (outcome, message) = match program {
                CheckProgram::Command(command) => programs::run_command(&command, within).await,
                CheckProgram::Image { image, args } => {
                    let (containers, name) = (Arc::clone(&self.containers), name.to_string());
                    // It is removed also if the manager closes the stream.
                    let run = tokio::spawn(async move { containers.run(&name, &image, &args, within).await });
                    run.await.unwrap_or_else(|error| failed(error.to_string()))
                }
            };
            if results.send(NodeCheckResult::new(name.as_str(), outcome, &message)).await.is_err() {
                return;
            }
        }
    }

    async fn run_built_in(&self, check: BuiltInCheck, peers: Vec<Peer>, registries: &[Registry]) -> Finding {
        match check {
            BuiltInCheck::Dns => check_dns(self.gateway(), HOST_RESOLV_CONF).await,
            BuiltInCheck::ManagerApi => check_managers(self.managers()).await,
            BuiltInCheck::DataPlane => self.check_data_plane(peers).await,
            BuiltInCheck::Registry => check_registries(registries).await,
            BuiltInCheck::Clock => self.check_clock(),
            BuiltInCheck::Disk => self.check_disk().await,
        }
    }

    fn gateway(&self) -> Option<Ipv4Addr> {
        self.desired_state.borrow().settings.as_ref().and_then(gateway)
    }

    fn managers(&self) -> Vec<String> {
        let desired_state = self.desired_state.borrow();
        let settings = desired_state.settings.iter();
        settings.flat_map(|settings| settings.managers.iter().map(ToString::to_string)).collect()
    }

    fn check_clock(&self) -> Finding {
        match self.conditions.message(NodeCondition::ClockSkew) {
            Some(message) => failed(message),
            None => passed(""),
        }
    }

    async fn check_disk(&self) -> Finding {
        if let Some(message) = self.conditions.message(NodeCondition::DiskPressure) {
            return failed(message);
        }
        let path = self.data_dir.join("verification");
        let written = spawn_blocking(move || write_sample(&path).map_err(|error| (path, error))).await;
        match written {
            Ok(Ok(())) => passed(""),
            Ok(Err((path, error))) => failed(format!("writing {} failed: {error}", path.display())),
            Err(error) => failed(error.to_string()),
        }
    }

    async fn check_data_plane(&self, peers: Vec<Peer>) -> Finding {
        if let Some(message) = self.conditions.message(NodeCondition::NetworkUnavailable) {
            return failed(message);
        }
        let all = peers.len();
        let unreachable = self.probe_peers(peers).await;
        judge_peers(all, &unreachable)
    }

    /// Sends packets to these nodes, and sets the condition. Returns those that did not answer, with the reason.
    async fn probe_peers(&self, peers: Vec<Peer>) -> Vec<(Peer, String)> {
        let Some(own) = self.gateway() else { return Vec::new() };
        let is_known = |peer: &Peer, view: &NetworkView| {
            view.peers.values().any(|known| known.subnets.iter().any(|net| net.contains(&peer.gateway)))
        };
        let probes = peers.into_iter().map(|peer| {
            let packets = Arc::clone(&self.packets);
            spawn_blocking(move || packets.send(own, peer.gateway).map_err(|why| (peer, why)))
        });
        let mut unreachable = Vec::new();
        for probe in futures::future::join_all(probes).await {
            if let Ok(Err(missing)) = probe {
                unreachable.push(missing);
            }
        }
        let view = self.network_view.borrow().clone();
        // A node that has left the cluster is not missed.
        let missed: Vec<Peer> = unreachable.iter().map(|(peer, _)| peer.clone()).collect();
        let missed: Vec<Peer> = missed.into_iter().filter(|peer| is_known(peer, &view)).collect();
        let sentence = (!missed.is_empty())
            .then(|| format!("packets of the largest size do not reach {} and come back", names(&missed)));
        self.conditions.set(NodeCondition::PeersUnreachable, sentence);
        *self.unreachable() = missed;
        unreachable
    }
}

fn write_sample(path: &std::path::Path) -> std::io::Result<()> {
    let written = std::fs::File::create(path).and_then(|mut file| {
        std::io::Write::write_all(&mut file, &[0; DISK_SAMPLE])?;
        file.sync_all()
    });
    let removed = std::fs::remove_file(path);
    written.and(removed)
}

/// Fails when most do not answer.
fn judge_peers(all: usize, unreachable: &[(Peer, String)]) -> Finding {
    if all == 0 {
        return passed("no other verified node is READY");
    }
    let Some((_, reason)) = unreachable.first() else {
        return passed(format!("{all} of {all} nodes reached"));
    };
    let missing: Vec<Peer> = unreachable.iter().map(|(peer, _)| peer.clone()).collect();
    let message = format!("{} of {all} nodes not reached: {}: {reason}", missing.len(), names(&missing));
    if missing.len() * 2 > all { failed(message) } else { warning(message) }
}

/// `w1 (10.210.1.1), w2 (10.210.2.1) and 3 more`
fn names(peers: &[Peer]) -> String {
    let shown = peers.iter().take(MAX_NAMES).map(|Peer { name, gateway }| format!("{name} ({gateway})"));
    let shown: Vec<String> = shown.collect();
    match peers.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests;
