//! Streams that a manager asked this node to open.
//!
//! Each is its own call over the session's connection. It ends with its work, when the manager closes it, or
//! with the session. Start reading at [`OpenStreams::open`].

mod exec;
mod images;
mod import;
mod logs;
mod transfer;
mod upgrade;
mod verify;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use warren_health::SocketFactory;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::stream_frame::Frame;
use warren_runtime::Runtime;

use crate::handlers::images::ImageArrivals;
use crate::handlers::secret_fetcher::SecretFetcher;
use crate::handlers::volumes::TaskVolumes;
use crate::image_gc::ImageGc;
use crate::session::{ImportFn, MAX_FRAME};
use crate::verification::NodeVerifier;

pub(crate) use logs::TaskLogs;

/// Time limit to open the stream.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
/// A receiver that accepts no frame for this long is considered lost.
const SEND_DEADLINE: Duration = Duration::from_secs(30);
/// Queued frames, in either direction.
const QUEUE: usize = 8;
/// Queued frames of log lines. Each is large, and there are many of these streams.
const LOG_QUEUE: usize = 2;
/// Concurrent transfers of images and programs: each is bound by network and disk, and may take an hour.
const MAX_TRANSFERS: usize = 4;
/// Concurrent log streams. Each may be followed for long, by several clients.
const MAX_LOGS: usize = 256;
/// Concurrent programs in containers for clients.
const MAX_EXECS: usize = 100;
/// Concurrent queries, which take seconds each.
const MAX_QUERIES: usize = 8;

/// Services that streams use.
pub(crate) struct StreamServices {
    pub import: ImportFn,
    pub logs: TaskLogs,
    pub image_gc: Arc<ImageGc>,
    /// Notified when an image arrives.
    pub image_arrivals: ImageArrivals,
    /// Source of registry credentials.
    pub secret_fetcher: Arc<dyn SecretFetcher>,
    pub volumes: Arc<TaskVolumes>,
    pub runtime: Arc<dyn Runtime>,
    pub verifier: Arc<NodeVerifier>,
    /// Sockets in the networks of tasks.
    pub sockets: SocketFactory,
}

/// A stream failed.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("stream was not opened within {OPEN_DEADLINE:?}")]
    OpenFailed,
    #[error("manager refused the stream: {}", .0.message())]
    Refused(Status),
    #[error("manager accepted no frame for {SEND_DEADLINE:?}")]
    Stalled,
    #[error("manager closed the stream")]
    ManagerClosed,
}

/// The streams of one session; they end with it.
pub(super) struct OpenStreams {
    client: SessionsClient<Channel>,
    services: Arc<StreamServices>,
    transfers: JoinSet<()>,
    logs: JoinSet<()>,
    execs: JoinSet<()>,
    queries: JoinSet<()>,
}

impl OpenStreams {
    pub fn new(client: SessionsClient<Channel>, services: Arc<StreamServices>) -> Self {
        let client = client.max_decoding_message_size(MAX_FRAME);
        let (transfers, logs) = (JoinSet::new(), JoinSet::new());
        Self { client, services, transfers, logs, execs: JoinSet::new(), queries: JoinSet::new() }
    }

