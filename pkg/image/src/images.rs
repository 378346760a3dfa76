//! The images of one containerd namespace: the entry point of this crate.

mod assemble;
mod import;
mod last_use;
mod list;
mod lookup;
mod pull;
mod record;
mod transfer;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use warren_registry::{Digest, RegistryClients, RegistrySettings};

use crate::connection::ContainerdConnection;
use crate::error::Error;
use crate::store::ContentStore;
use crate::unpack::Unpacker;
use last_use::LastUse;
use pull::active::ActivePulls;

pub use import::{ImportOptions, ImportedName};
pub use last_use::LAST_USE_INTERVAL;
pub use list::{ImagePart, ListedImage};
pub use lookup::ImageInfo;
pub use pull::PulledImage;
pub use pull::active::PullHandle;
pub use pull::progress::{ImagePullProgress, LayerProgress, LayerStage};
pub use transfer::BlobSource;

/// Default limit for the size of an image.
const DEFAULT_SIZE_LIMIT: u64 = 64 << 30;

/// The images of one containerd namespace. Clones share a cache of parsed documents.
#[derive(Clone, Debug)]
pub struct ImageStore {
    store: ContentStore,
    unpacker: Unpacker,
    /// The largest image that is pulled, in stored bytes.
    pull_size_limit: u64,
    clients: Arc<RegistryClients>,
    active_pulls: Arc<ActivePulls>,
    parsed: Arc<Mutex<HashMap<Digest, Arc<ImageInfo>>>>,
    /// Disk usage of committed snapshots, which never changes.
    sizes: Arc<Mutex<HashMap<Digest, u64>>>,
    last_uses: Arc<Mutex<HashMap<String, LastUse>>>,
}

impl ImageStore {
    /// The images reached through `connection`, unpacked by `snapshotter` (usually `overlayfs`).
    pub fn new(connection: ContainerdConnection, snapshotter: &str) -> Self {
        let store = ContentStore::new(connection.clone());
        let unpacker = Unpacker { connection, snapshotter: snapshotter.into(), limit: DEFAULT_SIZE_LIMIT };
        Self {
            store,
            unpacker,
            pull_size_limit: DEFAULT_SIZE_LIMIT,
            clients: Arc::new(RegistryClients::new(RegistrySettings::default())),
            active_pulls: Arc::default(),
            parsed: Arc::default(),
            sizes: Arc::default(),
            last_uses: Arc::default(),
        }
    }

    /// Sets the largest accepted image in bytes, for the packed (pulled) and the unpacked (on disk) form
    /// each. The default is 64 GiB.
    #[must_use]
    pub fn with_limit(mut self, bytes: u64) -> Self {
        self.pull_size_limit = bytes;
        self.unpacker.limit = bytes;
        self
    }

    /// Uses these registry settings.
    #[must_use]
    pub fn with_registries(mut self, registries: RegistrySettings) -> Self {
        self.clients = Arc::new(RegistryClients::new(registries));
        self.active_pulls = Arc::default();
        self
    }

    /// Makes containerd delete unreferenced content now.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn collect_garbage(&self) -> Result<(), Error> {
        self.unpacker.trigger_cleanup().await?;
        self.store.collect().await
    }

    /// Releases the leases of imports and pulls that were killed and returns their ids. Leases in use by
    /// this store and its clones are kept; no other process may write to this namespace.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn sweep_leases(&self) -> Result<Vec<String>, Error> {
        let orphans = self.store.orphan_leases().await?;
        for id in &orphans {
            self.store.release(id).await?;
        }
        Ok(orphans)
    }
}
