//! Asks a registry through a node what a name stands for.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::{Code, Status};
use warren_core::State;
use warren_proto::Problem;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_types::spec::UNVERIFIED_TAINT;
use warren_types::{ImageDigest, ImageReference, NodeId, NodeRole};

use super::Api;

/// How long a worker may take to open the stream; part of the whole timeout.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of one node: that of a client that waits is longer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(15);
/// Nodes that are asked, one after the other, until one has an answer.
const MAX_NODES: usize = 2;

impl Api {
    /// The answer of the first node that has one. It decides what a service runs, so managers are asked first, and
    /// nodes that were not verified are not.
    pub(super) async fn resolve_image(
        &self,
        state: &State,
        nodes: BTreeMap<NodeId, String>,
        image: &ImageReference,
    ) -> Result<v1::ResolvedImage, Status> {
        let is_verified = |id: &NodeId| {
            state.node(id).is_some_and(|node| node.taints.iter().all(|taint| taint.key != UNVERIFIED_TAINT))
        };
        let mut nodes: Vec<(NodeId, String)> = nodes.into_iter().filter(|(id, _)| is_verified(id)).collect();
        nodes.sort_by_key(|(id, _)| {
            let is_manager = state.node(id).is_some_and(|node| node.role == NodeRole::Manager);
            (!is_manager, self.registry.frame_sender(*id).is_none())
        });
        let expected = image.to_string().split_once('@').map(|(_, digest)| digest.to_owned());
        let mut failures = Vec::new();
        for (node, name) in nodes.into_iter().take(MAX_NODES) {
            let late = |_| Err(format!("no reply within {} s", RESOLVE_TIMEOUT.as_secs()));
            match timeout(RESOLVE_TIMEOUT, self.resolve_on(node, image)).await.unwrap_or_else(late) {
                Ok(resolved) if expected.as_ref().is_some_and(|digest| *digest != resolved.digest) => {
                    failures.push(format!("node {name}: it answered with another digest"));
                }
                Ok(resolved) => match resolved.digest.parse::<ImageDigest>() {
                    Ok(_) => return Ok(resolved),
                    Err(why) => failures.push(format!("node {name}: {why}")),
                },
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
