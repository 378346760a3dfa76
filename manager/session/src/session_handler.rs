//! A session after its welcome: frames are read at once, while reports are stored concurrently, so that a
//! slow log never makes a worker appear silent.

mod conditions;
mod inventory;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};
use warren_core::session::{ReportUse, is_newest, report_use};
use warren_core::state::ObjectKind;
use warren_core::{CaCommand, Command, Refusal, State};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame as Outgoing;
use warren_proto::v1::worker_frame::Frame as Incoming;
use warren_replica::SESSION_TIMEOUT;
use warren_store::problem::{node_removed, session_superseded, status_of};
use warren_store::timestamp::TimestampSource;
use warren_store::{ProposeError, Store};
use warren_types::{AssignmentVersion, CaDigest, CaHolder, NodeId, TaskReport};

use self::conditions::ReportedConditions;
use self::inventory::ReportedVolumes;
use super::assignment_stream::{AssignmentFrame, AssignmentStream};
use super::frames::{manager_frame, send, send_frame};
use super::registry::{self, FrameSender, RegisteredSession};
use super::task_telemetry::truncate;
use super::withdrawals::Withdrawals;
use super::{NetworkPublisher, WorkerStreams};

/// Maximum number of reports in one frame.
const MAX_REPORTS: usize = 4096;
/// Report frames that may wait to be stored; a worker has half as many in flight.
const MAX_QUEUED_REPORTS: usize = 16;
/// Maximum length of a report's reason in bytes; the same limit as in the state.
const MAX_REASON_BYTES: usize = 1024;
/// Maximum number of conditions of a node, and their maximum length in bytes.
const MAX_CONDITIONS: usize = 16;
const MAX_CONDITION_BYTES: usize = 256;
/// Maximum number of an agent's background tasks, and the maximum length of names and errors in bytes.
const MAX_BACKGROUND_TASKS: usize = 64;
const MAX_TASK_NAME_BYTES: usize = 64;
const MAX_TASK_ERROR_BYTES: usize = 256;

/// What all sessions use.
#[derive(Clone)]
pub struct SessionContext {
    /// The replicated state.
    pub store: Store,
    /// Source of command timestamps.
    pub clock: TimestampSource,
    /// Streams that workers open on request.
    pub worker_streams: WorkerStreams,
    /// What nodes are told about the cluster's network.
    pub networks: NetworkPublisher,
    /// What they have acknowledged of that.
    pub withdrawals: Withdrawals,
}

/// One session. Its task is the only writer of its stream except for `open` frames.
pub struct SessionHandler<'a> {
    /// Shared by all sessions.
    pub context: &'a SessionContext,
    /// This session's entry in the registry.
    pub session: RegisteredSession,
    /// The worker's node.
    pub node: NodeId,
    /// The session's number.
    pub session_number: u64,
    /// The send queue to the worker.
    pub frames: &'a FrameSender,
}

/// What waits to be replicated.
struct ReportQueues {
    reports: mpsc::Sender<v1::ReportBatch>,
    conditions: watch::Sender<ReportedConditions>,
    volumes: watch::Sender<ReportedVolumes>,
    /// Notified when the authority that the node trusts is to be recorded.
    authority: watch::Sender<()>,
}

