//! User namespaces of tasks: the ids of the node that each task has, and the namespaces themselves.
//!
//! The directory `<first id>.<task id>` is the record of a task's ids: it is created before they are used, holds the
//! namespace while the task has a network, and is removed when nothing of the task has them any more. It does not
//! survive a reboot, after which only the writable layers of containers have ids: these are in the records of the
//! containers, from which they are [adopted](UserNamespaces::adopt).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use warren_runtime::{Error as RuntimeError, PrivateUsers};
use warren_types::{ID_RANGE_SIZE, IdRange, TaskAssignment, TaskId, UserNamespace};

/// The ids of a node for user namespaces, each with [`ID_RANGE_SIZE`] of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserIds {
    first: u32,
    /// How many user namespaces have room.
    namespaces: u32,
}

impl Default for UserIds {
    /// Above those of `useradd` for subordinate ids (up to 600,100,000) and of systemd for its containers (up to
    /// 1,879,048,191), and below 2^31, which some programs treat as negative: 1,879,048,192 to 2,147,352,575.
    fn default() -> Self {
        Self { first: 0x7000_0000, namespaces: 0xffe }
    }
}

impl UserIds {
    fn ranges(self) -> impl Iterator<Item = IdRange> {
        (0..self.namespaces).map(move |number| IdRange { first: self.first + number * ID_RANGE_SIZE })
    }
}

impl FromStr for UserIds {
    type Err = String;

    /// `FIRST-LAST`; ids after the last whole range are not used.
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('-').and_then(|(first, last)| {
            let number = |text: &str| text.parse::<u32>().ok().filter(|_| !text.starts_with('+'));
            Some((number(first)?, number(last)?))
        });
        let (first, last) = numbers.ok_or("give FIRST-LAST, like 1879048192-2147352575")?;
        if first < ID_RANGE_SIZE {
            return Err(format!("ids below {ID_RANGE_SIZE} are those of users of the node"));
        }
        if last == u32::MAX {
            return Err(format!("{last} is not an id"));
        }
        let namespaces = last.checked_sub(first).map_or(0, |rest| rest.saturating_add(1) / ID_RANGE_SIZE);
        match namespaces {
            0 => Err(format!("a user namespace has {ID_RANGE_SIZE} ids; give at least as many")),
            _ => Ok(Self { first, namespaces }),
        }
    }
}

impl fmt::Display for UserIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.first + (self.namespaces * ID_RANGE_SIZE - 1))
    }
}

impl Serialize for UserIds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UserIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The user namespaces of this node's tasks.
#[derive(Debug)]
pub(crate) struct UserNamespaces {
    root: PathBuf,
    ids: UserIds,
    /// `warren-namespaces`.
    program: PathBuf,
    /// `None` before the directory was read.
    known: Mutex<Option<BTreeMap<TaskId, IdRange>>>,
    /// Ids of containers that are not those of tasks.
    foreign: Mutex<Vec<IdRange>>,
}

