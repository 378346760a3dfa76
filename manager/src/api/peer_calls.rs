//! Calls of other managers to the sessions of this manager.

use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_types::MemberId;

use super::Api;
use crate::peers::session_calls::{ProgressStream, RelayStream, SessionCalls};

#[tonic::async_trait]
impl SessionCalls for Api {
    async fn list_node_reports(
        &self,
        _: MemberId,
        request: v1::ListNodeReportsRequest,
    ) -> Result<v1::ListNodeReportsResponse, Status> {
        Ok(self.local_node_reports(&request))
    }

    async fn watch_progress(
        &self,
        _: MemberId,
        _: v1::WatchProgressRequest,
    ) -> Result<ProgressStream, Status> {
        Ok(Box::pin(self.serve_progress()))
    }

    async fn relay_stream(
        &self,
        _: MemberId,
        inbound: Streaming<v1::RelayFrame>,
    ) -> Result<RelayStream, Status> {
        Ok(Box::pin(self.serve_relay(inbound).await?))
    }
}
