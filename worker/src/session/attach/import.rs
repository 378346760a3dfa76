//! Receives an archive of images from a manager.

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
use warren_image::ImportedName;
use warren_proto::v1;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::stream_frame::Frame;

use super::{AttachedStream, QUEUE, StreamError, StreamSender};
use crate::handlers::images::ImageArrivals;
use crate::session::ImportFn;

/// A sender that sends nothing for this long is considered lost.
const IDLE_DEADLINE: Duration = Duration::from_secs(30);
/// Interval of progress frames during the transfer.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// The archive was not received.
#[derive(Debug, thiserror::Error)]
enum ArchiveReceiveError {
    #[error("connection lost: {}", .0.message())]
    ConnectionBroken(Status),
    #[error("no data from the manager for {IDLE_DEADLINE:?}")]
    Idle,
    #[error("the stream ended before the end of the archive")]
    Truncated,
    #[error("the sender cancelled: {0}")]
    SenderFailed(String),
    #[error("unexpected frame in an import")]
    Unexpected,
}

/// Receives an archive, stores its images, and sends the list of them.
pub(super) async fn import(
    client: SessionsClient<Channel>,
    stream_id: &str,
    import: &ImportFn,
    arrivals: &ImageArrivals,
) -> Result<(), StreamError> {
    let mut attachment = AttachedStream::open(client, stream_id, QUEUE).await?;
    let result = match store_archive(&mut attachment.inbound, &attachment.out, import).await? {
        Ok(imported) => {
            arrivals.notify();
            send_imported(&attachment.out, imported).await?;
            Ok(())
        }
        Err(reason) => {
            tracing::warn!(stream_id, reason, "image import failed");
            Err(reason)
        }
    };
    attachment.finish(result).await
}

/// Passes received bytes to the import until it has ended. The inner `Err` is sent to the manager.
async fn store_archive(
    inbound: &mut Streaming<v1::StreamFrame>,
    out: &StreamSender,
    import: &ImportFn,
) -> Result<Result<Vec<ImportedName>, String>, StreamError> {
    let (chunks, arriving) = mpsc::channel(QUEUE);
    let received = Arc::new(AtomicU64::new(0));
    let storing = import(Box::new(StreamReader::new(ReceiverStream::new(arriving))));
    let receiving = receive(inbound, chunks, Arc::clone(&received));
    tokio::pin!(storing, receiving);
    let mut progress = tokio::time::interval(PROGRESS_INTERVAL);
    let mut arrived = false;
    let so_far = || Frame::ReceivedBytes(received.load(Ordering::Relaxed));
    loop {
        tokio::select! {
            // An import that fails early does not need the rest.
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

/// Sends the names of images that arrived.
pub(super) async fn send_imported(
    out: &StreamSender,
    imported: Vec<ImportedName>,
) -> Result<(), StreamError> {
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

/// Passes the archive on until the sender marks it as complete. Bytes that end without this mark are an error
/// of the archive's reader, never an end of file.
async fn receive(
    inbound: &mut Streaming<v1::StreamFrame>,
    chunks: mpsc::Sender<io::Result<Bytes>>,
    received: Arc<AtomicU64>,
) -> Result<(), ArchiveReceiveError> {
    let end = loop {
        let frame = match timeout(IDLE_DEADLINE, inbound.message()).await {
            Err(_) => break ArchiveReceiveError::Idle,
            Ok(Err(status)) => break ArchiveReceiveError::ConnectionBroken(status),
            Ok(Ok(None)) => break ArchiveReceiveError::Truncated,
            Ok(Ok(Some(frame))) => frame.frame,
        };
        match frame {
            Some(Frame::Data(bytes)) => {
                received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                // If the reader has ended, its own error is sent instead.
                if chunks.send(Ok(bytes)).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            Some(Frame::End(v1::EndOfData {})) => return Ok(()),
            Some(Frame::Error(reason)) => break ArchiveReceiveError::SenderFailed(reason),
            _ => break ArchiveReceiveError::Unexpected,
        }
    };
    chunks.send(Err(io::Error::other(end.to_string()))).await.ok();
    Err(end)
}
