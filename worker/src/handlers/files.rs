//! The directory of a task: files for name resolution in its container, and its log.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use warren_container_logs::segment;
use warren_network::files::{TaskNetworkFiles, ensure_files};
use warren_task::RetainedLogFiles;
use warren_types::{Bytes, RetainedLog, TaskAssignment, TaskId, Timestamp};

/// Longest host name in Linux (`HOST_NAME_MAX`, uname(2)), less one to be a DNS label.
const MAX_HOSTNAME: usize = 63;

/// The directories of all tasks: `<root>/<task id>/`.
#[derive(Debug, Clone)]
pub(crate) struct TaskDirs {
    root: PathBuf,
}

/// How a task resolves names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskResolver {
    /// The address of its own name.
    pub address: Ipv4Addr,
    /// The content of its `/etc/resolv.conf`.
    pub resolv_conf: String,
}

/// The directory of a task could not be written or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskDirError {
    #[error(transparent)]
    Write(#[from] warren_network::Error),
    #[error("cannot create {path}: {source}")]
    Create { path: PathBuf, source: io::Error },
    #[error("cannot remove {path}: {source}")]
    Remove { path: PathBuf, source: io::Error },
    #[error("cannot list {path}: {source}")]
    List { path: PathBuf, source: io::Error },
}