impl SessionHandler<'_> {
    /// Runs until the worker closes the stream.
    ///
    /// # Errors
    /// The reason why the manager ends the session.
    pub async fn run(
        self,
        mut link: AssignmentStream,
        inbound: &mut Streaming<v1::WorkerFrame>,
    ) -> Result<(), Status> {
        let (reports, waiting) = mpsc::channel(MAX_QUEUED_REPORTS);
        let (conditions, reported) = watch::channel(None);
        let (volumes, held) = watch::channel(None);
        let (authority, unrecorded) = watch::channel(());
        let queues = ReportQueues { reports, conditions, volumes, authority };
        tokio::try_join!(
            self.receive_frames(&mut link, inbound, queues),
            self.replicate_reports(waiting),
            self.replicate_conditions(reported),
            Box::pin(self.replicate_volumes(held)),
            Box::pin(self.replicate_authority(unrecorded)),
        )?;
        Ok(())
    }

    async fn receive_frames(
        &self,
        link: &mut AssignmentStream,
        inbound: &mut Streaming<v1::WorkerFrame>,
        queues: ReportQueues,
    ) -> Result<(), Status> {
        let mut silent_at = Instant::now() + SESSION_TIMEOUT;
        loop {
            let frame = tokio::select! {
                () = self.session.wake.notified() => {
                    Box::pin(self.send_changes(link)).await?;
                    continue;
                }
                () = sleep_until(silent_at) => {
                    return Err(Status::deadline_exceeded("timeout: no frame from the worker"));
                }
                frame = inbound.next() => frame,
            };
            let Some(frame) = frame.transpose()? else { return Ok(()) };
            let now = Instant::now();
            silent_at = now + SESSION_TIMEOUT;
            self.session.record_contact(now);
            match frame.frame {
                Some(Incoming::Heartbeat(heartbeat)) => self.heartbeat(heartbeat, &queues.conditions),
                // Boxed, so that the waiting session's future does not have the size of this one.
                Some(other) => Box::pin(self.handle_frame(other, link, &queues)).await?,
                None => return Err(Status::unimplemented("the frame is unknown to this manager")),
            }
        }
    }

    /// Handles a frame other than a heartbeat.
    async fn handle_frame(
        &self,
        frame: Incoming,
        link: &mut AssignmentStream,
        queues: &ReportQueues,
    ) -> Result<(), Status> {
        match frame {
            Incoming::Sync(sync) => {
                let version = sync.version.map(AssignmentVersion::from).unwrap_or_default();
                if sync.network_version.unwrap_or_default() == v1::AssignmentVersion::default() {
                    link.network.reset();
                }
                self.answer_version(link, version).await?;
                if self.unrecorded_authority().is_some() {
                    queues.authority.send_replace(());
                }
                Ok(())
            }
            Incoming::Reports(frame) if frame.reports.len() > MAX_REPORTS => {
                Err(Status::invalid_argument(format!("more than {MAX_REPORTS} reports in one frame")))
            }
            Incoming::Reports(frame) => {
                let ended = |_| Status::internal("storing reports has ended");
                queues.reports.send(frame).await.map_err(ended)
            }
            Incoming::Inventory(inventory) => {
                let (images, program_digest, volumes) = inventory::parse(inventory);
                self.session.record_inventory(images, program_digest);
                queues.volumes.send_replace(Some(volumes));
                Ok(())
            }
            Incoming::NetworkAck(ack) => {
                link.network.acknowledge(ack.version.map(AssignmentVersion::from).unwrap_or_default());
                self.session.record_network(link.network.acknowledged());
                Ok(())
            }
            Incoming::Opened(opened) => {
                self.context.worker_streams.reject(&opened.stream_id, self.node, opened.error);
                Ok(())
            }
            // The applied version is in the next sync as well; heartbeats are handled by the caller.
            Incoming::Ack(_) | Incoming::Heartbeat(_) => Ok(()),
            Incoming::Hello(_) => Err(Status::invalid_argument("a second hello")),
        }
    }

    /// The new certificate authority, if the node trusts it alone and that is waited for.
    fn unrecorded_authority(&self) -> Option<CaDigest> {
        let published = self.context.store.read();
        let rotation =
            published.state.ca_rotation().filter(|rotation| rotation.nodes.contains(&self.node))?;
        (self.session.authority() == Some(rotation.digest)).then_some(rotation.digest)
    }

    async fn replicate_authority(&self, mut unrecorded: watch::Receiver<()>) -> Result<(), Status> {
        while unrecorded.changed().await.is_ok() {
            let Some(digest) = self.unrecorded_authority() else { continue };
            let (holder, at) = (CaHolder::Node(self.node), self.context.clock.now());
            let renewal = Command::Ca(CaCommand::RecordRenewal { digest, holder, at });
            if let Err(error) = self.context.store.propose(renewal).await {
                // The next request tries again.
                tracing::info!(
                    node = %self.node, %error, "cannot record which certificate authority the node trusts"
                );
            }
        }
        Ok(())
    }

    fn heartbeat(&self, heartbeat: v1::Heartbeat, conditions: &watch::Sender<ReportedConditions>) {
        let v1::Heartbeat { usage, background_tasks: loops, tasks } = heartbeat;
        if let Some(usage) = &usage {
            conditions.send_replace(Some(conditions::parse(&usage.conditions)));
        }
        let published = self.context.store.read();
        let assigned = published.state.tasks_on(&self.node).map(|task| task.id).collect();
        let (usage, tasks_run) = (usage.map(bound_usage), bound_background_tasks(loops));
        self.session.record_heartbeat(
            registry::NodeHeartbeat { usage, background_tasks: tasks_run, task_telemetry: tasks },
            &assigned,
        );
    }

    /// Checks that the node has no newer session, neither here nor, according to `state`, on another manager.
    fn check_newest(&self, state: &State) -> Result<(), Status> {
        // A removed node is told so by what follows.
        let is_newest = state.node(&self.node).is_none() || is_newest(state, &self.node, self.session_number);
        (self.session.is_current() && is_newest).then_some(()).ok_or_else(session_superseded)
    }

    /// Sends changes, unless this session is superseded.
    async fn send_changes(&self, link: &mut AssignmentStream) -> Result<(), Status> {
        let (settings, network, diff) = {
            let published = self.context.store.read();
            self.check_newest(&published.state)?;
            (
                link.settings_update(&published.state)?,
                self.network_update(link, &published.state),
                link.next_frame(&published.state, self.context.clock.local_now())?,
            )
        };
        self.send_update(settings, network, diff).await
    }

    /// Sends the update for a worker that has `version`.
    async fn answer_version(
        &self,
        link: &mut AssignmentStream,
        version: AssignmentVersion,
    ) -> Result<(), Status> {
        let (settings, network, answer) = {
            let published = self.context.store.read();
            self.check_newest(&published.state)?;
            let now = self.context.clock.local_now();
            (
                link.settings_update(&published.state)?,
                self.network_update(link, &published.state),
                link.answer_version(&published.state, version, now)?,
            )
        };
        self.send_update(settings, network, Some(answer)).await
    }

    /// What changed in the cluster's network for the node.
    fn network_update(&self, link: &mut AssignmentStream, state: &State) -> Option<v1::NetworkUpdate> {
        let update = self.context.networks.next_update(&mut link.network, state, &self.node);
        self.session.record_network(link.network.acknowledged());
        update
    }

    /// Sends the node settings and the network before the assignment that depends on them.
    async fn send_update(
        &self,
        settings: Option<v1::NodeSettings>,
        network: Option<v1::NetworkUpdate>,
        assigned: Option<AssignmentFrame>,
    ) -> Result<(), Status> {
        let settings = settings.map(|settings| manager_frame(Outgoing::Settings(settings)));
        let network = network.map(|network| manager_frame(Outgoing::Network(network)));
        for frame in settings.into_iter().chain(network) {
            send_frame(self.frames, frame).await?;
        }
        match assigned {
            Some(assigned) => send_assignment(&self.context.withdrawals, self.frames, assigned).await,
            None => Ok(()),
        }
    }

    /// Stores reports in the order of arrival, and confirms each frame when it is durable.
    async fn replicate_reports(&self, mut waiting: mpsc::Receiver<v1::ReportBatch>) -> Result<(), Status> {
        while let Some(v1::ReportBatch { number, reports }) = waiting.recv().await {
            let facts = self.split_reports(&self.context.store.read().state, reports)?;
            if !facts.is_empty() {
                let (node, session, at) = (self.node, self.session_number, self.context.clock.now());
                let command = Command::ReportTasks { node, session, reports: facts.clone(), at };
                // A full disk must not end the session: a node without a session would be taken for lost.
                self.context.store.propose_with_retry(command).await.map_err(refusal_status)?;
                facts.iter().for_each(|fact| self.session.remove_replicated_progress(fact));
            }
            Box::pin(send(self.frames, Outgoing::Stored(v1::ReportBatchAck { number }))).await?;
        }
        Ok(())
    }

    /// Records progress in memory and returns the reports that must be replicated.
    fn split_reports(&self, state: &State, reports: Vec<v1::TaskReport>) -> Result<Vec<TaskReport>, Status> {
        let mut facts = Vec::new();
        for report in reports {
            let mut report = TaskReport::try_from(report).map_err(status_of)?;
            truncate(&mut report.reason, MAX_REASON_BYTES);
            match report_use(state, &self.node, &report) {
                ReportUse::Store => facts.push(report),
                ReportUse::Keep => self.session.record_progress(report),
                ReportUse::Ignore => {}
            }
        }
        Ok(facts)
    }
}

