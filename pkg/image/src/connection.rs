//! The containerd client: a lazily connected channel, the namespace header, deadlines, error kinds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::diff_client::DiffClient;
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::introspection_client::IntrospectionClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::namespaces_client::NamespacesClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::version_client::VersionClient;
use hyper_util::rt::TokioIo;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

/// containerd's server sends up to 16 MiB; the default limit of tonic is 4.
const MAX_REPLY: usize = 32 << 20;
/// A Unix socket connects immediately or fails; this only bounds a listener whose backlog is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to one containerd and one of its namespaces. Clones share the channel.
///
/// It connects at the first call and reconnects after a containerd restart.
#[derive(Clone, Debug)]
pub struct ContainerdConnection {
    channel: Channel,
    socket: Arc<Path>,
    namespace: Arc<str>,
    header: MetadataValue<Ascii>,
}

impl ContainerdConnection {
    /// Prepares a connection to the containerd that listens at `socket`. Does no IO; needs a tokio context.
    ///
    /// # Errors
    /// [`Status`] with `InvalidArgument` when `namespace` cannot be sent as a header.
    pub fn new(socket: impl Into<PathBuf>, namespace: &str) -> Result<Self, Status> {
        let socket: Arc<Path> = socket.into().into();
        let header = namespace
            .parse()
            .map_err(|_| Status::invalid_argument(format!("namespace {namespace:?} is not plain ASCII")))?;
        let path = socket.clone();
        // The address is never dialled: the connector below connects to the socket.
        let channel = Endpoint::from_static("http://containerd").connect_timeout(CONNECT_TIMEOUT);
        let channel = channel.connect_with_connector_lazy(tower::service_fn(move |_| {
            let path = path.clone();
            async move { tokio::net::UnixStream::connect(&*path).await.map(TokioIo::new) }
        }));
        Ok(Self { channel, socket, namespace: namespace.into(), header })
    }

    /// Path of containerd's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The containerd namespace of every request.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Wraps a message with the namespace header.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("containerd-namespace", self.header.clone());
        request
    }

    /// Wraps a message with the namespace header and the lease that retains what the call creates.
    pub(crate) fn request_with_lease<T>(&self, message: T, lease: &MetadataValue<Ascii>) -> Request<T> {
        let mut request = self.request(message);
        request.metadata_mut().insert("containerd-lease", lease.clone());
        request
    }

    /// Fetches containerd's version; also the cheapest probe of its availability.
    ///
    /// # Errors
    /// The status of the call, `DeadlineExceeded` when no answer arrived within `deadline`.
    pub async fn version(&self, deadline: Duration) -> Result<String, Status> {
        let mut client = VersionClient::new(self.channel.clone());
        Ok(with_deadline(deadline, client.version(())).await?.version)
    }

    /// Client of the containers service.
    pub fn containers(&self) -> ContainersClient<Channel> {
        ContainersClient::new(self.channel.clone()).max_decoding_message_size(MAX_REPLY)
    }

    /// Client of the tasks service.
    pub fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone()).max_decoding_message_size(MAX_REPLY)
    }

    /// Client of the snapshots service.
    pub fn snapshots(&self) -> SnapshotsClient<Channel> {
        SnapshotsClient::new(self.channel.clone()).max_decoding_message_size(MAX_REPLY)
    }

    /// Client of the events service.
    pub fn events(&self) -> EventsClient<Channel> {
        EventsClient::new(self.channel.clone()).max_decoding_message_size(MAX_REPLY)
    }

    /// Client of the leases service.
    pub fn leases(&self) -> LeasesClient<Channel> {
        LeasesClient::new(self.channel.clone()).max_decoding_message_size(MAX_REPLY)
    }

    /// Client of the introspection service.
    pub fn introspection(&self) -> IntrospectionClient<Channel> {
        IntrospectionClient::new(self.channel.clone())
    }

    /// Client of the namespaces service.
    pub fn namespaces(&self) -> NamespacesClient<Channel> {
        NamespacesClient::new(self.channel.clone())
    }

    pub(crate) fn content(&self) -> ContentClient<Channel> {
        ContentClient::new(self.channel.clone()).max_decoding_message_size(MAX_REPLY)
    }

    pub(crate) fn images(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.channel.clone()).max_decoding_message_size(MAX_REPLY)
    }

    pub(crate) fn diff(&self) -> DiffClient<Channel> {
        DiffClient::new(self.channel.clone())
    }
}

/// Runs one unary call; fails with `DeadlineExceeded` after `deadline`.
///
/// # Errors
/// The status of the call.
pub async fn with_deadline<T>(
    deadline: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(deadline, call).await {
        Ok(reply) => reply.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!("no answer within {deadline:?}"))),
    }
}

/// The kind of a failed call, independent of the code that containerd chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The object does not exist.
    NotFound,
    /// The object to create already exists.
    AlreadyExists,
    /// containerd is unavailable, or the connection broke during the call, which may or may not have taken
    /// effect.
    Unavailable,
    /// No answer within the deadline; the call may or may not have taken effect.
    Timeout,
    /// Another containerd error; see the message.
    Other,
}

impl CallError {
    /// Classifies a status. A broken connection arrives as `Unknown` with the text "transport error".
    pub fn from_status(status: &Status) -> Self {
        match status.code() {
            Code::NotFound => Self::NotFound,
            Code::AlreadyExists => Self::AlreadyExists,
            Code::Unavailable => Self::Unavailable,
            Code::DeadlineExceeded => Self::Timeout,
            Code::Unknown | Code::Internal | Code::Cancelled if broke_in_transit(status) => Self::Unavailable,
            _ => Self::Other,
        }
    }
}

/// Only a locally created status has a source; one sent by containerd has just a message.
fn broke_in_transit(status: &Status) -> bool {
    let message = status.message();
    message.contains("transport error")
        || message.contains("h2 protocol error")
        || message.contains("connection closed")
        || message.contains("operation was canceled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_broken_transport_is_unavailable() {
        let check = |code, message: &str, want| {
            assert_eq!(CallError::from_status(&Status::new(code, message)), want, "{message}")
        };
        check(Code::Unknown, "transport error", CallError::Unavailable);
        check(Code::Unavailable, "connection refused", CallError::Unavailable);
        check(Code::Unknown, "OCI runtime create failed: exec: \"/x\"", CallError::Other);
        check(Code::NotFound, "container \"x\": not found", CallError::NotFound);
        check(Code::AlreadyExists, "task x: already exists", CallError::AlreadyExists);
        check(Code::DeadlineExceeded, "", CallError::Timeout);
    }

    #[tokio::test]
    async fn missing_listener_is_unavailable() {
        let dir = tempfile::tempdir().unwrap();
        let connection = ContainerdConnection::new(dir.path().join("none.sock"), "warren").unwrap();
        let status = connection.version(Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(CallError::from_status(&status), CallError::Unavailable, "{status:?}");
    }

    #[tokio::test]
    async fn silent_listener_is_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("mute.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let connection = ContainerdConnection::new(&socket, "warren").unwrap();
        let status = connection.version(Duration::from_millis(100)).await.unwrap_err();
        assert_eq!(CallError::from_status(&status), CallError::Timeout, "{status:?}");
    }

    #[test]
    fn invalid_namespace_is_rejected() {
        assert!(ContainerdConnection::new("/x", "a\nb").is_err());
    }
}
