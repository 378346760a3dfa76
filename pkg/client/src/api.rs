//! The calls, by noun. Each has a deadline; calls that fail because of unavailability are repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::Stream;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::images_client::ImagesClient;
use warren_proto::v1::nodes_client::NodesClient;
use warren_proto::v1::services_client::ServicesClient;
use warren_proto::v1::tasks_client::TasksClient;
use warren_types::{Availability, ClusterSettingsChange, ServiceId, ServiceSpec, Taint, TaintSelector};

use crate::audit::AuditLineStream;
use crate::client::{Client, MAX_RESPONSE};
use crate::error::{Error, accept_absent};
use crate::events::{EventQuery, EventStream};
use crate::pages;
use crate::watch::ClusterWatch;

/// Items per page: the maximum of the managers.
pub(crate) const PAGE_SIZE: u32 = 1000;

/// Chunk size of an archive: far below the 4 MiB limit of a gRPC message.
pub(crate) const ARCHIVE_CHUNK: usize = 256 << 10;

/// Longest request message: a chunk and its framing.
pub(crate) const MAX_REQUEST: usize = ARCHIVE_CHUNK + 1024;

/// Deadline for listing the images of all nodes; managers give each node less.
const LIST_DEADLINE: Duration = Duration::from_secs(30);

/// Deadline for a forecast: a manager plans a whole update.
const FORECAST_DEADLINE: Duration = Duration::from_secs(30);

/// Deadline for asking a registry: managers ask two nodes.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(40);

/// Deadline for removing images; a node may have many.
const PRUNE_DEADLINE: Duration = Duration::from_secs(150);

/// Calls for services.
#[derive(Debug, Clone, Copy)]
pub struct ServiceApi<'a> {
    client: &'a Client,
    allow_many_replicas: bool,
    name_prefix: &'a str,
}

/// Calls for tasks.
#[derive(Debug, Clone, Copy)]
pub struct TaskApi<'a>(pub(crate) &'a Client);

/// Calls for nodes.
#[derive(Debug, Clone, Copy)]
pub struct NodeApi<'a>(pub(crate) &'a Client);

/// Calls for the cluster.
#[derive(Debug, Clone, Copy)]
pub struct ClusterApi<'a>(&'a Client);

/// Calls for images on nodes.
#[derive(Debug, Clone, Copy)]
pub struct ImageApi<'a>(pub(crate) &'a Client);

/// Filter of tasks. Empty fields match all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Name or id of a service.
    pub service: String,
    /// Name or id of a node.
    pub node: String,
    /// Only the current task of each slot.
    pub current: bool,
}

/// A change of a node; empty fields change nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// Expected version of the node; `None` skips the check.
    pub version: Option<u64>,
    /// Labels to set.
    pub label_add: BTreeMap<String, String>,
    /// Keys of labels to remove.
    pub label_rm: BTreeSet<String>,
    /// New availability.
    pub availability: Option<Availability>,
    /// Taints to set; each replaces the one with its key and effect.
    pub taint_add: BTreeSet<Taint>,
    /// Taints to remove; before `taint_add`.
    pub taint_rm: BTreeSet<TaintSelector>,
}

/// Whether `text` is a prefix of `id`. As in managers, an empty text matches nothing.
pub(crate) fn is_id_prefix(text: &str, id: &str) -> bool {
    !text.is_empty() && id.starts_with(text)
}

pub(crate) fn reference(text: &str) -> v1::Reference {
    v1::Reference { reference: text.to_owned() }
}

impl Client {
    /// Calls for services.
    pub fn services(&self) -> ServiceApi<'_> {
        ServiceApi { client: self, allow_many_replicas: false, name_prefix: "" }
    }

    /// Calls for tasks.
    pub fn tasks(&self) -> TaskApi<'_> {
        TaskApi(self)
    }

    /// Calls for nodes.
    pub fn nodes(&self) -> NodeApi<'_> {
        NodeApi(self)
    }

    /// Calls for the cluster, and the watch of changes.
    pub fn cluster(&self) -> ClusterApi<'_> {
        ClusterApi(self)
    }

    /// Calls for images on nodes.
    pub fn images(&self) -> ImageApi<'_> {
        ImageApi(self)
    }
}

