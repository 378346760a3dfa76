//! One session, from hello to its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use warren_daemon::program::running_digest;
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame as FromManager;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::worker_frame::Frame;
use warren_types::id::ParseIdError;
use warren_types::{
    Assignment, AssignmentVersion, ManagerId, NetworkUpdate, NodeSettings, RetainedLog, TaskAssignment,
    TaskId, Violations,
};

use crate::node;
use crate::session::attach::OpenStreams;
use crate::session::clock_probe::ClockProbe;
use crate::session::periodic::{PeriodicError, PeriodicMessages, SessionHandle, sync_request};
use crate::session::{MAX_FRAME, ManagerConnection, SessionContext};

/// Time limit from the call to the welcome.
const WELCOME_DEADLINE: Duration = Duration::from_secs(5);
/// Queued outgoing frames.
const QUEUE: usize = 64;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionEnd {
    #[error("manager refused the session: {}", .0.message())]
    Refused(Status),
    #[error("manager did not answer the session request within {WELCOME_DEADLINE:?}")]
    NotWelcomed,
    #[error("connection lost: {}", .0.message())]
    ConnectionBroken(Status),
    #[error("manager closed the session")]
    Closed,
    #[error("invalid message from the manager: {0}")]
    InvalidFrame(#[from] Violations),
    #[error(
        "the manager's settings are for node {found}, this is {desired}; check the data directory of this node"
    )]
    WrongNode { desired: String, found: String },
    #[error(transparent)]
    Periodic(#[from] PeriodicError),
    #[error("the data address of this node changed; the next session reports it")]
    DataAddressChanged,
    #[error("the certificate authority of the cluster was replaced; the next session is with the new one")]
    AuthorityReplaced,
    #[error("the manager has left the cluster; the next session is with another one, if one is reached")]
    ManagerDeparted,
    #[error("agent is stopping")]
    Stopped,
}

/// State of a running session.
struct ActiveSession<'a> {
    context: &'a Arc<SessionContext>,
    /// The manager, if it is refused once it has left the cluster.
    manager: Option<ManagerId>,
    handle: SessionHandle,
    received_frames: watch::Sender<u64>,
    streams: OpenStreams,
    /// The manager has sent its assignments. Nothing is reported before that: reports of an earlier cluster
    /// incarnation may not apply to the assignments of this one.
    has_assignment: bool,
}

impl SessionEnd {
    /// The manager's rejection, if that ended the session.
    pub fn refusal(&self) -> Option<&Status> {
        match self {
            Self::Refused(status) | Self::ConnectionBroken(status) => Some(status),
            _ => None,
        }
    }
}

/// Runs one session over the connection; returns why it ended, also when the manager `watched` is listed as departed.
/// `authorities` is notified when those by which the manager was verified are replaced.
pub(super) async fn run(
    context: &Arc<SessionContext>,
    connected: ManagerConnection,
    watched: Option<ManagerId>,
    authorities: watch::Receiver<()>,
    stop: &CancellationToken,
) -> SessionEnd {
    match serve(context, connected, watched, authorities, stop).await {
        Ok(never) => match never {},
        Err(ended) => ended,
    }
}

