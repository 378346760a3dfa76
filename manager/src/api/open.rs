//! Has a node dial a stream: asks through its session, here or at another manager, and waits until it is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};
use warren_core::State;
use warren_proto::status::Problem;
use warren_proto::v1;
use warren_proto::v1::open::Purpose;
use warren_types::{Id, Node, NodeId, NodeStatus};

use super::problem::status_of;
use super::{Api, relay};
use crate::session::link::frame;
use crate::session::streams::Attached;

impl Api {
    /// A stream that `node` dialled for `purpose`, within `within`, whichever manager it is connected to.
    ///
    /// # Errors
    /// In words for people: the node has no session, refused, or did not dial in time.
    pub async fn open(&self, node: NodeId, purpose: Purpose, within: Duration) -> Result<Attached, String> {
        if self.registry.has(node) {
            return self.open_here(node, purpose, within).await;
        }
        let manager = self.store.read().state.node(&node).and_then(|node| node.manager);
        let Some(manager) = manager.filter(|manager| *manager != self.member) else {
            return Err("the node has no session with a manager".to_owned());
        };
        let line = self.peers.relay(manager).map_err(|error| error.to_string())?;
        relay::dial(line, node, purpose, within).await
    }

    /// As [`Api::open`], of a node with a session here.
    ///
    /// # Errors
    /// As [`Api::open`].
    pub(super) async fn open_here(
        &self,
        node: NodeId,
        purpose: Purpose,
        within: Duration,
    ) -> Result<Attached, String> {
        let deadline = Instant::now() + within;
        let outbox = self.registry.outbox(node).ok_or("the node has no session with this manager")?;
        let image = match &purpose {
            Purpose::PullImage(pull) => pull.reference.parse().ok(),
            _ => None,
        };
        let expected = self.streams.expect(Id(rand::rng().random()).to_string(), node, image);
        let expected =
            expected.ok_or("the node has as many streams as it may; try again when some have ended")?;
        let open = v1::Open { stream_id: expected.id().to_owned(), purpose: Some(purpose) };
        let open = frame(v1::manager_frame::Frame::Open(open));
        let late = |_| format!("the node did not open the stream within {} s", within.as_secs());
        let sent = timeout_at(deadline, outbox.send(Box::new(Ok(open)))).await.map_err(late)?;
        sent.map_err(|_| "the node's session ended")?;
        timeout_at(deadline, expected.attached()).await.map_err(late)?
    }
}

/// The nodes that are named, each once, with their names; without any name, those that are READY.
///
/// # Errors
/// One is not known, or none is READY for `what`.
pub fn targets(state: &State, wanted: &[String], what: &str) -> Result<BTreeMap<NodeId, String>, Status> {
    let named = |node: &Arc<Node>| (node.id, node.name.to_string());
    if wanted.is_empty() {
        let ready = state.nodes().filter(|node| node.status == NodeStatus::Ready);
        let nodes: BTreeMap<_, _> = ready.map(named).collect();
        if nodes.is_empty() {
            let message = format!("no node is READY to {what}");
            return Err(Problem::new(Code::FailedPrecondition, "NO_READY_NODE", message).into());
        }
        return Ok(nodes);
    }
    wanted.iter().map(|name| state.find_node(name).map(named).map_err(status_of)).collect()
}
