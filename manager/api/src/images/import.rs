//! Sends an image archive from the client to the target workers.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::import_progress::Event;
use warren_proto::v1::import_request::Message;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_session::worker_streams::WorkerStream;
use warren_types::NodeId;

use super::{ATTACH_TIMEOUT, Api, STEP_TIMEOUT, WORKER_REPLY_TIMEOUT};

/// How long to wait for the failure message of a worker that closed its stream.
pub(super) const CLOSE_REASON_TIMEOUT: Duration = Duration::from_secs(1);
/// Chunks that may be queued for one worker.
pub(super) const MAX_QUEUED_CHUNKS: usize = 8;

type ImportProgressSender = mpsc::Sender<Result<v1::ImportProgress, Status>>;

impl Api {
    /// Sends the archive to all nodes in parallel. A worker imports nothing before it has received the end.
    pub(super) async fn relay_archive(
        &self,
        nodes: BTreeMap<NodeId, String>,
        mut archive: Streaming<v1::ImportRequest>,
        progress: &ImportProgressSender,
    ) -> Result<(), Status> {
        let mut feeds = Vec::with_capacity(nodes.len());
        let mut relays = JoinSet::new();
        for (node, name) in nodes {
            let (feed, chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
            feeds.push(feed);
            relays.spawn(ImportRelay { node, name, progress: progress.clone() }.run(self.clone(), chunks));
        }
        let distributed = distribute(&mut archive, feeds).await;
        while relays.join_next().await.is_some() {}
        distributed
    }
}

/// One chunk of the archive, or its end. A channel that closes without the end means that the client aborted.
enum ArchiveChunk {
    Data(Bytes),
    End,
}

/// The slowest worker sets the pace; workers whose stream closed are skipped.
async fn distribute(
    archive: &mut Streaming<v1::ImportRequest>,
    mut feeds: Vec<mpsc::Sender<ArchiveChunk>>,
) -> Result<(), Status> {
    loop {
        let late = |_| Status::deadline_exceeded("timeout: the client sent no more of the archive");
        match tokio::time::timeout(STEP_TIMEOUT, archive.next()).await.map_err(late)?.transpose()? {
            None => break,
            Some(v1::ImportRequest { message: Some(Message::Chunk(chunk)) }) => {
                let mut alive = Vec::with_capacity(feeds.len());
                for feed in feeds {
                    if feed.send(ArchiveChunk::Data(chunk.clone())).await.is_ok() {
                        alive.push(feed);
                    }
                }
                if alive.is_empty() {
                    // Each worker has reported its own failure.
                    return Ok(());
                }
                feeds = alive;
            }
            Some(_) => return Err(Status::invalid_argument("only chunks follow the target")),
        }
    }
    for feed in feeds {
        // A failed worker has reported its failure itself.
        let _ = feed.send(ArchiveChunk::End).await;
    }
    Ok(())
}

/// The failure message of a worker that closed its stream; it is often sent before and not read yet.
async fn close_reason(stream: &mut WorkerStream) -> Option<String> {
    let failed = async {
        while let Some(Ok(message)) = stream.inbound.next().await {
            if let Some(Frame::Error(why)) = message.frame {
                return Some(why);
            }
        }
        None
    };
    tokio::time::timeout(CLOSE_REASON_TIMEOUT, failed).await.ok().flatten()
}

/// The import on one worker.
struct ImportRelay {
    node: NodeId,
    name: String,
    progress: ImportProgressSender,
}

impl ImportRelay {
    async fn run(self, api: Api, mut chunks: mpsc::Receiver<ArchiveChunk>) {
        if let Err(why) = self.import(&api, &mut chunks).await {
            self.send_progress(Event::Error(why)).await;
        }
    }

    async fn send_progress(&self, event: Event) {
        // The client may have disconnected; the workers finish the import.
        let _ = self.progress.send_timeout(Ok(self.progress_message(event)), STEP_TIMEOUT).await;
    }

    fn try_send_progress(&self, event: Event) {
        let _ = self.progress.try_send(Ok(self.progress_message(event)));
    }

    fn progress_message(&self, event: Event) -> v1::ImportProgress {
        v1::ImportProgress { node: self.name.clone(), event: Some(event) }
    }

    async fn import(&self, api: &Api, chunks: &mut mpsc::Receiver<ArchiveChunk>) -> Result<(), String> {
        let purpose = Purpose::ImportImage(v1::ImportImage {});
        let mut stream = api.open_stream(self.node, purpose, ATTACH_TIMEOUT).await?;
        let mut complete = false;
        loop {
            let message = tokio::select! {
                piece = chunks.recv(), if !complete => {
                    complete = matches!(piece, Some(ArchiveChunk::End));
                    if let Err(why) = self.forward_chunk(&stream, piece).await {
                        return Err(close_reason(&mut stream).await.unwrap_or(why));
                    }
                    continue;
                }
                message = tokio::time::timeout(WORKER_REPLY_TIMEOUT, stream.inbound.next()) => message,
            };
            let message = message.map_err(|_| "timeout: no response from worker")?;
            let message = message.transpose().map_err(|status| status.message().to_string())?;
            match message.and_then(|frame| frame.frame) {
                // A slow client skips this number and receives the next one.
                Some(Frame::ReceivedBytes(bytes)) => self.try_send_progress(Event::ReceivedBytes(bytes)),
                Some(Frame::Imported(image)) => {
                    let v1::ImportedImageFrame { reference, digest, size_bytes } = image;
                    self.send_progress(Event::Imported(v1::ImportedImage { reference, digest, size_bytes }))
                        .await;
                }
                Some(Frame::Error(why)) => return Err(why),
                Some(Frame::Done(_)) => {
                    self.send_progress(Event::Done(v1::NodeDone {})).await;
                    return Ok(());
                }
                Some(_) | None => return Err("the worker closed the stream during the import".into()),
            }
        }
    }

    async fn forward_chunk(&self, stream: &WorkerStream, piece: Option<ArchiveChunk>) -> Result<(), String> {
        let frame = match piece {
            Some(ArchiveChunk::Data(data)) => Frame::Data(data),
            Some(ArchiveChunk::End) => Frame::End(v1::EndOfData {}),
            None => return Err("the client closed the stream before the end of the archive".into()),
        };
        let frame = Ok(v1::StreamFrame { frame: Some(frame) });
        stream.outbound.send_timeout(frame, STEP_TIMEOUT).await.map_err(|error| match error {
            SendTimeoutError::Timeout(_) => "the worker reads too slowly".to_string(),
            SendTimeoutError::Closed(_) => "the worker closed the stream".to_string(),
        })
    }
}
