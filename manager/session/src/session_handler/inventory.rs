//! What a node has: images stay in memory, volumes are compared with the replicated state.

use tokio::sync::watch;
use tonic::Status;
use warren_core::state::{HeldVolumes, ObjectKind};
use warren_core::{Command, Refusal};
use warren_proto::v1;
use warren_store::ProposeError;
use warren_store::problem::node_removed;

use super::{SessionHandler, truncate};

/// Maximum number of images of a node, and the maximum length of their names and digests in bytes.
const MAX_IMAGES: usize = 256;
const MAX_IMAGE_BYTES: usize = 512;
/// Maximum number of volumes of a node in one report.
const MAX_VOLUMES: usize = 4096;

/// The volumes reported last; `None` before the first report.
pub type ReportedVolumes = Option<HeldVolumes>;

/// The images and volumes of an inventory, limited in number. Names that are no names of volumes are skipped.
pub fn parse(inventory: v1::NodeInventory) -> (Vec<v1::HeldImage>, HeldVolumes) {
    let v1::NodeInventory { mut images, volumes, volumes_truncated } = inventory;
    images.truncate(MAX_IMAGES);
    for v1::HeldImage { reference, digest } in &mut images {
        truncate(reference, MAX_IMAGE_BYTES);
        truncate(digest, MAX_IMAGE_BYTES);
    }
    let is_truncated = volumes_truncated || volumes.len() > MAX_VOLUMES;
    let names = volumes.iter().take(MAX_VOLUMES).filter_map(|name| name.parse().ok()).collect();
    (images, HeldVolumes { names, is_truncated })
}

impl SessionHandler<'_> {
    /// Replicates what the reported volumes change. Each report has all of them, so a failed write is retried
    /// with the next one.
    ///
    /// # Errors
    /// The node was removed.
    pub(super) async fn replicate_volumes(
        &self,
        mut reported: watch::Receiver<ReportedVolumes>,
    ) -> Result<(), Status> {
        while reported.changed().await.is_ok() {
            let Some(held) = reported.borrow_and_update().clone() else { continue };
            let (node, session, at) = (self.node, self.session_number, self.context.clock.now());
            if self.context.store.read().state.volume_report_changes(node, &held, at).is_empty() {
                continue;
            }
            let command = Command::ReportVolumes { node, session, held, at };
            match Box::pin(self.context.store.propose(command)).await {
                Ok(_) => tracing::info!(%node, "data without a volume changed"),
                Err(ProposeError::Rejected(Refusal::NotFound { kind: ObjectKind::Node, .. })) => {
                    return Err(node_removed());
                }
                // Also returned for a superseded session, which ends by itself.
                Err(error) => {
                    tracing::debug!(%node, %error, "storing the volumes failed; retrying with the next report")
                }
            }
        }
        Ok(())
    }
}
