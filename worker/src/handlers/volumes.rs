//! Sources of a task's mounts: paths of this node, and volumes, which are created if missing.
//!
//! A volume outlives its tasks, so it is deleted only at the request of a manager, never with a task.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use warren_image::{InvalidReference, Reference};
use warren_runtime::{Error as RuntimeError, Runtime};
use warren_task::DesiredState;
use warren_types::spec::{MountSource, is_normalized_relative};
use warren_types::template::{ExpandError, ParseTemplateError, Template, TemplateValues, is_template};
use warren_types::{Bytes, TaskAssignment, VolumeAssignment, VolumeName};
use warren_volume::{ContentDir, ContentError, InitialContent, SubpathMount, SubpathMounts, VolumeBackend};

use crate::handlers::images;

/// Maximum number of users in a message.
const MAX_NAMED_USERS: usize = 5;

/// The volumes of the node, and their users.
pub(crate) struct TaskVolumes {
    driver: Arc<dyn VolumeBackend>,
    subpath_mounts: SubpathMounts,
    runtime: Arc<dyn Runtime>,
    desired_state: watch::Receiver<DesiredState>,
}

/// Sources of a task's mounts on this node.
#[derive(Debug)]
pub(crate) struct MountSources {
    /// One per mount of the task, in order; `None` for tmpfs.
    pub paths: Vec<Option<PathBuf>>,
    /// Subpath mounts: their paths are valid until this is dropped; a created container has its own mounts.
    _subpath_mounts: Vec<SubpathMount>,
}

