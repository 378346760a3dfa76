//! Creates a container: record, file system, process.

use std::path::Path;
use std::sync::Arc;

use containerd_client::services::v1::snapshots as snap;
use containerd_client::services::v1::{
    Container, CreateContainerRequest, CreateTaskRequest, UpdateContainerRequest,
};
use containerd_client::services::v1::{DeleteTaskRequest, GetContainerRequest};
use containerd_client::types::Mount;
use tonic::Status;
use warren_image::{CallError, ImageInfo, Reference, with_deadline};
use warren_types::{ID_RANGE_SIZE, IdRange};

use super::create_error::create_error;
use super::record::RecordPlugins;
use super::{CREATE_TIMEOUT, DELETE_TIMEOUT, Inner, RECORD_TIMEOUT, bundle, input_pipe, layer, record};
use crate::container::{ContainerId, ContainerSpec, ProcessState, SeccompPolicy};
use crate::error::Error;
use crate::exec_plan::exec_plan;
use crate::spec::user::{RequestedUser, User};
use crate::spec::{DeviceNode, ResolvedSpec, command, document};
use crate::user_namespace::{self, MappedMounts};
use crate::{Result, host_check};

impl Inner {
    pub(super) async fn ensure_created(&self, spec: &ContainerSpec) -> Result<()> {
        spec.validate()?;
        let image = self.image(&spec.image).await?;
        if spec.user_namespace.is_some() {
            user_namespace::check_node(self.connection.socket().parent().unwrap_or(Path::new("/")))?;
        }
        let devices = check_host(spec).await?;
        let apparmor = self.apparmor.profile(&spec.apparmor, spec.privileged).await?;
        let asked = RequestedUser::from_spec(spec, &image.config);
        // A user given by name is resolved after the file system exists, which must come after the record.
        let known = asked.numeric();
        let ids = spec.user_namespace.as_ref().map(|users| users.ids);
        known.as_ref().map_or(Ok(()), |user| check_ids(user, ids))?;
        let mut meant = ResolvedSpec { user: known.clone().unwrap_or_default(), devices, apparmor };
        let mut desired = self.record(spec, &image, &meant).await?;
        let existing = self.ensure_record(&desired).await?;
        if let Some(existing) = &existing {
            if let Some(found) = record::conflict_reason(existing, &desired) {
                return Err(conflict(&spec.id, found));
            }
            match self.process(&spec.id).await? {
                ProcessState::Absent => {}
                ProcessState::Created { .. } | ProcessState::Running { .. } => return Ok(()),
                ProcessState::Stopped(exit) => {
                    let found =
                        format!("its process ended with code {}; delete the process first", exit.code);
                    return Err(conflict(&spec.id, found));
                }
                ProcessState::Unknown { reason } => {
                    return Err(Error::Timeout { action: format!("inspect container {}", spec.id), reason });
                }
            }
        }
        let mounts = self.ensure_snapshot(spec, &image).await?;
        if let Some(limit) = spec.storage_limit {
            self.limit_layer(&spec.id, limit, &mounts).await;
        }
        if known.is_none() {
            meant.user = resolve_user(asked, mounts.clone()).await?;
            check_ids(&meant.user, ids)?;
            desired = self.record(spec, &image, &meant).await?;
        }
        // A new record with the right user is complete; others may need an update.
        if existing.is_some() || known.is_none() {
            let existing = match existing {
                Some(existing) => existing,
                None => self.get_record(&spec.id).await?.ok_or_else(|| missing(&spec.id))?,
            };
            self.update_record(&existing, &desired).await?;
        }
        self.create_process(spec, &image, meant.user.uid, mounts).await
    }

    pub(super) async fn image(&self, image: &Reference) -> Result<Arc<ImageInfo>> {
        let reference = image.to_string();
        let found = self.images.get(image).await.map_err(|error| Error::from_image(&reference, error))?;
        found.ok_or(Error::ImageMissing { reference })
    }

