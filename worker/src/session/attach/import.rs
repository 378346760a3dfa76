//! An archive of images that a manager sends.

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
use warren_image::Imported;
use warren_proto::v1;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::stream_frame::Frame;

use super::{Attachment, Outbound, QUEUE, StreamError};
use crate::session::Import;

/// A sender that says nothing for this long is gone.
const IDLE_DEADLINE: Duration = Duration::from_secs(30);
/// Progress is told this often while the archive arrives.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Why an archive did not arrive.
#[derive(Debug, thiserror::Error)]
enum ArrivalError {
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
}

/// Receives an archive, has its images stored, and tells the manager what they are.
pub(super) async fn import(
    client: SessionsClient<Channel>,
    stream_id: &str,
    import: &Import,
) -> Result<(), StreamError> {
    let mut attachment = Attachment::open(client, stream_id, QUEUE).await?;
    let result = match store(&mut attachment.inbound, &attachment.out, import).await? {
        Ok(imported) => {
            tell(&attachment.out, imported).await?;
            Ok(())
        }
        Err(reason) => {
            tracing::warn!(stream_id, reason, "nothing was imported");
            Err(reason)
        }
    };
    attachment.finish(result).await
}

/// Feeds what arrives to the import until it has ended. `Err` within is what the manager is told.
async fn store(
    inbound: &mut Streaming<v1::StreamFrame>,
    out: &Outbound,
    import: &Import,
) -> Result<Result<Vec<Imported>, String>, StreamError> {
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

async fn tell(out: &Outbound, imported: Vec<Imported>) -> Result<(), StreamError> {
    for image in imported {
        tracing::info!(image = %image.reference, digest = %image.digest, "imported");
        let frame = v1::ImportedImageFrame {
            reference: image.reference.to_string(),
            digest: image.digest.to_string(),
            size_bytes: image.size,
        };
        out.send(Frame::Imported(frame)).await?;
    }
    Ok(())
}

/// Passes the archive on until the sender says that it is complete. Bytes that end without that word are an
/// error of the archive's reader, never an end.
async fn receive(
    inbound: &mut Streaming<v1::StreamFrame>,
    chunks: mpsc::Sender<io::Result<Bytes>>,
    received: Arc<AtomicU64>,
) -> Result<(), ArrivalError> {
    let end = loop {
        let frame = match timeout(IDLE_DEADLINE, inbound.message()).await {
            Err(_) => break ArrivalError::Idle,
            Ok(Err(status)) => break ArrivalError::Broken(status),
            Ok(Ok(None)) => break ArrivalError::Cut,
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
            Some(Frame::Failed(reason)) => break ArrivalError::SenderFailed(reason),
            _ => break ArrivalError::Unexpected,
        }
    };
    chunks.send(Err(io::Error::other(end.to_string()))).await.ok();
    Err(end)
}
