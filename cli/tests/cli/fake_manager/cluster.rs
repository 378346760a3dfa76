//! The cluster as a whole.

use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Response, Status};
use warren_proto::v1::stream_events_response::Message;
use warren_proto::v1::watch_event::Change;
use warren_proto::{Problem, v1};

use super::{FakeApi, FakeState, ResponseStream};

impl FakeState {
    fn ca_status(&self) -> v1::CaStatus {
        let phase = self.ca_phase.unwrap_or_default();
        let missing = |number, name: &str, until: v1::CaPhase| {
            let is_missing = self.ca_phase.is_some() && phase <= i32::from(until);
            let (missing, missing_names) =
                if is_missing { (1, vec![name.to_owned()]) } else { (0, Vec::new()) };
            Some(v1::CaProgress { total: number, missing, missing_names })
        };
        v1::CaStatus {
            ca_digest: if self.ca_phase.is_some() { "cd" } else { "ab" }.repeat(32),
            phase,
            began_at: 1_795_185_000_000,
            managers: missing(3, "m3", v1::CaPhase::Managers),
            nodes: missing(5, "w5", v1::CaPhase::Nodes),
            users: missing(2, "ann", v1::CaPhase::Complete),
        }
    }

    fn key_status(&self) -> v1::KeyStatus {
        let phase = self.key_phase.unwrap_or_default();
        let is_until = |last: v1::KeyPhase| self.key_phase.is_some() && phase <= i32::from(last);
        let missing = is_until(v1::KeyPhase::Managers).then(|| "m3".to_owned());
        let remaining: [(v1::KeyPhase, u32); 2] = [(v1::KeyPhase::Managers, 3), (v1::KeyPhase::Objects, 2)];
        v1::KeyStatus {
            number: if self.key_phase.is_some() { 7 } else { 0 },
            phase,
            began_at: 1_795_185_000_000,
            secret_object_key: if phase > i32::from(v1::KeyPhase::Managers) { "cd" } else { "ab" }.repeat(8),
            managers: 3,
            missing_managers: missing.into_iter().collect(),
            objects: 5,
            remaining_names: match phase == i32::from(v1::KeyPhase::Objects) {
                true => vec!["secret db, version 1".to_owned(), "the unlock key".to_owned()],
                false => Vec::new(),
            },
            remaining_objects: remaining.iter().filter(|(last, _)| is_until(*last)).map(|(_, n)| n).sum(),
        }
    }

    fn cluster_info(&self) -> v1::InfoResponse {
        v1::InfoResponse {
            cluster_id: "c1".into(),
            ca_digest: "ab".repeat(32),
            settings: Some((&self.settings).into()),
            autolock: Some(self.unlock_keys.1),
            ..Default::default()
        }
    }

    fn unlock_key(&self) -> v1::UnlockKey {
        match self.unlock_keys {
            (_, false) => v1::UnlockKey::default(),
            (number, true) => v1::UnlockKey {
                key: format!("WARREN-UNLOCK-1-key-{number}"),
                id: number.to_string(),
                pending_managers: if number > 1 { vec!["m3".to_owned()] } else { Vec::new() },
            },
        }
    }
}

#[tonic::async_trait]
impl v1::cluster_server::Cluster for FakeApi {
    type WatchStream = ResponseStream<v1::WatchEvent>;
    type StreamEventsStream = ResponseStream<v1::StreamEventsResponse>;
    type AuditStream = ResponseStream<v1::AuditResponse>;

    async fn audit(&self, _: Request<v1::AuditRequest>) -> Result<Response<Self::AuditStream>, Status> {
        Err(Status::unimplemented("there is no audit log"))
    }

