//! What the mounts of a task come from: paths of this node, and volumes, which are made where they are missing.
//!
//! A volume outlives its tasks, so nothing here goes with a task; only a manager has one deleted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use warren_image::{InvalidReference, Reference};
use warren_runtime::{Error as RuntimeError, Runtime};
use warren_task::Wishes;
use warren_types::spec::{MountSource, is_plain_relative};
use warren_types::template::{ExpandError, ParseTemplateError, Template, TemplateValues, is_template};
use warren_types::{Bytes, TaskAssignment, VolumeAssignment, VolumeName};
use warren_volume::{Driver, Opened, Pin, Pins, Source, Unreadable};

use crate::handlers::images;

/// How many of those who use a volume are named.
const NAMED: usize = 5;

/// The volumes of the node, and who uses them.
pub(crate) struct Volumes {
    driver: Arc<dyn Driver>,
    pins: Pins,
    runtime: Arc<dyn Runtime>,
    wishes: watch::Receiver<Wishes>,
}

/// What a task's mounts come from on this node.
#[derive(Debug)]
pub(crate) struct Sources {
    /// One per mount of the task, in their order; `None` for memory.
    pub paths: Vec<Option<PathBuf>>,
    /// Parts of volumes: their paths are good until this is dropped, and a container that is made has mounts of its
    /// own.
    _pins: Vec<Pin>,
}

/// Why a task's mounts have nothing to come from.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumesError {
    #[error("{field}: {source}")]
    Parse { field: String, source: ParseTemplateError },
    #[error("{field}: {source}")]
    Expand { field: String, source: ExpandError },
    #[error("{field} is {found:?} on this node, which is not {wanted}")]
    Path { field: String, found: String, wanted: &'static str },
    #[error("the manager did not say which volume {field} is; it may be of an older version")]
    Unassigned { field: String },
    #[error("task.image: {0}")]
    Image(#[from] InvalidReference),
    #[error(transparent)]
    Volume(#[from] warren_volume::Error),
}

/// Why a volume was not deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PurgeError {
    #[error("no manager has said yet what this node should run; try again in a moment")]
    Unconfirmed,
    #[error("volume {volume} is still used on this node by {by}")]
    InUse { volume: VolumeName, by: String },
    #[error("containers cannot be listed, so nobody knows whether one has the volume: {0}")]
    Containers(#[from] RuntimeError),
    #[error(
        "container {container} has a record that cannot be read, so it may have the volume; remove it first"
    )]
    Unreadable { container: String },
    #[error(transparent)]
    Volume(#[from] warren_volume::Error),
}

impl VolumesError {
    /// Whether trying again can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Volume(error) => error.is_transient(),
            Self::Unassigned { .. } => true,
            Self::Parse { .. } | Self::Expand { .. } | Self::Path { .. } | Self::Image(_) => false,
        }
    }
}

impl Volumes {
    /// Volumes that `driver` keeps, parts of which are shown by `pins`.
    pub fn new(
        driver: Arc<dyn Driver>,
        pins: Pins,
        runtime: Arc<dyn Runtime>,
        wishes: watch::Receiver<Wishes>,
    ) -> Self {
        Self { driver, pins, runtime, wishes }
    }

    /// Makes what the task's mounts come from: its image must be here. `values` are those of the task on this node.
    pub async fn ensure(
        &self,
        task: &TaskAssignment,
        values: &TemplateValues<'_>,
    ) -> Result<Sources, VolumesError> {
        let mut sources = Sources { paths: Vec::with_capacity(task.spec.mounts.len()), _pins: Vec::new() };
        let mut volumes = task.volumes.iter();
        for (place, mount) in task.spec.mounts.iter().enumerate() {
            let field = |name: &str| format!("task.mounts[{place}].source.{name}");
            let path = match &mount.source {
                MountSource::Tmpfs { .. } => None,
                MountSource::Bind { path, .. } => Some(bind_path(path, || field("bind.path"), values)?),
                MountSource::Volume { subpath, no_copy, .. } => {
                    let unassigned = || VolumesError::Unassigned { field: field("volume.name") };
                    let volume = volumes.next().ok_or_else(unassigned)?;
                    let subpath =
                        subpath.as_deref().map(|path| subpath_of(path, || field("volume.subpath"), values));
                    let subpath = subpath.transpose()?;
                    // What the image has at the target is for the whole of the volume, not for a part of it.
                    let copies = !no_copy && subpath.is_none();
                    let whole = self.volume(task, volume, copies.then(|| Path::new(&mount.target))).await?;
                    Some(match subpath {
                        None => whole,
                        Some(subpath) => {
                            let pin = self.pins.pin(&volume.name, &whole, &subpath).await?;
                            let path = pin.path().to_owned();
                            sources._pins.push(pin);
                            path
                        }
                    })
                }
            };
            sources.paths.push(path);
        }
        Ok(sources)
    }

