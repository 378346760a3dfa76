//! Gives back the disk of removed containers. containerd deletes a file system some time after its snapshot was
//! removed, at its next collection; a removal that comes while one is under way is not seen by it, and the next one
//! waits for some other change. So when removals have come to an end, a collection is asked for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use warren_image::Images;

/// So long nothing was removed. While removals go on, they themselves make containerd collect.
const QUIET: Duration = Duration::from_millis(500);

/// Collects after each burst of removals, until it is dropped.
pub(super) async fn run(images: Images, removed: Arc<Notify>) {
    loop {
        removed.notified().await;
        while timeout(QUIET, removed.notified()).await.is_ok() {}
        if let Err(error) = images.collect_garbage().await {
            // The next removal or start tries again; until then some disk is used in vain.
            tracing::info!(%error, "containerd was not asked to collect what was removed");
        }
    }
}
