//! Asks nodes about the data of volumes: how large it is, and to delete it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use warren_core::State;
use warren_proto::v1;
use warren_proto::v1::open::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_types::{NodeId, NodeStatus, Volume, VolumeName};

use super::Api;

/// How long a worker may take to dial in, out of what it has for the whole.
const ATTACH: Duration = Duration::from_secs(5);
/// How long a worker may take to add up what its volumes hold: it looks at each file.
const SIZES: Duration = Duration::from_secs(30);
/// How long a worker may take to delete a volume's data.
const PURGE: Duration = Duration::from_secs(120);

/// Bytes by volume.
pub(super) type Sizes = BTreeMap<VolumeName, u64>;

impl Api {
    /// How large volumes are. Their nodes are asked at once; what one does not say in time is left out.
    pub(super) async fn sizes_of<'a>(
        &self,
        state: &State,
        volumes: impl IntoIterator<Item = &'a Arc<Volume>>,
    ) -> Sizes {
        let mut by_node = BTreeMap::<NodeId, Vec<String>>::new();
        for volume in volumes {
            let ready = |id: &NodeId| state.node(id).is_some_and(|node| node.status == NodeStatus::Ready);
            if let Some(node) = volume.node.filter(ready) {
                by_node.entry(node).or_default().push(volume.name.to_string());
            }
        }
        let mut asked = JoinSet::new();
        for (node, names) in by_node {
            let api = self.clone();
            asked.spawn(async move {
                let late = |_| Err(format!("no answer within {} s", SIZES.as_secs()));
                let answer = timeout(SIZES, api.sizes_on(node, names)).await.unwrap_or_else(late);
                answer.unwrap_or_else(|why| {
                    tracing::debug!(%node, why, "the node does not say how large its volumes are");
                    Sizes::new()
                })
            });
        }
        asked.join_all().await.into_iter().flatten().collect()
    }

    async fn sizes_on(&self, node: NodeId, names: Vec<String>) -> Result<Sizes, String> {
        let wanted: Vec<VolumeName> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let purpose = Purpose::ListVolumes(v1::ListVolumes { names });
        let mut stream = self.open(node, purpose, ATTACH).await?;
        let mut sizes = Sizes::new();
        loop {
            let word = stream.inbound.next().await.transpose();
            let word = word.map_err(|status| status.message().to_owned())?;
            match word.and_then(|frame| frame.frame) {
                Some(Frame::Volumes(list)) => {
                    // Of nothing else than what it was asked for.
                    let told = list.volumes.into_iter().filter_map(|volume| {
                        let name = wanted.iter().find(|name| name.as_str() == volume.name)?;
                        Some((name.clone(), volume.size_bytes))
                    });
                    sizes.extend(told);
                }
                Some(Frame::Failed(why)) => return Err(why),
                Some(Frame::Done(_)) => return Ok(sizes),
                Some(_) | None => return Err("the worker broke off its answer".into()),
            }
        }
    }

    /// Has the node delete the data of a volume.
    ///
    /// # Errors
    /// In words for people: why it did not, or nobody knows whether it did.
    pub(super) async fn purge_on(&self, node: NodeId, name: &VolumeName) -> Result<(), String> {
        let late = |_| Err(format!("it was not done within {} s", PURGE.as_secs()));
        timeout(PURGE, self.delete_on(node, name)).await.unwrap_or_else(late)
    }

    async fn delete_on(&self, node: NodeId, name: &VolumeName) -> Result<(), String> {
        let purpose = Purpose::PurgeVolume(v1::PurgeVolume { name: name.to_string() });
        let mut stream = self.open(node, purpose, ATTACH).await?;
        let word = stream.inbound.next().await.transpose();
        let word = word.map_err(|status| status.message().to_owned())?;
        match word.and_then(|frame| frame.frame) {
            Some(Frame::Done(_)) => Ok(()),
            Some(Frame::Failed(why)) => Err(why),
            Some(_) | None => Err("the worker broke off before it was done".into()),
        }
    }
}