    async fn volume(
        &self,
        task: &TaskAssignment,
        volume: &VolumeAssignment,
        copied: Option<&Path>,
    ) -> Result<PathBuf, VolumesError> {
        let VolumeAssignment { name, options } = volume;
        let Some(target) = copied else { return Ok(self.driver.ensure(name, options, None).await?) };
        let first = InImage { runtime: &*self.runtime, image: images::reference(task)?, target };
        Ok(self.driver.ensure(name, options, Some(&first)).await?)
    }

    /// The volumes of this node; only these, unless none is named.
    pub async fn list(&self, only: &BTreeSet<VolumeName>) -> Result<Vec<VolumeName>, warren_volume::Error> {
        let mut volumes = self.driver.list().await?;
        volumes.retain(|volume| only.is_empty() || only.contains(volume));
        Ok(volumes)
    }

    /// What a volume takes on the disk; `None` when it is not here.
    pub async fn usage(&self, volume: &VolumeName) -> Result<Option<Bytes>, warren_volume::Error> {
        self.driver.usage(volume).await
    }

    /// Deletes a volume that nobody on this node uses. Harmless the second time.
    pub async fn purge(&self, volume: &VolumeName) -> Result<(), PurgeError> {
        if !self.wishes.borrow().confirmed {
            return Err(PurgeError::Unconfirmed);
        }
        let mut by = BTreeSet::new();
        for found in self.runtime.list().await? {
            // A container of somebody else has none of our volumes.
            let Some(owner) = found.owner else { continue };
            let Ok(task) = serde_json::from_slice::<TaskAssignment>(&found.assignment) else {
                return Err(PurgeError::Unreadable { container: found.id.to_string() });
            };
            if uses(&task, volume) {
                by.insert(owner.task);
            }
        }
        // After the containers: a task that is wanted meanwhile is seen here.
        let wanted = self.wishes.borrow().tasks.clone();
        by.extend(wanted.values().filter(|task| uses(task, volume)).map(|task| task.id.to_string()));
        if !by.is_empty() {
            return Err(PurgeError::InUse { volume: volume.clone(), by: named(&by) });
        }
        tracing::info!(%volume, "deleting a volume, as a manager wants");
        Ok(self.driver.remove(volume).await?)
    }

    /// Finishes or takes back what a killed agent had begun. For any time.
    pub async fn sweep(&self) -> Result<(), warren_volume::Error> {
        let pins = self.pins.sweep().await;
        self.driver.sweep().await?;
        pins.map(|swept| {
            if swept > 0 {
                tracing::info!(swept, "removed what showed parts of volumes")
            }
        })
    }
}

fn uses(task: &TaskAssignment, volume: &VolumeName) -> bool {
    task.volumes.iter().any(|used| used.name == *volume)
}

fn named(tasks: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = tasks.iter().map(String::as_str).take(NAMED).collect();
    match tasks.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} others", shown.join(", ")),
    }
}

/// What the task's image has at a path.
struct InImage<'a> {
    runtime: &'a dyn Runtime,
    image: Reference,
    target: &'a Path,
}

#[tonic::async_trait]
impl Source for InImage<'_> {
    async fn open(&self) -> Result<Option<Opened>, Unreadable> {
        let files = self.runtime.image_files(&self.image).await.map_err(|error| Unreadable {
            reason: error.to_string(),
            // One that is gone is looked for again before the next try.
            transient: error.is_transient() || matches!(error, RuntimeError::ImageMissing { .. }),
        })?;
        let directory = files.directory(self.target).map_err(|error| Unreadable {
            reason: format!("{} in image {}: {error}", self.target.display(), self.image),
            transient: true,
        })?;
        Ok(directory.map(|directory| Opened { directory, held: Box::new(files) }))
    }
}

fn expanded(
    text: &str,
    field: impl Fn() -> String,
    values: &TemplateValues<'_>,
) -> Result<String, VolumesError> {
    if !is_template(text) {
        return Ok(text.to_owned());
    }
    let template: Template = text.parse().map_err(|source| VolumesError::Parse { field: field(), source })?;
    template.expand(values).map_err(|source| VolumesError::Expand { field: field(), source })
}

fn bind_path(
    text: &str,
    field: impl Fn() -> String,
    values: &TemplateValues<'_>,
) -> Result<PathBuf, VolumesError> {
    let found = expanded(text, &field, values)?;
    let is_plain = found.split('/').all(|part| part != "." && part != "..") && !found.contains('\0');
    if !found.starts_with('/') || !is_plain {
        let wanted = "an absolute path without '.' and '..'";
        return Err(VolumesError::Path { field: field(), found, wanted });
    }
    Ok(found.into())
}

fn subpath_of(
    text: &str,
    field: impl Fn() -> String,
    values: &TemplateValues<'_>,
) -> Result<String, VolumesError> {
    let found = expanded(text, &field, values)?;
    match is_plain_relative(&found) {
        true => Ok(found),
        false => {
            let wanted = "a relative path without '.', '..' and empty parts";
            Err(VolumesError::Path { field: field(), found, wanted })
        }
    }
}

#[cfg(test)]
mod real;
#[cfg(test)]
mod tests;