/// A user namespace was not made or not removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserNamespaceError {
    #[error(
        "all ids of this node for user namespaces ({0}) are in use; give it more with --user-namespace-ids"
    )]
    Exhausted(UserIds),
    #[error("cannot {action} {path}: {source}")]
    Record { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Whether the containers of a task have a user namespace of their own.
pub(crate) fn is_private(task: &TaskAssignment) -> bool {
    task.spec.user_namespace == Some(UserNamespace::Private)
}

impl UserNamespaces {
    /// Below `root`, which only this agent uses and which does not survive a reboot. Nothing is read yet.
    pub fn new(root: PathBuf, ids: UserIds, program: PathBuf) -> Self {
        Self { root, ids, program, known: Mutex::default(), foreign: Mutex::default() }
    }

    /// The ids of a task, and the place of its namespace. Every call has the same result until they are released.
    pub fn claim(&self, task: TaskId) -> Result<PrivateUsers, UserNamespaceError> {
        let mut known = self.lock();
        let known = self.known(&mut known)?;
        let ids = match known.get(&task) {
            Some(ids) => *ids,
            None => self.choose(known)?,
        };
        let users = self.record(task, ids)?;
        known.insert(task, ids);
        Ok(users)
    }

    /// The lowest range that nothing overlaps.
    fn choose(&self, known: &BTreeMap<TaskId, IdRange>) -> Result<IdRange, UserNamespaceError> {
        let foreign = self.foreign.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: BTreeSet<u32> = known.values().chain(foreign.iter()).map(|ids| ids.first).collect();
        // The node may have had other ids before.
        let overlaps =
            |first: u32| first.saturating_sub(ID_RANGE_SIZE - 1)..=first.saturating_add(ID_RANGE_SIZE - 1);
        let free = self.ids.ranges().find(|ids| taken.range(overlaps(ids.first)).next().is_none());
        free.ok_or(UserNamespaceError::Exhausted(self.ids))
    }

    /// Records the ids of a task that a container has. No other task gets them, also if they cannot be recorded.
    pub fn adopt(&self, task: TaskId, ids: IdRange) -> Result<(), UserNamespaceError> {
        let mut known = self.lock();
        let known = self.known(&mut known)?;
        let ids = *known.entry(task).or_insert(ids);
        self.record(task, ids).map(drop)
    }

    /// Gives no task the ids of these containers, which are of no task of this cluster. Replaces those of earlier
    /// calls.
    pub fn set_foreign(&self, ids: Vec<IdRange>) {
        *self.foreign.lock().unwrap_or_else(PoisonError::into_inner) = ids;
    }

    /// Makes the namespace of a task unless it exists, and with `network` a network namespace that belongs to it.
    /// Returns the file of the latter.
    pub async fn ensure(&self, task: TaskId, network: bool) -> Result<Option<PathBuf>, UserNamespaceError> {
        let users = self.claim(task)?;
        let network = network.then(|| users.directory.join("net"));
        users.ensure(network.as_deref(), &self.program).await?;
        Ok(network)
    }

    /// Removes the namespace of a task that has no process any more, and keeps its ids. Idempotent.
    pub fn remove_namespace(&self, task: &TaskId) -> Result<(), UserNamespaceError> {
        let mut known = self.lock();
        let known = self.known(&mut known)?;
        let Some(ids) = known.get(task) else { return Ok(()) };
        Ok(self.users(*task, *ids).clear()?)
    }

    /// Frees the ids of a task that has neither container nor files any more, and removes its namespace. Idempotent.
    pub fn release(&self, task: &TaskId) -> Result<(), UserNamespaceError> {
        let mut known = self.lock();
        let known = self.known(&mut known)?;
        let Some(ids) = known.get(task) else { return Ok(()) };
        self.users(*task, *ids).remove()?;
        known.remove(task);
        if known.is_empty() {
            // Others may have put something there.
            let _ = fs::remove_dir(&self.root);
        }
        Ok(())
    }

    /// Releases the ids of tasks for which `has` is false; returns how many.
    pub fn sweep(&self, has: impl Fn(&TaskId) -> bool) -> Result<usize, UserNamespaceError> {
        let all: Vec<TaskId> = {
            let mut known = self.lock();
            self.known(&mut known)?.keys().copied().collect()
        };
        let orphans = all.iter().filter(|task| !has(task));
        orphans.map(|task| self.release(task)).try_fold(0, |count, released| released.map(|()| count + 1))
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<TaskId, IdRange>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The recorded ids, which are read once.
    fn known<'a>(
        &self,
        known: &'a mut Option<BTreeMap<TaskId, IdRange>>,
    ) -> Result<&'a mut BTreeMap<TaskId, IdRange>, UserNamespaceError> {
        let read = match known.take() {
            Some(known) => known,
            None => recorded(&self.root).map_err(|source| failed("list", &self.root, source))?,
        };
        Ok(known.insert(read))
    }

    fn users(&self, task: TaskId, ids: IdRange) -> PrivateUsers {
        PrivateUsers { ids, directory: self.root.join(format!("{}.{task}", ids.first)) }
    }

    /// Creates the record unless it exists.
    fn record(&self, task: TaskId, ids: IdRange) -> Result<PrivateUsers, UserNamespaceError> {
        let users = self.users(task, ids);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&users.directory);
        made.map_err(|source| failed("create", &users.directory, source))?;
        Ok(users)
    }
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> UserNamespaceError {
    UserNamespaceError::Record { action, path: path.to_owned(), source }
}

