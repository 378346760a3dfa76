//! Making a container: record, file system, process.

use std::path::Path;
use std::sync::Arc;

use containerd_client::services::v1::snapshots as snap;
use containerd_client::services::v1::{
    Container, CreateContainerRequest, CreateTaskRequest, UpdateContainerRequest,
};
use containerd_client::services::v1::{DeleteTaskRequest, GetContainerRequest};
use containerd_client::types::Mount;
use tonic::Status;
use warren_image::{Fault, ImageInfo, Reference, within};

use super::record::Keeper;
use super::{CREATE, RECORD, Shared, TURN, bundle, record};
use crate::container::{ContainerId, ContainerSpec, Process};
use crate::error::Error;
use crate::spec::user::{User, Wanted};
use crate::spec::{DeviceNode, Meant, command, document};
use crate::{Result, host};

impl Shared {
    pub(super) async fn ensure_created(&self, spec: &ContainerSpec) -> Result<()> {
        spec.check()?;
        let image = self.image(&spec.image).await?;
        let devices = look(spec).await?;
        let asked = Wanted::of(spec, &image.config);
        // A user given by name is known only once the file system is there, which must come after the
        // record.
        let known = asked.numeric();
        let mut meant = Meant { user: known.clone().unwrap_or_default(), devices };
        let mut wanted = self.record(spec, &image, &meant)?;
        let existing = self.ensure_record(&wanted).await?;
        if let Some(existing) = &existing {
            if let Some(found) = record::conflict(existing, &wanted) {
                return Err(conflict(&spec.id, found));
            }
            match self.process(&spec.id).await? {
                Process::None => {}
                Process::Created { .. } | Process::Running { .. } => return Ok(()),
                Process::Stopped(exit) => {
                    let found =
                        format!("its process ended with code {}; delete the process first", exit.code);
                    return Err(conflict(&spec.id, found));
                }
                Process::Unknown { reason } => {
                    return Err(Error::Timeout {
                        action: format!("ask about container {}", spec.id),
                        reason,
                    });
                }
            }
        }
        let mounts = self.ensure_snapshot(spec, &image).await?;
        if known.is_none() {
            meant.user = resolve(asked, mounts.clone()).await?;
            wanted = self.record(spec, &image, &meant)?;
        }
        // A fresh record with the right user is what was wanted; anything else may need a change.
        if existing.is_some() || known.is_none() {
            let existing = match existing {
                Some(existing) => existing,
                None => self.get_record(&spec.id).await?.ok_or_else(|| missing(&spec.id))?,
            };
            self.update_record(&existing, &wanted).await?;
        }
        self.create_process(spec, &image, mounts).await
    }

    pub(super) async fn image(&self, image: &Reference) -> Result<Arc<ImageInfo>> {
        let reference = image.to_string();
        let found = self.images.get(image).await.map_err(|error| Error::of_image(&reference, error))?;
        found.ok_or(Error::ImageMissing { reference })
    }

    fn record(&self, spec: &ContainerSpec, image: &ImageInfo, meant: &Meant) -> Result<Container> {
        let document = document(spec, &image.config, meant, &self.settings.cgroup_parent, self.host)?;
        record::new(spec, &image.config, &document, &self.keeper())
    }

