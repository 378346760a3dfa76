//! Calls of other managers to this manager and its sessions.

use tokio::time::{Instant, timeout};
use tonic::{Status, Streaming};
use warren_peers::local_calls::{AuditStream, LocalCalls, ProgressStream, RelayStream};
use warren_proto::v1;
use warren_session::registry::SessionContact;
use warren_types::MemberId;
use warren_types::spec::WITHDRAWAL_TIMEOUT;

use super::Api;

#[tonic::async_trait]
impl LocalCalls for Api {
    fn contacts(&self) -> Vec<v1::NodeContact> {
        let now = Instant::now();
        let contact = |contact: SessionContact| {
            let warren_replica::NodeContact { node, session, age, network_index } = contact.as_of(now);
            let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            v1::NodeContact { node_id: node.to_string(), session, age_ms, network_index }
        };
        self.registry.contacts().into_iter().map(contact).collect()
    }

    fn status(&self) -> v1::StatusResponse {
        self.own_status()
    }

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

    async fn await_network(
        &self,
        _: MemberId,
        request: v1::AwaitNetworkRequest,
    ) -> Result<v1::AwaitNetworkResponse, Status> {
        // What is no id is no node with a session here, and no network with a change.
        let nodes = request.nodes.iter().filter_map(|id| id.parse().ok()).collect();
        let networks = request.networks.iter().filter_map(|id| id.parse().ok()).collect();
        let applied = self.networks.await_nodes(&self.registry, request.index, &networks, nodes);
        let applied = timeout(WITHDRAWAL_TIMEOUT, applied)
            .await
            .map_err(|_| Status::deadline_exceeded("not every node has acknowledged it"))?;
        Ok(v1::AwaitNetworkResponse { nodes: applied.iter().map(ToString::to_string).collect() })
    }

    async fn relay_stream(
        &self,
        _: MemberId,
        inbound: Streaming<v1::RelayFrame>,
    ) -> Result<RelayStream, Status> {
        Ok(Box::pin(self.serve_relay(inbound).await?))
    }

    async fn read_audit(&self, _: MemberId, request: v1::AuditRequest) -> Result<AuditStream, Status> {
        Ok(self.serve_own_audit(request).await)
    }
}
