//! One session, from hello to its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame as FromManager;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::worker_frame::Frame;
use warren_types::id::ParseIdError;
use warren_types::{Assignment, NodeSettings, TaskAssignment, TaskId, Violations};

use crate::node;
use crate::session::attach::Streams;
use crate::session::offset::Asked;
use crate::session::pulse::{Line, Pulse, PulseError};
use crate::session::{Connected, Context};

/// From the call to the welcome.
const WELCOME_DEADLINE: Duration = Duration::from_secs(5);
/// Frames that wait to be sent.
const QUEUE: usize = 64;
/// A full assignment of thousands of tasks is larger than tonic's default of 4 MiB.
pub(super) const MAX_FRAME: usize = 64 << 20;

/// How a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("the manager refused the session: {}", .0.message())]
    Refused(Status),
    #[error("the manager did not welcome this node within {WELCOME_DEADLINE:?}")]
    NotWelcomed,
    #[error("the connection broke: {}", .0.message())]
    Broken(Status),
    #[error("the manager ended it")]
    Closed,
    #[error("the manager said something that this version cannot read: {0}")]
    Unreadable(#[from] Violations),
    #[error("the manager's settings are for node {found}, this is {wanted}; were data directories mixed up?")]
    WrongNode { wanted: String, found: String },
    #[error(transparent)]
    Pulse(#[from] PulseError),
    #[error("the agent stops")]
    Stopped,
}

/// The parts of a session that is under way.
struct Link<'a> {
    context: &'a Arc<Context>,
    line: Line,
    heard: watch::Sender<u64>,
    streams: Streams,
    /// The manager has said what it wants. Before that nothing is reported: what was said in another life of the
    /// cluster may not be true of what is wanted in this one.
    told: bool,
}

impl Ended {
    /// What the manager answered, if that is how it ended.
    pub fn refusal(&self) -> Option<&Status> {
        match self {
            Self::Refused(status) | Self::Broken(status) => Some(status),
            _ => None,
        }
    }
}

/// Runs one session over the connection; returns why it ended.
pub(super) async fn run(context: &Arc<Context>, connected: Connected, stop: &CancellationToken) -> Ended {
    match hold(context, connected, stop).await {
        Ok(never) => match never {},
        Err(ended) => ended,
    }
}

async fn hold(
    context: &Arc<Context>,
    connected: Connected,
    stop: &CancellationToken,
) -> Result<std::convert::Infallible, Ended> {
    let Connected { manager, dialled_from, channel } = connected;
    let mut client = SessionsClient::new(channel).max_decoding_message_size(MAX_FRAME);
    let (frames, queue) = mpsc::channel(QUEUE);
    let (heard, hearing) = watch::channel(0);
    let line = Line { frames, heard: hearing, leave: stop.child_token(), asked: Asked::default() };
    let _leave = line.leave.clone().drop_guard();
    line.send(Frame::Hello(hello(context, dialled_from.as_deref()).await)).await?;
    line.asked.note();
    let welcomed = timeout(WELCOME_DEADLINE, async {
        let opened = client.establish(ReceiverStream::new(queue)).await.map_err(Ended::Refused)?;
        let mut inbound = opened.into_inner();
        let welcome = welcome(&mut inbound).await?;
        Ok::<_, Ended>((inbound, welcome))
    });
    let (mut inbound, welcome) = welcomed.await.map_err(|_| Ended::NotWelcomed)??;
    let settings = settle(context, welcome.settings)?;
    tracing::info!(manager, session = welcome.session, "session established");
    compare_clocks(context, &line, welcome.at);
    context.reporter.restart();
    context.vitals.restart();
    context.contact.heard();
    context.connected.send_replace(true);
    context.outcast.send_replace(None);
    context.manager.send_replace(Some(client.clone()));
    let _pulse = Pulse::start(context, &settings, &line);
    let streams = Streams::new(client, Arc::clone(&context.services));
    let mut link = Link { context, line, heard, streams, told: false };
    loop {
        tokio::select! {
            () = link.line.leave.cancelled() => {
                return Err(if stop.is_cancelled() { Ended::Stopped } else { PulseError::Silent.into() });
            }
            frame = inbound.message() => {
                let frame = frame.map_err(Ended::Broken)?.ok_or(Ended::Closed)?;
                link.heard.send_modify(|heard| *heard += 1);
                context.contact.heard();
                link.take(frame).await?;
            }
            batch = context.reporter.next_batch(), if link.told => {
                let reports = {
                    // An actor may not have heard yet that its task is wanted again.
                    let wishes = context.wishes.borrow();
                    let told = batch.reports.iter().filter(|report| !wishes.contradict(report));
                    told.map(Into::into).collect()
                };
                link.line.send(Frame::Reports(v1::Reports { number: batch.number, reports })).await?;
            }
        }
    }
}

