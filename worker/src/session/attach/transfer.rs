//! Sends an image to other nodes and receives one from them, both through a manager.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::Channel;
use warren_image::{BlobSource, Digest, Error, Reference};
use warren_proto::v1;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::stream_frame::Frame;

use super::{AttachedStream, QUEUE, StreamError, StreamSender};
use crate::handlers::images::{ImageArrivals, ImageSource};
use crate::image_gc::ImageGc;

/// A manager that sends nothing for this long is considered lost. The slowest of several nodes sets the pace.
const IDLE_DEADLINE: Duration = Duration::from_secs(300);
/// Largest part of a blob in one frame.
const MAX_CHUNK: usize = 256 << 10;
/// Most blobs in one request.
const MAX_BLOBS: usize = 256;

/// Sends the blobs of an image that the manager requests, until it closes the stream.
pub(super) async fn export(
    client: SessionsClient<Channel>,
    stream_id: &str,
    request: &v1::ExportImage,
    source: &dyn ImageSource,
) -> Result<(), StreamError> {
    let mut attachment = AttachedStream::open(client, stream_id, QUEUE).await?;
    let image = match image_of(&request.reference, &request.digest) {
        Ok((reference, digest)) => reference.with_digest(&digest),
        Err(why) => return attachment.finish(Err(why)).await,
    };
    tracing::info!(%image, "sending an image at the request of a manager");
    while let Ok(Some(frame)) = attachment.inbound.message().await {
        let Some(Frame::Wanted(v1::BlobRequest { digests })) = frame.frame else {
            return attachment.finish(Err("unexpected frame in an export".to_owned())).await;
        };
        for digest in digests.iter().take(MAX_BLOBS) {
            if let Err(error) = send_blob(&attachment.out, source, &image, digest).await? {
                return attachment.finish(Err(error)).await;
            }
        }
    }
    Ok(())
}

/// The inner `Err` is sent to the manager.
async fn send_blob(
    out: &StreamSender,
    source: &dyn ImageSource,
    image: &Reference,
    digest: &str,
) -> Result<Result<(), String>, StreamError> {
    let digest = match Digest::parse(digest) {
        Ok(digest) => digest,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut bytes = match source.read_blob(image, &digest).await {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(error.to_string())),
    };
    while let Some(chunk) = bytes.next().await {
        let mut chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) => return Ok(Err(error.to_string())),
        };
        while !chunk.is_empty() {
            let part = chunk.split_to(chunk.len().min(MAX_CHUNK));
            // As slow as the slowest receiver; the session detects a lost manager.
            out.send_without_deadline(Frame::Data(part)).await?;
        }
    }
    out.send_without_deadline(Frame::End(v1::EndOfData {})).await.map(Ok)
}

/// Receives an image and sends its name.
pub(super) async fn receive(
    client: SessionsClient<Channel>,
    stream_id: &str,
    request: &v1::ReceiveImage,
    image_gc: &ImageGc,
    arrivals: &ImageArrivals,
) -> Result<(), StreamError> {
    let mut attachment = AttachedStream::open(client, stream_id, QUEUE).await?;
    let received = match image_of(&request.reference, &request.digest) {
        Ok((reference, digest)) => {
            let mut blobs = ManagerBlobs { inbound: &mut attachment.inbound, out: attachment.out.clone() };
            let received = image_gc.source.receive(&reference, &digest, &mut blobs).await;
            received.map_err(|error| error.to_string())
        }
        Err(why) => Err(why),
    };
    let result = match received {
        Ok(image) => {
            arrivals.notify();
            // What was just copied is not removed at once.
            image_gc.mark_used(&image.reference).await;
            super::import::send_imported(&attachment.out, vec![image]).await?;
            Ok(())
        }
        Err(reason) => {
            tracing::warn!(stream_id, reason, "receiving an image failed");
            Err(reason)
        }
    };
    attachment.finish(result).await
}

fn image_of(reference: &str, digest: &str) -> Result<(Reference, Digest), String> {
    let reference = Reference::parse(reference).map_err(|error| error.to_string())?;
    let digest = Digest::parse(digest).map_err(|error| error.to_string())?;
    Ok((reference, digest))
}

/// Blobs that the manager relays.
struct ManagerBlobs<'a> {
    inbound: &'a mut Streaming<v1::StreamFrame>,
    out: StreamSender,
}

#[tonic::async_trait]
impl BlobSource for ManagerBlobs<'_> {
    async fn request(&mut self, blobs: &[Digest]) -> Result<(), Error> {
        let digests = blobs.iter().map(ToString::to_string).collect();
        let sent = self.out.send(Frame::Wanted(v1::BlobRequest { digests })).await;
        sent.map_err(|error| Error::Transfer { reason: error.to_string() })
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let failed = |reason: String| Error::Transfer { reason };
        let frame = timeout(IDLE_DEADLINE, self.inbound.message()).await;
        let frame = frame.map_err(|_| failed(format!("no data from the manager for {IDLE_DEADLINE:?}")))?;
        let frame = frame.map_err(|status| failed(format!("connection lost: {}", status.message())))?;
        match frame.and_then(|frame| frame.frame) {
            Some(Frame::Data(bytes)) => Ok(Some(bytes)),
            Some(Frame::End(_)) => Ok(None),
            Some(Frame::Error(why)) => Err(failed(why)),
            Some(_) => Err(failed("unexpected frame".to_owned())),
            None => Err(failed("the stream ended before the end of the image".to_owned())),
        }
    }
}
