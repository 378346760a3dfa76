//! The calls, by noun. Each has a deadline; what can be unavailable for a moment is tried again.

use futures::stream::Stream;
use tokio::io::AsyncRead;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::images_client::ImagesClient;
use warren_proto::v1::nodes_client::NodesClient;
use warren_proto::v1::services_client::ServicesClient;
use warren_proto::v1::tasks_client::TasksClient;
use warren_types::{ServiceId, ServiceSpec};

use crate::client::{Client, MAX_ANSWER};
use crate::error::Error;
use crate::import::{Import, MAX_REQUEST};
use crate::pages;
use crate::watch::Watch;

/// Items per page of the lists here: the most that managers give.
const PAGE_SIZE: u32 = 1000;

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

fn reference(text: &str) -> v1::Reference {
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
        self.0.unary(message, call).await
    }

    /// The service with this name, id or beginning of an id.
    pub async fn get(&self, text: &str) -> Result<v1::Service, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.0.unary(reference(text), call).await
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
        self.0.unary(message, call).await
    }

    /// Starts to remove a service; its tasks are stopped, then it is gone.
    pub async fn remove(&self, text: &str, version: Option<u64>) -> Result<v1::Service, Error> {
        let message = v1::RemoveServiceRequest { reference: text.to_owned(), version };
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        self.0.unary(message, call).await
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
}

impl Cluster<'_> {
    /// The cluster as this manager sees it.
    pub async fn info(&self) -> Result<v1::InfoResponse, Error> {
        let call = |channel, request| async move { ClusterClient::new(channel).info(request).await };
        self.0.unary(v1::InfoRequest {}, call).await
    }

    /// The manager's background loops.
    pub async fn loops(&self) -> Result<Vec<v1::Loop>, Error> {
        let call = |channel, request| async move { ClusterClient::new(channel).loops(request).await };
        self.0.unary(v1::LoopsRequest {}, call).await.map(|answer: v1::LoopsResponse| answer.loops)
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

    pub(crate) fn client(channel: Channel) -> ImagesClient<Channel> {
        ImagesClient::new(channel).max_encoding_message_size(MAX_REQUEST)
    }
}
