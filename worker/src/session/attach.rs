//! Streams that a manager asked this node to dial out for.
//!
//! Each is a call of its own over the session's connection. It ends when its work is done, when the manager
//! leaves it, or with the session. Start reading at [`Streams::open`].

mod images;
mod import;
mod logs;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::open::Purpose;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::stream_frame::Frame;

use crate::garbage::Shelf;
use crate::handlers::contents::courier::Courier;
use crate::handlers::volumes::Volumes;
use crate::session::Import;
use crate::session::link::MAX_FRAME;

pub(crate) use logs::TaskLogs;

/// To open the stream.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
/// A receiver that takes nothing for this long is gone.
const SEND_DEADLINE: Duration = Duration::from_secs(30);
/// Frames that wait, in either direction.
const QUEUE: usize = 8;
/// Frames of lines that wait. Each is large, and of these streams there are many.
const LOG_QUEUE: usize = 2;
/// Images that come at once: each is bound by network and disk, and may take an hour.
const MAX_TRANSFERS: usize = 4;
/// Logs that are read at once. Each may be followed for as long as somebody likes, by several people.
const MAX_LOGS: usize = 256;
/// Questions that are answered at once, which takes seconds.
const MAX_QUESTIONS: usize = 8;

/// What streams are about.
pub(crate) struct Services {
    pub import: Import,
    pub logs: TaskLogs,
    pub shelf: Arc<Shelf>,
    /// Knows as whom a registry is asked.
    pub courier: Arc<dyn Courier>,
    pub volumes: Arc<Volumes>,
}

/// Why a stream came to nothing.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("the stream could not be opened within {OPEN_DEADLINE:?}")]
    NotOpened,
    #[error("the manager refused the stream: {}", .0.message())]
    Refused(Status),
    #[error("the manager took no frame for {SEND_DEADLINE:?}")]
    Stuck,
    #[error("the manager left")]
    Left,
}

/// The streams of one session; they end with it.
pub(super) struct Streams {
    client: SessionsClient<Channel>,
    services: Arc<Services>,
    transfers: JoinSet<()>,
    logs: JoinSet<()>,
    questions: JoinSet<()>,
}

impl Streams {
    pub fn new(client: SessionsClient<Channel>, services: Arc<Services>) -> Self {
        let client = client.max_decoding_message_size(MAX_FRAME);
        let (transfers, logs, questions) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
        Self { client, services, transfers, logs, questions }
    }

    /// Dials out for what the manager asked for. `Err` says why not, in words for people.
    pub fn open(&mut self, open: v1::Open) -> Result<(), String> {
        let v1::Open { stream_id: id, purpose } = open;
        let (client, services) = (self.client.clone(), Arc::clone(&self.services));
        match purpose {
            Some(Purpose::ImportImage(v1::ImportImage {})) => {
                let place = take_place(&mut self.transfers, MAX_TRANSFERS, "images on their way")?;
                place.spawn(async move {
                    log_end("import", &id, import::import(client, &id, &services.import).await);
                });
            }
            Some(Purpose::PullImage(wish)) => {
                let place = take_place(&mut self.transfers, MAX_TRANSFERS, "images on their way")?;
                place.spawn(async move {
                    let stream_id = id.clone();
                    let work = |out| async move {
                        let Services { shelf, courier, .. } = &*services;
                        images::pull(shelf, &**courier, &stream_id, &wish, &out).await
                    };
                    log_end("pull", &id, answer(client, &id, QUEUE, work).await);
                });
            }
            Some(Purpose::ReadLogs(wish)) => {
                let place = take_place(&mut self.logs, MAX_LOGS, "logs being read")?;
                place.spawn(async move {
                    let work = |out| async move { logs::read(&services.logs, &wish, &out).await };
                    log_end("logs", &id, answer(client, &id, LOG_QUEUE, work).await);
                });
            }
            Some(Purpose::ListImages(v1::ListImages {})) => {
                let place = take_place(&mut self.questions, MAX_QUESTIONS, "lists under way")?;
                place.spawn(async move {
                    let work = |out| async move { images::list(&services.shelf, &out).await };
                    log_end("list", &id, answer(client, &id, QUEUE, work).await);
                });
            }
            Some(Purpose::PruneImages(wish)) => {
                let place = take_place(&mut self.questions, MAX_QUESTIONS, "lists under way")?;
                place.spawn(async move {
                    let work = |out| async move { images::prune(&services.shelf, &wish, &out).await };
                    log_end("prune", &id, answer(client, &id, QUEUE, work).await);
                });
            }
            Some(Purpose::ListVolumes(wish)) => {
                let place = take_place(&mut self.questions, MAX_QUESTIONS, "lists under way")?;
                place.spawn(async move {
                    let work = |out| async move { volumes::list(&services.volumes, &wish, &out).await };
                    log_end("volumes", &id, answer(client, &id, QUEUE, work).await);
                });
            }
            Some(Purpose::PurgeVolume(wish)) => {
                let place = take_place(&mut self.questions, MAX_QUESTIONS, "lists under way")?;
                place.spawn(async move {
                    let work = |_| async move { Ok(volumes::purge(&services.volumes, &wish).await) };
                    log_end("purge", &id, answer(client, &id, QUEUE, work).await);
                });
            }
            None => {
                return Err(
                    "this version of the node does not know what the stream is for; upgrade it".into()
                );
            }
        }
        Ok(())
    }
}