impl<'a> ServiceApi<'a> {
    /// For writes that may exceed the cluster's limit of replicas per service.
    #[must_use]
    pub fn allow_many_replicas(self, allow_many_replicas: bool) -> Self {
        Self { allow_many_replicas, ..self }
    }

    /// For lists of services whose names begin with `name_prefix`.
    #[must_use]
    pub fn named(self, name_prefix: &'a str) -> Self {
        Self { name_prefix, ..self }
    }

    fn client(channel: Channel) -> ServicesClient<Channel> {
        ServicesClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
    }

    /// What these writes would do, in this order; changes nothing. With `outcomes_only` it tells only whether they
    /// would be refused or change anything.
    pub async fn forecast(
        &self,
        writes: Vec<v1::ForecastWrite>,
        outcomes_only: bool,
    ) -> Result<v1::ForecastResponse, Error> {
        let call = |channel, request| async move { Self::client(channel).forecast(request).await };
        let message = v1::ForecastRequest { writes, outcomes_only };
        self.client.unary_within(FORECAST_DEADLINE, message, call).await
    }

    /// Creates a service. The caller generates `id` once per create: a repeated call with the same spec returns the
    /// same result.
    pub async fn create(&self, id: ServiceId, spec: &ServiceSpec) -> Result<v1::Service, Error> {
        let allow_many_replicas = self.allow_many_replicas;
        let message =
            v1::CreateServiceRequest { id: id.to_string(), spec: Some(spec.into()), allow_many_replicas };
        let call = |channel, request| async move { Self::client(channel).create(request).await };
        self.client.writing().unary(message, call).await
    }

