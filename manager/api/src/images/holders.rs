//! Which nodes have an image, as they reported: to this manager, and to the others, which are queried.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;
use warren_core::State;
use warren_core::state::ObjectKind;
use warren_proto::convert::parse_field;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_store::problem::status_of;
use warren_types::{CanonicalImage, ImageDigest, NodeId, NodeRole, NodeStatus, TaskId};

use super::{Api, LIST_TIMEOUT};

/// Timeout of the query to another manager; without a reply its nodes are left out.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of nodes that a node receives for an image that it lacks.
const MAX_SHOWN_HOLDERS: usize = 3;

/// Nodes with the name and the digest of an image there.
pub(super) type ImageHolders = BTreeMap<NodeId, v1::HeldImage>;

/// Whether nodes have an imported image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportHolders {
    /// At least one has it.
    Held,
    /// None of those that are READY has it.
    Gone,
    /// These nodes do not say what they have, and no other has it.
    Silent(Vec<String>),
}

impl Api {
    /// Whether a READY node has the image. Those that did not report it are asked.
    pub async fn import_holders(
        &self,
        state: &State,
        image: &CanonicalImage,
        digest: &ImageDigest,
    ) -> ImportHolders {
        let image = image.with_digest(digest);
        if !self.image_holders(state, &image).await.is_empty() {
            return ImportHolders::Held;
        }
        // What arrived a moment ago is not reported yet.
        let ready = state.nodes().filter(|node| node.status == NodeStatus::Ready);
        let ready: BTreeMap<NodeId, String> = ready.map(|node| (node.id, node.name.to_string())).collect();
        let lists = self.query_images(ready, Purpose::ListImages(v1::ListImages {}), LIST_TIMEOUT).await;
        let has_it = |list: &v1::NodeImages| {
            list.images.iter().any(|held| image.matches(&held.reference, &held.digest))
        };
        if lists.iter().any(has_it) {
            return ImportHolders::Held;
        }
        let silent = lists.into_iter().filter(|list| !list.error.is_empty()).map(|list| list.node);
        let silent: Vec<String> = silent.take(MAX_SHOWN_HOLDERS).collect();
        if silent.is_empty() { ImportHolders::Gone } else { ImportHolders::Silent(silent) }
    }

    /// The digest that the nodes of managers reported for the image; `None` if none has it, or they differ.
    pub async fn digest_on_managers(&self, state: &State, image: &CanonicalImage) -> Option<ImageDigest> {
        let holders = self.image_holders(state, image).await;
        let is_manager = |id: &NodeId| state.node(id).is_some_and(|node| node.role == NodeRole::Manager);
        let mut digests = holders.iter().filter(|(id, _)| is_manager(id)).map(|(_, held)| &held.digest);
        let first = digests.next()?;
        digests.all(|digest| digest == first).then(|| first.parse().ok())?
    }

    /// The READY nodes that reported the image.
    pub(super) async fn image_holders(&self, state: &State, image: &CanonicalImage) -> ImageHolders {
        let mut queries = JoinSet::new();
        let members = state.members().map(|member| member.member_id);
        for member in members.filter(|member| *member != self.member_id) {
            let Some(mut client) = self.peers.client(member) else { continue };
            let query = v1::ImageQuery { reference: image.to_string() };
            let request = v1::ListNodeReportsRequest { image: Some(query), ..Default::default() };
            queries.spawn(async move {
                let answer = timeout(REPLY_TIMEOUT, client.list_node_reports(request)).await.ok()?;
                let failed = |status: &Status| tracing::debug!(member, %status, "skipping images of manager");
                answer.inspect_err(failed).ok().map(tonic::Response::into_inner)
            });
        }
        let reported = queries.join_all().await.into_iter().flatten().flat_map(|answer| answer.nodes);
        let remote = reported.filter_map(|node| {
            let held = node.images.into_iter().find(|held| image.matches(&held.reference, &held.digest))?;
            Some((node.node_id.parse().ok()?, held))
        });
        let mut holders: ImageHolders = remote.collect();
        holders.extend(self.registry.image_holders(image));
        holders.retain(|node, _| state.node(node).is_some_and(|node| node.status == NodeStatus::Ready));
        holders
    }

    /// The nodes with local sessions that reported an image, for another manager.
    pub(crate) fn local_image_holders(&self, query: &v1::ImageQuery) -> v1::ListNodeReportsResponse {
        let Ok(image) = query.reference.parse() else { return v1::ListNodeReportsResponse::default() };
        let held = self.registry.image_holders(&CanonicalImage::of(&image));
        let nodes = held.into_iter().map(|(node, held)| v1::NodeReport {
            node_id: node.to_string(),
            images: vec![held],
            ..Default::default()
        });
        v1::ListNodeReportsResponse { nodes: nodes.collect(), background_tasks: Vec::new() }
    }

    /// The nodes that have the image of a task of `caller`.
    ///
    /// # Errors
    /// It is not a task of that node.
    pub(super) async fn task_image_holders(
        &self,
        caller: NodeId,
        request: &v1::FindHoldersRequest,
    ) -> Result<v1::FindHoldersResponse, Status> {
        let id: TaskId = parse_field("task_id", &request.task_id).map_err(status_of)?;
        let published = self.store.read();
        let task = published.state.task(&id).filter(|task| task.node == Some(caller));
        let unknown = || warren_core::Refusal::NotFound { kind: ObjectKind::Task, reference: id.to_string() };
        let assignment = task.and_then(|task| published.state.task_assignment(task));
        let assignment = assignment.ok_or_else(|| status_of(unknown()))?;
        let image = CanonicalImage::of(&assignment.spec.image);
        let image = assignment.digest.as_ref().map_or_else(|| image.clone(), |pin| image.with_digest(pin));
        let holders = self.image_holders(&published.state, &image).await;
        let others = holders.keys().filter(|node| **node != caller);
        let mut nodes: Vec<String> =
            others.filter_map(|node| Some(published.state.node(node)?.name.to_string())).collect();
        nodes.sort_unstable();
        nodes.truncate(MAX_SHOWN_HOLDERS);
        let this_node = published.state.node(&caller).map(|node| node.name.to_string());
        Ok(v1::FindHoldersResponse { nodes, this_node: this_node.unwrap_or_default() })
    }
}