async fn hello(context: &Context, dialled_from: Option<&str>) -> v1::Hello {
    let disk = context.meter.disk();
    let description = node::describe(&*context.runtime, &context.overrides, disk, dialled_from).await;
    let version = context.wishes.borrow().version;
    v1::Hello { description: Some((&description).into()), version: Some(version.into()) }
}

async fn welcome(inbound: &mut Streaming<v1::ManagerFrame>) -> Result<v1::Welcome, Ended> {
    let first = inbound.message().await.map_err(Ended::Refused)?.ok_or(Ended::Closed)?;
    match first.frame {
        Some(FromManager::Welcome(welcome)) => Ok(welcome),
        _ => Err(Ended::NotWelcomed),
    }
}

/// Notes what the manager's time says of this machine's, if anything.
fn compare_clocks(context: &Context, line: &Line, at: u64) {
    if let Some(ahead) = line.asked.answered(at) {
        context.health.note_clock(ahead);
    }
}

/// Takes over what the manager says of this node.
fn settle(context: &Context, wire: Option<v1::NodeSettings>) -> Result<NodeSettings, Ended> {
    let settings = NodeSettings::try_from(wire.unwrap_or_default())?;
    let own = (context.cluster, context.node);
    if (settings.cluster, settings.node) != own {
        let named = |(cluster, node)| format!("{node} of cluster {cluster}");
        return Err(Ended::WrongNode { wanted: named(own), found: named((settings.cluster, settings.node)) });
    }
    context.wishes.send_if_modified(|wishes| {
        let news = wishes.settings.as_ref() != Some(&settings);
        wishes.settings = Some(settings.clone());
        news
    });
    Ok(settings)
}

impl Link<'_> {
    async fn take(&mut self, frame: v1::ManagerFrame) -> Result<(), Ended> {
        match frame.frame {
            Some(FromManager::Assignment(wire)) => self.take_full(wire.try_into()?).await,
            Some(FromManager::Diff(wire)) => self.take_diff(wire).await,
            Some(FromManager::Current(v1::SyncCurrent { at })) => {
                compare_clocks(self.context, &self.line, at);
                self.told = true;
                self.context.wishes.send_if_modified(|wishes| wishes.confirm());
                Ok(())
            }
            Some(FromManager::Settings(settings)) => settle(self.context, Some(settings)).map(|_| ()),
            Some(FromManager::Stored(v1::ReportsStored { number })) => {
                self.context.reporter.stored(number);
                Ok(())
            }
            Some(FromManager::Open(open)) => self.open(open).await,
            Some(FromManager::Welcome(_)) => Err(Ended::Broken(Status::internal("welcomed twice"))),
            // A frame of a later version, which this one can do without.
            None => Ok(()),
        }
    }

    async fn take_full(&mut self, assignment: Assignment) -> Result<(), Ended> {
        let version = assignment.version;
        let mut taken = false;
        self.context.wishes.send_if_modified(|wishes| {
            let before = wishes.clone();
            taken = wishes.take_full(assignment);
            *wishes != before
        });
        if !taken {
            let has = self.context.wishes.borrow().version;
            tracing::info!(?version, ?has, "ignored an assignment that is older than what this node has");
            return Ok(());
        }
        self.told = true;
        Ok(self.line.send(Frame::Ack(v1::Ack { version: Some(version.into()) })).await?)
    }

    async fn take_diff(&mut self, wire: v1::AssignmentDiff) -> Result<(), Ended> {
        let base = wire.base.unwrap_or_default().into();
        let version = wire.version.unwrap_or_default();
        let changed =
            wire.changed.into_iter().map(TaskAssignment::try_from).collect::<Result<Vec<_>, _>>()?;
        let removed: Result<Vec<TaskId>, ParseIdError> = wire.removed.iter().map(|id| id.parse()).collect();
        let removed =
            removed.map_err(|error| Violations::from(warren_types::Violation::new("removed", error)))?;
        let mut taken = Ok(false);
        self.context.wishes.send_if_modified(|wishes| {
            taken = wishes.take_diff(base, version.into(), changed, &removed);
            taken == Ok(true)
        });
        match taken {
            Ok(true) => Ok(self.line.send(Frame::Ack(v1::Ack { version: Some(version) })).await?),
            Ok(false) => Ok(()),
            Err(warren_task::Gap) => {
                let version = self.context.wishes.borrow().version;
                Ok(self.line.send(Frame::Sync(v1::Sync { version: Some(version.into()) })).await?)
            }
        }
    }

    /// Dials out for a stream that the manager asked for, or says why not.
    async fn open(&mut self, open: v1::Open) -> Result<(), Ended> {
        let stream_id = open.stream_id.clone();
        match self.streams.open(open) {
            Ok(()) => Ok(()),
            Err(refused) => Ok(self.line.send(Frame::Opened(v1::Opened { stream_id, refused })).await?),
        }
    }
}

#[cfg(test)]
mod tests;
