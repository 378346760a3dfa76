//! The cgroups of containers as seen on the host, version 1 and 2: traces of memory kills, empty leftovers.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the kernel's cgroup hierarchies are mounted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hierarchies {
    /// Mount points with whether they are version 2.
    mounts: Vec<(PathBuf, bool)>,
}

impl Hierarchies {
    /// Reads the mount table of this process.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/mounts")?))
    }

    fn parse(table: &str) -> Self {
        let mounts = table.lines().filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, target, kind) = (fields.next()?, fields.next()?, fields.next()?);
            matches!(kind, "cgroup" | "cgroup2").then(|| (PathBuf::from(target), kind == "cgroup2"))
        });
        Self { mounts: mounts.collect() }
    }

    /// Whether containers live in version 2: it is the only one mounted.
    pub fn is_unified(&self) -> bool {
        !self.mounts.is_empty() && self.mounts.iter().all(|(_, unified)| *unified)
    }

    /// Whether a limit on memory and swap together can be set. Version 2 takes "no swap" even without swap
    /// accounting.
    pub fn limits_swap(&self) -> bool {
        self.is_unified()
            || self.mounts.iter().any(|(mount, _)| mount.join("memory.memsw.limit_in_bytes").exists())
    }

    /// How often the kernel killed something in this cgroup for want of memory; 0 also when the cgroup is
    /// gone.
    pub fn oom_kills(&self, cgroup: &Path) -> u64 {
        let files = self.mounts.iter().map(|(mount, unified)| {
            let file = if *unified { "memory.events" } else { "memory.oom_control" };
            place(mount, cgroup).join(file)
        });
        let kills = |text: String| {
            let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
            line.and_then(|count| count.trim().parse::<u64>().ok())
        };
        files.filter_map(|file| fs::read_to_string(file).ok()).filter_map(kills).max().unwrap_or(0)
    }

    /// Names of the cgroups directly below `parent` in any hierarchy.
    pub fn children(&self, parent: &Path) -> BTreeSet<String> {
        let folders = self.mounts.iter().filter_map(|(mount, _)| fs::read_dir(place(mount, parent)).ok());
        let children = folders.flatten().flatten().filter(|entry| entry.path().is_dir());
        children.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Whether any hierarchy has this cgroup.
    #[cfg(feature = "testing")]
    pub fn exists(&self, cgroup: &Path) -> bool {
        self.mounts.iter().any(|(mount, _)| place(mount, cgroup).exists())
    }

    /// Processes in this cgroup, in any hierarchy.
    pub fn members(&self, cgroup: &Path) -> BTreeSet<u32> {
        let files = self.mounts.iter().map(|(mount, _)| place(mount, cgroup).join("cgroup.procs"));
        let texts = files.filter_map(|file| fs::read_to_string(file).ok());
        texts.flat_map(|text| text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    }

    /// Removes a cgroup from every hierarchy where nothing lives in it; says whether any was there and went.
    /// The kernel refuses to remove one that has processes, which is left alone.
    pub fn remove_empty(&self, cgroup: &Path) -> bool {
        let mut removed = false;
        for (mount, _) in &self.mounts {
            removed |= remove_tree(&place(mount, cgroup)).is_ok();
        }
        removed
    }
}

/// Removes child cgroups first, as the kernel demands.
fn remove_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_tree(&path)?;
        }
    }
    fs::remove_dir(folder)
}

/// Where a cgroup is in the hierarchy mounted at `mount`.
pub(crate) fn place(mount: &Path, cgroup: &Path) -> PathBuf {
    mount.join(cgroup.strip_prefix("/").unwrap_or(cgroup))
}

/// Whether a process's `/proc/PID/cgroup` says that it lives in the cgroup of this name.
pub(crate) fn names(membership: &str, name: &str) -> bool {
    membership
        .lines()
        .any(|line| line.rsplit(':').next().is_some_and(|path| path.split('/').any(|p| p == name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

    #[test]
    fn hybrid_is_not_unified() {
        assert!(!Hierarchies::parse(HYBRID).is_unified());
        assert!(Hierarchies::parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").is_unified());
        assert!(!Hierarchies::parse("").is_unified());
    }

    #[test]
    fn membership_is_by_whole_name() {
        let membership = "4:memory:/warren/web.1\n0::/warren/web.1\n";
        assert!(names(membership, "web.1"));
        assert!(!names(membership, "web"));
        assert!(!names("0::/\n", "web.1"));
    }

    /// A file of a container's cgroup in a tree that stands in for a hierarchy.
    fn put(hierarchy: &Path, file: &str, text: &str) {
        let cgroup = hierarchy.join("warren/a");
        fs::create_dir_all(&cgroup).unwrap();
        fs::write(cgroup.join(file), text).unwrap();
    }

    const CGROUP: &str = "/warren/a";

    #[test]
    fn version_1_is_read_from_the_hierarchy_that_has_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let [memory, pids, unified] = ["memory", "pids", "unified"].map(|name| dir.path().join(name));
        let mounts = vec![(memory.clone(), false), (pids.clone(), false), (unified.clone(), true)];
        let hybrid = Hierarchies { mounts };
        assert_eq!(hybrid.oom_kills(Path::new(CGROUP)), 0, "there is no such cgroup");
        put(&memory, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
        put(&memory, "cgroup.procs", "7\n8\n");
        put(&pids, "cgroup.procs", "8\n9\n");
        put(&unified, "cgroup.procs", "");
        assert_eq!(hybrid.oom_kills(Path::new(CGROUP)), 0);
        put(&memory, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
        assert_eq!(hybrid.oom_kills(Path::new(CGROUP)), 5);
        assert_eq!(hybrid.members(Path::new(CGROUP)), BTreeSet::from([7, 8, 9]));
        assert_eq!(hybrid.children(Path::new("/warren")), BTreeSet::from(["a".to_owned()]));
        assert!(!hybrid.is_unified() && !hybrid.limits_swap());
        fs::write(memory.join("memory.memsw.limit_in_bytes"), "0\n").unwrap();
        assert!(hybrid.limits_swap());
    }

    #[test]
    fn version_2_is_read_from_its_only_tree() {
        let dir = tempfile::tempdir().unwrap();
        let unified = Hierarchies { mounts: vec![(dir.path().to_owned(), true)] };
        assert!(unified.is_unified() && unified.limits_swap());
        put(dir.path(), "memory.events", "low 0\nhigh 0\nmax 4\noom 3\noom_kill 0\noom_group_kill 0\n");
        assert_eq!(unified.oom_kills(Path::new(CGROUP)), 0, "a want of memory is not yet a kill");
        put(dir.path(), "memory.events", "low 0\nhigh 0\nmax 4\noom 3\noom_kill 2\noom_group_kill 1\n");
        // Of a kernel that has both, the one of the version mounted counts.
        put(dir.path(), "memory.oom_control", "oom_kill 9\n");
        assert_eq!(unified.oom_kills(Path::new(CGROUP)), 2);
        put(dir.path(), "cgroup.procs", "12\n");
        assert_eq!(unified.members(Path::new(CGROUP)), BTreeSet::from([12]));
    }
}
