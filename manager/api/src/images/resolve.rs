//! Asks a registry through a node what a name stands for.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::{Code, Status};
use warren_proto::Problem;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_types::{ImageReference, NodeId};

use super::Api;

/// How long a worker may take to open the stream; part of the whole timeout.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of one node: that of a client that waits is longer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(15);
/// Nodes that are asked, one after the other, until one has an answer.
const MAX_NODES: usize = 2;

impl Api {
    /// The answer of the first node that has one. One with a session to this manager is asked first.
    pub(super) async fn resolve_image(
        &self,
        nodes: BTreeMap<NodeId, String>,
        image: &ImageReference,
    ) -> Result<v1::ResolvedImage, Status> {
        let mut nodes: Vec<(NodeId, String)> = nodes.into_iter().collect();
        nodes.sort_by_key(|(node, _)| self.registry.frame_sender(*node).is_none());
        let mut failures = Vec::new();
        for (node, name) in nodes.into_iter().take(MAX_NODES) {
            let late = |_| Err(format!("no reply within {} s", RESOLVE_TIMEOUT.as_secs()));
            match timeout(RESOLVE_TIMEOUT, self.resolve_on(node, image)).await.unwrap_or_else(late) {
                Ok(resolved) => return Ok(resolved),
                Err(why) => failures.push(format!("node {name}: {why}")),
            }
        }
        let message = format!("image {image} was not resolved: {}", failures.join("; "));
        Err(Problem::new(Code::FailedPrecondition, "IMAGE_NOT_RESOLVED", message).into())
    }

    async fn resolve_on(&self, node: NodeId, image: &ImageReference) -> Result<v1::ResolvedImage, String> {
        let purpose = Purpose::ResolveImage(v1::ResolveImage { reference: image.to_string() });
        let mut stream = self.open_stream(node, purpose, ATTACH_TIMEOUT).await?;
        let message = stream.inbound.next().await.transpose();
        match message.map_err(|status| status.message().to_owned())?.and_then(|frame| frame.frame) {
            Some(Frame::Resolved(resolved)) => Ok(resolved),
            Some(Frame::Error(why)) => Err(why),
            Some(_) | None => Err("the worker closed the stream before its reply".to_owned()),
        }
    }
}
