//! Shared by import and pull: turns image parts and arriving layers into a runnable image.

use std::collections::HashMap;

use futures::channel::mpsc;
use futures::{Stream, TryStreamExt};
use warren_registry::Digest;

use super::ImageStore;
use crate::error::Error;
use crate::image_parts::ImageParts;
use crate::store::Lease;

const REF_CONFIG: &str = "containerd.io/gc.ref.content.config";
const REF_LAYER: &str = "containerd.io/gc.ref.content.l.";
const REF_SNAPSHOT: &str = "containerd.io/gc.ref.snapshot.";

impl ImageStore {
    /// Stores the documents and unpacks each layer once `arriving` has yielded for it and all below it (one
    /// item per layer, lowest first, when the layer is in the content store). `unpacked` receives the
    /// position of every finished layer. Without an image name everything is removed with the lease.
    pub(super) async fn assemble(
        &self,
        lease: &Lease,
        parts: &ImageParts,
        arriving: impl Stream<Item = Result<(), Error>>,
        unpacked: impl FnMut(usize),
    ) -> Result<(), Error> {
        self.store.write_document(lease, &parts.config.1, HashMap::new()).await?;
        let (sender, arrived) = mpsc::unbounded();
        let receive = async {
            let sender = sender;
            let pass_on = async |()| {
                // A receiver that was dropped has failed; its error is returned below.
                let _ = sender.unbounded_send(());
                Ok(())
            };
            arriving.try_for_each(pass_on).await
        };
        let unpack = self.unpacker.ensure_unpacked(lease, &parts.layers, &parts.diff_ids, arrived, unpacked);
        let ((), chain_id) = tokio::try_join!(receive, unpack)?;
        let mut references: HashMap<String, String> = HashMap::new();
        references.insert(REF_CONFIG.to_owned(), parts.config.0.digest.to_string());
        for (position, layer) in parts.layers.iter().enumerate() {
            references.insert(format!("{REF_LAYER}{position}"), layer.digest.to_string());
        }
        self.store.write_document(lease, &parts.manifest.1, references).await?;
        self.reference_snapshots(&parts.config.0.digest, &chain_id).await
    }

    /// From here on the image record also retains the snapshots: record -> manifest -> configuration -> top
    /// snapshot.
    pub(super) async fn reference_snapshots(&self, config: &Digest, chain_id: &Digest) -> Result<(), Error> {
        let key = format!("{REF_SNAPSHOT}{}", self.unpacker.snapshotter);
        self.store.label(config, &key, chain_id.to_string()).await
    }
}