    pub(super) fn keeper(&self) -> Keeper<'_> {
        Keeper { snapshotter: &self.settings.snapshotter, program: &self.oci_runtime }
    }

    /// Makes the record unless one has its id, which is then returned.
    async fn ensure_record(&self, wanted: &Container) -> Result<Option<Container>> {
        let request = self.connection.request(CreateContainerRequest { container: Some(wanted.clone()) });
        match within(RECORD, self.connection.containers().create(request)).await {
            Ok(_) => Ok(None),
            Err(status) if Fault::of(&status) == Fault::AlreadyExists => {
                let id = ContainerId::parse(&wanted.id)?;
                Ok(Some(self.get_record(&id).await?.ok_or_else(|| missing(&id))?))
            }
            Err(status) => Err(Error::of(format!("record container {}", wanted.id), &status)),
        }
    }

    pub(super) async fn get_record(&self, id: &ContainerId) -> Result<Option<Container>> {
        let request = self.connection.request(GetContainerRequest { id: id.to_string() });
        match within(RECORD, self.connection.containers().get(request)).await {
            Ok(reply) => Ok(reply.container),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(None),
            Err(status) => Err(Error::of(format!("look up container {id}"), &status)),
        }
    }

    async fn update_record(&self, existing: &Container, wanted: &Container) -> Result<()> {
        let Some((container, paths)) = record::update(existing, wanted) else { return Ok(()) };
        self.send_update(container, paths).await
    }

    async fn send_update(&self, container: Container, paths: Vec<String>) -> Result<()> {
        let id = container.id.clone();
        let update_mask = Some(prost_types::FieldMask { paths });
        let request =
            self.connection.request(UpdateContainerRequest { container: Some(container), update_mask });
        match within(RECORD, self.connection.containers().update(request)).await {
            Ok(_) => Ok(()),
            Err(status) if Fault::of(&status) == Fault::NotFound => {
                Err(Error::NotFound { id, what: "record" })
            }
            Err(status) => Err(Error::of(format!("update container {id}"), &status)),
        }
    }

    pub(super) async fn set_ledger(&self, id: &ContainerId, ledger: &str) -> Result<()> {
        let labels = [(record::LEDGER.to_owned(), ledger.to_owned())].into();
        let container = Container { id: id.to_string(), labels, ..Default::default() };
        self.send_update(container, vec![format!("labels.{}", record::LEDGER)]).await
    }

    /// Makes the writable file system on the image's, or finds it made.
    async fn ensure_snapshot(&self, spec: &ContainerSpec, image: &ImageInfo) -> Result<Vec<Mount>> {
        match self.prepare(&spec.id, image).await {
            Ok(mounts) => Ok(mounts),
            Err(status) => match Fault::of(&status) {
                Fault::AlreadyExists => self.mounts(&spec.id).await,
                // The image's own snapshots are gone or were never made; its content is there.
                Fault::NotFound => {
                    let reference = spec.image.to_string();
                    let unpacked = self.images.ensure_unpacked(image).await;
                    unpacked.map_err(|error| Error::of_image(&reference, error))?;
                    let prepared = self.prepare(&spec.id, image).await;
                    prepared
                        .map_err(|status| Error::of(format!("make the file system of {}", spec.id), &status))
                }
                _ => Err(Error::of(format!("make the file system of {}", spec.id), &status)),
            },
        }
    }

    async fn prepare(&self, id: &ContainerId, image: &ImageInfo) -> std::result::Result<Vec<Mount>, Status> {
        let request = self.connection.request(snap::PrepareSnapshotRequest {
            snapshotter: self.settings.snapshotter.clone(),
            key: id.to_string(),
            parent: image.chain_id.to_string(),
            labels: [(record::CONTAINER.to_owned(), id.to_string())].into(),
        });
        Ok(within(RECORD, self.connection.snapshots().prepare(request)).await?.mounts)
    }

    async fn mounts(&self, id: &ContainerId) -> Result<Vec<Mount>> {
        let snapshotter = self.settings.snapshotter.clone();
        let request = self.connection.request(snap::MountsRequest { snapshotter, key: id.to_string() });
        let reply = within(RECORD, self.connection.snapshots().mounts(request)).await;
        Ok(reply.map_err(|status| Error::of(format!("find the file system of {id}"), &status))?.mounts)
    }

    async fn create_process(
        &self,
        spec: &ContainerSpec,
        image: &ImageInfo,
        mounts: Vec<Mount>,
    ) -> Result<()> {
        let output = spec.log.address(spec.owner.attempt);
        let message = CreateTaskRequest {
            container_id: spec.id.to_string(),
            rootfs: mounts,
            terminal: spec.tty,
            // A terminal has one output.
            stderr: if spec.tty { String::new() } else { output.clone() },
            stdout: output,
            ..Default::default()
        };
        let mut created = self.send_create(&spec.id, message.clone()).await;
        if let Err(status) = &created {
            match Fault::of(status) {
                Fault::AlreadyExists => match self.process(&spec.id).await? {
                    Process::None => self.let_go(&spec.id).await,
                    _ => return Ok(()),
                },
                Fault::Other if self.clear_bundle(&spec.id, status.message()).await => {}
                _ => return Err(create_failed(spec, image, status)),
            }
            created = self.send_create(&spec.id, message).await;
        }
        created.map_err(|status| create_failed(spec, image, &status))
    }

    /// containerd died while it created this process and now neither shows it nor makes it again. Asked to
    /// delete it, it answers that there is nothing, and lets go.
    async fn let_go(&self, id: &ContainerId) {
        let request = self.connection.request(DeleteTaskRequest { container_id: id.to_string() });
        let answer = within(TURN, self.connection.tasks().delete(request)).await;
        tracing::debug!(%id, ?answer, "cleared a half-made process");
    }

    /// Removes what stands in the way of the process, if that is what the message says; says whether it did.
    async fn clear_bundle(&self, id: &ContainerId, message: &str) -> bool {
        let Some(folder) = bundle::in_the_way(message, self.connection.namespace(), id.as_str()) else {
            return false;
        };
        let removed = self.remove_bundle(id, &folder).await;
        tracing::warn!(%id, ?removed, "containerd left a folder in the way of a process");
        removed.is_ok()
    }

    /// containerd looks for a process of that id before it makes a folder, so that it knows of no supervisor there.
    async fn remove_bundle(&self, id: &ContainerId, folder: &Path) -> Result<()> {
        let failed = |error: std::io::Error| Error::Failed {
            action: format!("clear the folder of {id}"),
            reason: error.to_string(),
        };
        bundle::check_abandoned(folder).map_err(failed)?;
        self.kill_supervisors(id).await?;
        bundle::remove(folder).map_err(failed)
    }

    /// Sends the call from a task of its own, so that it ends even when nobody waits for it any more.
    async fn send_create(
        &self,
        id: &ContainerId,
        message: CreateTaskRequest,
    ) -> std::result::Result<(), Status> {
        let turn = self.turns.work(id).await;
        let permit = self.starts.clone().acquire_owned().await.expect("the semaphore is never closed");
        let connection = self.connection.clone();
        let call = async move {
            let _at_work = (turn, permit);
            let request = connection.request(message);
            within(CREATE, connection.tasks().create(request)).await.map(|_| ())
        };
        tokio::spawn(call).await.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
    }
}