    async fn record(
        &self,
        spec: &ContainerSpec,
        image: &ImageInfo,
        meant: &ResolvedSpec,
    ) -> Result<Container> {
        let document = document(spec, &image.config, meant, &self.settings.cgroup_parent, self.host)?;
        if let SeccompPolicy::Profile(_) = spec.seccomp {
            // Not only when the first program is to run in the container.
            let checked = document.clone();
            let checking = tokio::task::spawn_blocking(move || exec_plan(&checked).map(drop));
            let compiled = checking.await.expect("compiling a filter does not panic");
            compiled.map_err(|reason| Error::invalid_field("seccomp", reason))?;
        }
        record::new_record(spec, &image.config, &document, &self.plugins())
    }

    pub(super) fn plugins(&self) -> RecordPlugins<'_> {
        RecordPlugins { snapshotter: &self.settings.snapshotter, program: &self.oci_runtime }
    }

    /// Creates the record unless one has its id, which is then returned.
    async fn ensure_record(&self, desired: &Container) -> Result<Option<Container>> {
        let request = self.connection.request(CreateContainerRequest { container: Some(desired.clone()) });
        match with_deadline(RECORD_TIMEOUT, self.connection.containers().create(request)).await {
            Ok(_) => Ok(None),
            Err(status) if CallError::from_status(&status) == CallError::AlreadyExists => {
                let id = ContainerId::parse(&desired.id)?;
                Ok(Some(self.get_record(&id).await?.ok_or_else(|| missing(&id))?))
            }
            Err(status) => Err(Error::from_status(format!("record container {}", desired.id), &status)),
        }
    }

    pub(super) async fn get_record(&self, id: &ContainerId) -> Result<Option<Container>> {
        let request = self.connection.request(GetContainerRequest { id: id.to_string() });
        match with_deadline(RECORD_TIMEOUT, self.connection.containers().get(request)).await {
            Ok(reply) => Ok(reply.container),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(None),
            Err(status) => Err(Error::from_status(format!("look up container {id}"), &status)),
        }
    }

    async fn update_record(&self, existing: &Container, desired: &Container) -> Result<()> {
        let Some((container, paths)) = record::record_update(existing, desired) else { return Ok(()) };
        self.send_update(container, paths).await
    }

    async fn send_update(&self, container: Container, paths: Vec<String>) -> Result<()> {
        let id = container.id.clone();
        let update_mask = Some(prost_types::FieldMask { paths });
        let request =
            self.connection.request(UpdateContainerRequest { container: Some(container), update_mask });
        match with_deadline(RECORD_TIMEOUT, self.connection.containers().update(request)).await {
            Ok(_) => Ok(()),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => {
                Err(Error::NotFound { id, what: "record" })
            }
            Err(status) => Err(Error::from_status(format!("update container {id}"), &status)),
        }
    }

    pub(super) async fn set_attempt_history(&self, id: &ContainerId, history: &str) -> Result<()> {
        let labels = [(record::ATTEMPT_HISTORY.to_owned(), history.to_owned())].into();
        let container = Container { id: id.to_string(), labels, ..Default::default() };
        self.send_update(container, vec![format!("labels.{}", record::ATTEMPT_HISTORY)]).await
    }

    /// Creates the writable snapshot on the image's, or finds it.
    async fn ensure_snapshot(&self, spec: &ContainerSpec, image: &ImageInfo) -> Result<Vec<Mount>> {
        match self.prepare_snapshot(&spec.id, image).await {
            Ok(mounts) => Ok(mounts),
            Err(status) => match CallError::from_status(&status) {
                CallError::AlreadyExists => self.find_mounts(&spec.id).await?.ok_or_else(|| Error::Failed {
                    action: format!("find the file system of {}", spec.id),
                    reason: "it was removed meanwhile".to_owned(),
                }),
                // The image's snapshots were removed or never created; its content is there.
                CallError::NotFound => {
                    let reference = spec.image.to_string();
                    let unpacked = self.images.ensure_unpacked(image).await;
                    unpacked.map_err(|error| Error::from_image(&reference, error))?;
                    let prepared = self.prepare_snapshot(&spec.id, image).await;
                    prepared.map_err(|status| {
                        Error::from_status(format!("create the file system of {}", spec.id), &status)
                    })
                }
                _ => Err(Error::from_status(format!("create the file system of {}", spec.id), &status)),
            },
        }
    }

    async fn prepare_snapshot(
        &self,
        id: &ContainerId,
        image: &ImageInfo,
    ) -> std::result::Result<Vec<Mount>, Status> {
        let request = self.connection.request(snap::PrepareSnapshotRequest {
            snapshotter: self.settings.snapshotter.clone(),
            key: id.to_string(),
            parent: image.chain_id.to_string(),
            labels: [(record::CONTAINER.to_owned(), id.to_string())].into(),
        });
        Ok(with_deadline(RECORD_TIMEOUT, self.connection.snapshots().prepare(request)).await?.mounts)
    }

    async fn create_process(
        &self,
        spec: &ContainerSpec,
        image: &ImageInfo,
        uid: u32,
        mounts: Vec<Mount>,
    ) -> Result<()> {
        let first_id = spec.user_namespace.as_ref().map(|users| users.ids.first);
        if let Some(input) = &spec.stdin {
            input_pipe::ensure(&input.pipe, first_id.unwrap_or(0).saturating_add(uid))?;
        }
        let (mounts, mapped) = map_users(spec, mounts).await?;
        let pipe = spec.stdin.as_ref().map(|input| input.pipe.display().to_string());
        let output = spec.log.uri(spec.owner.attempt, spec.stdin.is_some(), first_id);
        let message = CreateTaskRequest {
            container_id: spec.id.to_string(),
            rootfs: mounts,
            terminal: spec.tty,
            stdin: pipe.unwrap_or_default(),
            // A terminal has one output.
            stderr: if spec.tty { String::new() } else { output.clone() },
            stdout: output,
            ..Default::default()
        };
        let mut created = self.send_create(&spec.id, message.clone(), &mapped).await;
        if let Err(status) = &created {
            match CallError::from_status(status) {
                CallError::AlreadyExists => match self.process(&spec.id).await? {
                    ProcessState::Absent => self.release_process(&spec.id).await,
                    _ => return Ok(()),
                },
                CallError::Other if layer::is_lost(&message.rootfs) => {
                    self.remove_snapshot(spec.id.as_str()).await?;
                    let action = format!("create the file system of {}", spec.id);
                    return Err(Error::Failed { action, reason: status.message().to_owned() });
                }
                CallError::Other if self.clear_bundle(&spec.id, status.message()).await => {}
                _ => return Err(create_failed(spec, image, status)),
            }
            created = self.send_create(&spec.id, message, &mapped).await;
        }
        created.map_err(|status| create_failed(spec, image, &status))
    }

    /// containerd died while it created this process and now neither lists nor creates it. A delete request
    /// is answered with "not found", but releases the process.
    async fn release_process(&self, id: &ContainerId) {
        let request = self.connection.request(DeleteTaskRequest { container_id: id.to_string() });
        let answer = with_deadline(DELETE_TIMEOUT, self.connection.tasks().delete(request)).await;
        tracing::debug!(%id, ?answer, "released a partly created process");
    }

    /// Removes a bundle that blocks the process, if the message is about one; returns whether it was removed.
    async fn clear_bundle(&self, id: &ContainerId, message: &str) -> bool {
        let Some(folder) = bundle::blocking_bundle(message, self.connection.namespace(), id.as_str()) else {
            return false;
        };
        let removed = self.remove_bundle(id, &folder).await;
        tracing::warn!(%id, ?removed, "removed abandoned containerd bundle");
        removed.is_ok()
    }

    /// containerd checks for a process of that id before it creates a bundle, so it has no supervisor there.
    async fn remove_bundle(&self, id: &ContainerId, folder: &Path) -> Result<()> {
        let failed = |error: std::io::Error| Error::Failed {
            action: format!("remove the bundle of {id}"),
            reason: error.to_string(),
        };
        bundle::check_abandoned(folder).map_err(failed)?;
        self.kill_unknown_shims(id).await?;
        bundle::remove(folder).map_err(failed)
    }

    /// Sends the call from its own task, so that it completes even if the caller is cancelled, with the mounts that it
    /// needs.
    async fn send_create(
        &self,
        id: &ContainerId,
        message: CreateTaskRequest,
        mapped: &Arc<MappedMounts>,
    ) -> std::result::Result<(), Status> {
        let turn = self.locks.lock_shared(id).await;
        let permit = self.start_permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (connection, mapped) = (self.connection.clone(), Arc::clone(mapped));
        let call = async move {
            let _at_work = (turn, permit, mapped);
            let request = connection.request(message);
            with_deadline(CREATE_TIMEOUT, connection.tasks().create(request)).await.map(|_| ())
        };
        tokio::spawn(call).await.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
    }
}