async fn serve(
    context: &Arc<SessionContext>,
    connected: ManagerConnection,
    watched: Option<ManagerId>,
    mut authorities: watch::Receiver<()>,
    stop: &CancellationToken,
) -> Result<std::convert::Infallible, SessionEnd> {
    let ManagerConnection { manager, id: _, dialled_from, channel } = connected;
    let mut client = SessionsClient::new(channel.clone()).max_decoding_message_size(MAX_FRAME);
    let (frames, queue) = mpsc::channel(QUEUE);
    let (received, received_watch) = watch::channel(0);
    let line = SessionHandle {
        frames,
        received_frames: received_watch,
        end: stop.child_token(),
        clock_probe: ClockProbe::default(),
    };
    let _leave = line.end.clone().drop_guard();
    context.data_address.record_connection(dialled_from.as_deref());
    let mut data_address = context.data_address.subscribe();
    data_address.borrow_and_update();
    line.send(Frame::Hello(Box::new(hello(context, dialled_from.as_deref()).await))).await?;
    line.clock_probe.record_request();
    let welcomed = timeout(WELCOME_DEADLINE, async {
        let opened = client.establish(ReceiverStream::new(queue)).await.map_err(SessionEnd::Refused)?;
        let mut inbound = opened.into_inner();
        let welcome = receive_welcome(&mut inbound).await?;
        Ok::<_, SessionEnd>((inbound, welcome))
    });
    let (mut inbound, welcome) = welcomed.await.map_err(|_| SessionEnd::NotWelcomed)??;
    let settings = apply_settings(context, watched, welcome.settings)?;
    tracing::info!(manager, session = welcome.session, "session established");
    compare_clocks(context, &line, welcome.sent_at);
    context.reporter.resend_all();
    context.heartbeat_stats.reset_for_session();
    context.connectivity.record_contact();
    context.is_connected.send_replace(true);
    context.rejection.send_replace(None);
    context.manager_channel.send_replace(Some(channel));
    let periodic = PeriodicMessages::start(context, &settings, &line);
    let mut image_arrivals = context.stream_services.image_arrivals.subscribe();
    let mut program_digest = running_digest();
    // Every manager learns what this node has, also if it sends nothing.
    let mut applied_network = context.applied_network.clone();
    applied_network.mark_changed();
    let streams = OpenStreams::new(client, Arc::clone(&context.stream_services));
    let mut link = ActiveSession {
        context,
        manager: watched,
        handle: line,
        received_frames: received,
        streams,
        has_assignment: false,
    };
    loop {
        tokio::select! {
            () = link.handle.end.cancelled() => {
                return Err(if stop.is_cancelled() { SessionEnd::Stopped } else { PeriodicError::ManagerSilent.into() });
            }
            frame = inbound.message() => {
                let frame = frame.map_err(SessionEnd::ConnectionBroken)?.ok_or(SessionEnd::Closed)?;
                link.received_frames.send_modify(|received| *received += 1);
                context.connectivity.record_contact();
                link.handle_frame(frame).await?;
            }
            Ok(()) = image_arrivals.changed() => periodic.send_inventory(),
            Ok(()) = program_digest.changed() => periodic.send_inventory(),
            Ok(()) = data_address.changed() => return Err(SessionEnd::DataAddressChanged),
            Ok(()) = authorities.changed() => return Err(SessionEnd::AuthorityReplaced),
            Ok(()) = applied_network.changed() => {
                let version = *applied_network.borrow_and_update();
                if version != AssignmentVersion::default() {
                    link.handle.send(Frame::NetworkAck(v1::NetworkAck { version: Some(version.into()) })).await?;
                }
            }
            batch = context.reporter.next_batch(), if link.has_assignment => {
                let reports = {
                    // An actor may not know yet that its task is desired again.
                    let desired_state = context.desired_state.borrow();
                    let reported = batch.reports.iter().filter(|report| !desired_state.contradicts(report));
                    reported.map(Into::into).collect()
                };
                link.handle.send(Frame::Reports(v1::ReportBatch { number: batch.number, reports })).await?;
            }
        }
    }
}

async fn hello(context: &SessionContext, dialled_from: Option<&str>) -> v1::Hello {
    let disk = context.meter.disk();
    let (runtime, data_address) = (&*context.runtime, context.data_address.current());
    let (overrides, key) = (&context.overrides, Some(context.wireguard_key));
    let description = node::describe(runtime, overrides, disk, dialled_from, data_address, key).await;
    let version = context.desired_state.borrow().version;
    let view = context.network_view.borrow();
    v1::Hello {
        description: Some((&description).into()),
        version: Some(version.into()),
        network_version: Some(view.version.into()),
        networks: view.catalogues.keys().map(ToString::to_string).collect(),
        authorities: context.trust.roots().digests().iter().map(ToString::to_string).collect(),
    }
}

async fn receive_welcome(inbound: &mut Streaming<v1::ManagerFrame>) -> Result<v1::Welcome, SessionEnd> {
    let first = inbound.message().await.map_err(SessionEnd::Refused)?.ok_or(SessionEnd::Closed)?;
    match first.frame {
        Some(FromManager::Welcome(welcome)) => Ok(welcome),
        _ => Err(SessionEnd::NotWelcomed),
    }
}

/// Compares the manager's time, if any, with this machine's.
fn compare_clocks(context: &SessionContext, line: &SessionHandle, at: u64) {
    if let Some(ahead) = line.clock_probe.record_answer(at) {
        context.conditions.observe_clock(ahead);
    }
}

/// Applies the node settings of the manager, which end the session if they list `manager` as departed.
fn apply_settings(
    context: &SessionContext,
    manager: Option<ManagerId>,
    wire: Option<v1::NodeSettings>,
) -> Result<NodeSettings, SessionEnd> {
    let settings = NodeSettings::try_from(wire.unwrap_or_default())?;
    let own = (context.cluster, context.node);
    if (settings.cluster, settings.node) != own {
        let named = |(cluster, node)| format!("{node} of cluster {cluster}");
        return Err(SessionEnd::WrongNode {
            desired: named(own),
            found: named((settings.cluster, settings.node)),
        });
    }
    context.desired_state.send_if_modified(|desired_state| {
        let is_changed = desired_state.settings.as_ref() != Some(&settings);
        desired_state.settings = Some(settings.clone());
        is_changed
    });
    match manager {
        Some(manager) if settings.revoked_managers.contains(&manager) => Err(SessionEnd::ManagerDeparted),
        _ => Ok(settings),
    }
}

