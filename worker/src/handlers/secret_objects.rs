//! Files of a task's secrets and configs.
//!
//! They are in memory ([`tmpfs`]), in one directory per task that is complete or absent ([`task_dirs`]), and
//! are fetched from a manager only if absent: a container restarts without one. File names on
//! the node are numbers, so that no user input becomes a path.

mod task_dirs;
mod template;
pub(crate) mod tmpfs;

use std::fs;
use std::io;
use std::sync::Arc;

use warren_image::InvalidReference;
use warren_runtime::{ContainerMount, ContainerMountSource, ContainerUser, Error as RuntimeError, Runtime};
use warren_types::spec::{SecretObjectMount, TaskSpec};
use warren_types::{
    IdRange, SeccompProfile, SecretObjectKind, SecretObjectName, TaskAssignment, TaskId, TemplateValues,
    Violations,
};
use zeroize::Zeroizing;

use crate::handlers::images;
use crate::handlers::secret_fetcher::{FetchPurpose, FetchedObject, SecretFetchError, SecretFetcher};
use crate::handlers::user_namespaces::{UserNamespaceError, UserNamespaces, is_private};
use task_dirs::{FileOwner, SecretFile, TaskSecretDirs};
use template::TemplateError;
use tmpfs::{SecretTmpfs, SecretTmpfsError};

/// The file of a task's seccomp profile, which is not mounted.
const SECCOMP_FILE: &str = "seccomp";

/// Whether the node has a task.
pub(crate) type HasTask<'a> = &'a (dyn for<'t> Fn(&'t TaskId) -> bool + Send + Sync);

/// The files of tasks' secrets and configs on this node.
#[tonic::async_trait]
pub(crate) trait SecretObjects: Send + Sync {
    /// Creates the files if they are incomplete, and returns their mounts: one per secret and then one per
    /// config, in the order of the spec. A manager is asked only for missing files. Templates are expanded with
    /// `values`.
    async fn ensure(
        &self,
        task: &TaskAssignment,
        values: &TemplateValues<'_>,
    ) -> Result<Vec<ContainerMount>, SecretObjectsError>;

    /// The seccomp profile that the task has in a config, once its files exist; `None` if it has none of its own.
    async fn seccomp_profile(
        &self,
        task: &TaskAssignment,
    ) -> Result<Option<SeccompProfile>, SecretObjectsError>;

    /// Removes the files of a task, if any.
    async fn remove(&self, task: &TaskId) -> Result<(), SecretObjectsError>;

    /// Removes the files of unknown tasks; returns the number of tasks.
    async fn sweep(&self, has: HasTask<'_>) -> Result<usize, SecretObjectsError>;
}

/// The files of all tasks of this node, in a tmpfs.
pub(crate) struct TmpfsSecretObjects {
    pub tmpfs: SecretTmpfs,
    pub fetcher: Arc<dyn SecretFetcher>,
    /// Resolves the user of a container.
    pub runtime: Arc<dyn Runtime>,
    pub user_namespaces: Arc<UserNamespaces>,
}

/// Files of a task could not be created or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretObjectsError {
    #[error("waiting for a manager to send secrets: {0}")]
    WaitingForManager(String),
    #[error(transparent)]
    Fetch(SecretFetchError),
    #[error("the manager did not send {kind} {name}")]
    Missing { kind: SecretObjectKind, name: SecretObjectName },
    #[error("{field}: version {number} of {kind} {name}: {source}")]
    Template {
        field: String,
        kind: SecretObjectKind,
        name: SecretObjectName,
        number: u64,
        source: TemplateError,
    },
    #[error(
        "{field}: user and group must be less than 65536 in a user namespace of its own; here {uid} and {gid}"
    )]
    NoSuchUser { field: String, uid: u32, gid: u32 },
    #[error("task.seccomp: config {name}: {source}")]
    Seccomp { name: SecretObjectName, source: Violations },
    #[error(transparent)]
    Users(#[from] UserNamespaceError),
    #[error("task.image: {0}")]
    Image(#[from] InvalidReference),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Tmpfs(#[from] SecretTmpfsError),
    #[error("the tmpfs for secrets and configs is full; run fewer tasks on this node")]
    Full,
    #[error("secret files cannot be {done}: {source}")]
    Files { done: &'static str, source: io::Error },
}

impl From<SecretFetchError> for SecretObjectsError {
    fn from(error: SecretFetchError) -> Self {
        match error {
            SecretFetchError::NoManager(why) => Self::WaitingForManager(why),
            error => Self::Fetch(error),
        }
    }
}

impl SecretObjectsError {
    /// Whether a retry can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Fetch(SecretFetchError::VersionGone(_))
            | Self::Template { .. }
            | Self::NoSuchUser { .. }
            | Self::Seccomp { .. }
            | Self::Image(_) => false,
            Self::Runtime(error) => error.is_transient(),
            _ => true,
        }
    }

    fn files_error(done: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::OutOfMemory => Self::Full,
            _ => Self::Files { done, source },
        }
    }
}

