//! The calls, by noun. Each has a deadline; what can be unavailable for a moment is tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::Stream;
use tokio::io::AsyncRead;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::images_client::ImagesClient;
use warren_proto::v1::nodes_client::NodesClient;
use warren_proto::v1::services_client::ServicesClient;
use warren_proto::v1::tasks_client::TasksClient;
use warren_types::{Availability, ServiceId, ServiceSpec};

use crate::client::{Client, MAX_ANSWER};
use crate::error::{Error, removed};
use crate::import::{Import, MAX_REQUEST};
use crate::pages;
use crate::pull::{PullWish, Pulls};
use crate::watch::Watch;

/// Items per page of the lists here: the most that managers give.
pub(crate) const PAGE_SIZE: u32 = 1000;

/// What asking all nodes for their images may take: managers give each of them less.
const LIST_DEADLINE: Duration = Duration::from_secs(30);

/// What removing images may take: a node that has many of them takes a while.
const PRUNE_DEADLINE: Duration = Duration::from_secs(150);

/// What people ask to run.
#[derive(Debug, Clone, Copy)]
pub struct Services<'a>(pub(crate) &'a Client);

/// Where it runs.
#[derive(Debug, Clone, Copy)]
pub struct Tasks<'a>(pub(crate) &'a Client);

/// The machines.
#[derive(Debug, Clone, Copy)]
pub struct Nodes<'a>(pub(crate) &'a Client);

/// The cluster as a whole.
#[derive(Debug, Clone, Copy)]
pub struct Cluster<'a>(pub(crate) &'a Client);

/// Images on the nodes.
#[derive(Debug, Clone, Copy)]
pub struct Images<'a>(pub(crate) &'a Client);

/// Which tasks to list. Empty texts do not narrow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Name or id of a service.
    pub service: String,
    /// Name or id of a node.
    pub node: String,
    /// Only the current task of each slot.
    pub current: bool,
}

/// What shall be different about a node. What is not said stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// Only if the node still has this version.
    pub version: Option<u64>,
    /// Labels to set.
    pub label_add: BTreeMap<String, String>,
    /// Labels to take away, by key.
    pub label_rm: BTreeSet<String>,
    /// What shall run there.
    pub availability: Option<Availability>,
}

/// Whether `text` is the beginning of `id`. No text is the beginning of none, as for managers.
pub(crate) fn is_id_prefix(text: &str, id: &str) -> bool {
    !text.is_empty() && id.starts_with(text)
}

pub(crate) fn reference(text: &str) -> v1::Reference {
    v1::Reference { reference: text.to_owned() }
}