    /// The service with this name, id or id prefix.
    pub async fn get(&self, text: &str) -> Result<v1::Service, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.client.unary(reference(text), call).await
    }

    /// As [`Services::get`], for a write that depends on it.
    async fn newest(&self, text: &str) -> Result<v1::Service, Error> {
        self.client.linearizable().services().get(text).await
    }

    /// Pages with this content, of which `items` takes the items and the next token.
    fn pages<T>(
        &self,
        content: v1::ServiceListContent,
        items: fn(v1::ListServicesResponse) -> (Vec<T>, String),
    ) -> impl Stream<Item = Result<Vec<T>, Error>> {
        let client = self.client.clone();
        let name_prefix = self.name_prefix.to_owned();
        pages::pages(move |page_token| {
            let (client, name_prefix) = (client.clone(), name_prefix.clone());
            async move {
                let (page_size, content) = (PAGE_SIZE, content.into());
                let message = v1::ListServicesRequest { page_size, page_token, name_prefix, content };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListServicesResponse = client.unary(message, call).await?;
                Ok(items(page))
            }
        })
    }

    /// All services.
    pub async fn list(&self) -> Result<Vec<v1::Service>, Error> {
        self.list_as(std::convert::identity).await
    }

    /// All services, as `convert` makes them: of a page in memory at a time, since messages are large.
    pub async fn list_as<T>(&self, convert: impl Fn(v1::Service) -> T) -> Result<Vec<T>, Error> {
        let pages = self.pages(v1::ServiceListContent::Whole, |page| (page.services, page.next_page_token));
        pages::collect_all_as(pages, convert).await
    }

    /// The summaries of all services, as `convert` makes them.
    pub async fn summaries_as<T>(&self, convert: impl Fn(v1::ServiceSummary) -> T) -> Result<Vec<T>, Error> {
        let content = v1::ServiceListContent::Summaries;
        let pages = self.pages(content, |page| (page.summaries, page.next_page_token));
        pages::collect_all_as(pages, convert).await
    }

    /// The names of all services, in order.
    pub async fn names(&self) -> Result<Vec<String>, Error> {
        let pages = self.pages(v1::ServiceListContent::Names, |page| (page.names, page.next_page_token));
        pages::collect_all(pages).await
    }

    /// Sets the desired number of replicas; `version` is the expected version.
    pub async fn scale(&self, text: &str, replicas: u32, version: Option<u64>) -> Result<v1::Service, Error> {
        let allow_many_replicas = self.allow_many_replicas;
        let (reference, replicas) = (text.to_owned(), i64::from(replicas));
        let message = v1::ScaleServiceRequest { reference, version, replicas, allow_many_replicas };
        let call = |channel, request| async move { Self::client(channel).scale(request).await };
        self.client.writing().unary(message, call).await
    }

    /// Starts the removal of a service: its tasks are stopped, then it is removed. A bootstrap service is removed only
    /// with `force`.
    pub async fn remove(&self, text: &str, version: Option<u64>, force: bool) -> Result<v1::Service, Error> {
        let before = self.newest(text).await?;
        let message = v1::RemoveServiceRequest { reference: before.id.clone(), version, force };
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        accept_absent(
            self.client.writing().unary(message, call).await,
            v1::Service { removing: true, ..before },
        )
    }

    /// Updates the spec; `version` is the expected version. Tasks whose spec changed are replaced one by one; `force`
    /// replaces all. Name and mode cannot change.
    pub async fn update(
        &self,
        text: &str,
        spec: &ServiceSpec,
        version: Option<u64>,
        force: bool,
    ) -> Result<v1::Service, Error> {
        let version = match version {
            // A repeated forced update would replace all tasks twice.
            None if force => Some(self.newest(text).await?.version),
            version => version,
        };
        let allow_many_replicas = self.allow_many_replicas;
        let (reference, spec) = (text.to_owned(), Some(spec.into()));
        let message = v1::UpdateServiceRequest { reference, version, spec, force, allow_many_replicas };
        let call = |channel, request| async move { Self::client(channel).update(request).await };
        self.client.writing().unary(message, call).await
    }

    /// Makes an earlier revision current again, under a new number; `None` is the previous one. `version` is the
    /// expected version.
    pub async fn rollback(
        &self,
        text: &str,
        revision: Option<u64>,
        version: Option<u64>,
    ) -> Result<v1::Service, Error> {
        let version = match (revision, version) {
            // A repeated rollback to the previous revision would undo the first one.
            (None, None) => Some(self.newest(text).await?.version),
            (_, version) => version,
        };
        let message = v1::RollbackServiceRequest { reference: text.to_owned(), version, revision };
        let call = |channel, request| async move { Self::client(channel).rollback(request).await };
        self.client.writing().unary(message, call).await
    }

    /// Continues a paused update or rollback. `version` is the expected version.
    pub async fn resume(&self, text: &str, version: Option<u64>) -> Result<v1::Service, Error> {
        let message = v1::ResumeServiceRequest { reference: text.to_owned(), version };
        let call = |channel, request| async move { Self::client(channel).resume(request).await };
        self.client.writing().unary(message, call).await
    }

    /// Revisions for a rollback, newest first.
    pub async fn history(&self, text: &str) -> Result<Vec<v1::Revision>, Error> {
        let call = |channel, request| async move { Self::client(channel).list_revisions(request).await };
        let history: v1::ListRevisionsResponse = self.client.unary(reference(text), call).await?;
        Ok(history.revisions)
    }
}

impl TaskApi<'_> {
    fn client(channel: Channel) -> TasksClient<Channel> {
        TasksClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
    }

    /// The task with this id, id prefix, or `SERVICE.SLOT`.
    pub async fn get(&self, text: &str) -> Result<v1::Task, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.0.unary(reference(text), call).await
    }

    /// Stops a live task, so that another one takes its slot. Must be given its id: a name would mean that other one
    /// in a repetition.
    pub async fn restart(&self, id: &str) -> Result<v1::Task, Error> {
        let call = |channel, request| async move { Self::client(channel).restart(request).await };
        self.0.writing().unary(reference(id), call).await
    }

    /// A page of tasks.
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

    /// All tasks that match the filter.
    pub async fn list(&self, filter: TaskFilter) -> Result<Vec<v1::Task>, Error> {
        pages::collect_all(self.pages(filter)).await
    }
}

