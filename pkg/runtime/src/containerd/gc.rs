//! Frees the disk space of removed containers. containerd deletes a file system at its next collection after
//! its snapshot was removed; a removal during a collection is missed, and the next collection waits for some
//! other change. So this module requests a collection after each burst of removals.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use warren_image::ImageStore;

/// No removal for so long. During removals containerd collects by itself.
const QUIET_PERIOD: Duration = Duration::from_millis(500);

/// Collects after each burst of removals, until it is dropped.
pub(super) async fn run(images: ImageStore, removed: Arc<Notify>) {
    loop {
        removed.notified().await;
        while timeout(QUIET_PERIOD, removed.notified()).await.is_ok() {}
        if let Err(error) = images.collect_garbage().await {
            // The next removal or start tries again; until then some disk space is wasted.
            tracing::info!(%error, "containerd garbage collection failed");
        }
    }
}
