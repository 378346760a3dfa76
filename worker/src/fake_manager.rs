//! A manager that is scripted by a test, connected in memory.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use prost::Message;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::time::{Duration, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use warren_daemon::join::channel_over;
use warren_proto::status::{NODE_REMOVED, Problem};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::sessions_server::{Sessions, SessionsServer};
use warren_proto::v1::worker_frame::Frame as FromWorker;
use warren_types::{
    Assignment, AssignmentVersion, Catalogue, CatalogueService, Endpoint, NetworkPeer, NetworkView,
    NodeSettings, ServiceName, TaskAssignment, TaskId,
};

use crate::fixtures::{TIMEOUT, settings};
use crate::session::{ManagerConnection, ManagerDialError, SharedDialer};

/// The manager's end of one session.
pub struct FakeSession {
    from_worker: mpsc::Receiver<v1::WorkerFrame>,
    to_worker: mpsc::Sender<Result<v1::ManagerFrame, Status>>,
}

/// The manager's end of an attached stream.
pub struct FakeStream {
    pub from_worker: mpsc::Receiver<v1::StreamFrame>,
    pub to_worker: mpsc::Sender<Result<v1::StreamFrame, Status>>,
}

pub struct FakeManager {
    incoming_sessions: mpsc::Receiver<FakeSession>,
    incoming_streams: mpsc::Receiver<FakeStream>,
    fetch_handler: SharedFetchHandler,
    server: tokio::task::JoinHandle<()>,
}

/// The manager's answer to a fetch of secret objects.
pub enum FetchReply {
    /// These objects.
    Objects(Vec<v1::SealedSecretObject>),
    /// A refusal.
    Refusal(Status),
    /// No answer.
    NoReply,
}

type FetchHandler = Box<dyn FnMut(v1::FetchSecretObjectsRequest) -> FetchReply + Send>;
type SharedFetchHandler = Arc<Mutex<FetchHandler>>;

impl Drop for FakeManager {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Events of the server for the test.
#[derive(Clone)]
pub struct FakeSessionsService {
    sessions: mpsc::Sender<FakeSession>,
    attached: mpsc::Sender<FakeStream>,
    fetch_handler: SharedFetchHandler,
}

fn forward<T: Send + 'static>(mut inbound: Streaming<T>) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok(Some(frame)) = inbound.message().await {
            if sender.send(frame).await.is_err() {
                return;
            }
        }
    });
    receiver
}

#[tonic::async_trait]
impl Sessions for FakeSessionsService {
    type EstablishStream = ReceiverStream<Result<v1::ManagerFrame, Status>>;
    type AttachStream = ReceiverStream<Result<v1::StreamFrame, Status>>;
    type FetchSecretObjectsStream = ReceiverStream<Result<v1::SealedSecretObject, Status>>;

