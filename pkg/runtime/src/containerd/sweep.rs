//! Finds and removes leftovers of a killed agent or containerd, by comparing existing objects with records,
//! at any time.
//!
//! Three rules protect objects in creation or removal. Objects in creation have a record first, so objects
//! are listed before records. An orphan must be seen twice, some seconds apart, since containerd may still
//! work for a killed caller. And containers that this process works on are skipped in each scan, and locked
//! while their leftovers are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;

use super::locks::ExclusiveLock;
use super::shim::{self, Shim};
use super::{Inner, RECORD_TIMEOUT, orphan_dirs, process_watcher, record};
use crate::Result;
use crate::container::{ContainerId, SweepReport};
use crate::error::Error;
use crate::pidfd::{self, Pidfd};
use crate::spec::cgroup_path;
use warren_types::Signal;

/// Delay between the two scans. Work of containerd after its caller was killed is done by then: creating a
/// process takes some 50 ms, cleaning one up 30 ms.
const SECOND_SCAN_DELAY: Duration = Duration::from_secs(5);

/// Objects without an owner, as of one scan.
#[derive(Default)]
struct Orphans {
    /// Processes of containerd without a record.
    tasks: BTreeSet<ContainerId>,
    /// Shims that containerd does not know either.
    shims: Vec<Shim>,
    /// Snapshots, with their former container.
    snapshots: BTreeMap<String, ContainerId>,
    cgroups: BTreeSet<ContainerId>,
    /// Process directories, with their former container.
    bundle_dirs: BTreeMap<PathBuf, ContainerId>,
}

impl Orphans {
    fn is_empty(&self) -> bool {
        self.shims.is_empty() && self.has_only_shims()
    }

    fn has_only_shims(&self) -> bool {
        self.tasks.is_empty()
            && self.snapshots.is_empty()
            && self.cgroups.is_empty()
            && self.bundle_dirs.is_empty()
    }

    /// The orphans that were in the earlier scan as well.
    fn confirmed_by(mut self, before: &Self) -> Self {
        self.tasks.retain(|id| before.tasks.contains(id));
        self.shims.retain(|shim| before.shims.iter().any(|other| other.is_same_process(shim)));
        self.snapshots.retain(|name, owner| before.snapshots.get(name) == Some(owner));
        self.cgroups.retain(|id| before.cgroups.contains(id));
        self.bundle_dirs.retain(|path, owner| before.bundle_dirs.get(path) == Some(owner));
        self
    }

    /// Waits until the second scan is due, or until it cannot find any of these: shims that were exiting.
    async fn wait_for_second_scan(&self) {
        let ends = futures::future::join_all(self.shims.iter().map(|shim| pidfd::wait_for_exit(&shim.pidfd)));
        match self.has_only_shims() {
            true => drop(timeout(SECOND_SCAN_DELAY, ends).await),
            false => tokio::time::sleep(SECOND_SCAN_DELAY).await,
        }
    }
}

impl Inner {
    pub(super) async fn sweep_orphans(&self) -> Result<SweepReport> {
        let suspected = self.scan().await?;
        if suspected.is_empty() {
            return Ok(SweepReport::default());
        }
        suspected.wait_for_second_scan().await;
        let orphans = self.scan().await?.confirmed_by(&suspected);
        Ok(self.remove_orphans(orphans).await)
    }

    async fn scan(&self) -> Result<Orphans> {
        let cgroups = self.cgroups.children(Path::new(&self.settings.cgroup_parent));
        let shims = shim::find_all(self.connection.socket(), self.connection.namespace());
        let folders = self.bundle_dirs().await?;
        let snapshots = self.list_snapshots().await?;
        let (mut owners, mut tasks) = (BTreeSet::new(), BTreeSet::new());
        for record in self.records().await? {
            let Ok(id) = ContainerId::parse(&record.id) else { continue };
            // An interrupted sweep may have left its placeholder record.
            let is_stand_in = record.labels.contains_key(record::PLACEHOLDER);
            if is_stand_in { &mut tasks } else { &mut owners }.insert(id);
        }
        let is_stray = |id: &ContainerId| !owners.contains(id) && self.locks.try_lock_exclusive(id).is_some();
        let mut shims: Vec<Shim> = shims.into_iter().filter(|shim| is_stray(&shim.id)).collect();
        if !shims.is_empty() {
            let supervised = self.supervised_ids().await?;
            tasks.extend(shims.iter().map(|shim| shim.id.clone()).filter(|id| supervised.contains(id)));
            shims.retain(|shim| !tasks.contains(&shim.id));
        }
        tasks.retain(is_stray);
        let snapshots = snapshots.into_iter().filter_map(|snapshot| {
            let owner = ContainerId::parse(snapshot.labels.get(record::CONTAINER)?).ok()?;
            is_stray(&owner).then_some((snapshot.name, owner))
        });
        let cgroups = cgroups.iter().filter_map(|name| ContainerId::parse(name).ok());
        Ok(Orphans {
            tasks,
            shims,
            snapshots: snapshots.collect(),
            cgroups: cgroups.filter(is_stray).collect(),
            bundle_dirs: folders.into_iter().filter(|(_, owner)| is_stray(owner)).collect(),
        })
    }

