//! A scripted worker: a test sends and receives its frames.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::fetch_secret_objects_request::Purpose;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::registry_access::Access;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::worker_frame::Frame as Say;
use warren_security::delivery::{DeliveryRequester, SealedDelivery};
use warren_security::{Credentials, Role};
use warren_types::{NetworkView, NodeDescription, NodeId};

pub use crate::fake_registry::DIGEST;
use crate::fixture::{CallerKind, ManagerFixture, WAIT_DEADLINE, description};

pub struct ScriptedWorker {
    client: SessionsClient<Channel>,
    frames: mpsc::Sender<v1::WorkerFrame>,
    inbound: Streaming<v1::ManagerFrame>,
    pub welcome: v1::Welcome,
    /// Its assignments as received so far.
    pub version: Option<v1::AssignmentVersion>,
    pub tasks: BTreeMap<String, v1::TaskAssignment>,
    /// What it knows of the cluster's network.
    pub network: NetworkView,
    /// Whether it acknowledges changes of that at once.
    pub acknowledges_network: bool,
    /// The stopping tasks that other nodes have acknowledged.
    pub withdrawn: BTreeSet<String>,
    /// Streams that were requested while it waited for something else.
    pending_streams: VecDeque<v1::OpenStream>,
    reports: u64,
}

/// The worker's end of an attached stream.
pub struct ScriptedStream {
    pub frames: mpsc::Sender<v1::StreamFrame>,
    pub inbound: Streaming<v1::StreamFrame>,
}

impl ScriptedWorker {
    /// Opens a session without earlier state.
    pub async fn dial(world: &ManagerFixture) -> Self {
        Self::dial_with(world, None).await
    }

    /// Opens a session with the state of an earlier one.
    pub async fn dial_with(world: &ManagerFixture, version: Option<v1::AssignmentVersion>) -> Self {
        let channel = world.channel(CallerKind::Certified(Role::Worker)).await;
        Self::connect(channel, version).await.welcomed().await
    }

    /// Opens a session with these credentials.
    pub async fn dial_as(world: &ManagerFixture, node: &Credentials) -> Self {
        Self::connect(world.channel_as(Some(node)).await, None).await.welcomed().await
    }

    /// Opens a session with these credentials, and reports these labels.
    pub async fn dial_with_labels(
        world: &ManagerFixture,
        node: &Credentials,
        labels: &BTreeMap<String, String>,
    ) -> Self {
        let description = NodeDescription { labels: labels.clone(), ..description() };
        Self::connect_as(world.channel_as(Some(node)).await, &description, None).await.welcomed().await
    }

    /// Sends its hello without reading an answer.
    pub async fn connect(channel: Channel, version: Option<v1::AssignmentVersion>) -> Self {
        Self::connect_as(channel, &description(), version).await
    }

    /// The same with this description of its machine.
    pub async fn connect_as(
        channel: Channel,
        described: &NodeDescription,
        version: Option<v1::AssignmentVersion>,
    ) -> Self {
        let mut client = SessionsClient::new(channel);
        let (frames, queue) = mpsc::channel(64);
        let hello = v1::Hello { description: Some(described.into()), version, ..Default::default() };
        frames.send(v1::WorkerFrame { frame: Some(Say::Hello(Box::new(hello))) }).await.unwrap();
        let inbound = client.establish(ReceiverStream::new(queue)).await.unwrap().into_inner();
        let (welcome, tasks) = (v1::Welcome::default(), BTreeMap::new());
        let (network, pending_streams) = (NetworkView::default(), VecDeque::new());
        Self {
            client,
            frames,
            inbound,
            welcome,
            version,
            tasks,
            network,
            acknowledges_network: true,
            withdrawn: BTreeSet::new(),
            pending_streams,
            reports: 0,
        }
    }

    /// Reads the welcome message, which is the first one.
    pub async fn welcomed(mut self) -> Self {
        let Frame::Welcome(welcome) = self.receive().await else { panic!("no welcome first") };
        self.welcome = welcome;
        self
    }