/// A mount has no source.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountSourceError {
    #[error("{field}: {source}")]
    Parse { field: String, source: ParseTemplateError },
    #[error("{field}: {source}")]
    Expand { field: String, source: ExpandError },
    #[error("{field} expands to {found:?} on this node; expected {expected}")]
    Path { field: String, found: String, expected: &'static str },
    #[error("the assignment has no volume for {field}; the manager may run an older version")]
    Unassigned { field: String },
    #[error("task.image: {0}")]
    Image(#[from] InvalidReference),
    #[error(transparent)]
    Volume(#[from] warren_volume::Error),
}

/// A volume was not deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PurgeError {
    #[error("this node has not received its assignments yet; try again in a moment")]
    Unconfirmed,
    #[error("volume {volume} is in use on this node by {by}")]
    InUse { volume: VolumeName, by: String },
    #[error("cannot list containers to find the users of the volume: {0}")]
    Containers(#[from] RuntimeError),
    #[error("container {container} has an unreadable record and may use the volume; remove it first")]
    Unreadable { container: String },
    #[error(transparent)]
    Volume(#[from] warren_volume::Error),
}

impl MountSourceError {
    /// Whether a retry can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Volume(error) => error.is_transient(),
            Self::Unassigned { .. } => true,
            Self::Parse { .. } | Self::Expand { .. } | Self::Path { .. } | Self::Image(_) => false,
        }
    }
}

impl TaskVolumes {
    /// With a volume backend and its subpath mounts.
    pub fn new(
        driver: Arc<dyn VolumeBackend>,
        pins: SubpathMounts,
        runtime: Arc<dyn Runtime>,
        desired_state: watch::Receiver<DesiredState>,
    ) -> Self {
        Self { driver, subpath_mounts: pins, runtime, desired_state }
    }

    /// Creates the sources of the task's mounts; its image must be on the node. `values` are the task's
    /// template values on this node.
    pub async fn ensure(
        &self,
        task: &TaskAssignment,
        values: &TemplateValues<'_>,
    ) -> Result<MountSources, MountSourceError> {
        let mut sources =
            MountSources { paths: Vec::with_capacity(task.spec.mounts.len()), _subpath_mounts: Vec::new() };
        let mut volumes = task.volumes.iter();
        for (place, mount) in task.spec.mounts.iter().enumerate() {
            let field = |name: &str| format!("task.mounts[{place}].source.{name}");
            let path = match &mount.source {
                MountSource::Tmpfs { .. } => None,
                MountSource::Bind { path, .. } => Some(bind_path(path, || field("bind.path"), values)?),
                MountSource::Volume { subpath, no_copy, .. } => {
                    let unassigned = || MountSourceError::Unassigned { field: field("volume.name") };
                    let volume = volumes.next().ok_or_else(unassigned)?;
                    let subpath =
                        subpath.as_deref().map(|path| subpath_of(path, || field("volume.subpath"), values));
                    let subpath = subpath.transpose()?;
                    // The content of the image at the target is for the whole volume, not for a subpath.
                    let copies = !no_copy && subpath.is_none();
                    let whole = self.volume(task, volume, copies.then(|| Path::new(&mount.target))).await?;
                    Some(match subpath {
                        None => whole,
                        Some(subpath) => {
                            let pin = self.subpath_mounts.mount(&volume.name, &whole, &subpath).await?;
                            let path = pin.path().to_owned();
                            sources._subpath_mounts.push(pin);
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
    ) -> Result<PathBuf, MountSourceError> {
        let VolumeAssignment { name, options } = volume;
        let Some(target) = copied else { return Ok(self.driver.ensure(name, options, None).await?) };
        let first = ImageContent { runtime: &*self.runtime, image: images::image_reference(task)?, target };
        Ok(self.driver.ensure(name, options, Some(&first)).await?)
    }

    /// The volumes of this node; only the named ones, unless `only` is empty.
    pub async fn list(&self, only: &BTreeSet<VolumeName>) -> Result<Vec<VolumeName>, warren_volume::Error> {
        let mut volumes = self.driver.list().await?;
        volumes.retain(|volume| only.is_empty() || only.contains(volume));
        Ok(volumes)
    }

    /// Disk usage of a volume; `None` if it is not on this node.
    pub async fn usage(&self, volume: &VolumeName) -> Result<Option<Bytes>, warren_volume::Error> {
        self.driver.usage(volume).await
    }

    /// Deletes a volume without users on this node. Idempotent.
    pub async fn purge(&self, volume: &VolumeName) -> Result<(), PurgeError> {
        if !self.desired_state.borrow().is_confirmed {
            return Err(PurgeError::Unconfirmed);
        }
        let mut by = BTreeSet::new();
        for found in self.runtime.list().await? {
            // Containers of other clients have no volumes of this node.
            let Some(owner) = found.owner else { continue };
            let Ok(task) = serde_json::from_slice::<TaskAssignment>(&found.assignment) else {
                return Err(PurgeError::Unreadable { container: found.id.to_string() });
            };
            if uses_volume(&task, volume) {
                by.insert(owner.task);
            }
        }
        // After the containers: a task that was assigned meanwhile is seen here.
        let desired = self.desired_state.borrow().tasks.clone();
        by.extend(desired.values().filter(|task| uses_volume(task, volume)).map(|task| task.id.to_string()));
        if !by.is_empty() {
            return Err(PurgeError::InUse { volume: volume.clone(), by: list_users(&by) });
        }
        tracing::info!(%volume, "deleting a volume at the request of a manager");
        Ok(self.driver.remove(volume).await?)
    }

    /// Completes or removes leftovers of a killed agent. Safe at any time.
    pub async fn sweep(&self) -> Result<(), warren_volume::Error> {
        let pins = self.subpath_mounts.sweep().await;
        self.driver.sweep().await?;
        pins.map(|swept| {
            if swept > 0 {
                tracing::info!(swept, "removed leftover subpath mounts")
            }
        })
    }
}

fn uses_volume(task: &TaskAssignment, volume: &VolumeName) -> bool {
    task.volumes.iter().any(|used| used.name == *volume)
}

fn list_users(tasks: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = tasks.iter().map(String::as_str).take(MAX_NAMED_USERS).collect();
    match tasks.len().saturating_sub(MAX_NAMED_USERS) {
        0 => shown.join(", "),
        more => format!("{} and {more} others", shown.join(", ")),
    }
}

/// Content of the task's image at a path.
struct ImageContent<'a> {
    runtime: &'a dyn Runtime,
    image: Reference,
    target: &'a Path,
}

#[tonic::async_trait]
impl InitialContent for ImageContent<'_> {
    async fn open(&self) -> Result<Option<ContentDir>, ContentError> {
        let files = self.runtime.image_files(&self.image).await.map_err(|error| ContentError {
            reason: error.to_string(),
            // A removed image is pulled again before the next try.
            transient: error.is_transient() || matches!(error, RuntimeError::ImageMissing { .. }),
        })?;
        let directory = files.directory(self.target).map_err(|error| ContentError {
            reason: format!("{} in image {}: {error}", self.target.display(), self.image),
            transient: true,
        })?;
        Ok(directory.map(|directory| ContentDir { directory, guard: Box::new(files) }))
    }
}

fn expanded(
    text: &str,
    field: impl Fn() -> String,
    values: &TemplateValues<'_>,
) -> Result<String, MountSourceError> {
    if !is_template(text) {
        return Ok(text.to_owned());
    }
    let template: Template =
        text.parse().map_err(|source| MountSourceError::Parse { field: field(), source })?;
    template.expand(values).map_err(|source| MountSourceError::Expand { field: field(), source })
}

fn bind_path(
    text: &str,
    field: impl Fn() -> String,
    values: &TemplateValues<'_>,
) -> Result<PathBuf, MountSourceError> {
    let found = expanded(text, &field, values)?;
    let is_plain = found.split('/').all(|part| part != "." && part != "..") && !found.contains('\0');
    if !found.starts_with('/') || !is_plain {
        let desired = "an absolute path without '.' and '..'";
        return Err(MountSourceError::Path { field: field(), found, expected: desired });
    }
    Ok(found.into())
}

fn subpath_of(
    text: &str,
    field: impl Fn() -> String,
    values: &TemplateValues<'_>,
) -> Result<String, MountSourceError> {
    let found = expanded(text, &field, values)?;
    match is_normalized_relative(&found) {
        true => Ok(found),
        false => {
            let desired = "a relative path without '.', '..' and empty parts";
            Err(MountSourceError::Path { field: field(), found, expected: desired })
        }
    }
}

#[cfg(test)]
mod containerd_tests;
#[cfg(test)]
mod tests;
