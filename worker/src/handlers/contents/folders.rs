//! The files of tasks' contents: a directory for each task, which is whole as soon as it is there at all.
//!
//! Whatever is killed at whatever moment leaves a directory that is whole, or one whose name says that nobody counts
//! on it: `<task>.new` is not whole yet, `<task>.old` not any more.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use warren_types::TaskId;
use zeroize::Zeroizing;

const NEW: &str = "new";
const OLD: &str = "old";

/// One file as it is to be.
pub(super) struct ContentFile {
    /// Made of digits and letters by us, never by a person.
    pub name: String,
    pub owner: Owner,
    /// Permission bits.
    pub mode: u32,
    pub bytes: Zeroizing<Vec<u8>>,
}

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// The directories of all tasks, which lie in memory.
#[derive(Debug, Clone)]
pub(super) struct Folders<'a>(pub &'a Path);

impl Folders<'_> {
    /// The directory of a task.
    pub fn of(&self, task: &TaskId) -> PathBuf {
        self.0.join(task.to_string())
    }

    fn beside(&self, task: &TaskId, suffix: &str) -> PathBuf {
        self.0.join(format!("{task}.{suffix}"))
    }

    /// Whether all files of the task are there.
    pub fn has(&self, task: &TaskId) -> bool {
        self.of(task).is_dir()
    }

    /// Writes the files of a task that has none.
    pub fn write(&self, task: &TaskId, files: &[ContentFile]) -> io::Result<()> {
        let new = self.beside(task, NEW);
        remove(&new)?;
        DirBuilder::new().mode(0o700).create(&new)?;
        let written = files.iter().try_for_each(|file| write(&new, file));
        if let Err(error) = written.and_then(|()| fs::rename(&new, self.of(task))) {
            // A part of them is of no use, and takes memory.
            remove(&new)?;
            return Err(error);
        }
        Ok(())
    }

    /// Removes the files of a task. Harmless when there are none.
    pub fn remove(&self, task: &TaskId) -> io::Result<()> {
        let old = self.beside(task, OLD);
        remove(&old)?;
        match fs::rename(self.of(task), &old) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove(&old)?;
        remove(&self.beside(task, NEW))
    }

    /// Removes what belongs to no task that `has` says yes to, and what nobody counts on any more; says how many
    /// directories that were. What is not named by us is left alone.
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
            let is_ours = ["", NEW, OLD].contains(&suffix);
            // What is not whole yet may be in the making, for a task that is there.
            if is_ours && !has(&task) {
                self.remove(&task)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

fn write(directory: &Path, wanted: &ContentFile) -> io::Result<()> {
    let ContentFile { name, owner, mode, bytes } = wanted;
    let mut file: File =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(name))?;
    file.write_all(bytes)?;
    // The mode last: a change of the owner may take some of it away.
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
    use crate::samples::task_id;

    fn file(name: &str, bytes: &[u8]) -> ContentFile {
        let owner = Owner { uid: 1000, gid: 77 };
        ContentFile { name: name.into(), owner, mode: 0o440, bytes: Zeroizing::new(bytes.to_vec()) }
    }

    fn names(root: &Path) -> Vec<String> {
        let entries = fs::read_dir(root).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_come_with_owner_and_mode_and_go_with_their_task() {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders(dir.path());
        let task = task_id(1);
        folders.remove(&task).unwrap();
        folders.write(&task, &[file("secret-0", b"hush\0"), file("config-0", b"")]).unwrap();
        assert!(folders.has(&task) && !folders.has(&task_id(2)));
        let path = folders.of(&task).join("secret-0");
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (1000, 77, 0o440));
        assert_eq!(fs::read(&path).unwrap(), b"hush\0");
        assert_eq!(fs::metadata(folders.of(&task)).unwrap().mode() & 0o7777, 0o700);
        for _ in 0..2 {
            folders.remove(&task).unwrap();
            assert_eq!(names(dir.path()), [""; 0]);
        }
    }

    #[test]
    fn a_task_without_contents_is_complete_too() {
        let dir = tempfile::tempdir().unwrap();
        Folders(dir.path()).write(&task_id(1), &[]).unwrap();
        assert!(Folders(dir.path()).has(&task_id(1)));
    }

    #[test]
    fn what_a_killed_agent_left_counts_as_nothing_and_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders(dir.path());
        let task = task_id(1);
        let killed = |suffix: &str| {
            let left = folders.beside(&task, suffix);
            fs::create_dir_all(&left).unwrap();
            fs::write(left.join("secret-0"), "half").unwrap();
        };
        for suffix in [NEW, OLD] {
            // Left, and then the task again.
            killed(suffix);
            assert!(!folders.has(&task), "{suffix}");
            folders.write(&task, &[file("secret-0", b"whole")]).unwrap();
            assert_eq!(fs::read(folders.of(&task).join("secret-0")).unwrap(), b"whole");
            // Left, and then the end of the task.
            killed(suffix);
            folders.remove(&task).unwrap();
            assert_eq!(names(dir.path()), [""; 0], "{suffix}");
            // Left, and nobody knows the task.
            killed(suffix);
            assert_eq!(folders.sweep(|_| false).unwrap(), 1);
            assert_eq!(names(dir.path()), [""; 0], "{suffix}");
        }
    }

    #[test]
    fn a_sweep_takes_what_belongs_to_no_task_and_leaves_what_is_in_the_making() {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders(dir.path());
        assert_eq!(Folders(&dir.path().join("none")).sweep(|_| false).unwrap(), 0);
        for number in [1, 2] {
            folders.write(&task_id(number), &[file("secret-0", b"hush")]).unwrap();
        }
        fs::create_dir(folders.beside(&task_id(3), NEW)).unwrap();
        fs::create_dir(folders.beside(&task_id(4), NEW)).unwrap();
        fs::create_dir(dir.path().join("somebody.else")).unwrap();
        let has = |task: &TaskId| [2, 3].contains(&task.number);
        assert_eq!(folders.sweep(has).unwrap(), 2);
        assert_eq!(folders.sweep(has).unwrap(), 0);
        let kept = [task_id(2).to_string(), format!("{}.new", task_id(3)), "somebody.else".into()];
        assert_eq!(names(dir.path()), kept);
    }

    #[test]
    fn files_that_cannot_be_written_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders(dir.path());
        let twice = [file("secret-0", b"one"), file("secret-0", b"two")];
        assert_eq!(folders.write(&task_id(1), &twice).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(names(dir.path()), [""; 0]);
    }
}
