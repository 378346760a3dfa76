//! Opens a stream to a node: requests it over the node's session, local or on another manager, and waits for
//! it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};
use warren_core::State;
use warren_proto::status::Problem;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_session::frames::manager_frame;
use warren_session::worker_streams::WorkerStream;
use warren_store::problem::status_of;
use warren_types::{Id, Node, NodeId, NodeStatus};

use super::{Api, relay};

/// Names every READY node.
const ALL_NODES: &str = "all";

impl Api {
    /// Opens a stream to `node` for `purpose` within `within`, on whichever manager the node has its session.
    ///
    /// # Errors
    /// A message for users: the node has no session, rejected the stream, or did not open it in time.
    pub async fn open_stream(
        &self,
        node: NodeId,
        purpose: Purpose,
        within: Duration,
    ) -> Result<WorkerStream, String> {
        if self.registry.is_connected(node) {
            return self.open_local_stream(node, purpose, within).await;
        }
        let manager = self.store.read().state.node(&node).and_then(|node| node.manager);
        let Some(manager) = manager.filter(|manager| *manager != self.member_id) else {
            return Err("the node has no session with a manager".to_owned());
        };
        let line = self.peers.relay_channel(manager).map_err(|error| error.to_string())?;
        relay::open_remote_stream(line, node, purpose, within).await
    }

    /// As [`Api::open_stream`], for a node with a local session.
    ///
    /// # Errors
    /// As [`Api::open_stream`].
    pub(super) async fn open_local_stream(
        &self,
        node: NodeId,
        purpose: Purpose,
        within: Duration,
    ) -> Result<WorkerStream, String> {
        let deadline = Instant::now() + within;
        let sender = self.registry.frame_sender(node).ok_or("the node has no session with this manager")?;
        let image = match &purpose {
            Purpose::PullImage(v1::PullImage { reference, .. }) => reference.parse().ok(),
            _ => None,
        };
        let expected = self.streams.request(Id(rand::rng().random()).to_string(), node, image);
        let expected = expected
            .ok_or("the node has reached its limit of open streams; try again when some have ended")?;
        let open = v1::OpenStream { stream_id: expected.id().to_owned(), purpose: Some(purpose) };
        let open = manager_frame(v1::manager_frame::Frame::Open(open));
        let late = |_| format!("the node did not open the stream within {} s", within.as_secs());
        let sent = timeout_at(deadline, sender.send(Box::new(Ok(open)))).await.map_err(late)?;
        sent.map_err(|_| "the node's session ended")?;
        timeout_at(deadline, expected.wait_attached()).await.map_err(late)?
    }
}

/// The named nodes, without duplicates, with their names; without names and for `all`, all READY nodes. A label
/// `KEY=VALUE` names the READY nodes that have it.
///
/// # Errors
/// A node is unknown, or none is READY for `what`.
pub fn resolve_nodes(
    state: &State,
    names: &[String],
    what: &str,
) -> Result<BTreeMap<NodeId, String>, Status> {
    let named = |node: &Arc<Node>| (node.id, node.name.to_string());
    let ready = |label: Option<(&str, &str)>| {
        let has_label = |node: &Arc<Node>| {
            label.is_none_or(|(key, value)| node.labels.get(key).is_some_and(|found| found == value))
        };
        let ready = state.nodes().filter(|node| node.status == NodeStatus::Ready);
        let nodes: BTreeMap<_, _> = ready.filter(|node| has_label(node)).map(named).collect();
        if nodes.is_empty() {
            let with = label.map(|(key, value)| format!(" with the label {key}={value}")).unwrap_or_default();
            let message = format!("no node{with} is READY to {what}");
            return Err(Problem::new(Code::FailedPrecondition, "NO_READY_NODE", message).into());
        }
        Ok(nodes)
    };
    if names.is_empty() {
        return ready(None);
    }
    let mut nodes = BTreeMap::new();
    for name in names {
        match (name.as_str(), name.split_once('=')) {
            (ALL_NODES, _) => nodes.extend(ready(None)?),
            (_, Some(label)) => nodes.extend(ready(Some(label))?),
            _ => nodes.extend([state.find_node(name).map(named).map_err(status_of)?]),
        }
    }
    Ok(nodes)
}
