//! Cgroups of containers on the host, version 1 and 2: OOM kills, and empty leftovers.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Controllers for the limits of containers.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// In version 2, programs of the kernel (BPF) restrict devices.
const CONTROLLERS_V1: [&str; 4] = ["cpu", "memory", "pids", "devices"];

/// Mount points of the cgroup hierarchies.
#[derive(Clone, Debug, Default)]
pub(crate) struct CgroupHierarchies {
    /// Mount point, and whether it is version 2.
    mounts: Vec<(PathBuf, bool)>,
}

/// How a machine has cgroups mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// Not at all.
    None,
    /// Version 1, perhaps with an empty tree of version 2 beside it.
    V1,
    /// Version 2 alone.
    V2,
}

/// The cgroups of a machine, and what containers miss there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSupport {
    /// How they are mounted.
    pub version: CgroupVersion,
    /// Controllers that containers need and the machine lacks.
    pub missing: Vec<&'static str>,
}

impl CgroupSupport {
    /// Reads the mount table and the list of controllers.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn read() -> io::Result<Self> {
        let table = fs::read_to_string("/proc/self/mounts")?;
        Ok(Self::parse(&table, |mount| {
            fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default()
        }))
    }

    /// `unified` returns the controllers of a hierarchy of version 2.
    fn parse(table: &str, unified: impl Fn(&Path) -> String) -> Self {
        let hierarchies = CgroupHierarchies::parse(table);
        let (version, needed, available): (_, &[&'static str], BTreeSet<String>) =
            match hierarchies.mounts.first() {
                None => (CgroupVersion::None, &[], BTreeSet::new()),
                Some((mount, _)) if hierarchies.is_unified() => {
                    let available = unified(mount).split_whitespace().map(str::to_owned).collect();
                    (CgroupVersion::V2, &CONTROLLERS[..], available)
                }
                Some(_) => {
                    let v1 = table.lines().filter(|line| line.split(' ').nth(2) == Some("cgroup"));
                    let options = v1.filter_map(|line| line.split(' ').nth(3)).flat_map(|all| all.split(','));
                    (CgroupVersion::V1, &CONTROLLERS_V1[..], options.map(str::to_owned).collect())
                }
            };
        let missing = needed.iter().copied().filter(|name| !available.contains(*name)).collect();
        Self { version, missing }
    }
}

impl CgroupHierarchies {
    /// Reads the mount table of this process.
    ///
    /// # Errors
    /// `/proc` is not mounted.
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

    /// Whether only version 2 is mounted.
    pub fn is_unified(&self) -> bool {
        !self.mounts.is_empty() && self.mounts.iter().all(|(_, unified)| *unified)
    }

    /// Whether memory and swap can be limited together. Version 2 accepts "no swap" even without swap
    /// accounting.
    pub fn limits_swap(&self) -> bool {
        self.is_unified()
            || self.mounts.iter().any(|(mount, _)| mount.join("memory.memsw.limit_in_bytes").exists())
    }

    /// Number of OOM kills in this cgroup; 0 also if the cgroup was removed.
    pub fn oom_kills(&self, cgroup: &Path) -> u64 {
        let files = self.mounts.iter().map(|(mount, unified)| {
            let file = if *unified { "memory.events" } else { "memory.oom_control" };
            path_in_hierarchy(mount, cgroup).join(file)
        });
        let kills = |text: String| {
            let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
            line.and_then(|count| count.trim().parse::<u64>().ok())
        };
        files.filter_map(|file| fs::read_to_string(file).ok()).filter_map(kills).max().unwrap_or(0)
    }

    /// Names of the child cgroups of `parent` in any hierarchy.
    pub fn children(&self, parent: &Path) -> BTreeSet<String> {
        let folders =
            self.mounts.iter().filter_map(|(mount, _)| fs::read_dir(path_in_hierarchy(mount, parent)).ok());
        let children = folders.flatten().flatten().filter(|entry| entry.path().is_dir());
        children.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Whether any hierarchy has this cgroup.
    #[cfg(feature = "testing")]
    pub fn exists(&self, cgroup: &Path) -> bool {
        self.mounts.iter().any(|(mount, _)| path_in_hierarchy(mount, cgroup).exists())
    }

    /// Processes in this cgroup, in any hierarchy.
    pub fn processes(&self, cgroup: &Path) -> BTreeSet<u32> {
        let files =
            self.mounts.iter().map(|(mount, _)| path_in_hierarchy(mount, cgroup).join("cgroup.procs"));
        let texts = files.filter_map(|file| fs::read_to_string(file).ok());
        texts.flat_map(|text| text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    }

    /// Removes an empty cgroup from every hierarchy; returns whether any was removed. The kernel refuses to
    /// remove one with processes.
    pub fn remove_empty(&self, cgroup: &Path) -> bool {
        let mut removed = false;
        for (mount, _) in &self.mounts {
            removed |= remove_tree(&path_in_hierarchy(mount, cgroup)).is_ok();
        }
        removed
    }
}

/// Removes child cgroups first, as the kernel requires.
fn remove_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_tree(&path)?;
        }
    }
    fs::remove_dir(folder)
}