/// The recorded ids; other names are ignored.
fn recorded(root: &Path) -> io::Result<BTreeMap<TaskId, IdRange>> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let name = entry?.file_name();
        let parts = name.to_str().and_then(|name| name.split_once('.'));
        let parsed: Option<(TaskId, u32)> =
            parts.and_then(|(first, task)| Some((task.parse().ok()?, first.parse().ok()?)));
        found.extend(parsed.map(|(task, first)| (task, IdRange { first })));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::task_id;

    const FIRST: u32 = 1_000_000;

    fn namespaces(root: &Path) -> UserNamespaces {
        let ids = format!("{FIRST}-{}", FIRST + 2 * ID_RANGE_SIZE).parse().unwrap();
        UserNamespaces::new(root.to_owned(), ids, "/none".into())
    }

    fn first(namespaces: &UserNamespaces, number: u64) -> u32 {
        namespaces.claim(task_id(number)).unwrap().ids.first
    }

    #[test]
    fn ids_are_given_once_and_survive_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("user-namespaces");
        let one = namespaces(&root);
        let second = FIRST + ID_RANGE_SIZE;
        assert_eq!([first(&one, 1), first(&one, 2), first(&one, 1)], [FIRST, second, FIRST]);
        let full = one.claim(task_id(3)).unwrap_err();
        assert!(matches!(full, UserNamespaceError::Exhausted(_)), "{full}");
        assert!(full.to_string().contains("(1000000-1131071)"), "{full}");
        fs::write(root.join("notes"), "a person's").unwrap();

        let next = namespaces(&root);
        assert_eq!(first(&next, 2), second);
        for _ in 0..2 {
            next.release(&task_id(1)).unwrap();
        }
        assert_eq!(first(&next, 3), FIRST, "the lowest that is free");
        assert_eq!(next.sweep(|task| *task == task_id(3)).unwrap(), 1);
        assert_eq!(next.sweep(|task| *task == task_id(3)).unwrap(), 0);
        next.release(&task_id(3)).unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
        fs::remove_file(root.join("notes")).unwrap();
        assert_eq!(first(&next, 4), FIRST);
        next.release(&task_id(4)).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn ids_of_containers_are_not_given_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let after_reboot = namespaces(dir.path());
        for _ in 0..2 {
            after_reboot.adopt(task_id(7), IdRange { first: FIRST }).unwrap();
        }
        assert_eq!(first(&after_reboot, 8), FIRST + ID_RANGE_SIZE);
        assert_eq!(first(&after_reboot, 7), FIRST);
        // What the node gave out of other ids overlaps the first range.
        let changed = namespaces(&dir.path().join("changed"));
        changed.adopt(task_id(1), IdRange { first: FIRST - 1 }).unwrap();
        assert_eq!(first(&changed, 2), FIRST + ID_RANGE_SIZE);
        // A task that has some keeps them.
        after_reboot.adopt(task_id(8), IdRange { first: 7_000_000 }).unwrap();
        assert_eq!(first(&namespaces(dir.path()), 8), FIRST + ID_RANGE_SIZE);
    }

    #[test]
    fn ids_that_cannot_be_recorded_are_not_given_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("user-namespaces");
        let after_reboot = namespaces(&root);
        assert_eq!(first(&after_reboot, 9), FIRST);
        after_reboot.release(&task_id(9)).unwrap();
        fs::write(&root, "no directory can be created").unwrap();
        let ids = IdRange { first: FIRST };
        after_reboot.adopt(task_id(7), ids).unwrap_err();
        fs::remove_file(&root).unwrap();
        assert_eq!(first(&after_reboot, 8), FIRST + ID_RANGE_SIZE);
        for _twice in 0..2 {
            after_reboot.adopt(task_id(7), ids).unwrap();
        }
        assert_eq!(first(&namespaces(&root), 7), FIRST, "it is recorded now");
    }

    #[test]
    fn ids_of_containers_of_others_are_not_given_out() {
        let dir = tempfile::tempdir().unwrap();
        let known = namespaces(dir.path());
        known.set_foreign(vec![IdRange { first: FIRST + 5 }]);
        known.claim(task_id(1)).unwrap_err();
        known.set_foreign(vec![IdRange { first: FIRST }]);
        assert_eq!(first(&known, 1), FIRST + ID_RANGE_SIZE);
        known.set_foreign(Vec::new());
        assert_eq!(first(&known, 2), FIRST);
    }

    #[test]
    fn namespace_is_removed_before_the_ids_are_free() {
        let dir = tempfile::tempdir().unwrap();
        let known = namespaces(dir.path());
        let directory = known.claim(task_id(1)).unwrap().directory;
        for name in ["user", "net"] {
            fs::write(directory.join(name), "").unwrap();
        }
        for _twice in 0..2 {
            known.remove_namespace(&task_id(1)).unwrap();
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        }
        assert_eq!([first(&known, 2), first(&known, 1)], [FIRST + ID_RANGE_SIZE, FIRST]);
        known.remove_namespace(&task_id(3)).unwrap();
    }

    #[test]
    fn ids_of_a_node_are_whole_ranges() {
        let default = UserIds::default();
        assert_eq!(default.to_string(), "1879048192-2147352575");
        assert_eq!(default.to_string().parse(), Ok(default));
        assert_eq!(default.ranges().count(), 4094);
        assert_eq!("100000-300000".parse::<UserIds>().unwrap().to_string(), "100000-296607");
        assert_eq!("4294901759-4294967294".parse::<UserIds>().unwrap().ranges().count(), 1);
        for bad in [
            "",
            "1000000",
            "a-b",
            "0-1000000",
            "65535-1000000",
            "100000-165534",
            "2-1",
            "+70000-900000",
            "100000-4294967295",
        ] {
            assert!(bad.parse::<UserIds>().is_err(), "{bad}");
        }
    }
}