impl Services<'_> {
    fn client(channel: Channel) -> ServicesClient<Channel> {
        ServicesClient::new(channel).max_decoding_message_size(MAX_ANSWER)
    }

    /// Creates a service. `id` is made once per intention by the caller: repeated with the same spec, the
    /// call answers as it did the first time.
    pub async fn create(&self, id: ServiceId, spec: &ServiceSpec) -> Result<v1::Service, Error> {
        let message = v1::CreateServiceRequest { id: id.to_string(), spec: Some(spec.into()) };
        let call = |channel, request| async move { Self::client(channel).create(request).await };
        self.0.writing().unary(message, call).await
    }

    /// The service with this name, id or beginning of an id.
    pub async fn get(&self, text: &str) -> Result<v1::Service, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.0.unary(reference(text), call).await
    }

    /// As [`Services::get`], for what a write depends on.
    async fn newest(&self, text: &str) -> Result<v1::Service, Error> {
        Services(&self.0.linearizable()).get(text).await
    }

    /// All services, a page at a time.
    pub fn pages(&self) -> impl Stream<Item = Result<Vec<v1::Service>, Error>> {
        let client = self.0.clone();
        pages::pages(move |page_token| {
            let client = client.clone();
            async move {
                let message = v1::ListRequest { page_size: PAGE_SIZE, page_token };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListServicesResponse = client.unary(message, call).await?;
                Ok((page.services, page.next_page_token))
            }
        })
    }

    /// All services.
    pub async fn list(&self) -> Result<Vec<v1::Service>, Error> {
        pages::all(self.pages()).await
    }

    /// Sets the wanted number of replicas; with `version` only if the service still has it.
    pub async fn scale(&self, text: &str, replicas: u32, version: Option<u64>) -> Result<v1::Service, Error> {
        let (reference, replicas) = (text.to_owned(), i64::from(replicas));
        let message = v1::ScaleServiceRequest { reference, version, replicas };
        let call = |channel, request| async move { Self::client(channel).scale(request).await };
        self.0.writing().unary(message, call).await
    }

    /// Starts to remove a service; its tasks are stopped, then it is gone.
    pub async fn remove(&self, text: &str, version: Option<u64>) -> Result<v1::Service, Error> {
        let before = self.newest(text).await?;
        let message = v1::RemoveServiceRequest { reference: before.id.clone(), version };
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        removed(self.0.writing().unary(message, call).await, v1::Service { removing: true, ..before })
    }

    /// Makes `spec` what is wanted; with `version` only if the service still has it. Its tasks are replaced one
    /// by one where what they run differs, or all of them if `force` says so. Name and mode cannot change.
    pub async fn update(
        &self,
        text: &str,
        spec: &ServiceSpec,
        version: Option<u64>,
        force: bool,
    ) -> Result<v1::Service, Error> {
        let version = match version {
            // To replace all tasks twice, because the first answer was lost, is not what was asked.
            None if force => Some(self.newest(text).await?.version),
            version => version,
        };
        let (reference, spec) = (text.to_owned(), Some(spec.into()));
        let message = v1::UpdateServiceRequest { reference, version, spec, force };
        let call = |channel, request| async move { Self::client(channel).update(request).await };
        self.0.writing().unary(message, call).await
    }

    /// Makes an earlier revision the current one again, under a new number; `None` is the one before the
    /// current. With `version` only if the service still has it.
    pub async fn rollback(
        &self,
        text: &str,
        revision: Option<u64>,
        version: Option<u64>,
    ) -> Result<v1::Service, Error> {
        let version = match (revision, version) {
            // To go back one twice, because the first answer was lost, would be to go nowhere.
            (None, None) => Some(self.newest(text).await?.version),
            (_, version) => version,
        };
        let message = v1::RollbackServiceRequest { reference: text.to_owned(), version, revision };
        let call = |channel, request| async move { Self::client(channel).rollback(request).await };
        self.0.writing().unary(message, call).await
    }

    /// The revisions that can be returned to, newest first.
    pub async fn history(&self, text: &str) -> Result<Vec<v1::Revision>, Error> {
        let call = |channel, request| async move { Self::client(channel).history(request).await };
        let history: v1::HistoryResponse = self.0.unary(reference(text), call).await?;
        Ok(history.revisions)
    }
}

impl Tasks<'_> {
    fn client(channel: Channel) -> TasksClient<Channel> {
        TasksClient::new(channel).max_decoding_message_size(MAX_ANSWER)
    }

    /// The task with this id, beginning of an id, or `SERVICE.SLOT`.
    pub async fn get(&self, text: &str) -> Result<v1::Task, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.0.unary(reference(text), call).await
    }

    /// Tasks, a page at a time.
    pub fn pages(&self, filter: TaskFilter) -> impl Stream<Item = Result<Vec<v1::Task>, Error>> {
        let client = self.0.clone();
        pages::pages(move |page_token| {
            let (client, TaskFilter { service, node, current }) = (client.clone(), filter.clone());
            async move {
                let message =
                    v1::ListTasksRequest { page_size: PAGE_SIZE, page_token, service, node, current };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListTasksResponse = client.unary(message, call).await?;
                Ok((page.tasks, page.next_page_token))
            }
        })
    }

    /// All tasks that the filter lets through.
    pub async fn list(&self, filter: TaskFilter) -> Result<Vec<v1::Task>, Error> {
        pages::all(self.pages(filter)).await
    }
}