/// Path of a cgroup in the hierarchy mounted at `mount`.
pub(crate) fn path_in_hierarchy(mount: &Path, cgroup: &Path) -> PathBuf {
    mount.join(cgroup.strip_prefix("/").unwrap_or(cgroup))
}

/// Whether a process's `/proc/PID/cgroup` names this cgroup.
pub(crate) fn is_in_cgroup(membership: &str, name: &str) -> bool {
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
        assert!(!CgroupHierarchies::parse(HYBRID).is_unified());
        assert!(CgroupHierarchies::parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").is_unified());
        assert!(!CgroupHierarchies::parse("").is_unified());
    }

    #[test]
    fn missing_controllers_are_found() {
        let check = |table: &str, controllers: &str, version, missing: &[&'static str]| {
            let found = CgroupSupport::parse(table, |_| controllers.to_owned());
            assert_eq!(found, CgroupSupport { version, missing: missing.to_vec() }, "{table}");
        };
        check("proc /proc proc rw 0 0\n", "", CgroupVersion::None, &[]);
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        check(unified, "cpuset cpu io memory pids\n", CgroupVersion::V2, &[]);
        check(unified, "cpuset cpu io pids\n", CgroupVersion::V2, &["memory"]);
        check(HYBRID, "", CgroupVersion::V1, &["cpu", "pids", "devices"]);
        let rest = "cgroup /c cgroup rw,cpu,cpuacct 0 0\ncgroup /p cgroup rw,pids 0 0\n\
                    cgroup /d cgroup rw,nosuid,devices 0 0\n";
        check(&format!("{HYBRID}{rest}"), "", CgroupVersion::V1, &[]);
    }

    #[test]
    fn membership_needs_whole_name() {
        let membership = "4:memory:/warren/web.1\n0::/warren/web.1\n";
        assert!(is_in_cgroup(membership, "web.1"));
        assert!(!is_in_cgroup(membership, "web"));
        assert!(!is_in_cgroup("0::/\n", "web.1"));
    }

    /// Writes a file of a container's cgroup in a fake hierarchy.
    fn put(hierarchy: &Path, file: &str, text: &str) {
        let cgroup = hierarchy.join("warren/a");
        fs::create_dir_all(&cgroup).unwrap();
        fs::write(cgroup.join(file), text).unwrap();
    }

    const CGROUP: &str = "/warren/a";

    #[test]
    fn version_1_reads_hierarchy_with_file() {
        let dir = tempfile::tempdir().unwrap();
        let [memory, pids, unified] = ["memory", "pids", "unified"].map(|name| dir.path().join(name));
        let mounts = vec![(memory.clone(), false), (pids.clone(), false), (unified.clone(), true)];
        let hybrid = CgroupHierarchies { mounts };
        assert_eq!(hybrid.oom_kills(Path::new(CGROUP)), 0, "there is no such cgroup");
        put(&memory, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
        put(&memory, "cgroup.procs", "7\n8\n");
        put(&pids, "cgroup.procs", "8\n9\n");
        put(&unified, "cgroup.procs", "");
        assert_eq!(hybrid.oom_kills(Path::new(CGROUP)), 0);
        put(&memory, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
        assert_eq!(hybrid.oom_kills(Path::new(CGROUP)), 5);
        assert_eq!(hybrid.processes(Path::new(CGROUP)), BTreeSet::from([7, 8, 9]));
        assert_eq!(hybrid.children(Path::new("/warren")), BTreeSet::from(["a".to_owned()]));
        assert!(!hybrid.is_unified() && !hybrid.limits_swap());
        fs::write(memory.join("memory.memsw.limit_in_bytes"), "0\n").unwrap();
        assert!(hybrid.limits_swap());
    }

    #[test]
    fn version_2_reads_unified_tree() {
        let dir = tempfile::tempdir().unwrap();
        let unified = CgroupHierarchies { mounts: vec![(dir.path().to_owned(), true)] };
        assert!(unified.is_unified() && unified.limits_swap());
        put(dir.path(), "memory.events", "low 0\nhigh 0\nmax 4\noom 3\noom_kill 0\noom_group_kill 0\n");
        assert_eq!(unified.oom_kills(Path::new(CGROUP)), 0, "a lack of memory is not yet a kill");
        put(dir.path(), "memory.events", "low 0\nhigh 0\nmax 4\noom 3\noom_kill 2\noom_group_kill 1\n");
        // With the files of both versions, the mounted version counts.
        put(dir.path(), "memory.oom_control", "oom_kill 9\n");
        assert_eq!(unified.oom_kills(Path::new(CGROUP)), 2);
        put(dir.path(), "cgroup.procs", "12\n");
        assert_eq!(unified.processes(Path::new(CGROUP)), BTreeSet::from([12]));
    }
}
