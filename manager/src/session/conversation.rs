//! A session after its welcome: what the worker says is read at once; what it reports is stored beside that, so
//! that a slow log never makes a worker look silent.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};
use warren_core::session::{is_old, is_pinned, must_replicate};
use warren_core::state::Kind;
use warren_core::{Command, Refusal, State};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame as Outgoing;
use warren_proto::v1::worker_frame::Frame as Incoming;
use warren_types::{AssignmentVersion, NodeId, TaskReport};

use super::conditions::{self, Said};
use super::link::{Link, frame};
use super::registry::{self, Outbox, Registered};
use super::server::SessionServer;
use crate::api::problem::{node_removed, status_of, superseded};
use crate::store::ProposeError;

/// Silence after which a session is given up; three syncs and slack.
const SILENCE: Duration = Duration::from_secs(12);
/// Most reports that one frame may carry.
const MAX_REPORTS: usize = 4096;
/// Frames of reports that may wait to be stored; a worker has half as many on their way.
const WAITING: usize = 16;
/// Longest reason that is kept of a report, in bytes; as long as the state keeps it.
const MAX_REASON: usize = 1024;
/// Conditions that are kept of a node, and the longest of them in bytes.
const MAX_CONDITIONS: usize = 16;
const MAX_CONDITION: usize = 256;
/// Loops that are kept of an agent, and the longest name and error of them in bytes.
const MAX_LOOPS: usize = 64;
const MAX_LOOP_NAME: usize = 64;
const MAX_LOOP_ERROR: usize = 256;

/// One session. Its task is the only writer of its stream but for `open` frames.
pub struct Conversation<'a> {
    /// What all sessions share.
    pub server: &'a SessionServer,
    /// This session's place in the registry.
    pub session: Registered,
    /// The worker's node.
    pub node: NodeId,
    /// The session's number.
    pub number: u64,
    /// To the worker.
    pub outbox: &'a Outbox,
}