/// One secret or config of a task.
struct ObjectMount<'a> {
    kind: SecretObjectKind,
    /// Index among those of its kind.
    index: usize,
    mount: &'a SecretObjectMount,
}

impl ObjectMount<'_> {
    /// Name of the file on the node.
    fn file_name(&self) -> String {
        format!("{}-{}", if self.kind == SecretObjectKind::Secret { "secret" } else { "config" }, self.index)
    }

    /// Path in the service's spec.
    fn spec_path(&self) -> String {
        format!(
            "task.{}[{}]",
            if self.kind == SecretObjectKind::Secret { "secrets" } else { "configs" },
            self.index
        )
    }

    fn target(&self) -> String {
        match self.kind {
            SecretObjectKind::Secret => self.mount.secret_target(),
            _ => self.mount.config_target(),
        }
    }

    fn mode(&self) -> u32 {
        match self.kind {
            SecretObjectKind::Secret => self.mount.secret_mode(),
            _ => self.mount.config_mode(),
        }
    }
}

/// All of them: secrets, then configs, in the order of the spec.
fn object_mounts(spec: &TaskSpec) -> Vec<ObjectMount<'_>> {
    fn object_mounts_of_kind(
        kind: SecretObjectKind,
        mounts: &[SecretObjectMount],
    ) -> impl Iterator<Item = ObjectMount<'_>> {
        mounts.iter().enumerate().map(move |(place, mount)| ObjectMount { kind, index: place, mount })
    }
    object_mounts_of_kind(SecretObjectKind::Secret, &spec.secrets)
        .chain(object_mounts_of_kind(SecretObjectKind::Config, &spec.configs))
        .collect()
}

fn find_object<'a>(
    delivered: &'a [FetchedObject],
    kind: SecretObjectKind,
    name: &SecretObjectName,
) -> Result<&'a FetchedObject, SecretObjectsError> {
    let sent = delivered.iter().find(|sent| (sent.kind, &sent.name) == (kind, name));
    sent.ok_or_else(|| SecretObjectsError::Missing { kind, name: name.clone() })
}