    /// Opens a stream that the manager asked for. `Err` is a human readable reason.
    pub fn open(&mut self, open: v1::OpenStream) -> Result<(), String> {
        let v1::OpenStream { stream_id: id, purpose } = open;
        let (client, services) = (self.client.clone(), Arc::clone(&self.services));
        match purpose {
            Some(Purpose::ImportImage(v1::ImportImage {})) => {
                let place = acquire_slot(&mut self.transfers, MAX_TRANSFERS, "image transfers")?;
                place.spawn(async move {
                    let StreamServices { import, image_arrivals, .. } = &*services;
                    log_end("import", &id, import::import(client, &id, import, image_arrivals).await);
                });
            }
            Some(Purpose::PullImage(request)) => {
                let place = acquire_slot(&mut self.transfers, MAX_TRANSFERS, "image transfers")?;
                place.spawn(async move {
                    let stream_id = id.clone();
                    let work = |out| async move {
                        let StreamServices { image_gc, image_arrivals, secret_fetcher, .. } = &*services;
                        let pulled = images::pull(image_gc, secret_fetcher, &stream_id, &request, &out).await;
                        image_arrivals.notify();
                        pulled
                    };
                    log_end("pull", &id, respond(client, &id, QUEUE, work).await);
                });
            }
            Some(Purpose::ExportImage(request)) => {
                let place = acquire_slot(&mut self.transfers, MAX_TRANSFERS, "image transfers")?;
                place.spawn(async move {
                    let source = &*services.image_gc.source;
                    log_end("export", &id, transfer::export(client, &id, &request, source).await);
                });
            }
            Some(Purpose::ReceiveImage(request)) => {
                let place = acquire_slot(&mut self.transfers, MAX_TRANSFERS, "image transfers")?;
                place.spawn(async move {
                    let StreamServices { image_gc, image_arrivals, .. } = &*services;
                    let received = transfer::receive(client, &id, &request, image_gc, image_arrivals).await;
                    log_end("receive", &id, received);
                });
            }
            Some(Purpose::ReadLogs(options)) => {
                let place = acquire_slot(&mut self.logs, MAX_LOGS, "log streams")?;
                place.spawn(async move {
                    let work = |out| async move { logs::read(&services.logs, &options, &out).await };
                    log_end("logs", &id, respond(client, &id, LOG_QUEUE, work).await);
                });
            }
            Some(Purpose::ExecTask(request)) => {
                let place =
                    acquire_slot(&mut self.execs, MAX_EXECS, "programs that clients run in containers")?;
                place.spawn(async move {
                    log_end("exec", &id, exec::exec(client, &id, &request, &services).await);
                });
            }
            Some(Purpose::ListImages(v1::ListImages {})) => {
                let place = acquire_slot(&mut self.queries, MAX_QUERIES, "queries")?;
                place.spawn(async move {
                    let work = |out| async move { images::list(&services.image_gc, &out).await };
                    log_end("list", &id, respond(client, &id, QUEUE, work).await);
                });
            }
            Some(Purpose::PruneImages(request)) => {
                let place = acquire_slot(&mut self.queries, MAX_QUERIES, "queries")?;
                place.spawn(async move {
                    let work = |out| async move { images::prune(&services.image_gc, &request, &out).await };
                    log_end("prune", &id, respond(client, &id, QUEUE, work).await);
                });
            }
            Some(Purpose::ListVolumes(request)) => {
                let place = acquire_slot(&mut self.queries, MAX_QUERIES, "queries")?;
                place.spawn(async move {
                    let work = |out| async move { volumes::list(&services.volumes, &request, &out).await };
                    log_end("volumes", &id, respond(client, &id, QUEUE, work).await);
                });
            }
            Some(Purpose::PurgeVolume(request)) => {
                let place = acquire_slot(&mut self.queries, MAX_QUERIES, "queries")?;
                place.spawn(async move {
                    let work = |_| async move { Ok(volumes::purge(&services.volumes, &request).await) };
                    log_end("purge", &id, respond(client, &id, QUEUE, work).await);
                });
            }
            Some(Purpose::VerifyNode(request)) => {
                let place = acquire_slot(&mut self.queries, MAX_QUERIES, "queries")?;
                place.spawn(async move {
                    let work = |out| async move { verify::verify(&services.verifier, request, &out).await };
                    log_end("verify", &id, respond(client, &id, QUEUE, work).await);
                });
            }
            Some(Purpose::UpgradeProgram(request)) => {
                let place = acquire_slot(&mut self.transfers, MAX_TRANSFERS, "transfers")?;
                place.spawn(async move {
                    log_end("upgrade", &id, upgrade::upgrade(client, &id, &request).await);
                });
            }
            None => {
                return Err(
                    "this version of the node does not support this kind of stream; upgrade the node".into(),
                );
            }
        }
        Ok(())
    }
}

