//! What this node has: images, for tasks of other nodes that lack them, and volumes.

use std::collections::BTreeSet;

use warren_proto::v1;

use crate::session::SessionContext;

/// Maximum number of images: those that changed last.
const MAX_IMAGES: usize = 256;
/// Maximum number of volumes.
const MAX_VOLUMES: usize = 1024;

/// The images and volumes. What cannot be listed is left out.
pub(super) async fn inventory(context: &SessionContext) -> v1::NodeInventory {
    let services = &context.stream_services;
    let names = services.image_gc.source.names().await.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot list images for the manager");
        Vec::new()
    });
    let volumes = services.volumes.list(&BTreeSet::new()).await;
    let is_listed = volumes.is_ok();
    let volumes = volumes.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot list volumes for the manager");
        Vec::new()
    });
    let held = |(reference, digest): (String, warren_image::Digest)| v1::HeldImage {
        reference,
        digest: digest.to_string(),
    };
    v1::NodeInventory {
        images: names.into_iter().take(MAX_IMAGES).map(held).collect(),
        volumes_truncated: !is_listed || volumes.len() > MAX_VOLUMES,
        volumes: volumes.iter().take(MAX_VOLUMES).map(ToString::to_string).collect(),
    }
}
