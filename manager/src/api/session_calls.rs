//! What other managers ask about the sessions here.

use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_types::MemberId;

use super::Api;
use crate::peers::sessions::{ProgressStream, RelayStream, SessionCalls};

#[tonic::async_trait]
impl SessionCalls for Api {
    async fn heard(&self, _: MemberId, request: v1::HeardRequest) -> Result<v1::HeardResponse, Status> {
        Ok(self.tell_heard(&request))
    }

    async fn progress(&self, _: MemberId, _: v1::ProgressRequest) -> Result<ProgressStream, Status> {
        Ok(Box::pin(self.tell_progress()))
    }

    async fn relay(&self, _: MemberId, inbound: Streaming<v1::RelayFrame>) -> Result<RelayStream, Status> {
        Ok(Box::pin(self.relay_here(inbound).await?))
    }
}