    pub async fn send(&self, frame: Say) {
        self.frames.send(v1::WorkerFrame { frame: Some(frame) }).await.unwrap();
    }

    /// Sends a frame in a session that may have ended.
    pub async fn send_if_open(&self, frame: Say) {
        let _ = self.frames.send(v1::WorkerFrame { frame: Some(frame) }).await;
    }

    /// A frame of a later protocol version, as this version decodes it.
    pub async fn send_unknown_frame(&self) {
        self.frames.send(v1::WorkerFrame { frame: None }).await.unwrap();
    }

    pub async fn try_receive(&mut self) -> Result<Option<Frame>, Status> {
        let frame =
            timeout(WAIT_DEADLINE, self.inbound.message()).await.expect("the manager sends a frame")?;
        Ok(frame.map(|frame| frame.frame.expect("a frame has a content")))
    }

    pub async fn receive(&mut self) -> Frame {
        self.try_receive().await.unwrap().expect("the session continues")
    }

    /// Reads until the session has ended, and returns the status.
    pub async fn end(mut self) -> Status {
        loop {
            match self.try_receive().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the session ended without a status"),
                Err(status) => return status,
            }
        }
    }

    /// Reads until the session ends because its manager stops: with `Unavailable`, or with `Unknown` if this side is
    /// too slow to receive the status.
    pub async fn end_with_manager(self) {
        let status = self.end().await;
        assert!(matches!(status.code(), Code::Unavailable | Code::Unknown), "{status}");
    }

    /// Applies an assignment update or settings and acknowledges them; returns any other frame.
    pub async fn accept_update(&mut self, frame: Frame) -> Option<Frame> {
        match frame {
            Frame::Assignment(full) => {
                self.version = full.version;
                self.tasks = full.tasks.into_iter().map(|task| (task.id.clone(), task)).collect();
            }
            Frame::Diff(diff) => {
                assert_eq!(diff.base, self.version, "a diff continues what was sent before");
                self.version = diff.version;
                let ended = diff.removed.iter().chain(diff.retained.iter().map(|log| &log.task_id));
                ended.for_each(|id| drop(self.tasks.remove(id)));
                self.tasks.extend(diff.changed.into_iter().map(|task| (task.id.clone(), task)));
            }
            Frame::Network(update) => {
                self.network.apply(update.try_into().unwrap()).unwrap();
                if self.acknowledges_network {
                    self.acknowledge_network().await;
                }
                return None;
            }
            Frame::Withdrawn(withdrawn) => {
                self.withdrawn.extend(withdrawn.task_ids);
                return None;
            }
            Frame::Settings(settings) => {
                self.welcome.settings = Some(settings);
                return None;
            }
            other => return Some(other),
        }
        self.send(Say::Ack(v1::AssignmentAck { version: self.version })).await;
        None
    }

    pub async fn acknowledge_network(&self) {
        let version = Some(self.network.version.into());
        self.send(Say::NetworkAck(v1::NetworkAck { version })).await;
    }

    /// The next frame that is not an assignment update.
    pub async fn receive_other(&mut self) -> Frame {
        loop {
            let frame = self.receive().await;
            if let Some(other) = self.accept_update(frame).await {
                return other;
            }
        }
    }

    /// Applies assignment updates until they are as `expected`, by repeated requests.
    pub async fn has(
        &mut self,
        what: &str,
        expected: impl Fn(&BTreeMap<String, v1::TaskAssignment>) -> bool,
    ) {
        let mut pace = tokio::time::interval(Duration::from_millis(10));
        let reached = async {
            while !expected(&self.tasks) {
                pace.tick().await;
                self.sync().await;
            }
        };
        timeout(WAIT_DEADLINE, reached).await.unwrap_or_else(|_| panic!("never assigned: {what}"));
    }

    /// Reports its version until that is current.
    pub async fn sync(&mut self) {
        loop {
            let network_version = Some(self.network.version.into());
            self.send(Say::Sync(v1::SyncRequest { version: self.version, network_version })).await;
            let frame = self.receive().await;
            match self.accept_update(frame).await {
                Some(Frame::Current(_)) => return,
                // A full update is an answer as well; then it reports again.
                None => {}
                Some(Frame::Open(open)) => self.pending_streams.push_back(open),
                Some(other) => panic!("no answer to a sync: {other:?}"),
            }
        }
    }

    pub async fn heartbeat(&self) {
        let usage = v1::NodeUsage { cpu_milli: 7, ..Default::default() };
        let tasks_run =
            vec![v1::BackgroundTask { name: "worker.relist".into(), runs: 3, ..Default::default() }];
        self.send(Say::Heartbeat(v1::Heartbeat {
            usage: Some(usage),
            background_tasks: tasks_run,
            tasks: Vec::new(),
        }))
        .await;
    }

    /// Sends heartbeats until it is dropped, for a test in which the session must last while it does something else.
    pub fn keep_alive(&self) -> JoinSet<()> {
        let frames = self.frames.clone();
        let mut sending = JoinSet::new();
        sending.spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_secs(1));
            loop {
                pace.tick().await;
                let heartbeat = Say::Heartbeat(v1::Heartbeat::default());
                if frames.send(v1::WorkerFrame { frame: Some(heartbeat) }).await.is_err() {
                    return;
                }
            }
        });
        sending
    }

    /// The node that it is the agent of.
    pub fn node(&self) -> NodeId {
        self.welcome.settings.as_ref().unwrap().node_id.parse().unwrap()
    }

    /// What it gets for access to a registry.
    pub async fn registry_access(&self, need: Purpose) -> Result<Option<Access>, Status> {
        let fetched = self.fetch(need).await?;
        assert!(fetched.len() <= 1, "one registry at most");
        let decode = |bytes: &[u8]| v1::RegistryAccess::decode(bytes).unwrap().access;
        Ok(fetched.first().and_then(|(_, _, bytes)| decode(bytes)))
    }

    /// Name, number and bytes of the secrets and configs that it gets for its assignments.
    pub async fn fetch(&self, need: Purpose) -> Result<Vec<(String, u64, Vec<u8>)>, Status> {
        let mut requester = DeliveryRequester::new(self.node()).unwrap();
        let key = requester.public_key().to_vec().into();
        let request = v1::FetchSecretObjectsRequest { key, purpose: Some(need), ..Default::default() };
        let mut answers = self.client.clone().fetch_secret_objects(request).await?.into_inner();
        let mut fetched = Vec::new();
        while let Some(v1::SealedSecretObject { key, name, id, version_number: number, sealed, .. }) =
            answers.message().await?
        {
            let id = id.parse().unwrap();
            let delivery = SealedDelivery { key: &key, id, number, sealed: &sealed };
            fetched.push((name, number, requester.open(&delivery).unwrap().to_vec()));
        }
        Ok(fetched)
    }

    /// Sends reports, and waits for the confirmation.
    pub async fn report(&mut self, reports: Vec<v1::TaskReport>) {
        self.reports += 1;
        let number = self.reports;
        self.send(Say::Reports(v1::ReportBatch { number, reports })).await;
        loop {
            match self.receive_other().await {
                Frame::Stored(stored) => return assert_eq!(stored.number, number),
                Frame::Current(_) => {}
                Frame::Open(open) => self.pending_streams.push_back(open),
                other => panic!("not a confirmation: {other:?}"),
            }
        }
    }

    /// Reports every task as running.
    pub async fn run_all(&mut self) {
        let reports = self.tasks.keys().map(|id| report(id, v1::TaskState::Running)).collect();
        self.report(reports).await;
    }

    /// Executes one step for each assigned task: prepares, runs or removes it. It reports the image digest
    /// until the assignment contains it.
    ///
    /// A task with the arguments `exit CODE` has ended, and one with `reject` cannot run.
    pub async fn apply_assignment(&mut self) {
        self.sync().await;
        let mut reports = Vec::new();
        for (id, task) in &self.tasks {
            let image = if task.digest.is_empty() { DIGEST.to_owned() } else { String::new() };
            let received = match task.desired() {
                v1::DesiredTaskState::Ready => report(id, v1::TaskState::Ready),
                v1::DesiredTaskState::Running => match words(task)[..] {
                    ["exit", code] => {
                        let code = code.parse().unwrap();
                        let state = if code == 0 { v1::TaskState::Complete } else { v1::TaskState::Failed };
                        let exit = Some(v1::TaskExit { code, out_of_memory: false });
                        v1::TaskReport { exit, ..report(id, state) }
                    }
                    ["reject"] => {
                        let reason = "there is no such program".to_owned();
                        v1::TaskReport { reason, ..report(id, v1::TaskState::Rejected) }
                    }
                    _ => report(id, v1::TaskState::Running),
                },
                _ => v1::TaskReport { removed: true, ..report(id, v1::TaskState::Shutdown) },
            };
            reports.push(v1::TaskReport { image, ..received });
        }
        if !reports.is_empty() {
            self.report(reports).await;
        }
    }

    /// Attaches the stream that the manager requests next.
    pub async fn attach(&mut self) -> ScriptedStream {
        let open = self.next_stream_request().await;
        self.attach_to(open.stream_id).await
    }

    /// Attaches the stream of this name.
    pub async fn attach_to(&mut self, id: String) -> ScriptedStream {
        let (frames, queue) = mpsc::channel(8);
        let first = v1::stream_frame::Frame::StreamId(id);
        frames.send(v1::StreamFrame { frame: Some(first) }).await.unwrap();
        let inbound = self.client.attach(ReceiverStream::new(queue)).await.unwrap().into_inner();
        ScriptedStream { frames, inbound }
    }

    /// The name of the stream that the manager requests next.
    pub async fn open(&mut self) -> String {
        self.next_stream_request().await.stream_id
    }

    /// The stream that the manager requests next, and its purpose.
    pub async fn next_stream_request(&mut self) -> v1::OpenStream {
        if let Some(open) = self.pending_streams.pop_front() {
            return open;
        }
        loop {
            match self.receive_other().await {
                Frame::Open(open) => return open,
                Frame::Current(_) => {}
                other => panic!("not open: {other:?}"),
            }
        }
    }
}