/// Checks the machine, which may have a file system that does not answer.
async fn check_host(spec: &ContainerSpec) -> Result<Vec<DeviceNode>> {
    let desired = spec.clone();
    let looking = tokio::task::spawn_blocking(move || host_check::check_host(&desired));
    match tokio::time::timeout(RECORD_TIMEOUT, looking).await {
        Ok(found) => found.expect("looking at files does not panic"),
        Err(_) => Err(Error::Timeout {
            action: format!("check the host for container {}", spec.id),
            reason: format!("a file system of the node did not answer within {RECORD_TIMEOUT:?}"),
        }),
    }
}

/// Mounts what a container with a user namespace of its own is created from; its file system for the OCI runtime.
async fn map_users(spec: &ContainerSpec, mounts: Vec<Mount>) -> Result<(Vec<Mount>, Arc<MappedMounts>)> {
    let Some(users) = spec.user_namespace.clone() else { return Ok((mounts, Arc::default())) };
    let desired = spec.clone();
    let mapping = tokio::task::spawn_blocking(move || user_namespace::map(&desired, &users, mounts));
    match tokio::time::timeout(RECORD_TIMEOUT, mapping).await {
        Ok(mapped) => {
            let (mounts, mapped) = mapped.expect("mounting does not panic")?;
            Ok((mounts, Arc::new(mapped)))
        }
        Err(_) => Err(Error::Timeout {
            action: format!("mount the files of container {}", spec.id),
            reason: format!("a file system of the node did not answer within {RECORD_TIMEOUT:?}"),
        }),
    }
}

