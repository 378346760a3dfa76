//! The calls of the Peers service that concern this manager and its sessions with workers.
//! [`super::server::PeerServer`] checks the caller and delegates them.

use std::pin::Pin;

use tokio_stream::Stream;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_types::MemberId;

/// Progress updates until the caller or this manager ends the stream.
pub type ProgressStream = Pin<Box<dyn Stream<Item = Result<v1::ProgressEvent, Status>> + Send>>;
/// The worker's frames of a relayed stream.
pub type RelayStream = Pin<Box<dyn Stream<Item = Result<v1::StreamFrame, Status>> + Send>>;

/// Audit lines until the last one, or for ever.
pub type AuditStream = Pin<Box<dyn Stream<Item = Result<v1::AuditResponse, Status>> + Send>>;

/// Handles the calls. `from` is the calling member.
#[tonic::async_trait]
pub trait LocalCalls: Send + Sync + 'static {
    /// The last contact with each node that has a session here.
    fn contacts(&self) -> Vec<v1::NodeContact>;

    /// The status of this manager, with the leader's view of its peers.
    fn status(&self) -> v1::StatusResponse;

    /// Reports of the local sessions that are not replicated.
    async fn list_node_reports(
        &self,
        from: MemberId,
        request: v1::ListNodeReportsRequest,
    ) -> Result<v1::ListNodeReportsResponse, Status>;

    /// Progress updates of the local sessions from now on.
    async fn watch_progress(
        &self,
        from: MemberId,
        request: v1::WatchProgressRequest,
    ) -> Result<ProgressStream, Status>;

    /// Resolves when the nodes with sessions here have applied the network up to an index.
    async fn await_network(
        &self,
        from: MemberId,
        request: v1::AwaitNetworkRequest,
    ) -> Result<v1::AwaitNetworkResponse, Status>;

    /// Opens a stream to a worker with a local session.
    async fn relay_stream(
        &self,
        from: MemberId,
        inbound: Streaming<v1::RelayFrame>,
    ) -> Result<RelayStream, Status>;

    /// The audit lines of this manager.
    async fn read_audit(&self, from: MemberId, request: v1::AuditRequest) -> Result<AuditStream, Status>;
}
