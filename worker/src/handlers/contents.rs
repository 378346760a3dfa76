//! The files of a task's secrets and configs.
//!
//! They lie in memory ([`memory`]), each task's in a directory that is whole or not there ([`folders`]), and are got
//! from a manager ([`courier`]) only while they are not: a container is started again without one. Their names on the
//! node are numbers, so that nobody's words become a path.

pub(crate) mod courier;
mod expand;
mod folders;
pub(crate) mod memory;

use std::io;
use std::sync::Arc;

use warren_image::InvalidReference;
use warren_runtime::{Mount, MountSource, RunsAs, Runtime};
use warren_types::spec::{ContentMount, TaskSpec};
use warren_types::{ContentKind, ContentName, NodeSettings, TaskAssignment, TaskId};
use zeroize::Zeroizing;

use crate::handlers::images;
use crate::tasks::contents::{Contents, Has};
use crate::tasks::failure::Failure;
use crate::tasks::templates;
use courier::{Courier, Delivered, FetchError, Need};
use expand::Unexpanded;
use folders::{ContentFile, Folders, Owner};
use memory::{Memory, MemoryError};

/// The files of all tasks of this node.
pub(crate) struct ContentFiles {
    pub memory: Memory,
    pub courier: Arc<dyn Courier>,
    /// Knows as whom a container runs.
    pub runtime: Arc<dyn Runtime>,
}

/// Why a task does not have its files, or why they do not go.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentsError {
    #[error("waiting for a manager: its secrets are not on this node ({0})")]
    Waiting(String),
    #[error(transparent)]
    Fetch(FetchError),
    #[error("the manager did not send {kind} {name}")]
    Missing { kind: ContentKind, name: ContentName },
    #[error("{field}: version {number} of {kind} {name} {source}")]
    Template { field: String, kind: ContentKind, name: ContentName, number: u64, source: Unexpanded },
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(
        "there is no room for them in the memory that is set aside for secrets and configs; run fewer tasks here"
    )]
    Full,
    #[error("their files cannot be {done}: {source}")]
    Files { done: &'static str, source: io::Error },
}

impl From<FetchError> for ContentsError {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Away(why) => Self::Waiting(why),
            error => Self::Fetch(error),
        }
    }
}

impl ContentsError {
    /// Whether trying again can help.
    fn is_transient(&self) -> bool {
        !matches!(self, Self::Fetch(FetchError::Gone(_)) | Self::Template { .. })
    }

    fn of_files(done: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::OutOfMemory => Self::Full,
            _ => Self::Files { done, source },
        }
    }
}

impl From<ContentsError> for Failure {
    fn from(error: ContentsError) -> Self {
        match error.is_transient() {
            true => Self::transient(error.to_string()),
            false => Self::permanent(error.to_string()),
        }
    }
}

/// One secret or config of a task, as its container sees it.
struct Wanted<'a> {
    kind: ContentKind,
    /// Among those of its kind.
    place: usize,
    mount: &'a ContentMount,
}

impl Wanted<'_> {
    /// Of the file on the node.
    fn name(&self) -> String {
        format!("{}-{}", if self.kind == ContentKind::Secret { "secret" } else { "config" }, self.place)
    }

    /// In the service's spec.
    fn field(&self) -> String {
        format!(
            "task.{}[{}]",
            if self.kind == ContentKind::Secret { "secrets" } else { "configs" },
            self.place
        )
    }

    fn target(&self) -> String {
        match self.kind {
            ContentKind::Secret => self.mount.secret_target(),
            _ => self.mount.config_target(),
        }
    }

    fn mode(&self) -> u32 {
        match self.kind {
            ContentKind::Secret => self.mount.secret_mode(),
            _ => self.mount.config_mode(),
        }
    }
}

/// All of them: the secrets and then the configs, in the order of the spec.
fn wanted(spec: &TaskSpec) -> Vec<Wanted<'_>> {
    fn of(kind: ContentKind, mounts: &[ContentMount]) -> impl Iterator<Item = Wanted<'_>> {
        mounts.iter().enumerate().map(move |(place, mount)| Wanted { kind, place, mount })
    }
    of(ContentKind::Secret, &spec.secrets).chain(of(ContentKind::Config, &spec.configs)).collect()
}

