//! The calls of service Peers that concern sessions with workers. [`super::server::PeerServer`] checks who calls, and
//! passes them on to whoever knows the sessions.

use std::pin::Pin;

use tokio_stream::Stream;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_types::MemberId;

/// News until the caller or this manager ends it.
pub type ProgressStream = Pin<Box<dyn Stream<Item = Result<v1::ProgressNews, Status>> + Send>>;
/// What a worker says on a stream that is passed on.
pub type RelayStream = Pin<Box<dyn Stream<Item = Result<v1::StreamFrame, Status>> + Send>>;

/// Answers them. `from` is the member that calls.
#[tonic::async_trait]
pub trait SessionCalls: Send + Sync + 'static {
    /// What the sessions here know that is not replicated.
    async fn heard(&self, from: MemberId, request: v1::HeardRequest) -> Result<v1::HeardResponse, Status>;

    /// What is heard of the progress of tasks from now on.
    async fn progress(&self, from: MemberId, request: v1::ProgressRequest) -> Result<ProgressStream, Status>;

    /// A stream to a worker whose session is here.
    async fn relay(&self, from: MemberId, inbound: Streaming<v1::RelayFrame>) -> Result<RelayStream, Status>;
}