impl NodeApi<'_> {
    fn client(channel: Channel) -> NodesClient<Channel> {
        NodesClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
    }

    /// Asks for the verification of nodes, of all READY ones without `references`, and returns them.
    pub async fn verify(&self, references: Vec<String>) -> Result<Vec<v1::Node>, Error> {
        let call = |channel, request| async move { Self::client(channel).verify(request).await };
        let message = v1::VerifyNodesRequest { references };
        let asked: v1::VerifyNodesResponse = self.0.writing().unary(message, call).await?;
        Ok(asked.nodes)
    }

    /// The node with this name, id or id prefix.
    pub async fn get(&self, text: &str) -> Result<v1::Node, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.0.unary(reference(text), call).await
    }

    /// A page of nodes.
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
        pages::collect_all(self.pages()).await
    }

    /// Changes labels, availability or taints of a node and returns the new node.
    pub async fn update(&self, text: &str, change: &NodeChange) -> Result<v1::Node, Error> {
        let NodeChange { version, label_add, label_rm, availability, taint_add, taint_rm } = change.clone();
        let availability = availability.map_or(v1::Availability::Unspecified, v1::Availability::from);
        let message = v1::UpdateNodeRequest {
            reference: text.to_owned(),
            version,
            label_add: label_add.into_iter().collect(),
            label_rm: label_rm.into_iter().collect(),
            availability: availability.into(),
            taint_add: taint_add.iter().map(ToString::to_string).collect(),
            taint_rm: taint_rm.iter().map(ToString::to_string).collect(),
        };
        let call = |channel, request| async move { Self::client(channel).update(request).await };
        self.0.writing().unary(message, call).await
    }

    /// Removes a node and returns it. A node that is up and has tasks is refused unless `force` orphans them.
    pub async fn remove(&self, text: &str, force: bool) -> Result<v1::Node, Error> {
        let before = NodeApi(&self.0.linearizable()).get(text).await?;
        let message = v1::RemoveNodeRequest { reference: before.id.clone(), force };
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        accept_absent(self.0.writing().unary(message, call).await, before)
    }
}

impl ClusterApi<'_> {
    /// The cluster as known by this manager.
    pub async fn info(&self) -> Result<v1::InfoResponse, Error> {
        let call = |channel, request| async move { ClusterClient::new(channel).info(request).await };
        self.0.unary(v1::InfoRequest {}, call).await
    }

    /// Changes settings, turns autolock on or off, and returns the cluster after that; `version` is the expected
    /// version of the settings.
    pub async fn update(
        &self,
        change: &ClusterSettingsChange,
        autolock: Option<bool>,
        version: Option<u64>,
    ) -> Result<v1::InfoResponse, Error> {
        let message = v1::UpdateClusterRequest { version, settings: Some(change.into()), autolock };
        let call = |channel, request| async move { ClusterClient::new(channel).update(request).await };
        self.0.writing().unary(message, call).await
    }

    /// The certificate authority, and how far its replacement is.
    pub async fn ca(&self) -> Result<v1::CaStatus, Error> {
        let call = |channel, request| async move { ClusterClient::new(channel).get_ca(request).await };
        self.0.unary(v1::GetCaRequest {}, call).await
    }

    /// Replaces the certificate authority with this digest, once, unless that is in progress.
    pub async fn rotate_ca(&self, ca_digest: &str) -> Result<v1::CaStatus, Error> {
        let message = v1::RotateCaRequest { ca_digest: ca_digest.to_owned() };
        let call = |channel, request| async move { ClusterClient::new(channel).rotate_ca(request).await };
        self.0.writing().unary(message, call).await
    }

    /// How far the replacement of the keys that encrypt what managers store is.
    pub async fn keys(&self) -> Result<v1::KeyStatus, Error> {
        let call = |channel, request| async move { ClusterClient::new(channel).get_keys(request).await };
        self.0.unary(v1::GetKeysRequest {}, call).await
    }

    /// Begins to replace these keys, once after the replacement with this number.
    pub async fn rotate_keys(&self, number: u64) -> Result<v1::KeyStatus, Error> {
        let call = |channel, request| async move { ClusterClient::new(channel).rotate_keys(request).await };
        self.0.writing().unary(v1::RotateKeysRequest { number }, call).await
    }

    /// The key that unlocks managers; empty while autolock is off.
    pub async fn unlock_key(&self) -> Result<v1::UnlockKey, Error> {
        let call =
            |channel, request| async move { ClusterClient::new(channel).get_unlock_key(request).await };
        self.0.unary(v1::GetUnlockKeyRequest {}, call).await
    }

    /// Replaces the unlock key with this id, once.
    pub async fn rotate_unlock_key(&self, id: &str) -> Result<v1::UnlockKey, Error> {
        let message = v1::RotateUnlockKeyRequest { id: id.to_owned() };
        let call =
            |channel, request| async move { ClusterClient::new(channel).rotate_unlock_key(request).await };
        self.0.writing().unary(message, call).await
    }

    /// Background tasks of all managers, and those last reported by agents. Names the unreachable managers.
    pub async fn background_tasks(&self) -> Result<v1::ListBackgroundTasksResponse, Error> {
        let call = |channel, request| async move {
            ClusterClient::new(channel).list_background_tasks(request).await
        };
        self.0.unary(v1::ListBackgroundTasksRequest {}, call).await
    }

    /// Changes from now on; only those of the service with this id, unless it is empty.
    pub fn watch(&self, service: &str) -> ClusterWatch {
        ClusterWatch::new(self.0.clone(), service.to_owned())
    }

    /// Events of objects.
    pub fn events(&self, query: EventQuery) -> EventStream {
        EventStream::new(self.0.clone(), query)
    }

    /// Audit lines of all managers, through the manager that this client uses.
    pub async fn audit(&self, request: v1::AuditRequest) -> Result<AuditLineStream, Error> {
        AuditLineStream::open(self.0, request).await
    }

    /// Why the object of a kind (`service`), or the only one of any kind if that is empty, is as it is.
    pub async fn why(&self, kind: &str, text: &str) -> Result<v1::WhyResponse, Error> {
        let message = v1::WhyRequest { kind: kind.to_owned(), reference: text.to_owned() };
        let call = |channel, request| async move { ClusterClient::new(channel).why(request).await };
        self.0.unary(message, call).await
    }
}