impl ActiveSession<'_> {
    async fn handle_frame(&mut self, frame: v1::ManagerFrame) -> Result<(), SessionEnd> {
        match frame.frame {
            Some(FromManager::Assignment(wire)) => self.apply_full(wire.try_into()?).await,
            Some(FromManager::Diff(wire)) => self.apply_update(wire).await,
            Some(FromManager::Network(wire)) => self.apply_network(wire).await,
            Some(FromManager::Current(v1::AssignmentCurrent { sent_at: at })) => {
                compare_clocks(self.context, &self.handle, at);
                self.has_assignment = true;
                self.context.desired_state.send_if_modified(|desired_state| desired_state.confirm());
                Ok(())
            }
            Some(FromManager::Withdrawn(v1::EndpointsWithdrawn { task_ids })) => {
                // What is no id is no task of this node.
                let tasks = task_ids.iter().filter_map(|id| id.parse().ok());
                self.context.desired_state.send_if_modified(|desired_state| {
                    let before = desired_state.withdrawn.len();
                    desired_state.record_withdrawn(tasks);
                    desired_state.withdrawn.len() != before
                });
                Ok(())
            }
            Some(FromManager::Settings(settings)) => {
                apply_settings(self.context, self.manager, Some(settings)).map(|_| ())
            }
            Some(FromManager::Stored(v1::ReportBatchAck { number })) => {
                self.context.reporter.acknowledge(number);
                Ok(())
            }
            Some(FromManager::Open(open)) => self.open_stream(open).await,
            Some(FromManager::Welcome(_)) => {
                Err(SessionEnd::ConnectionBroken(Status::internal("welcomed twice")))
            }
            // A frame of a later version, which is optional.
            None => Ok(()),
        }
    }

    async fn apply_full(&mut self, assignment: Assignment) -> Result<(), SessionEnd> {
        let version = assignment.version;
        let mut taken = false;
        self.context.desired_state.send_if_modified(|desired_state| {
            let before = desired_state.clone();
            taken = desired_state.apply_full(assignment);
            *desired_state != before
        });
        if !taken {
            let has = self.context.desired_state.borrow().version;
            tracing::info!(?version, ?has, "ignored an assignment that is older than what this node has");
            return Ok(());
        }
        self.has_assignment = true;
        Ok(self.handle.send(Frame::Ack(v1::AssignmentAck { version: Some(version.into()) })).await?)
    }

    async fn apply_update(&mut self, wire: v1::AssignmentDiff) -> Result<(), SessionEnd> {
        let base = wire.base.unwrap_or_default().into();
        let version = wire.version.unwrap_or_default();
        let changed =
            wire.changed.into_iter().map(TaskAssignment::try_from).collect::<Result<Vec<_>, _>>()?;
        let removed: Result<Vec<TaskId>, ParseIdError> = wire.removed.iter().map(|id| id.parse()).collect();
        let removed =
            removed.map_err(|error| Violations::from(warren_types::Violation::new("removed", error)))?;
        let retained = wire.retained.into_iter().map(RetainedLog::try_from).collect::<Result<Vec<_>, _>>()?;
        let mut taken = Ok(false);
        self.context.desired_state.send_if_modified(|desired_state| {
            taken = desired_state.apply_update(base, version.into(), changed, &removed, retained);
            taken == Ok(true)
        });
        match taken {
            Ok(true) => {
                Ok(self.handle.send(Frame::Ack(v1::AssignmentAck { version: Some(version) })).await?)
            }
            Ok(false) => Ok(()),
            Err(warren_task::BaseMismatch) => Ok(self.handle.send(sync_request(self.context)).await?),
        }
    }

    /// Applies an update of the network view. One that cannot be applied is answered with a request for everything. If
    /// that cannot be applied either, the next periodic request asks again.
    async fn apply_network(&mut self, wire: v1::NetworkUpdate) -> Result<(), SessionEnd> {
        let is_full = wire.base.is_none();
        let update = NetworkUpdate::try_from(wire).map_err(|wrong| wrong.to_string());
        let (mut applied, mut has_asked) = (Ok(()), is_full);
        self.context.network_view.send_if_modified(|view| {
            applied = update.and_then(|update| view.apply(update).map_err(|why| why.to_string()));
            if applied.is_err() {
                // Requests then ask for everything; what is known stays in use.
                let before = std::mem::take(&mut view.version);
                has_asked |= before == AssignmentVersion::default();
            }
            applied.is_ok()
        });
        let Err(why) = applied else { return Ok(()) };
        tracing::warn!(why, is_full, "cannot apply an update of the network view; asking for all of it");
        if has_asked { Ok(()) } else { Ok(self.handle.send(sync_request(self.context)).await?) }
    }

    /// Opens a stream that the manager asked for, or sends the error.
    async fn open_stream(&mut self, open: v1::OpenStream) -> Result<(), SessionEnd> {
        let stream_id = open.stream_id.clone();
        match self.streams.open(open) {
            Ok(()) => Ok(()),
            Err(refused) => {
                Ok(self.handle.send(Frame::Opened(v1::StreamOpened { stream_id, error: refused })).await?)
            }
        }
    }
}

#[cfg(test)]
mod tests;
