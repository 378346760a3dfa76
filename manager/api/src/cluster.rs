//! The cluster as a whole: its properties, its background tasks and its change stream.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};
use warren_core::state::ObjectKind;
use warren_core::{Cluster, Command};
use warren_proto::convert::read_field;
use warren_proto::status::Problem;
use warren_proto::v1::{self, cluster_server};
use warren_store::problem::status_of;
use warren_store::{ProposeError, PublishedState};
use warren_types::{ClusterSettingsChange, NodeStatus};

use super::Api;
use super::audited_call::AuditedCall;
use super::read::allows_stale;
use super::watch::{MAX_QUEUED_EVENTS, WatchFilter};

impl Api {
    /// # Errors
    /// `Unavailable`, reason `NO_CLUSTER`, until the first entry is applied.
    fn show_cluster(&self, published: &PublishedState) -> Result<v1::InfoResponse, Status> {
        let state = &published.state;
        let created = || Problem::new(Code::Unavailable, "NO_CLUSTER", "the cluster is being created");
        let cluster = state.cluster().ok_or_else(created)?;
        let leader = published.role.leader_id.and_then(|leader| state.member(leader));
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(v1::InfoResponse {
            cluster_id: cluster.id.to_string(),
            manager_id: self.manager_id.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            leader: published.role.is_leader,
            term: published.role.term,
            applied_index: published.index,
            log_bytes_written: published.log.bytes,
            log_writes: published.log.writes,
            services: count(state.services().count()),
            tasks: count(state.task_count()),
            nodes: count(state.nodes().count()),
            nodes_ready: count(state.nodes().filter(|node| node.status == NodeStatus::Ready).count()),
            ranges: cluster.ranges.iter().map(ToString::to_string).collect(),
            created_at: cluster.created_at.0,
            tasks_running: state.services().map(|service| state.task_counts(&service.id).running).sum(),
            log_engine: self.log_engine.to_string(),
            log_write_stall: published
                .write_stall
                .as_ref()
                .map(|held| held.reason.to_string())
                .unwrap_or_default(),
            log_write_stalled_since: published.write_stall.as_ref().map(|held| held.since.0),
            ca_digest: self.token_authority().to_string(),
            leader_id: leader.map(|leader| leader.manager_id.to_string()).unwrap_or_default(),
            leader_name: leader.map(|leader| leader.name.to_string()).unwrap_or_default(),
            managers: count(state.members().filter(|member| !member.removing).count()),
            digest: format!("{:016x}", state.digest().value),
            incarnation: cluster.incarnation,
            settings: Some((&cluster.settings).into()),
            settings_version: cluster.version,
            autolock: Some(cluster.unlock_key.is_some()),
        })
    }
}

#[tonic::async_trait]
impl cluster_server::Cluster for Api {
    type WatchStream = ReceiverStream<Result<v1::WatchEvent, Status>>;
    type AuditStream = ReceiverStream<Result<v1::AuditResponse, Status>>;
    type StreamEventsStream = ReceiverStream<Result<v1::StreamEventsResponse, Status>>;

    async fn stream_events(
        &self,
        request: Request<v1::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        self.open_event_stream(request).await.map(Response::new)
    }

    async fn audit(&self, request: Request<v1::AuditRequest>) -> Result<Response<Self::AuditStream>, Status> {
        self.merge_audit(request.into_inner()).map(Response::new)
    }

    async fn why(&self, request: Request<v1::WhyRequest>) -> Result<Response<v1::WhyResponse>, Status> {
        self.answer_why(request).await.map(Response::new)
    }

    async fn info(&self, request: Request<v1::InfoRequest>) -> Result<Response<v1::InfoResponse>, Status> {
        let held = || Some(self.store.read()).filter(|published| published.write_stall.is_some());
        let published = match self.read(&request).await {
            Ok(published) => published,
            // With a stalled log the call is answered locally: the response describes this manager.
            Err(refused) => held().ok_or(refused)?,
        };
        self.show_cluster(&published).map(Response::new)
    }

