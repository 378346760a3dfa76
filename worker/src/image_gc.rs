//! Image garbage collection: lists the node's images with their users, and removes unused ones.
//!
//! Nothing is removed before the desired state is known, and no image of a task or container is removed. A
//! task that needs a removed image pulls it again. Directories of tasks are removed with their tasks, and
//! leftovers of a killed agent after the list of containers (`tasks/supervisor.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use warren_control::{BackgroundTaskHandle, BackgroundTasks, Clock};
use warren_image::{ListedImage, PruneCandidate, PrunePolicy, Reference, plan_prune};
use warren_runtime::Runtime;
use warren_task::DesiredState;
use warren_types::Timestamp;

use crate::handlers::images::{self, ImageSource};
use crate::node::meter::{DiskUsage, NodeMeter};

/// Interval of collections.
const COLLECT_INTERVAL: Duration = Duration::from_secs(300);
/// Minimum interval between collections because of a nearly full disk.
const PRESSURE_COOLDOWN: Duration = Duration::from_secs(60);
/// Policy of the periodic collection. An image that no task used for a week is removed. Above 85 percent the
/// disk may fill while a large image is pulled; 80 percent leave room for some, while images that are likely
/// to be used again stay. An image younger than a quarter of an hour may be waiting for its service. Each
/// removal makes containerd scan all its data, so at most twenty are removed at once.
const POLICY: PrunePolicy = PrunePolicy {
    max_age: Some(Duration::from_secs(7 * 86_400)),
    grace: Duration::from_secs(900),
    high_watermark: 85,
    low_watermark: 80,
    max_removals: 20,
};

