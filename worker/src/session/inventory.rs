//! What this node has: images, for tasks of other nodes that lack them, volumes, and the program that it runs.

use std::collections::BTreeSet;

use warren_daemon::program::running_digest;
use warren_proto::v1;
use warren_types::{MAX_REPORTED_IMAGES, MAX_REPORTED_VOLUMES};

use crate::session::SessionContext;

/// The images, the volumes and the digest of the program. What cannot be listed is left out.
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
    let program_digest = *running_digest().borrow();
    v1::NodeInventory {
        images: names.into_iter().take(MAX_REPORTED_IMAGES).map(held).collect(),
        volumes_truncated: !is_listed || volumes.len() > MAX_REPORTED_VOLUMES,
        volumes: volumes.iter().take(MAX_REPORTED_VOLUMES).map(ToString::to_string).collect(),
        program_digest: program_digest.map(|digest| digest.to_string()).unwrap_or_default(),
    }
}
