//! Queries nodes for lists of images: present or removed ones.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_types::NodeId;

use super::Api;

/// How long a worker may take to open the stream; part of the whole timeout.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of images listed per node.
const MAX_IMAGES_PER_NODE: usize = 10_000;

impl Api {
    /// The replies of the nodes, sorted by name; a node that does not reply in time has an error text.
    pub(super) async fn query_images(
        &self,
        nodes: BTreeMap<NodeId, String>,
        purpose: Purpose,
        within: Duration,
    ) -> Vec<v1::NodeImages> {
        let mut queries = JoinSet::new();
        for (node, name) in nodes {
            let (api, purpose) = (self.clone(), purpose.clone());
            queries.spawn(async move {
                let late = |_| Err(format!("no reply within {} s", within.as_secs()));
                let answer = timeout(within, api.query_node(node, purpose)).await.unwrap_or_else(late);
                let (images, failed) =
                    answer.map_or_else(|why| (Vec::new(), why), |all| (all, String::new()));
                v1::NodeImages { node: name, images, error: failed }
            });
        }
        let mut answers = queries.join_all().await;
        answers.sort_unstable_by(|one, other| one.node.cmp(&other.node));
        answers
    }

    async fn query_node(&self, node: NodeId, purpose: Purpose) -> Result<Vec<v1::ImageInfo>, String> {
        let mut stream = self.open_stream(node, purpose, ATTACH_TIMEOUT).await?;
        let mut images = Vec::new();
        loop {
            let message = stream.inbound.next().await.transpose();
            let message = message.map_err(|status| status.message().to_owned())?;
            match message.and_then(|frame| frame.frame) {
                Some(Frame::Images(list)) if images.len() + list.images.len() <= MAX_IMAGES_PER_NODE => {
                    images.extend(list.images);
                }
                Some(Frame::Images(_)) => {
                    return Err(format!("the node has more than {MAX_IMAGES_PER_NODE} images"));
                }
                Some(Frame::Error(why)) => return Err(why),
                Some(Frame::Done(_)) => return Ok(images),
                Some(_) | None => {
                    return Err("the worker closed the stream before the end of its reply".into());
                }
            }
        }
    }
}
