//! The one way to talk to containerd: a lazily connected channel, the namespace header, deadlines, kinds of
//! failure.

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

/// containerd's server answers with up to 16 MiB; tonic would refuse more than 4.
const MAX_REPLY: usize = 32 << 20;
/// A Unix socket is connected at once or not at all; this only bounds a listener whose backlog is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to one containerd, working in one of its namespaces. Clones share the channel.
///
/// It connects at the first call and again by itself after containerd was away.
#[derive(Clone, Debug)]
pub struct Connection {
    channel: Channel,
    socket: Arc<Path>,
    namespace: Arc<str>,
    header: MetadataValue<Ascii>,
}

impl Connection {
    /// A connection to the containerd that listens at `socket`. Does no IO, so it needs only a tokio
    /// context.
    ///
    /// # Errors
    /// [`Status`] with `InvalidArgument` when `namespace` cannot be sent as a header.
    pub fn new(socket: impl Into<PathBuf>, namespace: &str) -> Result<Self, Status> {
        let socket: Arc<Path> = socket.into().into();
        let header = namespace
            .parse()
            .map_err(|_| Status::invalid_argument(format!("namespace {namespace:?} is not plain ASCII")))?;
        let path = socket.clone();
        // The address is never dialled: the connector below goes to the socket.
        let channel = Endpoint::from_static("http://containerd").connect_timeout(CONNECT_TIMEOUT);
        let channel = channel.connect_with_connector_lazy(tower::service_fn(move |_| {
            let path = path.clone();
            async move { tokio::net::UnixStream::connect(&*path).await.map(TokioIo::new) }
        }));
        Ok(Self { channel, socket, namespace: namespace.into(), header })
    }

    /// The path of containerd's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The containerd namespace every request names.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Wraps a message with the namespace header.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("containerd-namespace", self.header.clone());
        request
    }

    /// Wraps a message with the namespace header and the lease that shall hold what the call makes.
    pub(crate) fn leased<T>(&self, message: T, lease: &MetadataValue<Ascii>) -> Request<T> {
        let mut request = self.request(message);
        request.metadata_mut().insert("containerd-lease", lease.clone());
        request
    }

    /// containerd's version, which is also the cheapest proof that it answers.
    ///
    /// # Errors
    /// The status of the call, `DeadlineExceeded` when nothing came within `deadline`.
    pub async fn version(&self, deadline: Duration) -> Result<String, Status> {
        let mut client = VersionClient::new(self.channel.clone());
        Ok(within(deadline, client.version(())).await?.version)
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

/// Runs one unary call and gives up after `deadline` with `DeadlineExceeded`.
///
/// # Errors
/// The status of the call.
pub async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(deadline, call).await {
        Ok(reply) => reply.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!("no answer within {deadline:?}"))),
    }
}

/// What a failed call means for the caller, whatever code containerd chose for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The thing named does not exist.
    NotFound,
    /// The thing to be made is there already.
    AlreadyExists,
    /// containerd is not there, or the connection broke during the call: it may or may not have taken
    /// effect.
    Unavailable,
    /// No answer within the deadline: it may or may not have taken effect.
    Timeout,
    /// containerd answered with an error of another kind; the message says which.
    Other,
}

impl Fault {
    /// Reads a status. A broken connection arrives as `Unknown` with the text "transport error".
    pub fn of(status: &Status) -> Self {
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

/// Only a status made on our side has a source; one that containerd sent has a message and nothing behind
/// it.
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
    fn a_broken_transport_is_unavailable_and_other_unknowns_are_not() {
        let check =
            |code, message: &str, want| assert_eq!(Fault::of(&Status::new(code, message)), want, "{message}");
        check(Code::Unknown, "transport error", Fault::Unavailable);
        check(Code::Unavailable, "connection refused", Fault::Unavailable);
        check(Code::Unknown, "OCI runtime create failed: exec: \"/x\"", Fault::Other);
        check(Code::NotFound, "container \"x\": not found", Fault::NotFound);
        check(Code::AlreadyExists, "task x: already exists", Fault::AlreadyExists);
        check(Code::DeadlineExceeded, "", Fault::Timeout);
    }

    #[tokio::test]
    async fn nobody_listening_is_unavailable() {
        let dir = tempfile::tempdir().unwrap();
        let connection = Connection::new(dir.path().join("none.sock"), "warren").unwrap();
        let status = connection.version(Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(Fault::of(&status), Fault::Unavailable, "{status:?}");
    }

    #[tokio::test]
    async fn a_listener_that_never_answers_is_a_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("mute.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let connection = Connection::new(&socket, "warren").unwrap();
        let status = connection.version(Duration::from_millis(100)).await.unwrap_err();
        assert_eq!(Fault::of(&status), Fault::Timeout, "{status:?}");
    }

    #[test]
    fn a_namespace_that_is_no_header_is_refused() {
        assert!(Connection::new("/x", "a\nb").is_err());
    }
}
