//! The node's images: which there are, who needs them, and which go.
//!
//! Nothing goes before a manager has said what this node should run, and nothing that a task or a container has.
//! What goes although a task is about to need it is pulled again by that task. Directories of tasks go with
//! their tasks, and what a killed agent left of them with the list of containers (`tasks/supervisor.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use warren_control::{Clock, LoopHandle, Loops};
use warren_image::{Doomed, Listed, PrunePolicy, Reference, plan_prune};
use warren_runtime::Runtime;
use warren_task::Wishes;
use warren_types::Timestamp;

use crate::handlers::images::{self, ImageSource};
use crate::node::usage::{Disk, Meter};

/// How often images are looked through.
const COLLECT_EVERY: Duration = Duration::from_secs(300);
/// How soon after a disk that was nearly full made us look, it may do so again.
const PRESSED_AGAIN: Duration = Duration::from_secs(60);
/// What goes when nobody asked for it. An image that no task had for a week is not waited for. Above 85 percent a
/// disk is in danger of filling while a large image comes; 80 leave room for some, and images that are likely to
/// be wanted again stay. What came within a quarter of an hour may be waiting for its service. Each removal has
/// containerd look at everything it has, so at most twenty go at once.
const POLICY: PrunePolicy = PrunePolicy {
    max_age: Some(Duration::from_secs(7 * 86_400)),
    grace: Duration::from_secs(900),
    pressure_high: 85,
    pressure_low: 80,
    cap: 20,
};