/// Reserves a slot for one more stream of a kind.
fn acquire_slot<'a>(
    streams: &'a mut JoinSet<()>,
    most: usize,
    what: &str,
) -> Result<&'a mut JoinSet<()>, String> {
    while streams.try_join_next().is_some() {}
    if streams.len() >= most {
        return Err(format!("this node already has {most} {what}; try again when one of them has ended"));
    }
    Ok(streams)
}

fn log_end(kind: &str, stream_id: &str, ended: Result<(), StreamError>) {
    match ended {
        Ok(()) => tracing::debug!(kind, stream_id, "stream ended"),
        Err(StreamError::ManagerClosed) => tracing::debug!(kind, stream_id, "manager closed a stream"),
        Err(error) => tracing::warn!(kind, stream_id, %error, "stream failed"),
    }
}

/// Both directions of a stream.
struct AttachedStream {
    inbound: Streaming<v1::StreamFrame>,
    out: StreamSender,
}

impl AttachedStream {
    /// Opens the stream; at most `queue` frames are queued for sending.
    async fn open(
        mut client: SessionsClient<Channel>,
        stream_id: &str,
        queue: usize,
    ) -> Result<Self, StreamError> {
        let (frames, waiting) = mpsc::channel(queue);
        let out = StreamSender { frames };
        out.send(Frame::StreamId(stream_id.to_owned())).await?;
        let opened = timeout(OPEN_DEADLINE, client.attach(ReceiverStream::new(waiting))).await;
        let opened = opened.map_err(|_| StreamError::OpenFailed)?.map_err(StreamError::Refused)?;
        Ok(Self { inbound: opened.into_inner(), out })
    }

    /// Sends the result, and waits until the manager has closed the stream: dropping the response stream
    /// would cancel the call, and with it the last frame.
    async fn finish(self, result: Result<(), String>) -> Result<(), StreamError> {
        let Self { mut inbound, out } = self;
        out.send(result.map_or_else(Frame::Error, |()| Frame::Done(v1::StreamDone {}))).await?;
        drop(out);
        timeout(SEND_DEADLINE, wait_until_closed(&mut inbound)).await.map_err(|_| StreamError::Stalled)
    }
}

/// Waits until the manager has closed the stream.
async fn wait_until_closed(inbound: &mut Streaming<v1::StreamFrame>) {
    while let Ok(Some(_)) = inbound.message().await {}
}

/// Answers on a stream on which the manager sends nothing. `work` is dropped when the manager closes the
/// stream; its `Ok` is sent as the result.
async fn respond<F>(
    client: SessionsClient<Channel>,
    stream_id: &str,
    queue: usize,
    work: impl FnOnce(StreamSender) -> F,
) -> Result<(), StreamError>
where
    F: Future<Output = Result<Result<(), String>, StreamError>>,
{
    let mut attachment = AttachedStream::open(client, stream_id, queue).await?;
    let work = work(attachment.out.clone());
    let result = tokio::select! {
        result = work => result?,
        () = wait_until_closed(&mut attachment.inbound) => return Err(StreamError::ManagerClosed),
    };
    attachment.finish(result).await
}

/// Sends frames of this end. The manager reads the last one before the stream is closed, since the queue is
/// drained.
#[derive(Clone)]
struct StreamSender {
    frames: mpsc::Sender<v1::StreamFrame>,
}

impl StreamSender {
    async fn send(&self, frame: Frame) -> Result<(), StreamError> {
        timeout(SEND_DEADLINE, self.send_without_deadline(frame)).await.map_err(|_| StreamError::Stalled)?
    }

    /// As [`StreamSender::send`], for a slow reader: a user who pages through lines. The session notices a
    /// lost manager.
    async fn send_without_deadline(&self, frame: Frame) -> Result<(), StreamError> {
        let frame = v1::StreamFrame { frame: Some(frame) };
        self.frames.send(frame).await.map_err(|_| StreamError::ManagerClosed)
    }
}

#[cfg(test)]
mod tests;
