//! A manager whose every word a test says itself, reached through memory.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::time::{Duration, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use warren_process::joining::channel_over;
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::sessions_server::{Sessions, SessionsServer};
use warren_proto::v1::worker_frame::Frame as FromWorker;
use warren_types::{Assignment, AssignmentVersion, NodeSettings, TaskAssignment, TaskId};

use crate::samples::settings;
use crate::session::{Connected, Dial, DialError};

/// For anything that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The manager's end of one session.
pub struct Session {
    from_worker: mpsc::Receiver<v1::WorkerFrame>,
    to_worker: mpsc::Sender<Result<v1::ManagerFrame, Status>>,
}

/// The manager's end of a stream that the worker attached.
pub struct Attached {
    pub from_worker: mpsc::Receiver<v1::StreamFrame>,
    pub to_worker: mpsc::Sender<Result<v1::StreamFrame, Status>>,
}

/// The manager.
pub struct Manager {
    sessions: mpsc::Receiver<Session>,
    attached: mpsc::Receiver<Attached>,
    delivers: Delivers,
    server: tokio::task::JoinHandle<()>,
}

/// What a manager answers a node that needs contents.
pub enum Deliveries {
    /// It has these.
    Gives(Vec<v1::SealedDelivery>),
    /// It does not give them.
    Refuses(Status),
    /// It says nothing.
    Silence,
}

type Deliver = Box<dyn FnMut(v1::FetchRequest) -> Deliveries + Send>;
type Delivers = Arc<Mutex<Deliver>>;

impl Drop for Manager {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// What the server hands to the test.
#[derive(Clone)]
pub struct Service {
    sessions: mpsc::Sender<Session>,
    attached: mpsc::Sender<Attached>,
    delivers: Delivers,
}

fn pump<T: Send + 'static>(mut inbound: Streaming<T>) -> mpsc::Receiver<T> {
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
impl Sessions for Service {
    type EstablishStream = ReceiverStream<Result<v1::ManagerFrame, Status>>;
    type AttachStream = ReceiverStream<Result<v1::StreamFrame, Status>>;
    type FetchStream = ReceiverStream<Result<v1::SealedDelivery, Status>>;

    async fn establish(
        &self,
        request: Request<Streaming<v1::WorkerFrame>>,
    ) -> Result<Response<Self::EstablishStream>, Status> {
        let (to_worker, frames) = mpsc::channel(64);
        let session = Session { from_worker: pump(request.into_inner()), to_worker };
        self.sessions.send(session).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn attach(
        &self,
        request: Request<Streaming<v1::StreamFrame>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (to_worker, frames) = mpsc::channel(64);
        let attached = Attached { from_worker: pump(request.into_inner()), to_worker };
        self.attached.send(attached).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let answer = (self.delivers.lock().unwrap())(request.into_inner());
        match answer {
            Deliveries::Gives(deliveries) => {
                let (sender, answers) = mpsc::channel(1);
                tokio::spawn(async move {
                    for delivery in deliveries {
                        sender.send(Ok(delivery)).await.ok();
                    }
                });
                Ok(Response::new(ReceiverStream::new(answers)))
            }
            Deliveries::Refuses(status) => Err(status),
            Deliveries::Silence => std::future::pending().await,
        }
    }
}

/// The service and the test's end of it.
pub fn service() -> (Service, mpsc::Receiver<Session>, mpsc::Receiver<Attached>) {
    let (sessions, session) = mpsc::channel(8);
    let (attached, attach) = mpsc::channel(8);
    let nothing: Deliver = Box::new(|_| Deliveries::Gives(Vec::new()));
    let delivers = Arc::new(Mutex::new(nothing));
    (Service { sessions, attached, delivers }, session, attach)
}

impl Manager {
    /// A manager and the way to it.
    pub fn in_memory() -> (Self, Dial) {
        let (service, sessions, attached) = service();
        let delivers = Arc::clone(&service.delivers);
        let (dialled, incoming) = mpsc::channel::<Result<DuplexStream, std::io::Error>>(8);
        // As real managers have them: a stream that nobody reads must leave room for the session beside it.
        let server = tonic::transport::Server::builder()
            .initial_stream_window_size(Some(128 << 10))
            .initial_connection_window_size(Some(32 << 20))
            .add_service(SessionsServer::new(service));
        let serve = server.serve_with_incoming(ReceiverStream::new(incoming));
        let server = tokio::spawn(async move { serve.await.unwrap() });
        let dial: Dial = Arc::new(move || dial(dialled.clone()).boxed());
        (Self { sessions, attached, delivers, server }, dial)
    }