impl TmpfsSecretObjects {
    /// Builds the files of a task from fetched secret objects.
    fn fetch_files(
        task: &TaskAssignment,
        values: &TemplateValues<'_>,
        delivered: &[FetchedObject],
        user: ContainerUser,
        ids: Option<IdRange>,
    ) -> Result<Vec<SecretFile>, SecretObjectsError> {
        let file = |desired: ObjectMount<'_>| {
            let (kind, SecretObjectMount { source: name, uid, gid, template, .. }) =
                (desired.kind, desired.mount);
            let sent = find_object(delivered, kind, name)?;
            let bytes = match template {
                false => Zeroizing::new(sent.bytes.to_vec()),
                true => {
                    template::expand(&sent.bytes, values).map_err(|source| SecretObjectsError::Template {
                        field: desired.spec_path(),
                        kind,
                        name: name.clone(),
                        number: sent.version,
                        source,
                    })?
                }
            };
            let (uid, gid) = (uid.unwrap_or(user.uid), gid.unwrap_or(user.gid));
            let on_node = |id| ids.map_or(Some(id), |ids| ids.on_node(id));
            let (Some(uid), Some(gid)) = (on_node(uid), on_node(gid)) else {
                return Err(SecretObjectsError::NoSuchUser { field: desired.spec_path(), uid, gid });
            };
            let owner = FileOwner { uid, gid };
            Ok(SecretFile { name: desired.file_name(), owner, mode: desired.mode(), bytes })
        };
        let profile = task.spec.seccomp.config().map(|name| -> Result<_, SecretObjectsError> {
            let sent = find_object(delivered, SecretObjectKind::Config, name)?;
            let (name, owner) = (SECCOMP_FILE.to_owned(), FileOwner { uid: 0, gid: 0 });
            Ok(SecretFile { name, owner, mode: 0o400, bytes: Zeroizing::new(sent.bytes.to_vec()) })
        });
        object_mounts(&task.spec).into_iter().map(file).chain(profile).collect()
    }

    /// Default owner of the files.
    async fn file_owner(&self, task: &TaskAssignment) -> Result<ContainerUser, SecretObjectsError> {
        let named = |desired: &ObjectMount<'_>| desired.mount.uid.is_some() && desired.mount.gid.is_some();
        if object_mounts(&task.spec).iter().all(named) {
            return Ok(ContainerUser::default());
        }
        let image = images::image_reference(task)?;
        Ok(self.runtime.resolve_user(&image, task.spec.user.as_deref()).await?)
    }

    /// Runs blocking work on the directories of tasks.
    async fn run_blocking<T: Send + 'static>(
        &self,
        done: &'static str,
        work: impl FnOnce(TaskSecretDirs<'_>) -> io::Result<T> + Send + 'static,
    ) -> Result<T, SecretObjectsError> {
        let memory = self.tmpfs.clone();
        let worked = tokio::task::spawn_blocking(move || work(TaskSecretDirs(memory.path()))).await;
        worked.expect("a few calls of the system do not panic").map_err(SecretObjectsError::files_error(done))
    }

    async fn ensure_mounted(&self) -> Result<(), SecretObjectsError> {
        let memory = self.tmpfs.clone();
        let mounted = tokio::task::spawn_blocking(move || memory.ensure()).await;
        Ok(mounted.expect("a few calls of the system do not panic")?)
    }

    fn mounts(&self, task: &TaskAssignment) -> Vec<ContainerMount> {
        let directory = TaskSecretDirs(self.tmpfs.path()).path(&task.id);
        let mount = |desired: ObjectMount<'_>| {
            let source = ContainerMountSource::File { path: directory.join(desired.file_name()) };
            ContainerMount { target: desired.target().into(), source, read_only: true }
        };
        object_mounts(&task.spec).into_iter().map(mount).collect()
    }
}

#[tonic::async_trait]
impl SecretObjects for TmpfsSecretObjects {
    async fn ensure(
        &self,
        task: &TaskAssignment,
        values: &TemplateValues<'_>,
    ) -> Result<Vec<ContainerMount>, SecretObjectsError> {
        // In another file system they would be on a disk, or not found again.
        self.ensure_mounted().await?;
        let id = task.id;
        if !self.run_blocking("looked for", move |folders| Ok(folders.is_complete(&id))).await? {
            let delivered = self.fetcher.fetch(FetchPurpose::TaskSecretObjects(id)).await?;
            let user = self.file_owner(task).await?;
            let users = is_private(task).then(|| self.user_namespaces.claim(id)).transpose()?;
            let ids = users.map(|users| users.ids);
            let files = Self::fetch_files(task, values, &delivered, user, ids)?;
            drop(delivered);
            self.run_blocking("written", move |folders| folders.write(&id, &files)).await?;
        }
        Ok(self.mounts(task))
    }

    async fn seccomp_profile(
        &self,
        task: &TaskAssignment,
    ) -> Result<Option<SeccompProfile>, SecretObjectsError> {
        let Some(name) = task.spec.seccomp.config() else { return Ok(None) };
        let id = task.id;
        let json = self.run_blocking("read", move |folders| fs::read(folders.path(&id).join(SECCOMP_FILE)));
        let parsed = SeccompProfile::parse_accepted(&json.await?);
        parsed.map(Some).map_err(|source| SecretObjectsError::Seccomp { name: name.clone(), source })
    }

    async fn remove(&self, task: &TaskId) -> Result<(), SecretObjectsError> {
        let task = *task;
        if !self.tmpfs.is_present() {
            return Ok(());
        }
        self.run_blocking("removed", move |folders| folders.remove(&task)).await
    }

    async fn sweep(&self, has: HasTask<'_>) -> Result<usize, SecretObjectsError> {
        if !self.tmpfs.is_present() {
            return Ok(0);
        }
        // Few names in memory, and `has` is the caller's.
        TaskSecretDirs(self.tmpfs.path()).sweep(has).map_err(SecretObjectsError::files_error("swept"))
    }
}

#[cfg(test)]
mod tests;
