//! What a killed agent or containerd can leave behind, found by comparing what exists with what is recorded,
//! at any time.
//!
//! Three things keep what is in the making or on its way out from being taken for it. Whatever is being made
//! has a record first, so existence is looked at before the records. What nobody owns must be seen twice,
//! some seconds apart, since containerd may still be at work for somebody who was killed. And a container that
//! this process works on is left out of each look, and kept from being worked on while its rest is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;

use super::shim::{self, Shim};
use super::turns::Alone;
use super::{RECORD, Shared, folders, record, watch};
use crate::Result;
use crate::container::{ContainerId, Swept};
use crate::error::Error;
use crate::pidfd::{self, Pidfd};
use crate::spec::cgroup_path;
use warren_types::Signal;

/// Between the two looks. What containerd does on its own after somebody was killed is done by then: making a
/// process takes it some 50 ms, and clearing one away 30 ms.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// What nobody owns, as far as a look can tell.
#[derive(Default)]
struct Strays {
    /// Processes that containerd has, without a record of ours.
    tasks: BTreeSet<ContainerId>,
    /// Supervisors that containerd does not know either.
    shims: Vec<Shim>,
    /// File systems, with whose they were.
    snapshots: BTreeMap<String, ContainerId>,
    cgroups: BTreeSet<ContainerId>,
    /// Folders that a process was made in, with whose they were.
    folders: BTreeMap<PathBuf, ContainerId>,
}

impl Strays {
    fn is_empty(&self) -> bool {
        self.shims.is_empty() && self.have_only_shims()
    }

    fn have_only_shims(&self) -> bool {
        self.tasks.is_empty()
            && self.snapshots.is_empty()
            && self.cgroups.is_empty()
            && self.folders.is_empty()
    }

    /// Those that were seen before, too.
    fn seen_in(mut self, before: &Self) -> Self {
        self.tasks.retain(|id| before.tasks.contains(id));
        self.shims.retain(|shim| before.shims.iter().any(|other| other.is(shim)));
        self.snapshots.retain(|name, owner| before.snapshots.get(name) == Some(owner));
        self.cgroups.retain(|id| before.cgroups.contains(id));
        self.folders.retain(|path, owner| before.folders.get(path) == Some(owner));
        self
    }

    /// Waits until it is time for the second look, or until that cannot find any of these: supervisors that
    /// were on their way out.
    async fn settle(&self) {
        let ends = futures::future::join_all(self.shims.iter().map(|shim| pidfd::ended(&shim.pidfd)));
        match self.have_only_shims() {
            true => drop(timeout(SECOND_LOOK, ends).await),
            false => tokio::time::sleep(SECOND_LOOK).await,
        }
    }
}

impl Shared {
    pub(super) async fn sweep_strays(&self) -> Result<Swept> {
        let suspected = self.look().await?;
        if suspected.is_empty() {
            return Ok(Swept::default());
        }
        suspected.settle().await;
        let strays = self.look().await?.seen_in(&suspected);
        Ok(self.end(strays).await)
    }

    async fn look(&self) -> Result<Strays> {
        let cgroups = self.cgroups.children(Path::new(&self.settings.cgroup_parent));
        let shims = shim::all(self.connection.socket(), self.connection.namespace());
        let folders = self.folders().await?;
        let snapshots = self.list_snapshots().await?;
        let (mut owners, mut tasks) = (BTreeSet::new(), BTreeSet::new());
        for record in self.records().await? {
            let Ok(id) = ContainerId::parse(&record.id) else { continue };
            // A sweep that was cut short may have left the record that it made for an orphan.
            let is_stand_in = record.labels.contains_key(record::STAND_IN);
            if is_stand_in { &mut tasks } else { &mut owners }.insert(id);
        }
        let is_stray = |id: &ContainerId| !owners.contains(id) && self.turns.alone(id).is_some();
        let mut shims: Vec<Shim> = shims.into_iter().filter(|shim| is_stray(&shim.id)).collect();
        if !shims.is_empty() {
            let supervised = self.supervised().await?;
            tasks.extend(shims.iter().map(|shim| shim.id.clone()).filter(|id| supervised.contains(id)));
            shims.retain(|shim| !tasks.contains(&shim.id));
        }
        tasks.retain(is_stray);
        let snapshots = snapshots.into_iter().filter_map(|snapshot| {
            let owner = ContainerId::parse(snapshot.labels.get(record::CONTAINER)?).ok()?;
            is_stray(&owner).then_some((snapshot.name, owner))
        });
        let cgroups = cgroups.iter().filter_map(|name| ContainerId::parse(name).ok());
        Ok(Strays {
            tasks,
            shims,
            snapshots: snapshots.collect(),
            cgroups: cgroups.filter(is_stray).collect(),
            folders: folders.into_iter().filter(|(_, owner)| is_stray(owner)).collect(),
        })
    }

