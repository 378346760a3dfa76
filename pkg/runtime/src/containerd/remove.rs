//! Removes a container, complete or partly created.

use containerd_client::services::v1::snapshots as snap;
use containerd_client::services::v1::{
    CreateContainerRequest, DeleteContainerRequest, ListTasksRequest, WaitRequest,
};
use warren_image::{CallError, with_deadline};

use super::{DELETE_TIMEOUT, Inner, LIST_TIMEOUT, RECORD_TIMEOUT, record};
use crate::Result;
use crate::container::{ContainerId, ProcessState};
use crate::error::Error;
use crate::spec::cgroup_path;
use warren_types::Signal;

impl Inner {
    pub(super) async fn remove(&self, id: &ContainerId) -> Result<()> {
        // Ended processes need no permit: of many removals at once, the first completes before the last
        // process has ended.
        match self.process(id).await? {
            ProcessState::Absent => self.end_process(id).await?,
            _ => self.delete_process(id).await?,
        };
        if !self.delete_record(id).await?
            && self.has_cgroup(id)
            && self.task_ids().await?.contains(id.as_str())
        {
            self.remove_orphan_process(id).await?;
        }
        if self.remove_snapshot(id.as_str()).await? {
            self.removed.notify_one();
        }
        self.cgroups.remove_empty(&cgroup_path(&self.settings.cgroup_parent, id));
        Ok(())
    }

    /// Returns whether a record existed.
    async fn delete_record(&self, id: &ContainerId) -> Result<bool> {
        let request = self.connection.request(DeleteContainerRequest { id: id.to_string() });
        match with_deadline(RECORD_TIMEOUT, self.connection.containers().delete(request)).await {
            Ok(()) => Ok(true),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(false),
            Err(status) => Err(Error::from_status(format!("delete the record of container {id}"), &status)),
        }
    }

    /// Returns whether the snapshot existed.
    pub(super) async fn remove_snapshot(&self, key: &str) -> Result<bool> {
        let snapshotter = self.settings.snapshotter.clone();
        let request =
            self.connection.request(snap::RemoveSnapshotRequest { snapshotter, key: key.to_owned() });
        match with_deadline(DELETE_TIMEOUT, self.connection.snapshots().remove(request)).await {
            Ok(()) => Ok(true),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(false),
            Err(status) => {
                Err(Error::from_status(format!("remove the file system of container {key}"), &status))
            }
        }
    }

    /// Every process in the namespace, with or without a record.
    pub(super) async fn task_ids(&self) -> Result<std::collections::BTreeSet<String>> {
        let request = self.connection.request(ListTasksRequest { filter: String::new() });
        let reply = with_deadline(LIST_TIMEOUT, self.connection.tasks().list(request)).await;
        let tasks = reply.map_err(|status| Error::from_status("list processes", &status))?.tasks;
        // containerd has the container's name in the field `id` here.
        Ok(tasks
            .into_iter()
            .map(|task| if task.id.is_empty() { task.container_id } else { task.id })
            .collect())
    }

    /// Ends a process whose record was deleted. containerd returns nothing about it until it has a record
    /// again.
    pub(super) async fn remove_orphan_process(&self, id: &ContainerId) -> Result<()> {
        let container = record::placeholder_record(id, &self.plugins());
        let request = self.connection.request(CreateContainerRequest { container: Some(container) });
        match with_deadline(RECORD_TIMEOUT, self.connection.containers().create(request)).await {
            Err(status) if CallError::from_status(&status) != CallError::AlreadyExists => {
                return Err(Error::from_status(format!("adopt the orphaned process {id}"), &status));
            }
            _ => {}
        }
        self.kill(id, Signal::KILL).await?;
        let message = WaitRequest { container_id: id.to_string(), exec_id: String::new() };
        match with_deadline(DELETE_TIMEOUT, self.connection.tasks().wait(self.connection.request(message)))
            .await
        {
            Err(status) if CallError::from_status(&status) != CallError::NotFound => {
                return Err(Error::from_status(format!("wait for the orphaned process {id}"), &status));
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