/// Looks at the machine, which may have a file system that does not answer.
async fn look(spec: &ContainerSpec) -> Result<Vec<DeviceNode>> {
    let wanted = spec.clone();
    let looking = tokio::task::spawn_blocking(move || host::look(&wanted));
    match tokio::time::timeout(RECORD, looking).await {
        Ok(found) => found.expect("looking at files does not panic"),
        Err(_) => Err(Error::Timeout {
            action: format!("look for what container {} is to be made of", spec.id),
            reason: format!("a file system of the node did not answer within {RECORD:?}"),
        }),
    }
}

/// Looks the wanted user up in the image's own files.
pub(super) async fn resolve(wanted: Wanted, mounts: Vec<Mount>) -> Result<User> {
    let work = move || wanted.resolve_in(&mounts);
    tokio::task::spawn_blocking(work).await.expect("reading two files does not panic")
}

fn create_failed(spec: &ContainerSpec, image: &ImageInfo, status: &Status) -> Error {
    let words = command::words(spec, &image.config).unwrap_or_default();
    let command = words.first().map_or("", String::as_str);
    Error::of_create(spec, command, status)
}

fn conflict(id: &ContainerId, found: String) -> Error {
    Error::Conflict { action: "create", id: id.to_string(), found }
}

fn missing(id: &ContainerId) -> Error {
    Error::NotFound { id: id.to_string(), what: "record" }
}
