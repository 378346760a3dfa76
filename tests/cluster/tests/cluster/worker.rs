//! A worker whose every frame a test says itself.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::fetch_request::Need;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::worker_frame::Frame as Say;
use warren_security::delivery::{Delivery, Requester};
use warren_security::{Credentials, Role};
use warren_types::NodeId;

use crate::world::{Caller, PATIENCE, World, description};

/// What every image is.
pub const DIGEST: &str = "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

pub struct Worker {
    client: SessionsClient<Channel>,
    frames: mpsc::Sender<v1::WorkerFrame>,
    inbound: Streaming<v1::ManagerFrame>,
    pub welcome: v1::Welcome,
    /// What it should have, as told so far.
    pub version: Option<v1::AssignmentVersion>,
    pub tasks: BTreeMap<String, v1::TaskAssignment>,
    /// Streams that were asked for while it waited for something else.
    opens: VecDeque<v1::Open>,
    reports: u64,
}

/// The worker's end of an attached stream.
pub struct Stream {
    pub frames: mpsc::Sender<v1::StreamFrame>,
    pub inbound: Streaming<v1::StreamFrame>,
}

impl Worker {
    /// Opens a session, with nothing of an earlier one.
    pub async fn dial(world: &World) -> Self {
        Self::dial_with(world, None).await
    }

    /// Opens a session, with what it has of an earlier one.
    pub async fn dial_with(world: &World, version: Option<v1::AssignmentVersion>) -> Self {
        let channel = world.channel(Caller::Certified(Role::Worker)).await;
        Self::greet(channel, version).await.welcomed().await
    }

    /// Opens a session of the node that these are of.
    pub async fn dial_as(world: &World, node: &Credentials) -> Self {
        Self::greet(world.channel_as(Some(node)).await, None).await.welcomed().await
    }

    /// Says hello, and has heard nothing yet.
    pub async fn greet(channel: Channel, version: Option<v1::AssignmentVersion>) -> Self {
        let mut client = SessionsClient::new(channel);
        let (frames, queue) = mpsc::channel(64);
        let hello = v1::Hello { description: Some((&description()).into()), version };
        frames.send(v1::WorkerFrame { frame: Some(Say::Hello(hello)) }).await.unwrap();
        let inbound = client.establish(ReceiverStream::new(queue)).await.unwrap().into_inner();
        let (welcome, tasks) = (v1::Welcome::default(), BTreeMap::new());
        let opens = VecDeque::new();
        Self { client, frames, inbound, welcome, version, tasks, opens, reports: 0 }
    }

    /// Hears its welcome, which comes first.
    pub async fn welcomed(mut self) -> Self {
        let Frame::Welcome(welcome) = self.hear().await else { panic!("no welcome first") };
        self.welcome = welcome;
        self
    }

    pub async fn say(&self, frame: Say) {
        self.frames.send(v1::WorkerFrame { frame: Some(frame) }).await.unwrap();
    }

    /// Says something in a session that may have ended.
    pub async fn mutter(&self, frame: Say) {
        let _ = self.frames.send(v1::WorkerFrame { frame: Some(frame) }).await;
    }

    /// A frame of a later version, as this one sees it.
    pub async fn say_nothing(&self) {
        self.frames.send(v1::WorkerFrame { frame: None }).await.unwrap();
    }

    pub async fn try_hear(&mut self) -> Result<Option<Frame>, Status> {
        let frame = timeout(PATIENCE, self.inbound.message()).await.expect("the manager says something")?;
        Ok(frame.map(|frame| frame.frame.expect("a frame says something")))
    }

    pub async fn hear(&mut self) -> Frame {
        self.try_hear().await.unwrap().expect("the session goes on")
    }