fn refusal_status(error: ProposeError) -> Status {
    match error {
        ProposeError::Rejected(Refusal::NotFound { kind: ObjectKind::Node, .. }) => node_removed(),
        other => status_of(other),
    }
}

fn bound_usage(mut usage: v1::NodeUsage) -> v1::NodeUsage {
    usage.condition_messages.truncate(MAX_CONDITIONS);
    usage.conditions.truncate(MAX_CONDITIONS);
    usage.condition_messages.iter_mut().for_each(|condition| truncate(condition, MAX_CONDITION_BYTES));
    usage
}

/// Limits the list. The node's name is set by the reader, not by the agent.
fn bound_background_tasks(mut background_tasks: Vec<v1::BackgroundTask>) -> Vec<v1::BackgroundTask> {
    background_tasks.truncate(MAX_BACKGROUND_TASKS);
    for task in &mut background_tasks {
        truncate(&mut task.name, MAX_TASK_NAME_BYTES);
        truncate(&mut task.last_error, MAX_TASK_ERROR_BYTES);
        task.node.clear();
    }
    background_tasks
}

/// Sends an assignment. The worker is told when the tasks that it stops by it are withdrawn from the other nodes.
///
/// # Errors
/// As [`send_frame`].
pub async fn send_assignment(
    withdrawals: &Withdrawals,
    frames: &FrameSender,
    assigned: AssignmentFrame,
) -> Result<(), Status> {
    let AssignmentFrame { frame, stopping } = assigned;
    send_frame(frames, frame).await?;
    if let Some((index, tasks)) = stopping {
        withdrawals.announce(index, tasks, frames);
    }
    Ok(())
}
