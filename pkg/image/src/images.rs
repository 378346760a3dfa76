//! The images of one containerd namespace: what callers of this crate use.

mod assemble;
mod import;
mod list;
mod lookup;
mod record;
mod touch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::connection::Connection;
use crate::digest::Digest;
use crate::error::Error;
use crate::pull::flight::Flights;
use crate::registry::{Hub, Registries};
use crate::store::Store;
use crate::unpack::Unpacker;
use touch::Touched;

pub use import::{ImportOptions, Imported};
pub use list::{Listed, Part};
pub use lookup::ImageInfo;
pub use touch::TOUCH_EVERY;

/// The largest image that is taken, unless it is said otherwise.
const LIMIT: u64 = 64 << 30;

/// The images of one containerd namespace. Clones share a cache of parsed documents.
#[derive(Clone, Debug)]
pub struct Images {
    pub(crate) store: Store,
    unpacker: Unpacker,
    /// The largest image that is pulled, in bytes as stored.
    pub(crate) packed_limit: u64,
    pub(crate) hub: Arc<Hub>,
    pub(crate) flights: Arc<Flights>,
    parsed: Arc<Mutex<HashMap<Digest, Arc<ImageInfo>>>>,
    /// What committed snapshots take on disk, which never changes.
    sizes: Arc<Mutex<HashMap<Digest, u64>>>,
    touched: Arc<Mutex<HashMap<String, Touched>>>,
}

impl Images {
    /// The images reached by `connection`, unpacked by `snapshotter` (usually `overlayfs`).
    pub fn new(connection: Connection, snapshotter: &str) -> Self {
        let store = Store::new(connection.clone());
        let unpacker = Unpacker { connection, snapshotter: snapshotter.into(), limit: LIMIT };
        Self {
            store,
            unpacker,
            packed_limit: LIMIT,
            hub: Arc::new(Hub::new(Registries::default())),
            flights: Arc::default(),
            parsed: Arc::default(),
            sizes: Arc::default(),
            touched: Arc::default(),
        }
    }

    /// The largest image that is taken, in bytes, packed (pulled) and unpacked (on disk) each; 64 GiB unless
    /// this is called.
    #[must_use]
    pub fn with_limit(mut self, bytes: u64) -> Self {
        self.packed_limit = bytes;
        self.unpacker.limit = bytes;
        self
    }

    /// Reaches registries as told.
    #[must_use]
    pub fn with_registries(mut self, registries: Registries) -> Self {
        self.hub = Arc::new(Hub::new(registries));
        self.flights = Arc::default();
        self
    }

    /// Has containerd delete now what nothing refers to any more.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn collect_garbage(&self) -> Result<(), Error> {
        self.unpacker.stir().await?;
        self.store.collect().await
    }

    /// Releases the leases of imports and pulls that were killed half-way and says which. Those that this
    /// `Images` and its clones work under are kept; no other process may fill this namespace.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn sweep_leases(&self) -> Result<Vec<String>, Error> {
        let stray = self.store.stray_leases().await?;
        for id in &stray {
            self.store.release(id).await?;
        }
        Ok(stray)
    }
}
