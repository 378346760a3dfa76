//! Removing a container, whole or half-made.

use containerd_client::services::v1::snapshots as snap;
use containerd_client::services::v1::{
    CreateContainerRequest, DeleteContainerRequest, ListTasksRequest, WaitRequest,
};
use warren_image::{Fault, within};

use super::{LIST, RECORD, Shared, TURN, record};
use crate::Result;
use crate::container::{ContainerId, Process};
use crate::error::Error;
use crate::spec::cgroup_path;
use warren_types::Signal;

impl Shared {
    pub(super) async fn remove(&self, id: &ContainerId) -> Result<()> {
        // Most processes have ended before, and those need no place among the ones that are ended: where many are
        // removed at once, the first is gone before the last has ended.
        match self.process(id).await? {
            Process::None => self.end_process(id).await?,
            _ => self.delete_process(id).await?,
        };
        if !self.delete_record(id).await?
            && self.has_cgroup(id)
            && self.task_ids().await?.contains(id.as_str())
        {
            self.end_orphan(id).await?;
        }
        if self.remove_snapshot(id.as_str()).await? {
            self.removed.notify_one();
        }
        self.cgroups.remove_empty(&cgroup_path(&self.settings.cgroup_parent, id));
        Ok(())
    }

    /// Says whether there was a record.
    async fn delete_record(&self, id: &ContainerId) -> Result<bool> {
        let request = self.connection.request(DeleteContainerRequest { id: id.to_string() });
        match within(RECORD, self.connection.containers().delete(request)).await {
            Ok(()) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("delete the record of container {id}"), &status)),
        }
    }

    /// Says whether there was such a snapshot.
    pub(super) async fn remove_snapshot(&self, key: &str) -> Result<bool> {
        let snapshotter = self.settings.snapshotter.clone();
        let request =
            self.connection.request(snap::RemoveSnapshotRequest { snapshotter, key: key.to_owned() });
        match within(TURN, self.connection.snapshots().remove(request)).await {
            Ok(()) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("remove the file system of container {key}"), &status)),
        }
    }

    /// Every process that containerd supervises in our namespace, with a record or without.
    pub(super) async fn task_ids(&self) -> Result<std::collections::BTreeSet<String>> {
        let request = self.connection.request(ListTasksRequest { filter: String::new() });
        let reply = within(LIST, self.connection.tasks().list(request)).await;
        let tasks = reply.map_err(|status| Error::of("list processes", &status))?.tasks;
        // containerd names the container in the field `id` here.
        Ok(tasks
            .into_iter()
            .map(|task| if task.id.is_empty() { task.container_id } else { task.id })
            .collect())
    }

    /// Ends a process whose record was deleted under it. containerd answers nothing about it until it has
    /// one again.
    pub(super) async fn end_orphan(&self, id: &ContainerId) -> Result<()> {
        let container = record::stand_in(id, &self.keeper());
        let request = self.connection.request(CreateContainerRequest { container: Some(container) });
        match within(RECORD, self.connection.containers().create(request)).await {
            Err(status) if Fault::of(&status) != Fault::AlreadyExists => {
                return Err(Error::of(format!("adopt the orphaned process {id}"), &status));
            }
            _ => {}
        }
        self.kill(id, Signal::KILL).await?;
        let message = WaitRequest { container_id: id.to_string(), exec_id: String::new() };
        match within(TURN, self.connection.tasks().wait(self.connection.request(message))).await {
            Err(status) if Fault::of(&status) != Fault::NotFound => {
                return Err(Error::of(format!("wait for the orphaned process {id}"), &status));
            }
            _ => {}
        }
        self.delete_process(id).await?;
        self.delete_record(id).await.map(|_| ())
    }

    fn has_cgroup(&self, id: &ContainerId) -> bool {
        let children = self.cgroups.children(std::path::Path::new(&self.settings.cgroup_parent));
        children.contains(id.as_str())
    }
}