    async fn establish(
        &self,
        request: Request<Streaming<v1::WorkerFrame>>,
    ) -> Result<Response<Self::EstablishStream>, Status> {
        let (to_worker, frames) = mpsc::channel(64);
        let session = FakeSession { from_worker: forward(request.into_inner()), to_worker };
        self.sessions.send(session).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn attach(
        &self,
        request: Request<Streaming<v1::StreamFrame>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (to_worker, frames) = mpsc::channel(64);
        let attached = FakeStream { from_worker: forward(request.into_inner()), to_worker };
        self.attached.send(attached).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn fetch_secret_objects(
        &self,
        request: Request<v1::FetchSecretObjectsRequest>,
    ) -> Result<Response<Self::FetchSecretObjectsStream>, Status> {
        let answer = (self.fetch_handler.lock().unwrap())(request.into_inner());
        match answer {
            FetchReply::Objects(deliveries) => {
                let (sender, answers) = mpsc::channel(1);
                tokio::spawn(async move {
                    for delivery in deliveries {
                        sender.send(Ok(delivery)).await.ok();
                    }
                });
                Ok(Response::new(ReceiverStream::new(answers)))
            }
            FetchReply::Refusal(status) => Err(status),
            FetchReply::NoReply => std::future::pending().await,
        }
    }

    async fn check_node(
        &self,
        request: Request<v1::CheckNodeRequest>,
    ) -> Result<Response<v1::CheckNodeResponse>, Status> {
        let message = format!("node {} was removed", request.into_inner().node_id);
        Err(Problem::new(tonic::Code::FailedPrecondition, NODE_REMOVED, message).into())
    }
}

/// The service and the test's end of it.
pub fn new_service() -> (FakeSessionsService, mpsc::Receiver<FakeSession>, mpsc::Receiver<FakeStream>) {
    let (sessions, session) = mpsc::channel(8);
    let (attached, attach) = mpsc::channel(8);
    let nothing: FetchHandler = Box::new(|_| FetchReply::Objects(Vec::new()));
    let delivers = Arc::new(Mutex::new(nothing));
    (FakeSessionsService { sessions, attached, fetch_handler: delivers }, session, attach)
}

impl FakeManager {
    /// A manager and its dialer.
    pub fn in_memory() -> (Self, SharedDialer) {
        let (service, sessions, attached) = new_service();
        let delivers = Arc::clone(&service.fetch_handler);
        let (dialled, incoming) = mpsc::channel::<Result<DuplexStream, std::io::Error>>(8);
        // As in real managers: an unread stream must leave room for the session next to it.
        let server = tonic::transport::Server::builder()
            .initial_stream_window_size(Some(256 << 10))
            .initial_connection_window_size(Some(64 << 20))
            .add_service(SessionsServer::new(service));
        let serve = server.serve_with_incoming(ReceiverStream::new(incoming));
        let server = tokio::spawn(async move { serve.await.unwrap() });
        let dial: SharedDialer = Arc::new(move || dial(dialled.clone()).boxed());
        (
            Self { incoming_sessions: sessions, incoming_streams: attached, fetch_handler: delivers, server },
            dial,
        )
    }

    /// Sets the answer to later fetches.
    pub fn on_fetch(
        &self,
        deliver: impl FnMut(v1::FetchSecretObjectsRequest) -> FetchReply + Send + 'static,
    ) {
        *self.fetch_handler.lock().unwrap() = Box::new(deliver);
    }

    /// Whether no worker opens a session for so long.
    pub async fn has_no_session_for(&mut self, time: Duration) -> bool {
        !matches!(timeout(time, self.incoming_sessions.recv()).await, Ok(Some(_)))
    }

    /// The next session that a worker opens, after its hello.
    pub async fn next_session(&mut self) -> (FakeSession, v1::Hello) {
        let session = timeout(TIMEOUT, self.incoming_sessions.recv()).await;
        let mut session = session.expect("a worker dials").expect("the server runs");
        let FromWorker::Hello(hello) = session.next_frame().await else { panic!("no hello first") };
        (session, *hello)
    }

    /// The next session, welcomed with the usual settings.
    pub async fn next_welcomed_session(&mut self) -> FakeSession {
        let (session, _) = self.next_session().await;
        session.welcome(&settings()).await;
        session
    }

    /// The next stream that the worker attaches.
    pub async fn next_stream(&mut self) -> FakeStream {
        timeout(TIMEOUT, self.incoming_streams.recv())
            .await
            .expect("a worker attaches")
            .expect("the server runs")
    }
}

async fn dial(
    dialled: mpsc::Sender<Result<DuplexStream, std::io::Error>>,
) -> Result<ManagerConnection, ManagerDialError> {
    let (near, far) = tokio::io::duplex(1 << 20);
    dialled.send(Ok(far)).await.map_err(|_| ManagerDialError::NoAddress)?;
    let channel = channel_over(near).await;
    let channel =
        channel.map_err(|source| ManagerDialError::Transport { manager: "memory".into(), source })?;
    Ok(ManagerConnection { manager: "memory".into(), id: None, dialled_from: None, channel })
}

impl FakeSession {
    /// The next frame of the worker.
    pub async fn next_frame(&mut self) -> FromWorker {
        let frame = timeout(TIMEOUT, self.from_worker.recv()).await.expect("the worker says something");
        frame.expect("the session goes on").frame.expect("a frame says something")
    }

    /// The next frame that `wanted` matches; syncs are answered, others are skipped.
    pub async fn next_matching<T>(&mut self, desired: impl Fn(&FromWorker) -> Option<T>) -> T {
        loop {
            let frame = self.next_frame().await;
            if let Some(found) = desired(&frame) {
                return found;
            }
            if matches!(frame, FromWorker::Sync(_)) {
                self.send(Frame::Current(v1::AssignmentCurrent::default())).await;
            }
        }
    }

    /// The output of `work`, with the session kept alive meanwhile: a worker leaves a manager that does not answer.
    pub async fn alive_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            output = work => output,
            () = self.next_matching(|_| None::<()>) => unreachable!("no frame matches"),
        }
    }