    async fn stream_events(
        &self,
        request: Request<v1::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let (oldest_index, oldest_at) = (7, 1_795_185_000_000);
        let begin = v1::EventsBegin { oldest_index, oldest_at, truncated: true };
        let v1::StreamEventsRequest { kind, reference: name, .. } = request.into_inner();
        let action = "created".to_owned();
        let event = v1::ClusterEvent { at: oldest_at, kind, name, action, ..Default::default() };
        let end = v1::EventsEnd {};
        let messages = [Message::Begin(begin), Message::Event(event), Message::End(end)].map(|message| {
            let position = Some(v1::EventPosition { index: 8, number: Some(0) });
            Ok(v1::StreamEventsResponse { position, message: Some(message) })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    async fn why(&self, request: Request<v1::WhyRequest>) -> Result<Response<v1::WhyResponse>, Status> {
        let v1::WhyRequest { kind, reference } = request.into_inner();
        let severity = match reference.as_str() {
            "web" => v1::CauseSeverity::Problem,
            "api" => v1::CauseSeverity::Waiting,
            _ => return Err(Problem::new(Code::NotFound, "NOT_FOUND", "there is no such object").into()),
        };
        let cause =
            v1::Cause { severity: severity.into(), sentence: "it is so".into(), ..Default::default() };
        let (desired, cause) = ("1 task".to_owned(), Some(cause));
        Ok(Response::new(v1::WhyResponse { kind, id: String::new(), name: reference, desired, cause }))
    }

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.0.lock().unwrap();
        let start = v1::WatchEvent { index: state.index, change: Some(Change::Resync(v1::Resync {})) };
        sender.send(Ok(start)).unwrap();
        state.watchers.push(sender);
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn info(&self, request: Request<v1::InfoRequest>) -> Result<Response<v1::InfoResponse>, Status> {
        let mut state = self.0.lock().unwrap();
        let mut answer = Response::new(state.cluster_info());
        state.stale += usize::from(request.metadata().contains_key("warren-allow-stale"));
        if !state.managers.is_empty() {
            answer.metadata_mut().insert("warren-manager-addresses", state.managers.parse().unwrap());
        }
        if let Some(authority) = &state.authority {
            let digest = authority.digest().to_string().parse().unwrap();
            answer.metadata_mut().insert("warren-certificate-authority", digest);
        }
        Ok(answer)
    }

    async fn update(
        &self,
        request: Request<v1::UpdateClusterRequest>,
    ) -> Result<Response<v1::InfoResponse>, Status> {
        let mut state = self.0.lock().unwrap();
        let v1::UpdateClusterRequest { settings, autolock, .. } = request.into_inner();
        if let Some(is_on) = autolock {
            let (number, was_on) = state.unlock_keys;
            state.unlock_keys = (number + usize::from(is_on && !was_on), is_on);
        }
        let change = settings.unwrap();
        let change = warren_proto::convert::read_field("settings", change).unwrap();
        let updated = state.settings.changed(&change).map_err(Problem::from)?;
        state.settings = updated;
        Ok(Response::new(state.cluster_info()))
    }

    /// Each look at it is a phase later.
    async fn get_ca(&self, _: Request<v1::GetCaRequest>) -> Result<Response<v1::CaStatus>, Status> {
        let mut state = self.0.lock().unwrap();
        let status = state.ca_status();
        if let Some(phase) = &mut state.ca_phase {
            *phase = (*phase + 1).min(v1::CaPhase::Complete.into());
        }
        Ok(Response::new(status))
    }

    async fn rotate_ca(
        &self,
        request: Request<v1::RotateCaRequest>,
    ) -> Result<Response<v1::CaStatus>, Status> {
        let mut state = self.0.lock().unwrap();
        assert_eq!(request.into_inner().ca_digest, "ab".repeat(32));
        state.ca_phase = Some(v1::CaPhase::Managers.into());
        Ok(Response::new(state.ca_status()))
    }

    /// Each look at it is a phase later.
    async fn get_keys(&self, _: Request<v1::GetKeysRequest>) -> Result<Response<v1::KeyStatus>, Status> {
        let mut state = self.0.lock().unwrap();
        let status = state.key_status();
        if let Some(phase) = &mut state.key_phase {
            *phase = (*phase + 1).min(v1::KeyPhase::Complete.into());
        }
        Ok(Response::new(status))
    }

    async fn rotate_keys(
        &self,
        request: Request<v1::RotateKeysRequest>,
    ) -> Result<Response<v1::KeyStatus>, Status> {
        let mut state = self.0.lock().unwrap();
        assert_eq!(request.into_inner().number, 0);
        state.key_phase = Some(v1::KeyPhase::Disks.into());
        Ok(Response::new(state.key_status()))
    }

    async fn get_unlock_key(
        &self,
        _: Request<v1::GetUnlockKeyRequest>,
    ) -> Result<Response<v1::UnlockKey>, Status> {
        Ok(Response::new(self.0.lock().unwrap().unlock_key()))
    }

    async fn rotate_unlock_key(
        &self,
        request: Request<v1::RotateUnlockKeyRequest>,
    ) -> Result<Response<v1::UnlockKey>, Status> {
        let mut state = self.0.lock().unwrap();
        assert_eq!(request.into_inner().id, state.unlock_key().id);
        state.unlock_keys.0 += 1;
        Ok(Response::new(state.unlock_key()))
    }

    async fn list_background_tasks(
        &self,
        _: Request<v1::ListBackgroundTasksRequest>,
    ) -> Result<Response<v1::ListBackgroundTasksResponse>, Status> {
        let named = |name: &str, node: &str| {
            let (name, node) = (name.to_owned(), node.to_owned());
            v1::BackgroundTask { name, node, manager: "m1".into(), ..Default::default() }
        };
        let background_tasks = vec![
            named("planner", ""),
            named("liveness", ""),
            named("garbage", "node-1"),
            named("garbage", "node-2"),
        ];
        let silent =
            vec![v1::UnreachableManager { name: "m2".into(), reason: "there is no connection to it".into() }];
        Ok(Response::new(v1::ListBackgroundTasksResponse { background_tasks, silent }))
    }
}
