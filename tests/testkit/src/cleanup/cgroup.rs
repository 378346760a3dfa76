//! The cgroups of processes, to be removed after them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A cgroup by the mount point of its hierarchy and its path in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cgroup {
    hierarchy: PathBuf,
    path: PathBuf,
}

impl Cgroup {
    fn directory(&self) -> PathBuf {
        self.hierarchy.join(&self.path)
    }

    /// Removes the group and its empty parents except the topmost one: other tests create theirs below it,
    /// perhaps at this moment.
    pub(super) fn remove(&self) -> Result<(), String> {
        remove_directory(&self.directory())?;
        for parent in self.path.ancestors().skip(1).filter(|parent| parent.components().count() > 1) {
            if std::fs::remove_dir(self.hierarchy.join(parent)).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Removes one cgroup in one hierarchy; harmless when it does not exist. The kernel refuses one with
/// processes.
pub(super) fn remove_directory(directory: &Path) -> Result<(), String> {
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("{}: {error}", directory.display())),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The directories, in every hierarchy, whose path contains `mark`; outer ones first.
pub(super) fn with_mark(mark: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.path().to_string_lossy().contains(mark) {
                found.push(entry.path());
            }
            open.push(entry.path());
        }
    }
    found
}

/// The cgroups of `pid` that do not contain the caller.
pub(super) fn of_process(pid: i32) -> Vec<Cgroup> {
    let own = of("self");
    let is_own = |cgroup: &Cgroup| own.iter().any(|own| own.directory().starts_with(cgroup.directory()));
    of(&pid.to_string()).into_iter().filter(|cgroup| !is_own(cgroup)).collect()
}

fn of(pid: &str) -> Vec<Cgroup> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let mut cgroups = Vec::new();
    for line in table.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = match controllers.strip_prefix("name=").unwrap_or(controllers) {
            "" if unified => "",
            "" => "unified",
            named => named,
        };
        let hierarchy = Path::new("/sys/fs/cgroup").join(mount);
        let cgroup = Cgroup { hierarchy, path: PathBuf::from(path.trim_start_matches('/')) };
        // A removed group is listed as "/x (deleted)" and has no directory any more.
        if path != "/" && cgroup.directory().is_dir() {
            cgroups.push(cgroup);
        }
    }
    cgroups
}