/// Refuses a user that does not exist in the user namespace of the container.
pub(super) fn check_ids(user: &User, ids: Option<IdRange>) -> Result<()> {
    let Some(ids) = ids else { return Ok(()) };
    let mut all = [user.uid, user.gid].into_iter().chain(user.groups.iter().copied());
    match all.find(|id| ids.on_node(*id).is_none()) {
        None => Ok(()),
        Some(id) => {
            let reason = format!("{id} is not one of the {ID_RANGE_SIZE} ids of its user namespace");
            Err(Error::invalid_field("user", reason))
        }
    }
}

/// Resolves the user with the image's files.
pub(super) async fn resolve_user(desired: RequestedUser, mounts: Vec<Mount>) -> Result<User> {
    let work = move || desired.resolve_in(&mounts);
    tokio::task::spawn_blocking(work).await.expect("reading two files does not panic")
}

fn create_failed(spec: &ContainerSpec, image: &ImageInfo, status: &Status) -> Error {
    let words = command::command_line(spec, &image.config).unwrap_or_default();
    let command = words.first().map_or("", String::as_str);
    create_error(spec, command, status)
}

fn conflict(id: &ContainerId, found: String) -> Error {
    Error::Conflict { action: "create", id: id.to_string(), found }
}

fn missing(id: &ContainerId) -> Error {
    Error::NotFound { id: id.to_string(), what: "record" }
}
