//! Image operations for a manager: pull, list, remove.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use warren_image::{Digest, FilesystemUsage, ListedImage, PrunePolicy, Reference};
use warren_proto::v1;
use warren_proto::v1::stream_frame::Frame;

use super::{StreamError, StreamSender};
use crate::handlers::images::registry_login::{ImagePullError, RegistryLogin};
use crate::handlers::secret_fetcher::{ImagePuller, SecretFetcher};
use crate::image_gc::ImageGc;

/// Minimum interval of progress frames.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of unchanged progress, so that a slow pull is not taken for a node without contact.
const PROGRESS_REPEAT_INTERVAL: Duration = Duration::from_secs(30);
/// Images per frame; some 300 bytes each.
const IMAGES_PER_FRAME: usize = 500;

/// Pulls an image for the stream, sends progress, and returns the result.
pub(super) async fn pull(
    image_gc: &ImageGc,
    secret_fetcher: &Arc<dyn SecretFetcher>,
    stream_id: &str,
    request: &v1::PullImage,
    out: &StreamSender,
) -> Result<Result<(), String>, StreamError> {
    let reference = match Reference::parse(&request.reference) {
        Ok(reference) => reference,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let found = if request.always { Ok(None) } else { image_gc.source.find(&reference).await };
    let got = match found {
        Ok(None) => {
            let puller = ImagePuller::Stream(stream_id.to_owned());
            match RegistryLogin::resolve(secret_fetcher, puller, &reference).await {
                Ok(login) => fetch(image_gc, &reference, login, out).await?,
                Err(refused) => Err(refused),
            }
        }
        Ok(Some(digest)) => Ok(digest),
        Err(error) => Err(error.into()),
    };
    let known = match got {
        Ok(digest) => {
            image_gc.source.size(&reference).await.map(|size| (digest, size)).map_err(ImagePullError::from)
        }
        Err(error) => Err(error),
    };
    let (digest, size_bytes) = match known {
        Ok(known) => known,
        Err(error) => return Ok(Err(error.to_string())),
    };
    // A pulled image counts as used.
    image_gc.mark_used(&reference).await;
    let (reference, digest) = (reference.to_string(), digest.to_string());
    out.send(Frame::Imported(v1::ImportedImageFrame { reference, digest, size_bytes })).await?;
    Ok(Ok(()))
}

async fn fetch(
    image_gc: &ImageGc,
    reference: &Reference,
    mut login: RegistryLogin,
    out: &StreamSender,
) -> Result<Result<Digest, ImagePullError>, StreamError> {
    let mut arrival = image_gc.source.pull(reference, login.access());
    let mut ticks = interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut output, mut said_at) = (String::new(), Instant::now());
    loop {
        tokio::select! {
            outcome = &mut arrival.result => {
                let other = match outcome {
                    Ok(digest) => return Ok(Ok(digest)),
                    Err(error) => login.after_failure(error).await,
                };
                login = match other {
                    Ok(other) => other,
                    Err(error) => return Ok(Err(error)),
                };
                arrival = image_gc.source.pull(reference, login.access());
            }
            _ = ticks.tick() => {
                let words = arrival.progress.borrow_and_update().to_string();
                if words != output || said_at.elapsed() >= PROGRESS_REPEAT_INTERVAL {
                    out.send(Frame::Progress(words.clone())).await?;
                    (output, said_at) = (words, Instant::now());
                }
            }
        }
    }
}

/// Sends the list of images.
pub(super) async fn list(image_gc: &ImageGc, out: &StreamSender) -> Result<Result<(), String>, StreamError> {
    match image_gc.list().await {
        Ok(images) => send_images(out, images).await.map(Ok),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Removes one image, or those that were not used for the requested time, and sends the list.
pub(super) async fn prune(
    image_gc: &ImageGc,
    options: &v1::PruneImages,
    out: &StreamSender,
) -> Result<Result<(), String>, StreamError> {
    if !options.reference.is_empty() {
        let removed = match Reference::parse(&options.reference) {
            Ok(reference) => image_gc.remove(&reference).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        return match removed {
            Ok(removed) => {
                send_images(out, removed.into_iter().map(|image| (image, 0)).collect()).await.map(Ok)
            }
            Err(error) => Ok(Err(error)),
        };
    }
    // On request, disk usage does not matter and the number of removals is not limited.
    let policy = PrunePolicy {
        max_age: Some(Duration::from_millis(options.unused_for_ms)),
        grace: Duration::ZERO,
        max_removals: usize::MAX,
        ..PrunePolicy::default()
    };
    let pruned = match image_gc.prune(&policy, FilesystemUsage { used: 0, total: 0 }).await {
        Ok(pruned) => pruned,
        Err(error) => return Ok(Err(error.to_string())),
    };
    if let Some(failure) = pruned.failure {
        let gone = pruned.removed.len();
        return Ok(Err(format!("{failure}; {gone} images were removed before that; try again")));
    }
    send_images(out, pruned.removed.into_iter().map(|image| (image, 0)).collect()).await.map(Ok)
}

async fn send_images(out: &StreamSender, images: Vec<(ListedImage, u32)>) -> Result<(), StreamError> {
    let infos: Vec<v1::ImageInfo> =
        images.into_iter().map(|(image, tasks)| image_to_wire(image, tasks)).collect();
    for images in infos.chunks(IMAGES_PER_FRAME) {
        out.send(Frame::Images(v1::ImageList { images: images.to_vec() })).await?;
    }
    Ok(())
}

fn image_to_wire(image: ListedImage, tasks: u32) -> v1::ImageInfo {
    v1::ImageInfo {
        size_bytes: image.size(),
        digest: image.digest.to_string(),
        created_at: Some(image.created.0),
        last_used_at: Some(image.last_used.0),
        reference: image.reference,
        tasks,
    }
}