/// Images cannot be listed or collected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageGcError {
    #[error("cannot list images: {0}")]
    Images(#[from] warren_image::Error),
    #[error("cannot list containers to find the images in use: {0}")]
    Containers(#[from] warren_runtime::Error),
    #[error("this node has not received its assignments yet; try again in a moment")]
    Unconfirmed,
    #[error("image {image} is used by {tasks} tasks of this node")]
    InUse { image: String, tasks: u32 },
    #[error("cannot remove image {image}: {source}")]
    Remove { image: String, source: warren_image::Error },
}

/// Result of a collection.
#[derive(Debug, Default)]
pub(crate) struct PruneReport {
    /// Removed images.
    pub removed: Vec<ListedImage>,
    /// Why other images were kept.
    pub failure: Option<ImageGcError>,
}

/// The images of the node and their users.
pub(crate) struct ImageGc {
    pub source: Arc<dyn ImageSource>,
    pub runtime: Arc<dyn Runtime>,
    pub desired_state: watch::Receiver<DesiredState>,
    pub clock: Arc<dyn Clock>,
}

impl ImageGc {
    /// All images, each with the number of tasks that use it.
    pub async fn list(&self) -> Result<Vec<(ListedImage, u32)>, ImageGcError> {
        let (listed, needs) = (self.source.list().await?, self.images_in_use().await?);
        let counted = listed.into_iter().map(|image| {
            let tasks = needs.tasks(&image);
            (image, tasks)
        });
        Ok(counted.collect())
    }

    /// Removes images by the policy. Idempotent.
    pub async fn prune(
        &self,
        policy: &PrunePolicy,
        disk: warren_image::FilesystemUsage,
    ) -> Result<PruneReport, ImageGcError> {
        if !self.desired_state.borrow().is_confirmed {
            return Err(ImageGcError::Unconfirmed);
        }
        let (listed, needs) = (self.source.list().await?, self.images_in_use().await?);
        for image in listed.iter().filter(|image| needs.tasks(image) > 0) {
            // An image is in use as long as a task has it, not only when a container is created.
            if let Ok(reference) = Reference::parse(&image.reference) {
                self.mark_used(&reference).await;
            }
        }
        let mut pruned = PruneReport::default();
        for PruneCandidate { image, reason, freed_bytes: frees } in
            plan_prune(&listed, &needs.references(), self.now(), disk, policy)
        {
            // A removal takes time; a task may have arrived meanwhile.
            if self.desired_images().tasks(image) > 0 {
                continue;
            }
            match self.source.remove(&image.reference).await {
                Ok(true) => {
                    tracing::info!(image = image.reference, ?reason, frees, "removed an image");
                    pruned.removed.push(image.clone());
                }
                Ok(false) => {}
                Err(source) => {
                    let image = image.reference.clone();
                    pruned.failure = Some(ImageGcError::Remove { image, source });
                    break;
                }
            }
        }
        Ok(pruned)
    }

    /// Removes the image with this name or digest, and returns it; with a digest, all of its names in that
    /// repository. Nothing is returned if the node does not have it.
    pub async fn remove(&self, reference: &Reference) -> Result<Vec<ListedImage>, ImageGcError> {
        if !self.desired_state.borrow().is_confirmed {
            return Err(ImageGcError::Unconfirmed);
        }
        let (listed, needs) = (self.source.list().await?, self.images_in_use().await?);
        let meant: Vec<ListedImage> = listed.into_iter().filter(|image| image.matches(reference)).collect();
        let in_use =
            |image: &ListedImage, tasks| ImageGcError::InUse { image: image.reference.clone(), tasks };
        if let Some(image) = meant.iter().find(|image| needs.tasks(image) > 0) {
            return Err(in_use(image, needs.tasks(image)));
        }
        let mut removed = Vec::new();
        for image in meant {
            // A removal takes time; a task may have arrived meanwhile.
            match self.desired_images().tasks(&image) {
                0 => {}
                tasks => return Err(in_use(&image, tasks)),
            }
            match self.source.remove(&image.reference).await {
                Ok(true) => {
                    tracing::info!(image = image.reference, "removed an image on request");
                    removed.push(image);
                }
                Ok(false) => {}
                Err(source) => return Err(ImageGcError::Remove { image: image.reference, source }),
            }
        }
        Ok(removed)
    }

    /// Records that the image is used now.
    pub async fn mark_used(&self, reference: &Reference) {
        if let Err(error) = self.source.mark_used(reference, self.now()).await {
            tracing::debug!(image = %reference, %error, "cannot record last use of image");
        }
    }

    async fn collect(&self, disk: Option<DiskUsage>) -> Result<(), ImageGcError> {
        let (used, total) = disk.map_or((0, 0), |disk| (disk.used.0, disk.total.0));
        match self.prune(&POLICY, warren_image::FilesystemUsage { used, total }).await {
            Ok(PruneReport { failure: Some(failure), .. }) => Err(failure),
            Ok(_) | Err(ImageGcError::Unconfirmed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The images of the desired state.
    fn desired_images(&self) -> ImageUsers {
        let mut needs = ImageUsers::default();
        for task in self.desired_state.borrow().tasks.values() {
            // A task with an invalid image is rejected, and has none.
            if let Ok(reference) = images::image_reference(task) {
                needs.add(task.id.to_string(), reference);
            }
        }
        needs
    }

    /// As above, and the images of existing containers.
    async fn images_in_use(&self) -> Result<ImageUsers, ImageGcError> {
        let mut needs = self.desired_images();
        for found in self.runtime.list().await? {
            match Reference::parse(&found.image) {
                Ok(reference) => needs.add(found.id.to_string(), reference),
                Err(error) => {
                    tracing::debug!(container = %found.id, %error, "container image is not a valid reference")
                }
            }
        }
        Ok(needs)
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.clock.unix_millis())
    }
}

/// Images by the tasks that use them. A container has its task's id.
#[derive(Debug, Default)]
struct ImageUsers(BTreeMap<Reference, BTreeSet<String>>);

impl ImageUsers {
    fn add(&mut self, task: String, reference: Reference) {
        self.0.entry(reference).or_default().insert(task);
    }

    fn references(&self) -> Vec<Reference> {
        self.0.keys().cloned().collect()
    }

    /// Number of tasks that use the image.
    fn tasks(&self, image: &ListedImage) -> u32 {
        let having = self.0.iter().filter(|(reference, _)| image.matches(reference));
        let tasks: BTreeSet<&String> = having.flat_map(|(_, tasks)| tasks).collect();
        u32::try_from(tasks.len()).unwrap_or(u32::MAX)
    }
}

/// Triggers a collection when the disk is nearly full.
#[derive(Debug)]
pub(crate) struct DiskPressure {
    collector: BackgroundTaskHandle,
    last_run: Mutex<Option<Instant>>,
}

impl DiskPressure {
    /// Processes a sample of the disk.
    pub fn observe(&self, disk: Option<DiskUsage>) {
        let Some(disk) = disk.filter(|disk| disk.total.0 > 0) else { return };
        let (used, total) = (u128::from(disk.used.0), u128::from(disk.total.0));
        if used * 100 < total * u128::from(POLICY.high_watermark) {
            return;
        }
        let mut last = self.last_run.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= PRESSURE_COOLDOWN) {
            *last = Some(Instant::now());
            self.collector.wake();
        }
    }
}

/// Collects images periodically, until `stop`.
pub(crate) fn start(
    image_gc: Arc<ImageGc>,
    meter: Arc<NodeMeter>,
    background_tasks: &BackgroundTasks,
    stop: CancellationToken,
) -> DiskPressure {
    let collector = background_tasks.spawn("worker.image-gc", COLLECT_INTERVAL, move || {
        let (image_gc, meter, stop) = (Arc::clone(&image_gc), Arc::clone(&meter), stop.clone());
        async move {
            // An interrupted collection is completed by the next one.
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                collected = image_gc.collect(meter.disk()) => collected,
            }
        }
    });
    DiskPressure { collector, last_run: Mutex::new(None) }
}

#[cfg(test)]
mod tests;
