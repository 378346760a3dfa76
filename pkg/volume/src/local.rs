//! Volumes as directories of this node: `<root>/NAME`.

mod locks;
mod volume_root;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tokio::task::spawn_blocking;
use warren_types::{Bytes, VolumeName};

use crate::error::Error;
use crate::options::Ownership;
use crate::{ContentError, DriverOptions, InitialContent, Result, VolumeBackend};
use locks::VolumeLocks;
use volume_root::{InitialFill, VolumeRoot};

/// Stores volumes below one directory of this node's disk. Clones share it.
#[derive(Clone)]
pub struct LocalVolumeDriver {
    root: Arc<VolumeRoot>,
    locks: Arc<VolumeLocks>,
}

impl LocalVolumeDriver {
    /// Stores volumes in `root`, an absolute path that is created when first needed, accessible to root
    /// only. No other driver may use it.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: Arc::new(VolumeRoot::new(root.into())), locks: Arc::default() }
    }

    /// Runs blocking work in a thread, to its end even if the caller is cancelled.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&VolumeRoot) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = Arc::clone(&self.root);
        spawn_blocking(move || work(&place)).await.expect("work on the disk does not panic")
    }
}

#[async_trait]
impl VolumeBackend for LocalVolumeDriver {
    async fn ensure(
        &self,
        volume: &VolumeName,
        options: &DriverOptions,
        first: Option<&dyn InitialContent>,
    ) -> Result<PathBuf> {
        let owned = Ownership::parse(volume, options)?;
        let turn = self.locks.lock(volume).await;
        let name = volume.clone();
        let (turn, is_empty) =
            self.run_blocking(move |place| Ok((turn, place.ensure(&name, &owned)?))).await?;
        let Some(first) = first.filter(|_| is_empty) else { return Ok(self.root.path(volume)) };
        let opened = first.open().await.map_err(|ContentError { reason, transient }| Error::Content {
            volume: volume.clone(),
            reason,
            transient,
        })?;
        let Some(opened) = opened else { return Ok(self.root.path(volume)) };
        let name = volume.clone();
        self.run_blocking(move |place| {
            let _turn = turn;
            place.fill(&name, &InitialFill { source: &opened.directory, ownership: &owned })
        })
        .await?;
        Ok(self.root.path(volume))
    }

    async fn remove(&self, volume: &VolumeName) -> Result<()> {
        let turn = self.locks.lock(volume).await;
        let volume = volume.clone();
        self.run_blocking(move |place| {
            let _turn = turn;
            place.remove(&volume)
        })
        .await
    }

    async fn list(&self) -> Result<Vec<VolumeName>> {
        self.run_blocking(VolumeRoot::list).await
    }

    async fn usage(&self, volume: &VolumeName) -> Result<Option<Bytes>> {
        let volume = volume.clone();
        let waiting = CancelOnDrop::default();
        let stop = Arc::clone(&waiting.0);
        self.run_blocking(move |place| place.usage(&volume, &stop)).await
    }

    async fn sweep(&self) -> Result<()> {
        let turns = Arc::clone(&self.locks);
        self.run_blocking(move |place| place.sweep(|volume| turns.try_lock(volume))).await
    }
}

/// Signals to the thread that the caller was cancelled.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