    /// The processes that containerd has. Asking takes it longer than anything else here, so it is asked only
    /// when there is a supervisor whose container is not known.
    async fn supervised(&self) -> Result<BTreeSet<ContainerId>> {
        match self.task_ids().await {
            Ok(ids) => Ok(ids.iter().filter_map(|id| ContainerId::parse(id).ok()).collect()),
            // A supervisor that does not answer holds up the list. It may be the very one that nobody
            // wants; those are killed then, and containerd clears away what it had of them.
            Err(Error::Timeout { action, reason }) => {
                tracing::warn!(action, reason, "cannot tell which supervisors containerd knows");
                Ok(BTreeSet::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Removes each of them; one that cannot be removed does not hold up the others.
    async fn end(&self, strays: Strays) -> Swept {
        let mut swept = Swept::default();
        for id in strays.tasks {
            let ended = self.end_task(&id).await;
            note(&mut swept.tasks, &mut swept.failed, id.to_string(), ended);
        }
        for shim in strays.shims {
            let ended = self.end_shim(&shim).await;
            note(&mut swept.shims, &mut swept.failed, shim.id.to_string(), ended);
        }
        for (name, owner) in strays.snapshots {
            let ended = self.end_snapshot(&name, &owner).await;
            note(&mut swept.snapshots, &mut swept.failed, name, ended);
        }
        for id in strays.cgroups {
            let path = cgroup_path(&self.settings.cgroup_parent, &id);
            let ended =
                self.unowned(&id).await.map(|alone| alone.is_some() && self.cgroups.remove_empty(&path));
            note(&mut swept.cgroups, &mut swept.failed, path.display().to_string(), ended);
        }
        if !swept.shims.is_empty() {
            folders::cleared(strays.folders.keys()).await;
        }
        for (path, owner) in strays.folders {
            let ended = self.end_folder(&path, &owner).await;
            note(&mut swept.folders, &mut swept.failed, path.display().to_string(), ended);
        }
        swept
    }

    /// Keeps work on a container from beginning; `None` when some is under way, or was done since the last
    /// look and the container has a record now.
    pub(super) async fn unowned(&self, id: &ContainerId) -> Result<Option<Alone>> {
        let Some(alone) = self.turns.alone(id) else { return Ok(None) };
        let record = self.get_record(id).await?;
        let has_owner = record.is_some_and(|record| !record.labels.contains_key(record::STAND_IN));
        Ok((!has_owner).then_some(alone))
    }

    async fn end_task(&self, id: &ContainerId) -> Result<bool> {
        let Some(_alone) = self.unowned(id).await? else { return Ok(false) };
        self.end_orphan(id).await.map(|()| true)
    }

    async fn end_shim(&self, shim: &Shim) -> Result<bool> {
        let Some(_alone) = self.unowned(&shim.id).await? else { return Ok(false) };
        self.kill_shim(shim).await.map(|()| true)
    }

    /// Kills a supervisor and what it may have made, and removes its socket: nobody else would find these any
    /// more. For one that containerd does not know.
    async fn kill_shim(&self, shim: &Shim) -> Result<()> {
        let failed = |reason: String| Error::Failed {
            action: format!("kill the supervisor of {}, which containerd forgot", shim.id),
            reason,
        };
        let members = self.cgroups.members(&cgroup_path(&self.settings.cgroup_parent, &shim.id));
        let made: Vec<Pidfd> = members.into_iter().filter_map(|pid| watch::open(&shim.id, pid)).collect();
        for process in made.iter().chain([&shim.pidfd]) {
            process.send(Signal::KILL).map_err(|error| failed(error.to_string()))?;
        }
        let ends = futures::future::join_all(made.iter().chain([&shim.pidfd]).map(pidfd::ended));
        if timeout(RECORD, ends).await.is_err() {
            return Err(failed(format!("process {} lives on after {RECORD:?}", shim.pid)));
        }
        match fs::remove_file(&shim.socket) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error.to_string())),
            _ => Ok(()),
        }
    }

    /// Kills every supervisor of a container of which containerd knows none.
    pub(super) async fn kill_supervisors(&self, id: &ContainerId) -> Result<()> {
        let shims = shim::all(self.connection.socket(), self.connection.namespace());
        for shim in shims.iter().filter(|shim| shim.id == *id) {
            self.kill_shim(shim).await?;
        }
        Ok(())
    }

    async fn end_snapshot(&self, name: &str, owner: &ContainerId) -> Result<bool> {
        let Some(_alone) = self.unowned(owner).await? else { return Ok(false) };
        self.remove_snapshot(name).await
    }

    /// Kills the supervisor of a container, and with it the process; containerd then clears what is left. For
    /// one that does not answer any more.
    pub(super) fn end_supervisor(&self, id: &ContainerId) {
        let shims = shim::all(self.connection.socket(), self.connection.namespace());
        for shim in shims.iter().filter(|shim| shim.id == *id) {
            let ended = shim.pidfd.send(Signal::KILL);
            tracing::warn!(%id, ?ended, "a container's supervisor did not answer and was killed");
        }
    }
}

fn note(done: &mut Vec<String>, failed: &mut Vec<String>, name: String, ended: Result<bool>) {
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
    fn only_what_was_seen_twice_counts() {
        let (stays, before, after) = (sleeper(), sleeper(), sleeper());
        let seen = |tasks: [&str; 2], other: &Child, owner: &str| Strays {
            tasks: tasks.map(id).into(),
            shims: vec![shim("a", &stays), shim("b", other)],
            snapshots: [("a".to_owned(), id("a")), ("b".to_owned(), id(owner))].into(),
            cgroups: tasks.map(id).into(),
            folders: [("/a".into(), id("a")), ("/b".into(), id(owner))].into(),
        };
        let strays = seen(["a", "new"], &after, "c").seen_in(&seen(["a", "old"], &before, "b"));
        assert_eq!(strays.tasks, [id("a")].into());
        assert_eq!(strays.shims.iter().map(|shim| shim.pid).collect::<Vec<_>>(), [stays.id()]);
        assert_eq!(strays.snapshots, [("a".to_owned(), id("a"))].into());
        assert_eq!(strays.cgroups, [id("a")].into());
        assert_eq!(strays.folders, [("/a".into(), id("a"))].into());
        assert!(strays.seen_in(&Strays::default()).is_empty());
        [stays, before, after].into_iter().for_each(end);
    }

    #[tokio::test(start_paused = true)]
    async fn supervisors_on_their_way_out_are_not_waited_for_long() {
        let process = sleeper();
        let mut strays = Strays { shims: vec![shim("a", &process)], ..Strays::default() };
        let begun = tokio::time::Instant::now();
        strays.settle().await;
        assert_eq!(begun.elapsed(), SECOND_LOOK);
        end(process);
        let begun = tokio::time::Instant::now();
        strays.settle().await;
        assert!(begun.elapsed() < SECOND_LOOK);
        strays.cgroups.insert(id("a"));
        let begun = tokio::time::Instant::now();
        strays.settle().await;
        assert_eq!(begun.elapsed(), SECOND_LOOK, "nothing tells when a cgroup goes");
    }
}
