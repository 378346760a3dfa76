//! Asks nodes for lists of images: those they have, or those they removed.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use warren_proto::v1;
use warren_proto::v1::open::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_types::NodeId;

use super::Api;

/// How long a worker may take to dial in, out of what it has for the whole.
const ATTACH: Duration = Duration::from_secs(5);
/// Most images that are shown of one node.
const MAX_IMAGES: usize = 10_000;

impl Api {
    /// What the nodes answer, by name; one that does not in time says why.
    pub(super) async fn ask_images(
        &self,
        nodes: BTreeMap<NodeId, String>,
        purpose: Purpose,
        within: Duration,
    ) -> Vec<v1::NodeImages> {
        let mut asked = JoinSet::new();
        for (node, name) in nodes {
            let (api, purpose) = (self.clone(), purpose.clone());
            asked.spawn(async move {
                let late = |_| Err(format!("no answer within {} s", within.as_secs()));
                let answer = timeout(within, api.images_of(node, purpose)).await.unwrap_or_else(late);
                let (images, failed) =
                    answer.map_or_else(|why| (Vec::new(), why), |all| (all, String::new()));
                v1::NodeImages { node: name, images, failed }
            });
        }
        let mut answers = asked.join_all().await;
        answers.sort_unstable_by(|one, other| one.node.cmp(&other.node));
        answers
    }

    async fn images_of(&self, node: NodeId, purpose: Purpose) -> Result<Vec<v1::ImageInfo>, String> {
        let mut stream = self.open(node, purpose, ATTACH).await?;
        let mut images = Vec::new();
        loop {
            let word = stream.inbound.next().await.transpose();
            let word = word.map_err(|status| status.message().to_owned())?;
            match word.and_then(|frame| frame.frame) {
                Some(Frame::Images(list)) if images.len() + list.images.len() <= MAX_IMAGES => {
                    images.extend(list.images);
                }
                Some(Frame::Images(_)) => return Err(format!("the node has more than {MAX_IMAGES} images")),
                Some(Frame::Failed(why)) => return Err(why),
                Some(Frame::Done(_)) => return Ok(images),
                Some(_) | None => return Err("the worker broke off its answer".into()),
            }
        }
    }
}