impl ImageApi<'_> {
    /// Images of nodes (names or ids; none means every node that is READY). `failed` contains the error of a node.
    pub async fn list(&self, nodes: Vec<String>) -> Result<Vec<v1::NodeImages>, Error> {
        let message = v1::ListImagesRequest { nodes };
        let call = |channel, request| async move { Self::client(channel).list(request).await };
        let answer: v1::ListImagesResponse = self.0.unary_within(LIST_DEADLINE, message, call).await?;
        Ok(answer.nodes)
    }

    /// Removes images of nodes that no task used for the given time, and returns them.
    pub async fn prune(
        &self,
        nodes: Vec<String>,
        unused_for: Duration,
    ) -> Result<Vec<v1::NodeImages>, Error> {
        let unused_for_ms = u64::try_from(unused_for.as_millis()).unwrap_or(u64::MAX);
        self.send_prune(v1::PruneImagesRequest { nodes, unused_for_ms, reference: String::new() }).await
    }

    /// Removes the image with this name or digest from all nodes that are READY, and returns what each removed. A node
    /// with a task that uses it has an error.
    pub async fn remove(&self, reference: &str) -> Result<Vec<v1::NodeImages>, Error> {
        let (nodes, reference) = (Vec::new(), reference.to_owned());
        // A manager or node that does not know the reference removes nothing then.
        self.send_prune(v1::PruneImagesRequest { nodes, unused_for_ms: u64::MAX, reference }).await
    }

    async fn send_prune(&self, message: v1::PruneImagesRequest) -> Result<Vec<v1::NodeImages>, Error> {
        let call = |channel, request| async move { Self::client(channel).prune(request).await };
        let answer: v1::PruneImagesResponse =
            self.0.writing().unary_within(PRUNE_DEADLINE, message, call).await?;
        Ok(answer.nodes)
    }

    /// What a name stands for in its registry.
    pub async fn resolve(&self, reference: &str) -> Result<v1::ResolvedImage, Error> {
        let message = v1::ResolveImageRequest { reference: reference.to_owned() };
        let call = |channel, request| async move { Self::client(channel).resolve(request).await };
        self.0.unary_within(RESOLVE_DEADLINE, message, call).await
    }

    pub(crate) fn client(channel: Channel) -> ImagesClient<Channel> {
        let client = ImagesClient::new(channel).max_encoding_message_size(MAX_REQUEST);
        client.max_decoding_message_size(MAX_RESPONSE)
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