/// Why images were not listed or looked through.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShelfError {
    #[error("images cannot be listed: {0}")]
    Images(#[from] warren_image::Error),
    #[error("containers cannot be listed, so nobody knows which images they have: {0}")]
    Containers(#[from] warren_runtime::Error),
    #[error("no manager has said yet what this node should run; try again in a moment")]
    Unconfirmed,
    #[error("image {image} cannot be removed: {source}")]
    Remove { image: String, source: warren_image::Error },
}

/// What came of looking for images that may go.
#[derive(Debug, Default)]
pub(crate) struct Pruned {
    /// Those that are gone.
    pub gone: Vec<Listed>,
    /// Why the others are not.
    pub failure: Option<ShelfError>,
}

/// The images of the node and those who need them.
pub(crate) struct Shelf {
    pub source: Arc<dyn ImageSource>,
    pub runtime: Arc<dyn Runtime>,
    pub wishes: watch::Receiver<Wishes>,
    pub clock: Arc<dyn Clock>,
}

impl Shelf {
    /// All images, each with the number of tasks that have it.
    pub async fn list(&self) -> Result<Vec<(Listed, u32)>, ShelfError> {
        let (listed, needs) = (self.source.list().await?, self.needs().await?);
        let counted = listed.into_iter().map(|image| {
            let tasks = needs.tasks(&image);
            (image, tasks)
        });
        Ok(counted.collect())
    }

    /// Removes what the policy says. Harmless the second time.
    pub async fn prune(&self, policy: &PrunePolicy, disk: warren_image::Disk) -> Result<Pruned, ShelfError> {
        if !self.wishes.borrow().confirmed {
            return Err(ShelfError::Unconfirmed);
        }
        let (listed, needs) = (self.source.list().await?, self.needs().await?);
        for image in listed.iter().filter(|image| needs.tasks(image) > 0) {
            // It is used as long as somebody has it, not only when a container is made of it.
            if let Ok(reference) = Reference::parse(&image.reference) {
                self.touch(&reference).await;
            }
        }
        let mut pruned = Pruned::default();
        for Doomed { image, reason, frees } in
            plan_prune(&listed, &needs.references(), self.now(), disk, policy)
        {
            // A removal takes its time, and a task may have come meanwhile.
            if self.wanted().tasks(image) > 0 {
                continue;
            }
            match self.source.remove(&image.reference).await {
                Ok(true) => {
                    tracing::info!(image = image.reference, ?reason, frees, "removed an image");
                    pruned.gone.push(image.clone());
                }
                Ok(false) => {}
                Err(source) => {
                    let image = image.reference.clone();
                    pruned.failure = Some(ShelfError::Remove { image, source });
                    break;
                }
            }
        }
        Ok(pruned)
    }

    /// Notes that the image is used now.
    pub async fn touch(&self, reference: &Reference) {
        if let Err(error) = self.source.touch(reference, self.now()).await {
            tracing::debug!(image = %reference, %error, "its last use is not noted");
        }
    }

    async fn collect(&self, disk: Option<Disk>) -> Result<(), ShelfError> {
        let (used, total) = disk.map_or((0, 0), |disk| (disk.used.0, disk.total.0));
        match self.prune(&POLICY, warren_image::Disk { used, total }).await {
            Ok(Pruned { failure: Some(failure), .. }) => Err(failure),
            Ok(_) | Err(ShelfError::Unconfirmed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What managers want of this node.
    fn wanted(&self) -> Needs {
        let mut needs = Needs::default();
        for task in self.wishes.borrow().tasks.values() {
            // A task with an image that cannot be is rejected, and has none.
            if let Ok(reference) = images::reference(task) {
                needs.add(task.id.to_string(), reference);
            }
        }
        needs
    }

    /// That, and what containers were made of that are still there.
    async fn needs(&self) -> Result<Needs, ShelfError> {
        let mut needs = self.wanted();
        for found in self.runtime.list().await? {
            match Reference::parse(&found.image) {
                Ok(reference) => needs.add(found.id.to_string(), reference),
                Err(error) => tracing::debug!(container = %found.id, %error, "it has no image of ours"),
            }
        }
        Ok(needs)
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.clock.unix_millis())
    }
}

/// Images by the tasks that have them. A container has its task's id.
#[derive(Debug, Default)]
struct Needs(BTreeMap<Reference, BTreeSet<String>>);

impl Needs {
    fn add(&mut self, task: String, reference: Reference) {
        self.0.entry(reference).or_default().insert(task);
    }

    fn references(&self) -> Vec<Reference> {
        self.0.keys().cloned().collect()
    }

    /// How many tasks have the image.
    fn tasks(&self, image: &Listed) -> u32 {
        let having = self.0.iter().filter(|(reference, _)| image.is(reference));
        let tasks: BTreeSet<&String> = having.flat_map(|(_, tasks)| tasks).collect();
        u32::try_from(tasks.len()).unwrap_or(u32::MAX)
    }
}

/// Has images looked through sooner when the disk is nearly full.
#[derive(Debug)]
pub(crate) struct Pressure {
    collector: LoopHandle,
    last: Mutex<Option<Instant>>,
}

impl Pressure {
    /// Takes a sample of the disk.
    pub fn note(&self, disk: Option<Disk>) {
        let Some(disk) = disk.filter(|disk| disk.total.0 > 0) else { return };
        let (used, total) = (u128::from(disk.used.0), u128::from(disk.total.0));
        if used * 100 < total * u128::from(POLICY.pressure_high) {
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= PRESSED_AGAIN) {
            *last = Some(Instant::now());
            self.collector.wake();
        }
    }
}

/// Looks through the images now and then, until `stop`.
pub(crate) fn start(
    shelf: Arc<Shelf>,
    meter: Arc<Meter>,
    loops: &Loops,
    stop: CancellationToken,
) -> Pressure {
    let collector = loops.spawn("worker.images", COLLECT_EVERY, move || {
        let (shelf, meter, stop) = (Arc::clone(&shelf), Arc::clone(&meter), stop.clone());
        async move {
            // What is left half-way is seen the next time.
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                collected = shelf.collect(meter.disk()) => collected,
            }
        }
    });
    Pressure { collector, last: Mutex::new(None) }
}

#[cfg(test)]
mod tests;