impl ContentFiles {
    /// The files of a task that has none, from what a manager sent.
    fn files(
        task: &TaskAssignment,
        node: &NodeSettings,
        delivered: &[Delivered],
        user: RunsAs,
    ) -> Result<Vec<ContentFile>, ContentsError> {
        let values = templates::values(task, node);
        let file = |wanted: Wanted<'_>| {
            let (kind, ContentMount { source: name, uid, gid, template, .. }) = (wanted.kind, wanted.mount);
            let sent = delivered.iter().find(|sent| (sent.kind, &sent.name) == (kind, name));
            let sent = sent.ok_or_else(|| ContentsError::Missing { kind, name: name.clone() })?;
            let bytes = match template {
                false => Zeroizing::new(sent.bytes.to_vec()),
                true => expand::expand(&sent.bytes, &values).map_err(|source| ContentsError::Template {
                    field: wanted.field(),
                    kind,
                    name: name.clone(),
                    number: sent.number,
                    source,
                })?,
            };
            let owner = Owner { uid: uid.unwrap_or(user.uid), gid: gid.unwrap_or(user.gid) };
            Ok(ContentFile { name: wanted.name(), owner, mode: wanted.mode(), bytes })
        };
        wanted(&task.spec).into_iter().map(file).collect()
    }

    /// Whom the files belong to that name nobody.
    async fn user(&self, task: &TaskAssignment) -> Result<RunsAs, Failure> {
        let named = |wanted: &Wanted<'_>| wanted.mount.uid.is_some() && wanted.mount.gid.is_some();
        if wanted(&task.spec).iter().all(named) {
            return Ok(RunsAs::default());
        }
        let invalid = |error: InvalidReference| Failure::permanent(format!("task.image: {error}"));
        let image = images::reference(task).map_err(invalid)?;
        Ok(self.runtime.runs_as(&image, task.spec.user.as_deref()).await?)
    }

    /// Does something with the directories of tasks, away from the threads that others wait for.
    async fn within<T: Send + 'static>(
        &self,
        done: &'static str,
        work: impl FnOnce(Folders<'_>) -> io::Result<T> + Send + 'static,
    ) -> Result<T, ContentsError> {
        let memory = self.memory.clone();
        let worked = tokio::task::spawn_blocking(move || work(Folders(memory.path()))).await;
        worked.expect("a few calls of the system do not panic").map_err(ContentsError::of_files(done))
    }

    async fn mount(&self) -> Result<(), ContentsError> {
        let memory = self.memory.clone();
        let mounted = tokio::task::spawn_blocking(move || memory.ensure()).await;
        Ok(mounted.expect("a few calls of the system do not panic")?)
    }

    fn mounts(&self, task: &TaskAssignment) -> Vec<Mount> {
        let directory = Folders(self.memory.path()).of(&task.id);
        let mount = |wanted: Wanted<'_>| {
            let source = MountSource::File { path: directory.join(wanted.name()) };
            Mount { target: wanted.target().into(), source, read_only: true }
        };
        wanted(&task.spec).into_iter().map(mount).collect()
    }
}

#[tonic::async_trait]
impl Contents for ContentFiles {
    async fn ensure(&self, task: &TaskAssignment, node: &NodeSettings) -> Result<Vec<Mount>, Failure> {
        // In another file system than this they would be on a disk, or not found again.
        self.mount().await?;
        let id = task.id;
        if !self.within("looked for", move |folders| Ok(folders.has(&id))).await? {
            let delivered = self.courier.fetch(Need::Contents(id)).await.map_err(ContentsError::from)?;
            let user = self.user(task).await?;
            let files = Self::files(task, node, &delivered, user)?;
            drop(delivered);
            self.within("written", move |folders| folders.write(&id, &files)).await?;
        }
        Ok(self.mounts(task))
    }

    async fn remove(&self, task: &TaskId) -> Result<(), Failure> {
        let task = *task;
        if !self.memory.is_there() {
            return Ok(());
        }
        Ok(self.within("removed", move |folders| folders.remove(&task)).await?)
    }

    async fn sweep(&self, has: Has<'_>) -> Result<usize, Failure> {
        if !self.memory.is_there() {
            return Ok(0);
        }
        // Few names in memory, and `has` is somebody else's.
        Ok(Folders(self.memory.path()).sweep(has).map_err(ContentsError::of_files("swept"))?)
    }
}

#[cfg(test)]
mod tests;