    /// Reads until the session has ended, and says why it did.
    pub async fn end(mut self) -> Status {
        loop {
            match self.try_hear().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the session ended without a word"),
                Err(status) => return status,
            }
        }
    }

    /// Takes over an assignment and acknowledges it, or settings; any other frame is given back.
    async fn take(&mut self, frame: Frame) -> Option<Frame> {
        match frame {
            Frame::Assignment(full) => {
                self.version = full.version;
                self.tasks = full.tasks.into_iter().map(|task| (task.id.clone(), task)).collect();
            }
            Frame::Diff(diff) => {
                assert_eq!(diff.base, self.version, "a diff continues what was sent before");
                self.version = diff.version;
                diff.removed.iter().for_each(|id| drop(self.tasks.remove(id)));
                self.tasks.extend(diff.changed.into_iter().map(|task| (task.id.clone(), task)));
            }
            Frame::Settings(settings) => {
                self.welcome.settings = Some(settings);
                return None;
            }
            other => return Some(other),
        }
        self.say(Say::Ack(v1::Ack { version: self.version })).await;
        None
    }

    /// The next frame that is no assignment.
    pub async fn answer(&mut self) -> Frame {
        loop {
            let frame = self.hear().await;
            if let Some(other) = self.take(frame).await {
                return other;
            }
        }
    }

    /// Takes over assignments until they are as `wanted`, by asking again and again.
    pub async fn has(&mut self, what: &str, wanted: impl Fn(&BTreeMap<String, v1::TaskAssignment>) -> bool) {
        let mut pace = tokio::time::interval(Duration::from_millis(10));
        let reached = async {
            while !wanted(&self.tasks) {
                pace.tick().await;
                self.sync().await;
            }
        };
        timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("never assigned: {what}"));
    }

    /// Says what it has until that is current.
    pub async fn sync(&mut self) {
        loop {
            self.say(Say::Sync(v1::Sync { version: self.version })).await;
            let frame = self.hear().await;
            match self.take(frame).await {
                Some(Frame::Current(_)) => return,
                // A full assignment is an answer as well; then it asks again.
                None => {}
                Some(Frame::Open(open)) => self.opens.push_back(open),
                Some(other) => panic!("no answer to a sync: {other:?}"),
            }
        }
    }

    pub async fn heartbeat(&self) {
        let usage = v1::NodeUsage { cpu_milli: 7, ..Default::default() };
        let loops = vec![v1::Loop { name: "worker.relist".into(), runs: 3, ..Default::default() }];
        self.say(Say::Heartbeat(v1::Heartbeat { usage: Some(usage), loops, tasks: Vec::new() })).await;
    }

    /// The node that it is the agent of.
    pub fn node(&self) -> NodeId {
        self.welcome.settings.as_ref().unwrap().node_id.parse().unwrap()
    }

    /// Name, number and bytes of the contents that it gets for what it needs.
    pub async fn fetch(&self, need: Need) -> Result<Vec<(String, u64, Vec<u8>)>, Status> {
        let mut requester = Requester::new(self.node()).unwrap();
        let key = requester.public_key().to_vec().into();
        let request = v1::FetchRequest { key, need: Some(need) };
        let mut answers = self.client.clone().fetch(request).await?.into_inner();
        let mut fetched = Vec::new();
        while let Some(v1::SealedDelivery { key, name, id, number, sealed, .. }) = answers.message().await? {
            let id = id.parse().unwrap();
            let delivery = Delivery { key: &key, id, number, sealed: &sealed };
            fetched.push((name, number, requester.open(&delivery).unwrap().to_vec()));
        }
        Ok(fetched)
    }

    /// Reports, and waits for the confirmation.
    pub async fn report(&mut self, reports: Vec<v1::TaskReport>) {
        self.reports += 1;
        let number = self.reports;
        self.say(Say::Reports(v1::Reports { number, reports })).await;
        loop {
            match self.answer().await {
                Frame::Stored(stored) => return assert_eq!(stored.number, number),
                Frame::Current(_) => {}
                Frame::Open(open) => self.opens.push_back(open),
                other => panic!("not a confirmation: {other:?}"),
            }
        }
    }

    /// Reports every task as running.
    pub async fn run_all(&mut self) {
        let reports = self.tasks.keys().map(|id| report(id, v1::TaskState::Running)).collect();
        self.report(reports).await;
    }

    /// Does what is wanted of each task, as far as one step goes: prepares, runs or removes it. What the image is, is
    /// said until the assignment says so.
    pub async fn obey(&mut self) {
        self.sync().await;
        let mut reports = Vec::new();
        for (id, task) in &self.tasks {
            let image = if task.digest.is_empty() { DIGEST.to_owned() } else { String::new() };
            let told = match task.desired() {
                v1::Desired::Ready => report(id, v1::TaskState::Ready),
                v1::Desired::Running => report(id, v1::TaskState::Running),
                _ => v1::TaskReport { removed: true, ..report(id, v1::TaskState::Shutdown) },
            };
            reports.push(v1::TaskReport { image, ..told });
        }
        if !reports.is_empty() {
            self.report(reports).await;
        }
    }

    /// Attaches the stream that the manager asks for next.
    pub async fn attach(&mut self) -> Stream {
        let open = self.asked().await;
        self.attach_to(open.stream_id).await
    }

    /// Attaches the stream of this name.
    pub async fn attach_to(&mut self, id: String) -> Stream {
        let (frames, queue) = mpsc::channel(8);
        let first = v1::stream_frame::Frame::StreamId(id);
        frames.send(v1::StreamFrame { frame: Some(first) }).await.unwrap();
        let inbound = self.client.attach(ReceiverStream::new(queue)).await.unwrap().into_inner();
        Stream { frames, inbound }
    }

    /// The name of the stream that the manager asks for next.
    pub async fn open(&mut self) -> String {
        self.asked().await.stream_id
    }

    /// The stream that the manager asks for next, and for what.
    pub async fn asked(&mut self) -> v1::Open {
        if let Some(open) = self.opens.pop_front() {
            return open;
        }
        loop {
            match self.answer().await {
                Frame::Open(open) => return open,
                Frame::Current(_) => {}
                other => panic!("not open: {other:?}"),
            }
        }
    }
}

impl Stream {
    pub async fn say(&self, frame: v1::stream_frame::Frame) {
        self.frames.send(v1::StreamFrame { frame: Some(frame) }).await.unwrap();
    }

    pub async fn hear(&mut self) -> Result<Option<v1::stream_frame::Frame>, Status> {
        let frame = timeout(PATIENCE, self.inbound.message()).await.expect("the manager goes on")?;
        Ok(frame.and_then(|frame| frame.frame))
    }

    /// Waits until the manager has let go of it: what was said before is heard then.
    pub async fn ended(mut self) {
        while let Ok(Some(_)) = self.hear().await {}
    }

    /// Everything up to the end of the archive; `None` when it broke off before.
    pub async fn archive(&mut self) -> Option<Vec<u8>> {
        let mut archive = Vec::new();
        loop {
            match self.hear().await.ok()?? {
                v1::stream_frame::Frame::Data(data) => archive.extend(&data[..]),
                v1::stream_frame::Frame::End(_) => return Some(archive),
                other => panic!("no part of an archive: {other:?}"),
            }
        }
    }
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