    /// From now on nodes that need contents get what this says.
    pub fn delivers(&self, deliver: impl FnMut(v1::FetchRequest) -> Deliveries + Send + 'static) {
        *self.delivers.lock().unwrap() = Box::new(deliver);
    }

    /// Whether no worker opens a session for so long.
    pub async fn hears_nobody(&mut self, time: Duration) -> bool {
        !matches!(timeout(time, self.sessions.recv()).await, Ok(Some(_)))
    }

    /// The next session that a worker opens, after its hello.
    pub async fn session(&mut self) -> (Session, v1::Hello) {
        let session = timeout(PATIENCE, self.sessions.recv()).await;
        let mut session = session.expect("a worker dials").expect("the server runs");
        let FromWorker::Hello(hello) = session.hear().await else { panic!("no hello first") };
        (session, hello)
    }

    /// The next session, welcomed with the usual settings.
    pub async fn welcomed(&mut self) -> Session {
        let (session, _) = self.session().await;
        session.welcome(&settings()).await;
        session
    }

    /// The next stream that the worker attaches.
    pub async fn attached(&mut self) -> Attached {
        timeout(PATIENCE, self.attached.recv()).await.expect("a worker attaches").expect("the server runs")
    }
}

async fn dial(dialled: mpsc::Sender<Result<DuplexStream, std::io::Error>>) -> Result<Connected, DialError> {
    let (near, far) = tokio::io::duplex(1 << 20);
    dialled.send(Ok(far)).await.map_err(|_| DialError::NoAddress)?;
    let channel = channel_over(near).await;
    let channel = channel.map_err(|source| DialError::Transport { manager: "memory".into(), source })?;
    Ok(Connected { manager: "memory".into(), dialled_from: None, channel })
}

impl Session {
    /// The next frame of the worker.
    pub async fn hear(&mut self) -> FromWorker {
        let frame = timeout(PATIENCE, self.from_worker.recv()).await.expect("the worker says something");
        frame.expect("the session goes on").frame.expect("a frame says something")
    }

    /// The next frame that `wanted` takes something from; syncs are answered, others are skipped.
    pub async fn hear_until<T>(&mut self, wanted: impl Fn(&FromWorker) -> Option<T>) -> T {
        loop {
            let frame = self.hear().await;
            if let Some(found) = wanted(&frame) {
                return found;
            }
            if matches!(frame, FromWorker::Sync(_)) {
                self.say(Frame::Current(v1::SyncCurrent::default())).await;
            }
        }
    }

    /// Waits until the worker has ended the session.
    pub async fn ended(mut self) {
        let end = async { while self.from_worker.recv().await.is_some() {} };
        timeout(PATIENCE, end).await.expect("the worker leaves");
    }

    /// Ends the session with an error.
    pub async fn refuse(self, status: Status) {
        self.to_worker.send(Err(status)).await.expect("the session goes on");
    }

    /// Says one frame.
    pub async fn say(&self, frame: Frame) {
        self.to_worker.send(Ok(v1::ManagerFrame { frame: Some(frame) })).await.expect("the session goes on");
    }

    /// Says welcome.
    pub async fn welcome(&self, settings: &NodeSettings) {
        let welcome = v1::Welcome { session: 1, settings: Some(settings.into()), ..v1::Welcome::default() };
        self.say(Frame::Welcome(welcome)).await;
    }

    /// Says what the node should have.
    pub async fn assign(&self, index: u64, tasks: Vec<TaskAssignment>) {
        self.say(Frame::Assignment((&Assignment { version: at(index), tasks }).into())).await;
    }

    /// Says what changed.
    pub async fn diff(&self, base: u64, index: u64, changed: &[TaskAssignment], removed: &[TaskId]) {
        let diff = v1::AssignmentDiff {
            base: Some(at(base).into()),
            version: Some(at(index).into()),
            changed: changed.iter().map(Into::into).collect(),
            removed: removed.iter().map(ToString::to_string).collect(),
        };
        self.say(Frame::Diff(diff)).await;
    }
}

/// The version that tests use.
pub fn at(index: u64) -> AssignmentVersion {
    AssignmentVersion { incarnation: 1, index }
}