impl Nodes<'_> {
    fn client(channel: Channel) -> NodesClient<Channel> {
        NodesClient::new(channel).max_decoding_message_size(MAX_ANSWER)
    }

    /// The node with this name, id or beginning of an id.
    pub async fn get(&self, text: &str) -> Result<v1::Node, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.0.unary(reference(text), call).await
    }

    /// All nodes, a page at a time.
    pub fn pages(&self) -> impl Stream<Item = Result<Vec<v1::Node>, Error>> {
        let client = self.0.clone();
        pages::pages(move |page_token| {
            let client = client.clone();
            async move {
                let message = v1::ListRequest { page_size: PAGE_SIZE, page_token };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListNodesResponse = client.unary(message, call).await?;
                Ok((page.nodes, page.next_page_token))
            }
        })
    }

    /// All nodes.
    pub async fn list(&self) -> Result<Vec<v1::Node>, Error> {
        pages::all(self.pages()).await
    }

    /// Changes people's part of a node, and answers what it is then.
    pub async fn update(&self, text: &str, change: &NodeChange) -> Result<v1::Node, Error> {
        let NodeChange { version, label_add, label_rm, availability } = change.clone();
        let availability = availability.map_or(v1::Availability::Unspecified, v1::Availability::from);
        let message = v1::UpdateNodeRequest {
            reference: text.to_owned(),
            version,
            label_add: label_add.into_iter().collect(),
            label_rm: label_rm.into_iter().collect(),
            availability: availability.into(),
        };
        let call = |channel, request| async move { Self::client(channel).update(request).await };
        self.0.writing().unary(message, call).await
    }

    /// Forgets a node, and answers what it was. One that is up and runs tasks is refused, unless `force` says
    /// that they are given up.
    pub async fn remove(&self, text: &str, force: bool) -> Result<v1::Node, Error> {
        let before = Nodes(&self.0.linearizable()).get(text).await?;
        let message = v1::RemoveNodeRequest { reference: before.id.clone(), force };
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        removed(self.0.writing().unary(message, call).await, before)
    }
}

impl Cluster<'_> {
    /// The cluster as this manager sees it.
    pub async fn info(&self) -> Result<v1::InfoResponse, Error> {
        let call = |channel, request| async move { ClusterClient::new(channel).info(request).await };
        self.0.unary(v1::InfoRequest {}, call).await
    }

    /// Background loops: those of all managers, and those that the agents last told of. Names the managers that could
    /// not be asked.
    pub async fn loops(&self) -> Result<v1::LoopsResponse, Error> {
        let call = |channel, request| async move { ClusterClient::new(channel).loops(request).await };
        self.0.unary(v1::LoopsRequest {}, call).await
    }

    /// What changes from now on; only what belongs to the service with this id, unless it is empty.
    pub fn watch(&self, service: &str) -> Watch {
        Watch::new(self.0.clone(), service.to_owned())
    }
}

impl Images<'_> {
    /// Sends an archive to nodes (names or ids; none means every node that is READY), which import it.
    pub async fn import<A>(&self, nodes: Vec<String>, archive: A) -> Result<Import, Error>
    where
        A: AsyncRead + Send + Unpin + 'static,
    {
        Import::start(self.0, nodes, archive).await
    }

    /// Has nodes pull an image.
    pub async fn pull(&self, wish: PullWish) -> Result<Pulls, Error> {
        Pulls::start(self.0, wish).await
    }

    /// The images of nodes (names or ids; none means every node that is READY). A node that does not answer
    /// says why in its `failed`.
    pub async fn list(&self, nodes: Vec<String>) -> Result<Vec<v1::NodeImages>, Error> {
        let message = v1::ListImagesRequest { nodes };
        let call = |channel, request| async move { Self::client(channel).list(request).await };
        let answer: v1::ListImagesResponse = self.0.unary_within(LIST_DEADLINE, message, call).await?;
        Ok(answer.nodes)
    }

    /// Removes the images of nodes that no task uses, nor used for so long, and answers what is gone.
    pub async fn prune(
        &self,
        nodes: Vec<String>,
        unused_for: Duration,
    ) -> Result<Vec<v1::NodeImages>, Error> {
        let unused_for_ms = u64::try_from(unused_for.as_millis()).unwrap_or(u64::MAX);
        let message = v1::PruneImagesRequest { nodes, unused_for_ms };
        let call = |channel, request| async move { Self::client(channel).prune(request).await };
        let answer: v1::PruneImagesResponse =
            self.0.writing().unary_within(PRUNE_DEADLINE, message, call).await?;
        Ok(answer.nodes)
    }

    pub(crate) fn client(channel: Channel) -> ImagesClient<Channel> {
        let client = ImagesClient::new(channel).max_encoding_message_size(MAX_REQUEST);
        client.max_decoding_message_size(MAX_ANSWER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_text_is_no_id_prefix() {
        assert!(is_id_prefix("ab", "abc") && is_id_prefix("abc", "abc"));
        assert!(!is_id_prefix("", "abc") && !is_id_prefix("b", "abc"));
    }
}
