//! Directories of tasks with their secret files; a directory is complete as soon as it exists.
//!
//! After a crash at any time a directory is complete, or its suffix marks it as unused: `<task>.new` is not
//! complete yet, `<task>.old` is partly removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use warren_types::TaskId;
use zeroize::Zeroizing;

const NEW_SUFFIX: &str = "new";
const OLD_SUFFIX: &str = "old";

/// One file to write.
pub(super) struct SecretFile {
    /// Generated from digits and letters, never from user input.
    pub name: String,
    pub owner: FileOwner,
    /// Permission bits.
    pub mode: u32,
    pub bytes: Zeroizing<Vec<u8>>,
}

/// Owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileOwner {
    pub uid: u32,
    pub gid: u32,
}

/// The directories of all tasks, in memory.
#[derive(Debug, Clone)]
pub(super) struct TaskSecretDirs<'a>(pub &'a Path);

impl TaskSecretDirs<'_> {
    /// The directory of a task.
    pub fn path(&self, task: &TaskId) -> PathBuf {
        self.0.join(task.to_string())
    }

    fn path_with_suffix(&self, task: &TaskId, suffix: &str) -> PathBuf {
        self.0.join(format!("{task}.{suffix}"))
    }

    /// Whether the task's directory exists.
    pub fn is_complete(&self, task: &TaskId) -> bool {
        self.path(task).is_dir()
    }

    /// Writes the files of a task without directory.
    pub fn write(&self, task: &TaskId, files: &[SecretFile]) -> io::Result<()> {
        let new = self.path_with_suffix(task, NEW_SUFFIX);
        remove(&new)?;
        DirBuilder::new().mode(0o700).create(&new)?;
        let written = files.iter().try_for_each(|file| write(&new, file));
        if let Err(error) = written.and_then(|()| fs::rename(&new, self.path(task))) {
            // A partial directory is useless and takes memory.
            remove(&new)?;
            return Err(error);
        }
        Ok(())
    }

    /// Removes the files of a task, if any.
    pub fn remove(&self, task: &TaskId) -> io::Result<()> {
        let old = self.path_with_suffix(task, OLD_SUFFIX);
        remove(&old)?;
        match fs::rename(self.path(task), &old) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove(&old)?;
        remove(&self.path_with_suffix(task, NEW_SUFFIX))
    }

    /// Removes directories of tasks for which `has` is false, and incomplete ones; returns how many. Unknown
    /// names are ignored.
    pub fn sweep(&self, has: impl Fn(&TaskId) -> bool) -> io::Result<usize> {
        let entries = match fs::read_dir(self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut removed = 0;
        for entry in entries {
            let name = entry?.file_name();
            let (task, suffix) = match name.to_str() {
                Some(name) => name.split_once('.').unwrap_or((name, "")),
                None => continue,
            };
            let Ok(task) = task.parse::<TaskId>() else { continue };
            let is_ours = ["", NEW_SUFFIX, OLD_SUFFIX].contains(&suffix);
            // An incomplete directory may be in creation for a known task.
            if is_ours && !has(&task) {
                self.remove(&task)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

fn write(directory: &Path, desired: &SecretFile) -> io::Result<()> {
    let SecretFile { name, owner, mode, bytes } = desired;
    let mut file: File =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(name))?;
    file.write_all(bytes)?;
    // Mode last: changing the owner may clear some of its bits.
    fchown(&file, Some(owner.uid), Some(owner.gid))?;
    file.set_permissions(PermissionsExt::from_mode(*mode))
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::fixtures::task_id;

    fn file(name: &str, bytes: &[u8]) -> SecretFile {
        let owner = FileOwner { uid: 1000, gid: 77 };
        SecretFile { name: name.into(), owner, mode: 0o440, bytes: Zeroizing::new(bytes.to_vec()) }
    }

    fn names(root: &Path) -> Vec<String> {
        let entries = fs::read_dir(root).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_have_owner_and_mode_and_are_removed_with_task() {
        let dir = tempfile::tempdir().unwrap();
        let folders = TaskSecretDirs(dir.path());
        let task = task_id(1);
        folders.remove(&task).unwrap();
        folders.write(&task, &[file("secret-0", b"hush\0"), file("config-0", b"")]).unwrap();
        assert!(folders.is_complete(&task) && !folders.is_complete(&task_id(2)));
        let path = folders.path(&task).join("secret-0");
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (1000, 77, 0o440));
        assert_eq!(fs::read(&path).unwrap(), b"hush\0");
        assert_eq!(fs::metadata(folders.path(&task)).unwrap().mode() & 0o7777, 0o700);
        for _ in 0..2 {
            folders.remove(&task).unwrap();
            assert_eq!(names(dir.path()), [""; 0]);
        }
    }

    #[test]
    fn task_without_secret_objects_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        TaskSecretDirs(dir.path()).write(&task_id(1), &[]).unwrap();
        assert!(TaskSecretDirs(dir.path()).is_complete(&task_id(1)));
    }

    #[test]
    fn half_written_dir_counts_as_missing_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folders = TaskSecretDirs(dir.path());
        let task = task_id(1);
        let killed = |suffix: &str| {
            let left = folders.path_with_suffix(&task, suffix);
            fs::create_dir_all(&left).unwrap();
            fs::write(left.join("secret-0"), "half").unwrap();
        };
        for suffix in [NEW_SUFFIX, OLD_SUFFIX] {
            // Left, and then the task again.
            killed(suffix);
            assert!(!folders.is_complete(&task), "{suffix}");
            folders.write(&task, &[file("secret-0", b"whole")]).unwrap();
            assert_eq!(fs::read(folders.path(&task).join("secret-0")).unwrap(), b"whole");
            // Left, and then the end of the task.
            killed(suffix);
            folders.remove(&task).unwrap();
            assert_eq!(names(dir.path()), [""; 0], "{suffix}");
            // It remains, and no assignment has the task.
            killed(suffix);
            assert_eq!(folders.sweep(|_| false).unwrap(), 1);
            assert_eq!(names(dir.path()), [""; 0], "{suffix}");
        }
    }

    #[test]
    fn sweep_removes_orphans_and_keeps_dirs_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let folders = TaskSecretDirs(dir.path());
        assert_eq!(TaskSecretDirs(&dir.path().join("none")).sweep(|_| false).unwrap(), 0);
        for number in [1, 2] {
            folders.write(&task_id(number), &[file("secret-0", b"hush")]).unwrap();
        }
        fs::create_dir(folders.path_with_suffix(&task_id(3), NEW_SUFFIX)).unwrap();
        fs::create_dir(folders.path_with_suffix(&task_id(4), NEW_SUFFIX)).unwrap();
        fs::create_dir(dir.path().join("somebody.else")).unwrap();
        let has = |task: &TaskId| [2, 3].contains(&task.number);
        assert_eq!(folders.sweep(has).unwrap(), 2);
        assert_eq!(folders.sweep(has).unwrap(), 0);
        let kept = [task_id(2).to_string(), format!("{}.new", task_id(3)), "somebody.else".into()];
        assert_eq!(names(dir.path()), kept);
    }

    #[test]
    fn failed_write_leaves_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let folders = TaskSecretDirs(dir.path());
        let twice = [file("secret-0", b"one"), file("secret-0", b"two")];
        assert_eq!(folders.write(&task_id(1), &twice).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(names(dir.path()), [""; 0]);
    }
}