impl Conversation<'_> {
    /// Runs until the worker leaves.
    ///
    /// # Errors
    /// Why the manager ends it.
    pub async fn run(self, mut link: Link, inbound: &mut Streaming<v1::WorkerFrame>) -> Result<(), Status> {
        let (reports, waiting) = mpsc::channel(WAITING);
        let (conditions, said) = watch::channel(None);
        tokio::try_join!(
            self.listen(&mut link, inbound, reports, conditions),
            self.store_reports(waiting),
            self.store_conditions(said),
        )?;
        Ok(())
    }

    async fn listen(
        &self,
        link: &mut Link,
        inbound: &mut Streaming<v1::WorkerFrame>,
        reports: mpsc::Sender<v1::Reports>,
        conditions: watch::Sender<Said>,
    ) -> Result<(), Status> {
        let mut silent_at = Instant::now() + SILENCE;
        loop {
            let frame = tokio::select! {
                () = self.session.wake.notified() => {
                    Box::pin(self.push(link)).await?;
                    continue;
                }
                () = sleep_until(silent_at) => {
                    return Err(Status::deadline_exceeded("the worker was silent for too long"));
                }
                frame = inbound.next() => frame,
            };
            let Some(frame) = frame.transpose()? else { return Ok(()) };
            let now = Instant::now();
            silent_at = now + SILENCE;
            self.session.contact(now);
            match frame.frame {
                Some(Incoming::Heartbeat(heartbeat)) => self.heartbeat(heartbeat, &conditions),
                // In a box: a session mostly waits, and would have room for this as long as it does.
                Some(other) => Box::pin(self.hear(other, link, &reports)).await?,
                None => return Err(Status::unimplemented("a frame that this manager does not know")),
            }
        }
    }

    /// Takes a word that is more than a heartbeat.
    async fn hear(
        &self,
        word: Incoming,
        link: &mut Link,
        reports: &mpsc::Sender<v1::Reports>,
    ) -> Result<(), Status> {
        match word {
            Incoming::Sync(sync) => {
                let version = sync.version.map(AssignmentVersion::from).unwrap_or_default();
                self.answer(link, version).await
            }
            Incoming::Reports(frame) if frame.reports.len() > MAX_REPORTS => {
                Err(Status::invalid_argument(format!("more than {MAX_REPORTS} reports in one frame")))
            }
            Incoming::Reports(frame) => {
                let ended = |_| Status::internal("reports are not stored any more");
                reports.send(frame).await.map_err(ended)
            }
            Incoming::Opened(opened) => {
                self.server.streams.refuse(&opened.stream_id, self.node, opened.refused);
                Ok(())
            }
            // What the worker took over is in its next sync as well; and its heartbeats do not come here.
            Incoming::Ack(_) | Incoming::Heartbeat(_) => Ok(()),
            Incoming::Hello(_) => Err(Status::invalid_argument("a second hello")),
        }
    }

    fn heartbeat(&self, heartbeat: v1::Heartbeat, conditions: &watch::Sender<Said>) {
        let v1::Heartbeat { usage, loops, tasks } = heartbeat;
        if let Some(usage) = &usage {
            conditions.send_replace(Some(conditions::parse(&usage.kinds)));
        }
        let published = self.server.store.read();
        let there = published.state.tasks_on(&self.node).map(|task| task.id).collect();
        let (usage, loops) = (usage.map(bounded), bounded_loops(loops));
        self.session.heartbeat(registry::Heartbeat { usage, loops, tasks }, &there);
    }

    /// The node has no newer session, neither here nor, as far as `state` knows, with another manager.
    fn is_newest(&self, state: &State) -> Result<(), Status> {
        let elsewhere = state.node(&self.node).is_some_and(|node| node.session > self.number);
        (self.session.is_current() && !elsewhere).then_some(()).ok_or_else(superseded)
    }

    /// Says what changed, unless this session lost its place.
    async fn push(&self, link: &mut Link) -> Result<(), Status> {
        let (settings, diff) = {
            let published = self.server.store.read();
            self.is_newest(&published.state)?;
            (link.settings(&published.state)?, link.diff(&published.state, self.server.clock.wall())?)
        };
        self.tell(settings, diff).await
    }

    /// Answers a worker that says it has `version`.
    async fn answer(&self, link: &mut Link, version: AssignmentVersion) -> Result<(), Status> {
        let (settings, answer) = {
            let published = self.server.store.read();
            self.is_newest(&published.state)?;
            let now = self.server.clock.wall();
            (link.settings(&published.state)?, link.answer(&published.state, version, now)?)
        };
        self.tell(settings, Some(answer)).await
    }

    /// Says what the node is called before what its tasks make of that.
    async fn tell(
        &self,
        settings: Option<v1::NodeSettings>,
        assigned: Option<v1::ManagerFrame>,
    ) -> Result<(), Status> {
        let settings = settings.map(|settings| frame(Outgoing::Settings(settings)));
        for frame in settings.into_iter().chain(assigned) {
            send_frame(self.outbox, frame).await?;
        }
        Ok(())
    }

    /// Stores reports in the order in which they came, and confirms each frame when it is durable.
    async fn store_reports(&self, mut waiting: mpsc::Receiver<v1::Reports>) -> Result<(), Status> {
        while let Some(v1::Reports { number, reports }) = waiting.recv().await {
            let facts = self.take(&self.server.store.read().state, reports)?;
            if !facts.is_empty() {
                let (node, session, at) = (self.node, self.number, self.server.clock.now());
                let command = Command::ReportTasks { node, session, reports: facts.clone(), at };
                // A full disk must not end the session: without one the worker would be taken for lost.
                self.server.store.propose_patiently(command).await.map_err(refused)?;
                facts.iter().for_each(|fact| self.session.forget_progress(fact));
            }
            Box::pin(send(self.outbox, Outgoing::Stored(v1::ReportsStored { number }))).await?;
        }
        Ok(())
    }

    /// Keeps progress, and answers the facts that have to be replicated.
    fn take(&self, state: &State, reports: Vec<v1::TaskReport>) -> Result<Vec<TaskReport>, Status> {
        let mut facts = Vec::new();
        for report in reports {
            let mut report = TaskReport::try_from(report).map_err(status_of)?;
            cut(&mut report.reason, MAX_REASON);
            let task = state.task(&report.task).filter(|task| task.node == Some(self.node));
            let Some(task) = task else { continue };
            let pins = report.image.is_some() && !is_pinned(state, task);
            if is_old(&task.observed, &report) && !pins {
                continue;
            }
            if pins || must_replicate(task, &report) {
                facts.push(report);
            } else {
                self.session.keep_progress(report);
            }
        }
        Ok(facts)
    }
}

fn refused(error: ProposeError) -> Status {
    match error {
        ProposeError::Rejected(Refusal::NotFound { kind: Kind::Node, .. }) => node_removed(),
        other => status_of(other),
    }
}

fn bounded(mut usage: v1::NodeUsage) -> v1::NodeUsage {
    usage.conditions.truncate(MAX_CONDITIONS);
    usage.kinds.truncate(MAX_CONDITIONS);
    usage.conditions.iter_mut().for_each(|condition| cut(condition, MAX_CONDITION));
    usage
}

/// Whose they are is said by who asks, not by the agent.
fn bounded_loops(mut loops: Vec<v1::Loop>) -> Vec<v1::Loop> {
    loops.truncate(MAX_LOOPS);
    for told in &mut loops {
        cut(&mut told.name, MAX_LOOP_NAME);
        cut(&mut told.last_error, MAX_LOOP_ERROR);
        told.node.clear();
    }
    loops
}

/// The beginning of a text that has at most so many bytes.
pub(super) fn cut(text: &mut String, most: usize) {
    text.truncate(text.floor_char_boundary(most));
}

/// Says something to the worker.
///
/// # Errors
/// As [`send_frame`].
pub async fn send(outbox: &Outbox, what: Outgoing) -> Result<(), Status> {
    send_frame(outbox, frame(what)).await
}

/// Waits for room, as long as the worker may be silent.
///
/// # Errors
/// The worker is gone or does not read.
pub async fn send_frame(outbox: &Outbox, frame: v1::ManagerFrame) -> Result<(), Status> {
    let gone = |_| Status::cancelled("the worker closed the session");
    let slow = |_| Status::deadline_exceeded("the worker does not read its stream");
    tokio::time::timeout(SILENCE, outbox.send(Box::new(Ok(frame)))).await.map_err(slow)?.map_err(gone)
}