impl ScriptedStream {
    pub async fn send(&self, frame: v1::stream_frame::Frame) {
        self.frames.send(v1::StreamFrame { frame: Some(frame) }).await.unwrap();
    }

    pub async fn receive(&mut self) -> Result<Option<v1::stream_frame::Frame>, Status> {
        let frame = timeout(WAIT_DEADLINE, self.inbound.message())
            .await
            .expect("the stream of the manager continues")?;
        Ok(frame.and_then(|frame| frame.frame))
    }

    /// Waits until the manager has closed it: everything that was sent before has been read then.
    pub async fn wait_closed(mut self) {
        while let Ok(Some(_)) = self.receive().await {}
    }

    /// All data up to the end of the archive; `None` if it ended too early.
    pub async fn archive(&mut self) -> Option<Vec<u8>> {
        let mut archive = Vec::new();
        loop {
            match self.receive().await.ok()?? {
                v1::stream_frame::Frame::Data(data) => archive.extend(&data[..]),
                v1::stream_frame::Frame::End(_) => return Some(archive),
                other => panic!("no part of an archive: {other:?}"),
            }
        }
    }
}

/// The arguments of a task.
fn words(task: &v1::TaskAssignment) -> Vec<&str> {
    let args = task.spec.as_ref().and_then(|spec| spec.args.as_ref());
    args.into_iter().flat_map(|args| &args.items).map(String::as_str).collect()
}

pub fn report(task: &str, state: v1::TaskState) -> v1::TaskReport {
    v1::TaskReport {
        task_id: task.to_owned(),
        attempt: 1,
        state: state.into(),
        ready: state == v1::TaskState::Running,
        ..Default::default()
    }
}