    /// Waits until the worker has ended the session.
    pub async fn wait_until_ended(mut self) {
        let end = async { while self.from_worker.recv().await.is_some() {} };
        timeout(TIMEOUT, end).await.expect("the worker leaves");
    }

    /// Ends the session with an error.
    pub async fn refuse(self, status: Status) {
        self.to_worker.send(Err(status)).await.expect("the session goes on");
    }

    /// Sends one frame.
    pub async fn send(&self, frame: Frame) {
        self.to_worker.send(Ok(v1::ManagerFrame { frame: Some(frame) })).await.expect("the session goes on");
    }

    /// Sends the welcome.
    pub async fn welcome(&self, settings: &NodeSettings) {
        let welcome = v1::Welcome { session: 1, settings: Some(settings.into()), ..v1::Welcome::default() };
        self.send(Frame::Welcome(welcome)).await;
    }

    /// Sends a full assignment.
    pub async fn assign(&self, index: u64, tasks: Vec<TaskAssignment>) {
        let assignment = Assignment { version: at(index), tasks, retained: Vec::new() };
        self.send(Frame::Assignment((&assignment).into())).await;
    }

    /// Sends all of a network view.
    pub async fn send_view(&self, view: &NetworkView) {
        let catalogues =
            view.catalogues.values().map(|catalogue| catalogue_change(catalogue, true)).collect();
        let peer = |(number, peer): (&u16, &NetworkPeer)| v1::NetworkPeer {
            number: (*number).into(),
            subnets: peer.subnets.iter().map(ToString::to_string).collect(),
            address: peer.address.to_string(),
            key: peer.key.map(|key| key.to_string()).unwrap_or_default(),
        };
        let changed = view.peers.iter().map(peer).collect();
        let peers = v1::PeersChange { changed, removed: Vec::new() }.encode_to_vec().into();
        let version = Some(view.version.into());
        let update = v1::NetworkUpdate { version, peers, catalogues, ..v1::NetworkUpdate::default() };
        self.send(Frame::Network(update)).await;
    }

    /// Sends changed services of one network.
    pub async fn update_network(&self, base: u64, index: u64, changed: &Catalogue) {
        let update = v1::NetworkUpdate {
            base: Some(at(base).into()),
            version: Some(at(index).into()),
            catalogues: vec![catalogue_change(changed, false)],
            ..v1::NetworkUpdate::default()
        };
        self.send(Frame::Network(update)).await;
    }

    /// Sends an assignment update.
    pub async fn assign_update(&self, base: u64, index: u64, changed: &[TaskAssignment], removed: &[TaskId]) {
        let diff = v1::AssignmentDiff {
            base: Some(at(base).into()),
            version: Some(at(index).into()),
            changed: changed.iter().map(Into::into).collect(),
            removed: removed.iter().map(ToString::to_string).collect(),
            retained: Vec::new(),
        };
        self.send(Frame::Diff(diff)).await;
    }
}

/// The change that adds the services of a catalogue.
fn catalogue_change(catalogue: &Catalogue, full: bool) -> Bytes {
    let Catalogue { network, name, number, internal, services } = catalogue;
    let service = |(name, service): (&ServiceName, &CatalogueService)| v1::CatalogueServiceChange {
        name: name.to_string(),
        settings: Some(v1::CatalogueServiceSettings {
            mode: v1::EndpointMode::from(service.mode).into(),
            virtual_address: service.virtual_address.map_or(0, Into::into),
            ..v1::CatalogueServiceSettings::default()
        }),
        endpoints: service.endpoints.iter().map(endpoint).collect(),
        ..v1::CatalogueServiceChange::default()
    };
    let change = v1::CatalogueChange {
        network: network.to_string(),
        name: name.to_string(),
        number: *number,
        internal: *internal,
        full,
        services: services.iter().map(service).collect(),
    };
    change.encode_to_vec().into()
}

fn endpoint(endpoint: &Endpoint) -> v1::CatalogueEndpoint {
    let Endpoint { slot, address, ready } = *endpoint;
    v1::CatalogueEndpoint { slot, address: address.into(), ready }
}

/// The version that tests use.
pub fn at(index: u64) -> AssignmentVersion {
    AssignmentVersion { incarnation: 1, index }
}