    /// The processes that containerd has. This is its slowest query, so it is made only if there is a shim of
    /// an unknown container.
    async fn supervised_ids(&self) -> Result<BTreeSet<ContainerId>> {
        match self.task_ids().await {
            Ok(ids) => Ok(ids.iter().filter_map(|id| ContainerId::parse(id).ok()).collect()),
            // A shim that does not answer blocks the list. It may itself be an orphan; those are killed then,
            // and containerd cleans up after them.
            Err(Error::Timeout { action, reason }) => {
                tracing::warn!(action, reason, "cannot list the supervisors of containerd");
                Ok(BTreeSet::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Removes each of them; a failure does not stop the others.
    async fn remove_orphans(&self, orphans: Orphans) -> SweepReport {
        let mut swept = SweepReport::default();
        for id in orphans.tasks {
            let ended = self.remove_orphan_task(&id).await;
            record_result(&mut swept.tasks, &mut swept.failed, id.to_string(), ended);
        }
        for shim in orphans.shims {
            let ended = self.remove_orphan_shim(&shim).await;
            record_result(&mut swept.shims, &mut swept.failed, shim.id.to_string(), ended);
        }
        for (name, owner) in orphans.snapshots {
            let ended = self.remove_orphan_snapshot(&name, &owner).await;
            record_result(&mut swept.snapshots, &mut swept.failed, name, ended);
        }
        for id in orphans.cgroups {
            let path = cgroup_path(&self.settings.cgroup_parent, &id);
            let ended = self
                .try_lock_unowned(&id)
                .await
                .map(|alone| alone.is_some() && self.cgroups.remove_empty(&path));
            record_result(&mut swept.cgroups, &mut swept.failed, path.display().to_string(), ended);
        }
        if !swept.shims.is_empty() {
            orphan_dirs::wait_until_cleared(orphans.bundle_dirs.keys()).await;
        }
        for (path, owner) in orphans.bundle_dirs {
            let ended = self.remove_bundle_dir(&path, &owner).await;
            record_result(&mut swept.bundle_dirs, &mut swept.failed, path.display().to_string(), ended);
        }
        swept
    }

    /// Locks a container; `None` if a call works on it, or it has got a record since the last scan.
    pub(super) async fn try_lock_unowned(&self, id: &ContainerId) -> Result<Option<ExclusiveLock>> {
        let Some(alone) = self.locks.try_lock_exclusive(id) else { return Ok(None) };
        let record = self.get_record(id).await?;
        let has_owner = record.is_some_and(|record| !record.labels.contains_key(record::PLACEHOLDER));
        Ok((!has_owner).then_some(alone))
    }

    async fn remove_orphan_task(&self, id: &ContainerId) -> Result<bool> {
        let Some(_alone) = self.try_lock_unowned(id).await? else { return Ok(false) };
        self.remove_orphan_process(id).await.map(|()| true)
    }

    async fn remove_orphan_shim(&self, shim: &Shim) -> Result<bool> {
        let Some(_alone) = self.try_lock_unowned(&shim.id).await? else { return Ok(false) };
        self.kill_shim(shim).await.map(|()| true)
    }

    /// Kills a shim that containerd does not know, with the processes it may have created, and removes its
    /// socket: these would never be found again.
    async fn kill_shim(&self, shim: &Shim) -> Result<()> {
        let failed = |reason: String| Error::Failed {
            action: format!("kill the supervisor of {}, which containerd forgot", shim.id),
            reason,
        };
        let members = self.cgroups.processes(&cgroup_path(&self.settings.cgroup_parent, &shim.id));
        let made: Vec<Pidfd> =
            members.into_iter().filter_map(|pid| process_watcher::open_pidfd(&shim.id, pid)).collect();
        for process in made.iter().chain([&shim.pidfd]) {
            process.send(Signal::KILL).map_err(|error| failed(error.to_string()))?;
        }
        let ends = futures::future::join_all(made.iter().chain([&shim.pidfd]).map(pidfd::wait_for_exit));
        if timeout(RECORD_TIMEOUT, ends).await.is_err() {
            return Err(failed(format!("process {} is still alive after {RECORD_TIMEOUT:?}", shim.pid)));
        }
        match fs::remove_file(&shim.socket) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error.to_string())),
            _ => Ok(()),
        }
    }

    /// Kills every shim of a container that containerd does not know.
    pub(super) async fn kill_unknown_shims(&self, id: &ContainerId) -> Result<()> {
        let shims = shim::find_all(self.connection.socket(), self.connection.namespace());
        for shim in shims.iter().filter(|shim| shim.id == *id) {
            self.kill_shim(shim).await?;
        }
        Ok(())
    }

    async fn remove_orphan_snapshot(&self, name: &str, owner: &ContainerId) -> Result<bool> {
        let Some(_alone) = self.try_lock_unowned(owner).await? else { return Ok(false) };
        self.remove_snapshot(name).await
    }

    /// Kills the supervisor of a container, and with it the process; containerd then cleans up. For one that
    /// does not answer any more.
    pub(super) fn kill_supervisor(&self, id: &ContainerId) {
        let shims = shim::find_all(self.connection.socket(), self.connection.namespace());
        for shim in shims.iter().filter(|shim| shim.id == *id) {
            let ended = shim.pidfd.send(Signal::KILL);
            tracing::warn!(%id, ?ended, "killed a container's supervisor that did not answer");
        }
    }
}

fn record_result(done: &mut Vec<String>, failed: &mut Vec<String>, name: String, ended: Result<bool>) {
    match ended {
        Ok(true) => done.push(name),
        Ok(false) => {}
        Err(error) => failed.push(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn id(text: &str) -> ContainerId {
        ContainerId::parse(text).unwrap()
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn shim(of: &str, process: &Child) -> Shim {
        let pidfd = Pidfd::open(process.id()).unwrap();
        Shim { id: id(of), pid: process.id(), pidfd, socket: "/none".into() }
    }

    fn end(mut process: Child) {
        process.kill().unwrap();
        process.wait().unwrap();
    }

    #[test]
    fn only_orphans_seen_twice_are_removed() {
        let (stays, before, after) = (sleeper(), sleeper(), sleeper());
        let seen = |tasks: [&str; 2], other: &Child, owner: &str| Orphans {
            tasks: tasks.map(id).into(),
            shims: vec![shim("a", &stays), shim("b", other)],
            snapshots: [("a".to_owned(), id("a")), ("b".to_owned(), id(owner))].into(),
            cgroups: tasks.map(id).into(),
            bundle_dirs: [("/a".into(), id("a")), ("/b".into(), id(owner))].into(),
        };
        let orphans = seen(["a", "new"], &after, "c").confirmed_by(&seen(["a", "old"], &before, "b"));
        assert_eq!(orphans.tasks, [id("a")].into());
        assert_eq!(orphans.shims.iter().map(|shim| shim.pid).collect::<Vec<_>>(), [stays.id()]);
        assert_eq!(orphans.snapshots, [("a".to_owned(), id("a"))].into());
        assert_eq!(orphans.cgroups, [id("a")].into());
        assert_eq!(orphans.bundle_dirs, [("/a".into(), id("a"))].into());
        assert!(orphans.confirmed_by(&Orphans::default()).is_empty());
        [stays, before, after].into_iter().for_each(end);
    }

    #[tokio::test(start_paused = true)]
    async fn exiting_shims_shorten_the_wait() {
        let process = sleeper();
        let mut orphans = Orphans { shims: vec![shim("a", &process)], ..Orphans::default() };
        let begun = tokio::time::Instant::now();
        orphans.wait_for_second_scan().await;
        assert_eq!(begun.elapsed(), SECOND_SCAN_DELAY);
        end(process);
        let begun = tokio::time::Instant::now();
        orphans.wait_for_second_scan().await;
        assert!(begun.elapsed() < SECOND_SCAN_DELAY);
        orphans.cgroups.insert(id("a"));
        let begun = tokio::time::Instant::now();
        orphans.wait_for_second_scan().await;
        assert_eq!(begun.elapsed(), SECOND_SCAN_DELAY, "nothing reports the end of a cgroup");
    }
}