/// Where one more stream of a kind runs.
fn take_place<'a>(
    streams: &'a mut JoinSet<()>,
    most: usize,
    what: &str,
) -> Result<&'a mut JoinSet<()>, String> {
    while streams.try_join_next().is_some() {}
    if streams.len() >= most {
        return Err(format!("this node has {most} {what} already; try again when one of them has ended"));
    }
    Ok(streams)
}

fn log_end(kind: &str, stream_id: &str, ended: Result<(), StreamError>) {
    match ended {
        Ok(()) => tracing::debug!(kind, stream_id, "a stream ended"),
        Err(StreamError::Left) => tracing::debug!(kind, stream_id, "the manager left a stream"),
        Err(error) => tracing::warn!(kind, stream_id, %error, "a stream came to nothing"),
    }
}

/// Both directions of a stream.
struct Attachment {
    inbound: Streaming<v1::StreamFrame>,
    out: Outbound,
}

impl Attachment {
    /// Dials; at most `queue` frames wait to be sent.
    async fn open(
        mut client: SessionsClient<Channel>,
        stream_id: &str,
        queue: usize,
    ) -> Result<Self, StreamError> {
        let (frames, waiting) = mpsc::channel(queue);
        let out = Outbound { frames };
        out.send(Frame::StreamId(stream_id.to_owned())).await?;
        let opened = timeout(OPEN_DEADLINE, client.attach(ReceiverStream::new(waiting))).await;
        let opened = opened.map_err(|_| StreamError::NotOpened)?.map_err(StreamError::Refused)?;
        Ok(Self { inbound: opened.into_inner(), out })
    }

    /// Says how it ended, and waits until the manager has heard it: to drop the answer's stream would cancel the
    /// call, and with it what was said last.
    async fn finish(self, result: Result<(), String>) -> Result<(), StreamError> {
        let Self { mut inbound, out } = self;
        out.send(result.map_or_else(Frame::Failed, |()| Frame::Done(v1::StreamDone {}))).await?;
        drop(out);
        timeout(SEND_DEADLINE, left(&mut inbound)).await.map_err(|_| StreamError::Stuck)
    }
}

/// Until the manager has ended the stream.
async fn left(inbound: &mut Streaming<v1::StreamFrame>) {
    while let Ok(Some(_)) = inbound.message().await {}
}

/// Answers over a stream on which the manager has nothing to say. `work` is dropped when the manager leaves; `Ok`
/// of it is what the manager is told last.
async fn answer<F>(
    client: SessionsClient<Channel>,
    stream_id: &str,
    queue: usize,
    work: impl FnOnce(Outbound) -> F,
) -> Result<(), StreamError>
where
    F: Future<Output = Result<Result<(), String>, StreamError>>,
{
    let mut attachment = Attachment::open(client, stream_id, queue).await?;
    let work = work(attachment.out.clone());
    let result = tokio::select! {
        result = work => result?,
        () = left(&mut attachment.inbound) => return Err(StreamError::Left),
    };
    attachment.finish(result).await
}

/// This end's frames. The manager reads the last one before the stream is closed, since the queue is
/// drained.
#[derive(Clone)]
struct Outbound {
    frames: mpsc::Sender<v1::StreamFrame>,
}

impl Outbound {
    async fn send(&self, frame: Frame) -> Result<(), StreamError> {
        timeout(SEND_DEADLINE, self.send_patiently(frame)).await.map_err(|_| StreamError::Stuck)?
    }

    /// As [`Outbound::send`], for a reader that may take its time: a person who pages through lines. A manager
    /// that is gone is noticed by the session.
    async fn send_patiently(&self, frame: Frame) -> Result<(), StreamError> {
        let frame = v1::StreamFrame { frame: Some(frame) };
        self.frames.send(frame).await.map_err(|_| StreamError::Left)
    }
}

#[cfg(test)]
mod tests;
