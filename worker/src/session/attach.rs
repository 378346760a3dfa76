//! Streams that a manager asked this node to dial out for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::io::StreamReader;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::stream_frame::Frame;

use crate::session::Import;
use crate::session::link::MAX_FRAME;

/// To open the stream.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
/// A sender that says nothing for this long is gone.
const IDLE_DEADLINE: Duration = Duration::from_secs(30);
/// A receiver that takes nothing for this long is gone.
const SEND_DEADLINE: Duration = Duration::from_secs(30);
/// Frames that wait, in either direction.
const QUEUE: usize = 8;
/// Progress is told this often while the archive arrives.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Why a stream came to nothing.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("the stream could not be opened within {OPEN_DEADLINE:?}")]
    NotOpened,
    #[error("the manager refused the stream: {}", .0.message())]
    Refused(Status),
    #[error("the stream broke: {}", .0.message())]
    Broken(Status),
    #[error("the manager sent nothing for {IDLE_DEADLINE:?}")]
    Idle,
    #[error("the stream ended before everything had arrived")]
    Cut,
    #[error("the sender gave up: {0}")]
    SenderFailed(String),
    #[error("a frame that does not belong into an import")]
    Unexpected,
    #[error("the manager took no frame for {SEND_DEADLINE:?}")]
    Stuck,
}

/// Receives an archive, has its images stored, and tells the manager what they are.
pub(super) async fn import(client: SessionsClient<Channel>, stream_id: String, import: Import) {
    match run_import(client, stream_id.clone(), import).await {
        Ok(()) => tracing::info!(stream_id, "imported images"),
        Err(error) => tracing::warn!(stream_id, %error, "import came to nothing"),
    }
}

async fn run_import(
    client: SessionsClient<Channel>,
    stream_id: String,
    import: Import,
) -> Result<(), StreamError> {
    let (frames, queue) = mpsc::channel(QUEUE);
    let out = Outbound { frames };
    out.send(Frame::StreamId(stream_id)).await?;
    let mut client = client.max_decoding_message_size(MAX_FRAME);
    let opened = timeout(OPEN_DEADLINE, client.attach(ReceiverStream::new(queue))).await;
    let mut inbound = opened.map_err(|_| StreamError::NotOpened)?.map_err(StreamError::Refused)?.into_inner();
    let result = store(&mut inbound, &out, import).await;
    let told = tell(&out, result?).await;
    drop(out);
    // Dropping the answer's stream would cancel the call, and with it what was said last.
    let end = async { while let Ok(Some(_)) = inbound.message().await {} };
    timeout(SEND_DEADLINE, end).await.map_err(|_| StreamError::Stuck)?;
    told
}

/// Feeds what arrives to the import until it has ended. `Err` within is what the manager is told.
async fn store(
    inbound: &mut Streaming<v1::StreamFrame>,
    out: &Outbound,
    import: Import,
) -> Result<Result<Vec<warren_image::Imported>, String>, StreamError> {
    let (chunks, arriving) = mpsc::channel(QUEUE);
    let received = Arc::new(AtomicU64::new(0));
    let storing = import(Box::new(StreamReader::new(ReceiverStream::new(arriving))));
    let receiving = receive(inbound, chunks, Arc::clone(&received));
    tokio::pin!(storing, receiving);
    let mut progress = tokio::time::interval(PROGRESS_EVERY);
    let mut arrived = false;
    let so_far = || Frame::ReceivedBytes(received.load(Ordering::Relaxed));
    loop {
        tokio::select! {
            // An import that fails early does not want the rest.
            result = &mut storing => return Ok(result.map_err(|error| error.to_string())),
            end = &mut receiving, if !arrived => match end {
                Ok(()) => {
                    arrived = true;
                    out.send(so_far()).await?;
                }
                Err(error) => return Ok(Err(error.to_string())),
            },
            _ = progress.tick(), if !arrived => out.send(so_far()).await?,
        }
    }
}

async fn tell(
    out: &Outbound,
    result: Result<Vec<warren_image::Imported>, String>,
) -> Result<(), StreamError> {
    let imported = match result {
        Ok(imported) => imported,
        Err(reason) => return out.send(Frame::Failed(reason)).await,
    };
    for image in imported {
        let frame = v1::ImportedImageFrame {
            reference: image.reference.to_string(),
            digest: image.digest.to_string(),
            size_bytes: image.size,
        };
        out.send(Frame::Imported(frame)).await?;
    }
    out.send(Frame::Done(v1::StreamDone {})).await
}

/// Passes the archive on until the sender says that it is complete. Bytes that end without that word are an
/// error of the archive's reader, never an end.
async fn receive(
    inbound: &mut Streaming<v1::StreamFrame>,
    chunks: mpsc::Sender<io::Result<Bytes>>,
    received: Arc<AtomicU64>,
) -> Result<(), StreamError> {
    let end = loop {
        let frame = match timeout(IDLE_DEADLINE, inbound.message()).await {
            Err(_) => break StreamError::Idle,
            Ok(Err(status)) => break StreamError::Broken(status),
            Ok(Ok(None)) => break StreamError::Cut,
            Ok(Ok(Some(frame))) => frame.frame,
        };
        match frame {
            Some(Frame::Data(bytes)) => {
                received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                // A reader that is gone has its own reason, which is told instead.
                if chunks.send(Ok(bytes)).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            Some(Frame::End(v1::EndOfData {})) => return Ok(()),
            Some(Frame::Failed(reason)) => break StreamError::SenderFailed(reason),
            _ => break StreamError::Unexpected,
        }
    };
    chunks.send(Err(io::Error::other(end.to_string()))).await.ok();
    Err(end)
}

/// This end's frames. The manager reads the last one before the stream is closed, since the queue is
/// drained.
struct Outbound {
    frames: mpsc::Sender<v1::StreamFrame>,
}

impl Outbound {
    async fn send(&self, frame: Frame) -> Result<(), StreamError> {
        let frame = v1::StreamFrame { frame: Some(frame) };
        self.frames.send_timeout(frame, SEND_DEADLINE).await.map_err(|_| StreamError::Stuck)
    }
}
