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
use warren_store::problem::status_of;
use warren_types::{CanonicalImage, NodeId, NodeStatus, TaskId};

use super::Api;

/// Timeout of the query to another manager; without a reply its nodes are left out.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of nodes that a node receives for an image that it lacks.
const MAX_SHOWN_HOLDERS: usize = 3;

/// Nodes with the name and the digest of an image there.
pub(super) type ImageHolders = BTreeMap<NodeId, v1::HeldImage>;

impl Api {
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