    async fn update(
        &self,
        request: Request<v1::UpdateClusterRequest>,
    ) -> Result<Response<v1::InfoResponse>, Status> {
        let caller = AuditedCall::of(&request);
        let v1::UpdateClusterRequest { version, settings, autolock } = request.into_inner();
        let change: ClusterSettingsChange =
            read_field("settings", settings.unwrap_or_default()).map_err(status_of)?;
        let command = Command::UpdateCluster { version, change: change.clone(), at: self.clock.now() };
        let mut updated: Arc<Cluster> = self.write(command).await?;
        if let Some(is_on) = autolock {
            updated = self.set_autolock(is_on).await?;
        }
        caller.identified(ObjectKind::Cluster, updated.id, "", updated.version);
        tracing::info!(%caller, ?change, autolock, version = updated.version, "cluster settings updated");
        let mut info = self.show_cluster(&self.store.read())?;
        info.settings = Some((&updated.settings).into());
        info.settings_version = updated.version;
        Ok(Response::new(info))
    }

    async fn rotate_ca(
        &self,
        request: Request<v1::RotateCaRequest>,
    ) -> Result<Response<v1::CaStatus>, Status> {
        self.begin_ca_rotation(request).await
    }

    async fn get_ca(&self, request: Request<v1::GetCaRequest>) -> Result<Response<v1::CaStatus>, Status> {
        let published = self.read(&request).await?;
        Ok(Response::new(self.show_ca(&published.state)))
    }

    async fn rotate_keys(
        &self,
        request: Request<v1::RotateKeysRequest>,
    ) -> Result<Response<v1::KeyStatus>, Status> {
        self.begin_key_rotation(request).await
    }

    async fn get_keys(
        &self,
        request: Request<v1::GetKeysRequest>,
    ) -> Result<Response<v1::KeyStatus>, Status> {
        let published = self.read(&request).await?;
        Ok(Response::new(self.show_keys(&published.state)))
    }

    async fn get_unlock_key(
        &self,
        request: Request<v1::GetUnlockKeyRequest>,
    ) -> Result<Response<v1::UnlockKey>, Status> {
        let published = self.read(&request).await?;
        self.show_unlock_key(&published.state).await.map(Response::new)
    }

    async fn rotate_unlock_key(
        &self,
        request: Request<v1::RotateUnlockKeyRequest>,
    ) -> Result<Response<v1::UnlockKey>, Status> {
        self.replace_unlock_key(request).await
    }

    async fn list_background_tasks(
        &self,
        _: Request<v1::ListBackgroundTasksRequest>,
    ) -> Result<Response<v1::ListBackgroundTasksResponse>, Status> {
        Ok(Response::new(self.background_tasks_of(None).await))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let stale = allows_stale(request.metadata())?;
        let request = request.into_inner();
        if let Some(held) = self.store.read().stall_with_peers(self.member_id).filter(|_| !stale) {
            return Err(status_of(ProposeError::Stale(held.clone())));
        }
        let mut published = self.read_from_index(request.resume_index).await?;
        if !request.service.is_empty() && !stale && published.state.find_service(&request.service).is_err() {
            // It may just have been created by another manager.
            published = self.read_latest().await?;
        }
        let service = (!request.service.is_empty())
            .then(|| published.state.find_service(&request.service).map(|s| s.id).map_err(status_of))
            .transpose()?;
        // Every committed entry is applied here. A larger index belongs to another incarnation of the
        // cluster, and its watcher starts again as well.
        let resumes = (1..=published.index).contains(&request.resume_index);
        let after = if resumes { request.resume_index } else { published.index };
        let (events, stream) = mpsc::channel(MAX_QUEUED_EVENTS);
        self.shutdown.spawn(
            "watch",
            self.clone().stream_watch(WatchFilter { service, after, is_stale_allowed: stale }, events),
        );
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
