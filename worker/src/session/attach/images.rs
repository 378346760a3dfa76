//! Images that a manager has this node pull, list or remove.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use warren_image::{Digest, Disk, Listed, PrunePolicy, Reference};
use warren_proto::v1;
use warren_proto::v1::stream_frame::Frame;

use super::{Outbound, StreamError};
use crate::garbage::Shelf;
use crate::handlers::contents::courier::{Courier, Need};
use crate::handlers::images::login::{PullError, Standing};

/// Progress is told this often at most.
const SAY_EVERY: Duration = Duration::from_millis(250);
/// Progress that stays the same is told this often, so that nobody takes a slow pull for a dead node.
const REPEAT_EVERY: Duration = Duration::from_secs(30);
/// Images in one frame; some 300 bytes each.
const IMAGES: usize = 500;

/// Pulls an image for the stream of that id, telling how far it is, and says what it is.
pub(super) async fn pull(
    shelf: &Shelf,
    courier: &dyn Courier,
    stream_id: &str,
    wish: &v1::PullImage,
    out: &Outbound,
) -> Result<Result<(), String>, StreamError> {
    let reference = match Reference::parse(&wish.reference) {
        Ok(reference) => reference,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let found = if wish.always { Ok(None) } else { shelf.source.find(&reference).await };
    let got = match found {
        Ok(None) => {
            let need = Need::StreamCredential(stream_id.to_owned());
            let standing = Standing::ask(courier, need, &reference).await;
            fetch(shelf, &reference, standing, out).await?
        }
        Ok(Some(digest)) => Ok(digest),
        Err(error) => Err(error.into()),
    };
    let known = match got {
        Ok(digest) => shelf.source.size(&reference).await.map(|size| (digest, size)).map_err(PullError::from),
        Err(error) => Err(error),
    };
    let (digest, size_bytes) = match known {
        Ok(known) => known,
        Err(error) => return Ok(Err(error.to_string())),
    };
    // Whoever asks for it means to use it.
    shelf.touch(&reference).await;
    let (reference, digest) = (reference.to_string(), digest.to_string());
    out.send(Frame::Imported(v1::ImportedImageFrame { reference, digest, size_bytes })).await?;
    Ok(Ok(()))
}

async fn fetch(
    shelf: &Shelf,
    reference: &Reference,
    standing: Standing,
    out: &Outbound,
) -> Result<Result<Digest, PullError>, StreamError> {
    let mut arrival = shelf.source.pull(reference, standing.credentials());
    let mut ticks = interval(SAY_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut said, mut said_at) = (String::new(), Instant::now());
    loop {
        tokio::select! {
            outcome = &mut arrival.outcome => return Ok(outcome.map_err(|error| standing.judge(error))),
            _ = ticks.tick() => {
                let words = arrival.progress.borrow_and_update().to_string();
                if words != said || said_at.elapsed() >= REPEAT_EVERY {
                    out.send(Frame::Progress(words.clone())).await?;
                    (said, said_at) = (words, Instant::now());
                }
            }
        }
    }
}

/// Tells which images there are.
pub(super) async fn list(shelf: &Shelf, out: &Outbound) -> Result<Result<(), String>, StreamError> {
    match shelf.list().await {
        Ok(images) => tell(out, images).await.map(Ok),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Removes images that nobody used for as long as the manager says, and tells which.
pub(super) async fn prune(
    shelf: &Shelf,
    wish: &v1::PruneImages,
    out: &Outbound,
) -> Result<Result<(), String>, StreamError> {
    // A person decides: the disk does not matter, and neither does how many go.
    let policy = PrunePolicy {
        max_age: Some(Duration::from_millis(wish.unused_for_ms)),
        grace: Duration::ZERO,
        cap: usize::MAX,
        ..PrunePolicy::default()
    };
    let pruned = match shelf.prune(&policy, Disk { used: 0, total: 0 }).await {
        Ok(pruned) => pruned,
        Err(error) => return Ok(Err(error.to_string())),
    };
    if let Some(failure) = pruned.failure {
        let gone = pruned.gone.len();
        return Ok(Err(format!("{failure}; {gone} images were removed before; try again")));
    }
    tell(out, pruned.gone.into_iter().map(|image| (image, 0)).collect()).await.map(Ok)
}

async fn tell(out: &Outbound, images: Vec<(Listed, u32)>) -> Result<(), StreamError> {
    let infos: Vec<v1::ImageInfo> = images.into_iter().map(|(image, tasks)| show(image, tasks)).collect();
    for images in infos.chunks(IMAGES) {
        out.send(Frame::Images(v1::ImageList { images: images.to_vec() })).await?;
    }
    Ok(())
}

fn show(image: Listed, tasks: u32) -> v1::ImageInfo {
    v1::ImageInfo {
        size_bytes: image.size(),
        digest: image.digest.to_string(),
        created_at: Some(image.created.0),
        last_used_at: Some(image.last_used.0),
        reference: image.reference,
        tasks,
    }
}