impl TaskDirs {
    /// Below `root`.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn path(&self, task: &TaskId) -> PathBuf {
        self.root.join(task.to_string())
    }

    /// The directory of the container's output.
    pub fn log_dir(&self, task: &TaskId) -> PathBuf {
        self.path(task).join("output")
    }

    /// The pipe of the container's standard input.
    pub fn stdin(&self, task: &TaskId) -> PathBuf {
        self.path(task).join("stdin")
    }

    /// Writes the task's files if they differ.
    pub async fn ensure(
        &self,
        task: &TaskAssignment,
        resolver: &TaskResolver,
    ) -> Result<TaskNetworkFiles, TaskDirError> {
        let further = task.spec.hosts.iter().map(|host| (host.name.clone(), host.address));
        let (name, further) = (hostname(task), further.collect::<Vec<_>>());
        self.create_log_dir(&task.id).await?;
        let directory = self.path(&task.id);
        let TaskResolver { address, resolv_conf } = resolver;
        Ok(ensure_files(&directory, &name, *address, &further, resolv_conf).await?)
    }

    /// Creates the directory of the task's log, but not the data directory of the node, which must exist.
    async fn create_log_dir(&self, task: &TaskId) -> Result<(), TaskDirError> {
        let paths = [self.root.clone(), self.path(task), self.log_dir(task)];
        let create = move || {
            paths.into_iter().try_for_each(|path| match std::fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                made => made.map_err(|source| TaskDirError::Create { path, source }),
            })
        };
        tokio::task::spawn_blocking(create).await.expect("creating directories does not panic")
    }

    /// Removes the task's directory with its log.
    pub async fn remove(&self, task: &TaskId) -> Result<(), TaskDirError> {
        remove(&self.path(task)).await
    }

    /// Removes the task's files and retains its log. Without a log nothing is left.
    pub async fn remove_all_but_log(&self, task: &TaskId) -> Result<(), TaskDirError> {
        let log = self.log_dir(task);
        if segment::list(&log).map_or(true, |segments| segments.is_empty()) {
            return self.remove(task).await;
        }
        let path = self.path(task);
        let listing = |source| TaskDirError::List { path: path.clone(), source };
        let mut entries = tokio::fs::read_dir(&path).await.map_err(listing)?;
        while let Some(entry) = entries.next_entry().await.map_err(listing)? {
            if entry.path() == log {
                continue;
            }
            let is_dir = entry.file_type().await.is_ok_and(|kind| kind.is_dir());
            match is_dir {
                true => remove(&entry.path()).await?,
                false => ignore_missing(&entry.path(), tokio::fs::remove_file(entry.path()).await)?,
            }
        }
        Ok(())
    }

    /// The sizes and ages of these logs; those that do not exist are left out.
    pub async fn list_retained_logs(
        &self,
        logs: Vec<RetainedLog>,
    ) -> Result<Vec<RetainedLogFiles>, TaskDirError> {
        let dirs = self.clone();
        let read =
            move || logs.into_iter().filter_map(|log| dirs.retained_log_files(log).transpose()).collect();
        tokio::task::spawn_blocking(read).await.expect("listing files does not panic")
    }

    fn retained_log_files(&self, log: RetainedLog) -> Result<Option<RetainedLogFiles>, TaskDirError> {
        let path = self.log_dir(&log.task);
        let listing = |source| TaskDirError::List { path: path.clone(), source };
        let segments = match segment::list(&path) {
            Ok(segments) => segments,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(listing(error)),
        };
        let (mut size, mut written_at) = (Bytes(0), Timestamp(0));
        for number in segments {
            let metadata = match std::fs::metadata(segment::segment_path(&path, number)) {
                // Removed by rotation in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found.map_err(listing)?,
            };
            let written = metadata.modified().map_err(listing)?;
            let since = written.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            size.0 = size.0.saturating_add(metadata.len());
            written_at = written_at.max(Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)));
        }
        Ok(Some(RetainedLogFiles { log, size, written_at }))
    }

    /// The directory of all.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Removes all directories of unknown tasks; returns how many. `has` is called for each directory found,
    /// so a task must be known before its directory is created. Other names are ignored.
    pub async fn sweep(&self, has: impl Fn(&TaskId) -> bool) -> Result<usize, TaskDirError> {
        let listing = |source| TaskDirError::List { path: self.root.clone(), source };
        let mut entries = match tokio::fs::read_dir(&self.root).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(listing(error)),
        };
        let mut removed = 0;
        while let Some(entry) = entries.next_entry().await.map_err(listing)? {
            let task = entry.file_name().to_str().and_then(|name| name.parse::<TaskId>().ok());
            if task.is_some_and(|task| !has(&task)) {
                remove(&entry.path()).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

async fn remove(path: &Path) -> Result<(), TaskDirError> {
    ignore_missing(path, tokio::fs::remove_dir_all(path).await)
}

fn ignore_missing(path: &Path, removed: io::Result<()>) -> Result<(), TaskDirError> {
    match removed {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(TaskDirError::Remove { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Host name of the task's container: the configured one, or `web-3`, with the service's name truncated to
/// fit.
pub(crate) fn hostname(task: &TaskAssignment) -> String {
    if let Some(desired) = &task.spec.hostname {
        return desired.clone();
    }
    let slot = format!("-{}", task.slot);
    let room = MAX_HOSTNAME - slot.len();
    let service = task.service.as_str();
    // A service's name is ASCII, so every index is a character boundary.
    let service = service[..service.len().min(room)].trim_end_matches('-');
    format!("{service}{slot}")
}

#[cfg(test)]
mod tests {
    use warren_types::HostEntry;

    use super::*;
    use crate::fixtures::{retained_log, task, task_id};

    fn resolver(task: &TaskAssignment) -> TaskResolver {
        TaskResolver { address: task.address, resolv_conf: "nameserver 10.210.0.1\n".into() }
    }

    #[tokio::test]
    async fn task_dir_is_created_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let directories = TaskDirs::new(dir.path().join("tasks"));
        let mut expected = task(1);
        expected.spec.hosts = vec![HostEntry { name: "db".into(), address: [192, 0, 2, 7].into() }];
        let resolver = resolver(&expected);
        let files = directories.ensure(&expected, &resolver).await.unwrap();
        assert_eq!(directories.ensure(&expected, &resolver).await.unwrap(), files);
        assert_eq!(std::fs::read_to_string(&files.resolv_conf).unwrap(), resolver.resolv_conf);
        let hosts = std::fs::read_to_string(&files.hosts).unwrap();
        assert!(hosts.ends_with("10.210.0.2\tweb-1\n192.0.2.7\tdb\n"), "{hosts}");
        assert_eq!(std::fs::read_to_string(&files.hostname).unwrap(), "web-1\n");
        std::fs::write(directories.log_dir(&task_id(1)).join("1"), "said").unwrap();
        directories.remove(&task_id(1)).await.unwrap();
        directories.remove(&task_id(1)).await.unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("tasks")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn removed_data_directory_is_not_created_again() {
        let dir = tempfile::tempdir().unwrap();
        let directories = TaskDirs::new(dir.path().join("data/tasks"));
        let refused = directories.ensure(&task(1), &resolver(&task(1))).await.unwrap_err();
        assert!(matches!(refused, TaskDirError::Create { .. }), "{refused}");
        assert!(!dir.path().join("data").exists());
    }

    #[tokio::test]
    async fn log_outlives_files_of_task() {
        let dir = tempfile::tempdir().unwrap();
        let directories = TaskDirs::new(dir.path().join("tasks"));
        let logs = || directories.list_retained_logs(vec![retained_log(1), retained_log(2)]);
        for number in [1, 2] {
            directories.ensure(&task(number), &resolver(&task(number))).await.unwrap();
        }
        let file = segment::segment_path(&directories.log_dir(&task_id(1)), 1);
        std::fs::write(&file, "said").unwrap();
        for _ in 0..2 {
            for number in [1, 2] {
                directories.remove_all_but_log(&task_id(number)).await.unwrap();
            }
            assert_eq!(std::fs::read_dir(directories.path(&task_id(1))).unwrap().count(), 1);
            assert!(!directories.path(&task_id(2)).exists(), "it wrote nothing");
            let found = logs().await.unwrap();
            let [RetainedLogFiles { log, size: Bytes(4), written_at }] = &found[..] else {
                panic!("{found:?}")
            };
            assert!(*log == retained_log(1) && written_at.0 > 0);
        }
        directories.remove(&task_id(1)).await.unwrap();
        assert_eq!(logs().await.unwrap(), []);
    }

    #[tokio::test]
    async fn sweep_removes_dirs_of_unknown_tasks() {
        let dir = tempfile::tempdir().unwrap();
        let directories = TaskDirs::new(dir.path().to_path_buf());
        assert_eq!(TaskDirs::new(dir.path().join("none")).sweep(|_| false).await.unwrap(), 0);
        for number in [1, 2] {
            directories.ensure(&task(number), &resolver(&task(number))).await.unwrap();
        }
        std::fs::write(dir.path().join("notes"), "a person's").unwrap();
        let has = |task: &TaskId| *task == task_id(2);
        assert_eq!(directories.sweep(has).await.unwrap(), 1);
        assert_eq!(directories.sweep(has).await.unwrap(), 0);
        assert!(dir.path().join("notes").exists() && directories.path(&task_id(2)).exists());
    }

    #[test]
    fn long_hostname_is_shortened() {
        let of = |service: &str, slot| TaskAssignment { service: service.parse().unwrap(), slot, ..task(1) };
        let name = |service: &str, slot| hostname(&of(service, slot));
        assert_eq!(name("web", 3), "web-3");
        let mut output = task(1);
        output.spec.hostname = Some("db.example".into());
        assert_eq!(hostname(&output), "db.example");
        let long = name(&format!("{}-{}", "a".repeat(60), "bb"), 10);
        assert_eq!(long, format!("{}-10", "a".repeat(60)));
        assert!(name(&"a".repeat(63), u32::MAX).len() <= MAX_HOSTNAME);
    }
}
