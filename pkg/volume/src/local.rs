//! Volumes as directories of this node: `<root>/NAME`.

mod place;
mod turns;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tokio::task::spawn_blocking;
use warren_types::{Bytes, VolumeName};

use crate::error::Error;
use crate::options::Owned;
use crate::{Driver, Options, Result, Source, Unreadable};
use place::{Filling, Place};
use turns::Turns;

/// Keeps volumes below one directory of this node's disk. Clones are the same driver.
#[derive(Clone)]
pub struct Local {
    place: Arc<Place>,
    turns: Arc<Turns>,
}

impl Local {
    /// Keeps volumes in `root`, an absolute path, which is made when it is first needed, for root alone. Nobody else
    /// may have a driver on it.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { place: Arc::new(Place::new(root.into())), turns: Arc::default() }
    }

    /// Works on the disk in a thread of its own, to the end even when nobody waits for it any more.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Place) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = Arc::clone(&self.place);
        spawn_blocking(move || work(&place)).await.expect("work on the disk does not panic")
    }
}

#[async_trait]
impl Driver for Local {
    async fn ensure(
        &self,
        volume: &VolumeName,
        options: &Options,
        first: Option<&dyn Source>,
    ) -> Result<PathBuf> {
        let owned = Owned::parse(volume, options)?;
        let turn = self.turns.take(volume).await;
        let name = volume.clone();
        let (turn, is_empty) = self.work(move |place| Ok((turn, place.ensure(&name, &owned)?))).await?;
        let Some(first) = first.filter(|_| is_empty) else { return Ok(self.place.path(volume)) };
        let opened = first.open().await.map_err(|Unreadable { reason, transient }| Error::Content {
            volume: volume.clone(),
            reason,
            transient,
        })?;
        let Some(opened) = opened else { return Ok(self.place.path(volume)) };
        let name = volume.clone();
        self.work(move |place| {
            let _turn = turn;
            place.fill(&name, &Filling { from: &opened.directory, owned: &owned })
        })
        .await?;
        Ok(self.place.path(volume))
    }

    async fn remove(&self, volume: &VolumeName) -> Result<()> {
        let turn = self.turns.take(volume).await;
        let volume = volume.clone();
        self.work(move |place| {
            let _turn = turn;
            place.remove(&volume)
        })
        .await
    }

    async fn list(&self) -> Result<Vec<VolumeName>> {
        self.work(Place::list).await
    }

    async fn usage(&self, volume: &VolumeName) -> Result<Option<Bytes>> {
        let volume = volume.clone();
        let waiting = Waiting::default();
        let stop = Arc::clone(&waiting.0);
        self.work(move |place| place.usage(&volume, &stop)).await
    }

    async fn sweep(&self) -> Result<()> {
        let turns = Arc::clone(&self.turns);
        self.work(move |place| place.sweep(|volume| turns.try_take(volume))).await
    }
}

/// Tells a thread that nobody waits for it any more.
#[derive(Default)]
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
