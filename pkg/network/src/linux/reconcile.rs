//! Full reconciliations: everything that was requested is compared with the kernel and repaired.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use futures::StreamExt;

use super::process::run_on_thread;
use super::requested::RequestedState;
use super::{LinuxInner, attach, node};
use crate::Error;
use crate::desired::{TaskLink, desired_node, task_links};
use crate::keys::TaskKey;
use crate::model::Repairs;
use crate::names::link_name;

/// Limit of tasks attached or detached concurrently in a reconciliation. Removing a link mostly waits for
/// the kernel, and concurrent removals share that wait.
const MAX_CONCURRENT: usize = 64;

/// Runs futures concurrently with a limit, and records their results.
async fn run_concurrently<F>(work: impl Iterator<Item = F>, repairs: &mut Repairs)
where
    F: Future<Output = Result<Vec<String>, Error>>,
{
    let mut outcomes = futures::stream::iter(work).buffer_unordered(MAX_CONCURRENT);
    while let Some(outcome) = outcomes.next().await {
        repairs.record(outcome);
    }
}

impl LinuxInner {
    /// Reconciles settings, gateway, overlay, routes and chains of the node itself.
    pub(super) async fn ensure_node(&self) -> Repairs {
        let Some(requested) = self.state().network.clone() else {
            return Repairs { failed: vec![Error::NodeNotConfigured], ..Repairs::default() };
        };
        let wants_overlay = requested.settings.overlay().is_some();
        let desired = desired_node(&requested);
        let paths = self.wireguard.clone();
        let outcome = run_on_thread("setting up the node", move || Ok(node::ensure(&desired, &paths))).await;
        let (mut repairs, has_overlay) =
            outcome.unwrap_or_else(|error| (Repairs { failed: vec![error], ..Repairs::default() }, false));
        self.state().lacks_overlay = wants_overlay && !has_overlay;
        let mut written = self.firewall.lock().await;
        // Taken after the lock: a write that waited for it must not be undone.
        let (published, version) = {
            let state = self.state();
            let Some(published) = state.published() else { return repairs };
            (published, state.version)
        };
        let outcome = written.firewall.reconcile(&published).await;
        if outcome.is_ok() {
            written.version = version;
        }
        repairs.record(outcome);
        repairs
    }

    /// Reconciles everything in dependency order; a failed part does not stop the next.
    pub(super) async fn ensure_all(&self) -> Repairs {
        let not_held = self.hold(RequestedState::hold_requested).await;
        let mut repairs = self.ensure_node().await;
        repairs.failed.extend(not_held);
        let links = self.state().network.as_ref().map(task_links).unwrap_or_default();
        self.remove_orphans(&links, &mut repairs).await;
        let directory = self.directory.clone();
        let by_task: BTreeMap<TaskKey, TaskLink> =
            links.iter().map(|link| (link.task.clone(), link.clone())).collect();
        let broken = run_on_thread("inspecting tasks", move || attach::inspect(&directory, &links)).await;
        let broken = broken.unwrap_or_else(|error| {
            repairs.failed.push(error);
            Vec::new()
        });
        let again = broken.into_iter().filter_map(|(task, reason)| {
            let link = by_task.get(&task)?.clone();
            Some(async move {
                let done = vec![format!("attached task {task} again: {reason}")];
                self.attach(link, None).await.map(|_| done)
            })
        });
        run_concurrently(again, &mut repairs).await;
        repairs
    }

    /// Removes tasks and links of this crate that are not requested.
    async fn remove_orphans(&self, links: &[TaskLink], repairs: &mut Repairs) {
        let (directory, desired) = (self.directory.clone(), links.to_vec());
        let found = run_on_thread("looking for leftovers", move || {
            Ok((attach::orphan_tasks(&directory, &desired)?, attach::orphan_links(&desired)?))
        });
        let (tasks, names) = match found.await {
            Ok(found) => found,
            Err(error) => return repairs.failed.push(error),
        };
        let mut names: BTreeSet<String> = names.into_iter().collect();
        for task in &tasks {
            names.remove(&link_name(task));
        }
        let tasks = tasks.into_iter().map(|task| async move {
            let done = vec![format!("removed leftover task {task}")];
            self.detach(task).await.map(|_| done)
        });
        run_concurrently(tasks, repairs).await;
        let links = names.into_iter().map(|name| async move {
            let done = vec![format!("removed leftover link {name}")];
            run_on_thread("removing a link", move || attach::remove_link(&name, None)).await.map(|()| done)
        });
        run_concurrently(links, repairs).await;
    }

    pub(super) async fn remove_node(&self) -> Result<(), Error> {
        // Chains first: no traffic to a task being removed, and no port is held without rules.
        let mut written = self.firewall.lock().await;
        written.firewall.remove().await?;
        {
            let mut state = self.state();
            // Addresses are kept until the tasks are removed, for their connection tracking entries.
            if let Some(asked) = &mut state.network {
                asked.ports.clear();
            }
            state.ports.retain(&BTreeSet::new());
        }
        let mut repairs = Repairs::default();
        self.remove_orphans(&[], &mut repairs).await;
        if let Some(error) = repairs.failed.into_iter().next() {
            return Err(error);
        }
        let (directory, paths) = (self.directory.clone(), self.wireguard.clone());
        run_on_thread("removing the node's routes", move || {
            node::remove(&paths)?;
            match std::fs::remove_dir(&directory) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::File { operation: "remove", path: directory, source })
                }
                _ => Ok(()),
            }
        })
        .await?;
        self.state().network = None;
        Ok(())
    }
}
