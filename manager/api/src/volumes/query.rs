//! Queries nodes for the size of volumes, and deletes their data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use warren_core::State;
use warren_core::state::VolumeData;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_types::{Bytes, NodeId, NodeStatus, Volume, VolumeName};

use super::Api;

/// How long a worker may take to open the stream; part of the whole timeout.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a worker may take to add up the size of its volumes: it stats each file.
const SIZES_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of the deletion of a volume's data.
const DELETE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long the removal of a volume waits for the size of the data that it leaves.
const REMAINING_DATA_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of volumes listed per node.
const MAX_VOLUMES_PER_NODE: usize = 10_000;

/// The volumes that nodes have, with their size in bytes if it could be measured.
pub(super) type VolumeSizes = BTreeMap<(NodeId, VolumeName), Option<u64>>;

impl Api {
    /// The sizes of volumes. Their nodes are queried in parallel; sizes without a reply in time are left out.
    pub(super) async fn query_sizes<'a>(
        &self,
        state: &State,
        volumes: impl IntoIterator<Item = &'a Arc<Volume>>,
    ) -> VolumeSizes {
        let mut by_node = BTreeMap::<NodeId, Vec<String>>::new();
        for volume in volumes {
            let ready = |id: &NodeId| state.node(id).is_some_and(|node| node.status == NodeStatus::Ready);
            if let Some(node) = volume.node.filter(ready) {
                by_node.entry(node).or_default().push(volume.name.to_string());
            }
        }
        self.query_nodes(by_node).await
    }

    /// All volumes that READY nodes have. Nodes without a reply in time are left out.
    pub(super) async fn query_held(&self, state: &State) -> VolumeSizes {
        let ready = state.nodes().filter(|node| node.status == NodeStatus::Ready);
        self.query_nodes(ready.map(|node| (node.id, Vec::new())).collect()).await
    }

    async fn query_nodes(&self, by_node: BTreeMap<NodeId, Vec<String>>) -> VolumeSizes {
        let mut queries = JoinSet::new();
        for (node, names) in by_node {
            let api = self.clone();
            queries.spawn(async move {
                api.query_node_sizes(node, names, SIZES_TIMEOUT).await.unwrap_or_else(|why| {
                    tracing::debug!(%node, why, "querying volume sizes failed");
                    VolumeSizes::new()
                })
            });
        }
        queries.join_all().await.into_iter().flatten().collect()
    }

    /// What the volume's node reports about its data.
    pub(super) async fn query_data(&self, state: &State, volume: &Volume) -> VolumeData {
        let ready = |id: &NodeId| state.node(id).is_some_and(|node| node.status == NodeStatus::Ready);
        let Some(node) = volume.node.filter(ready) else { return VolumeData::Unknown };
        let names = vec![volume.name.to_string()];
        match self.query_node_sizes(node, names, REMAINING_DATA_TIMEOUT).await {
            Ok(found) => found
                .get(&(node, volume.name.clone()))
                .map_or(VolumeData::Absent, |size| VolumeData::Present(size.map(Bytes))),
            Err(why) => {
                tracing::debug!(%node, why, "querying the remaining data of a volume failed");
                VolumeData::Unknown
            }
        }
    }

    /// The named volumes of the node; all of them without names.
    async fn query_node_sizes(
        &self,
        node: NodeId,
        names: Vec<String>,
        within: Duration,
    ) -> Result<VolumeSizes, String> {
        let late = |_| Err(format!("no reply within {} s", within.as_secs()));
        timeout(within, self.read_node_sizes(node, names)).await.unwrap_or_else(late)
    }

    async fn read_node_sizes(&self, node: NodeId, names: Vec<String>) -> Result<VolumeSizes, String> {
        let requested: Vec<VolumeName> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let purpose = Purpose::ListVolumes(v1::ListVolumes { names });
        let mut stream = self.open_stream(node, purpose, ATTACH_TIMEOUT).await?;
        let mut sizes = VolumeSizes::new();
        loop {
            let message = stream.inbound.next().await.transpose();
            let message = message.map_err(|status| status.message().to_owned())?;
            match message.and_then(|frame| frame.frame) {
                Some(Frame::Volumes(list)) => {
                    // Only requested volumes are accepted.
                    let reported = list.volumes.into_iter().filter_map(|volume| {
                        let name: VolumeName = volume.name.parse().ok()?;
                        let is_requested = requested.is_empty() || requested.contains(&name);
                        is_requested.then_some(((node, name), volume.size_bytes))
                    });
                    sizes.extend(reported);
                    if sizes.len() > MAX_VOLUMES_PER_NODE {
                        return Err(format!("the node has more than {MAX_VOLUMES_PER_NODE} volumes"));
                    }
                }
                Some(Frame::Error(why)) => return Err(why),
                Some(Frame::Done(_)) => return Ok(sizes),
                Some(_) | None => {
                    return Err("the worker closed the stream before the end of its reply".into());
                }
            }
        }
    }

    /// Deletes the data of a volume on its node.
    ///
    /// # Errors
    /// A message for users: why the deletion failed or its outcome is unknown.
    pub(super) async fn delete_volume_data(&self, node: NodeId, name: &VolumeName) -> Result<(), String> {
        let late = |_| Err(format!("not deleted within {} s", DELETE_TIMEOUT.as_secs()));
        timeout(DELETE_TIMEOUT, self.send_delete(node, name)).await.unwrap_or_else(late)
    }

    async fn send_delete(&self, node: NodeId, name: &VolumeName) -> Result<(), String> {
        let purpose = Purpose::PurgeVolume(v1::PurgeVolume { name: name.to_string() });
        let mut stream = self.open_stream(node, purpose, ATTACH_TIMEOUT).await?;
        let message = stream.inbound.next().await.transpose();
        let message = message.map_err(|status| status.message().to_owned())?;
        match message.and_then(|frame| frame.frame) {
            Some(Frame::Done(_)) => Ok(()),
            Some(Frame::Error(why)) => Err(why),
            Some(_) | None => Err("the worker closed the stream before the deletion was confirmed".into()),
        }
    }
}
