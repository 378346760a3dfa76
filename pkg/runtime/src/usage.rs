//! Resource usage of a container: what its writable layer has, and what the kernel counts, by its cgroups, version 1
//! and 2, and its network.
//!
//! Reading the counters reads at most eight small files, which never block; the same query to containerd costs thirty
//! times as much.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_tree::Unmeasured;
use warren_types::Bytes;

use crate::cgroup::path_in_hierarchy;

/// Current usage of a container, or totals since its process was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// CPU time of all processes.
    pub cpu: Duration,
    /// Working set in bytes: memory without inactive file pages.
    pub memory: u64,
    /// Bytes received from the network.
    pub received: u64,
    /// Bytes sent to the network.
    pub sent: u64,
    /// Bytes read from block devices.
    pub read: u64,
    /// Bytes written to block devices. With cgroup version 1 only synchronous writes.
    pub written: u64,
    /// Number of processes and threads.
    pub pids: u32,
}

/// What the writable layer of a container uses on its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerUsage {
    /// Space of its files and directories.
    pub bytes: Bytes,
    /// Number of them.
    pub inodes: u64,
    /// Why there is more than that.
    pub unmeasured: Unmeasured,
}

/// Hierarchies of the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UsageCounters {
    V1 { memory: PathBuf, cpuacct: PathBuf, blkio: PathBuf, pids: PathBuf },
    V2(PathBuf),
}

impl UsageCounters {
    /// Reads the mount table of this process; `None` without the needed controllers.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn read() -> io::Result<Option<Self>> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/mounts")?))
    }

    /// A machine with both versions has its controllers in version 1.
    fn parse(table: &str) -> Option<Self> {
        let mounts: Vec<(&str, &str, &str)> = table
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(' ').skip(1);
                Some((fields.next()?, fields.next()?, fields.next()?))
            })
            .collect();
        let controller = |name: &str| {
            let has = |options: &str| options.split(',').any(|option| option == name);
            let found = mounts.iter().find(|(_, kind, options)| *kind == "cgroup" && has(options));
            found.map(|(target, ..)| PathBuf::from(target))
        };
        match (controller("memory"), controller("cpuacct"), controller("blkio"), controller("pids")) {
            (Some(memory), Some(cpuacct), Some(blkio), Some(pids)) => {
                Some(Self::V1 { memory, cpuacct, blkio, pids })
            }
            _ => {
                let unified = mounts.iter().find(|(_, kind, _)| *kind == "cgroup2");
                unified.map(|(target, ..)| Self::V2(PathBuf::from(target)))
            }
        }
    }

    /// Usage of the container in `cgroup`; `None` without processes. `proc` is the mount point of `/proc`.
    pub fn usage(&self, cgroup: &Path, proc: &Path) -> Option<ContainerUsage> {
        let (procs, usage) = match self {
            Self::V1 { memory, cpuacct, blkio, pids } => {
                let at = |mount: &Path, file: &str| path_in_hierarchy(mount, cgroup).join(file);
                let held = number(&at(memory, "memory.usage_in_bytes"))?;
                let idle = field(&at(memory, "memory.stat"), "total_inactive_file ").unwrap_or(0);
                let (read, written) = blkio_bytes(&at(blkio, "blkio.throttle.io_service_bytes"));
                let usage = ContainerUsage {
                    cpu: Duration::from_nanos(number(&at(cpuacct, "cpuacct.usage")).unwrap_or(0)),
                    memory: held.saturating_sub(idle),
                    read,
                    written,
                    pids: saturate_u32(number(&at(pids, "pids.current"))),
                    ..ContainerUsage::default()
                };
                (at(memory, "cgroup.procs"), usage)
            }
            Self::V2(mount) => {
                let at = |file: &str| path_in_hierarchy(mount, cgroup).join(file);
                let held = number(&at("memory.current"))?;
                let idle = field(&at("memory.stat"), "inactive_file ").unwrap_or(0);
                let (read, written) = io_stat_bytes(&at("io.stat"));
                let usage = ContainerUsage {
                    cpu: Duration::from_micros(field(&at("cpu.stat"), "usage_usec ").unwrap_or(0)),
                    memory: held.saturating_sub(idle),
                    read,
                    written,
                    pids: saturate_u32(number(&at("pids.current"))),
                    ..ContainerUsage::default()
                };
                (at("cgroup.procs"), usage)
            }
        };
        let member: u32 = fs::read_to_string(procs).ok()?.lines().next()?.parse().ok()?;
        let (received, sent) = network(&proc.join(member.to_string()).join("net/dev"));
        Some(ContainerUsage { received, sent, ..usage })
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number after `name` at the start of a line.
fn field(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

fn saturate_u32(number: Option<u64>) -> u32 {
    number.map_or(0, |number| u32::try_from(number).unwrap_or(u32::MAX))
}

/// Bytes read and written of all devices: `8:0 Read 4096`
/// (Documentation/admin-guide/cgroup-v1/blkio-controller.rst).
fn blkio_bytes(file: &Path) -> (u64, u64) {
    let text = fs::read_to_string(file).unwrap_or_default();
    let sum = |operation: &str| {
        let lines = text.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            (words.next()? == operation).then(|| words.next()?.parse::<u64>().ok())?
        });
        lines.fold(0, u64::saturating_add)
    };
    (sum("Read"), sum("Write"))
}

/// The same of version 2: `8:0 rbytes=4096 wbytes=0 rios=1 …` (Documentation/admin-guide/cgroup-v2.rst).
fn io_stat_bytes(file: &Path) -> (u64, u64) {
    let text = fs::read_to_string(file).unwrap_or_default();
    let sum = |key: &str| {
        let found = text.split_whitespace().filter_map(|word| word.strip_prefix(key)?.parse::<u64>().ok());
        found.fold(0, u64::saturating_add)
    };
    (sum("rbytes="), sum("wbytes="))
}

/// Bytes received and sent on all interfaces except the loopback, from a process's `net/dev`
/// (proc_pid_net(5)): the first and ninth number after the interface name.
fn network(file: &Path) -> (u64, u64) {
    let text = fs::read_to_string(file).unwrap_or_default();
    let interfaces =
        text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    let bytes = interfaces.map(|(_, numbers)| {
        let number =
            |place| numbers.split_whitespace().nth(place).and_then(|word| word.parse().ok()).unwrap_or(0);
        (number(0), number(8))
    });
    bytes.fold((0_u64, 0_u64), |sum, one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CGROUP: &str = "/warren/n1/web";
    const NET_DEV: &str = "Inter-|   Receive                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n    \
        lo: 1730021 148 0 0 0 0 0 0 1730021 148 0 0 0 0 0 0\n  \
        eth0: 155 6 0 0 0 0 0 0 378 3 0 0 0 0 0 0\n  \
        eth1:1000 6 0 0 0 0 0 0 2000 3 0 0 0 0 0 0\n";

    /// A fake machine of plain files.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(files: &[(&str, &str)]) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            for (name, text) in files {
                let path = machine.path(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            machine
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn usage(&self, meters: &UsageCounters) -> Option<ContainerUsage> {
            meters.usage(Path::new(CGROUP), &self.path("proc"))
        }
    }

    fn used() -> ContainerUsage {
        let (received, sent) = (1155, 2378);
        ContainerUsage {
            cpu: Duration::from_millis(1500),
            memory: 5000,
            received,
            sent,
            read: 30,
            written: 400,
            pids: 3,
        }
    }

    #[test]
    fn version_1_reads_each_hierarchy() {
        let blkio =
            "8:0 Read 10\n8:0 Write 400\n8:0 Sync 410\n8:0 Async 0\n8:0 Total 410\n8:16 Read 20\nTotal 430\n";
        let machine = Machine::new(&[
            ("memory/warren/n1/web/memory.usage_in_bytes", "7000\n"),
            (
                "memory/warren/n1/web/memory.stat",
                "inactive_file 9\ntotal_cache 4000\ntotal_inactive_file 2000\n",
            ),
            ("memory/warren/n1/web/cgroup.procs", "71\n72\n"),
            ("acct/warren/n1/web/cpuacct.usage", "1500000000\n"),
            ("blkio/warren/n1/web/blkio.throttle.io_service_bytes", blkio),
            ("pids/warren/n1/web/pids.current", "3\n"),
            ("proc/71/net/dev", NET_DEV),
        ]);
        let at = |name| machine.path(name);
        let (memory, cpuacct, blkio, pids) = (at("memory"), at("acct"), at("blkio"), at("pids"));
        let meters = UsageCounters::V1 { memory, cpuacct, blkio, pids };
        assert_eq!(machine.usage(&meters), Some(used()));
        fs::write(machine.path("memory/warren/n1/web/cgroup.procs"), "").unwrap();
        assert_eq!(machine.usage(&meters), None, "nothing lives there");
        assert_eq!(meters.usage(Path::new("/warren/n1/other"), &machine.path("proc")), None);
    }

    #[test]
    fn version_2_reads_unified_tree() {
        let io = "8:16 rbytes=10 wbytes=400 rios=1 wios=2 dbytes=0 dios=0\n8:0 rbytes=20 wbytes=0 rios=1\n";
        let machine = Machine::new(&[
            ("cgroup/warren/n1/web/memory.current", "7000\n"),
            (
                "cgroup/warren/n1/web/memory.stat",
                "anon 3000\nfile 4000\ninactive_file 2000\nactive_file 2000\n",
            ),
            ("cgroup/warren/n1/web/cgroup.procs", "71\n"),
            ("cgroup/warren/n1/web/cpu.stat", "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n"),
            ("cgroup/warren/n1/web/io.stat", io),
            ("cgroup/warren/n1/web/pids.current", "3\n"),
            ("proc/71/net/dev", NET_DEV),
        ]);
        let meters = UsageCounters::V2(machine.path("cgroup"));
        assert_eq!(machine.usage(&meters), Some(used()));
        fs::remove_file(machine.path("cgroup/warren/n1/web/io.stat")).unwrap();
        let without = ContainerUsage { read: 0, written: 0, ..used() };
        assert_eq!(machine.usage(&meters), Some(without), "a counter that is not there counts nothing");
        assert_eq!(meters.usage(Path::new("/warren/n1/other"), &machine.path("proc")), None);
    }

    #[test]
    fn mount_table_selects_version() {
        let v1 = "cgroup /s/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /s/memory cgroup rw,memory 0 0\n\
            cgroup /s/blkio cgroup rw,relatime,blkio 0 0\ncgroup /s/pids cgroup rw,pids 0 0\n";
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let (memory, cpuacct) = ("/s/memory".into(), "/s/cpu,cpuacct".into());
        let both = UsageCounters::V1 { memory, cpuacct, blkio: "/s/blkio".into(), pids: "/s/pids".into() };
        assert_eq!(UsageCounters::parse(&format!("{v2}{v1}")), Some(both));
        assert_eq!(UsageCounters::parse(v2), Some(UsageCounters::V2("/sys/fs/cgroup".into())));
        assert_eq!(UsageCounters::parse("tmpfs /tmp tmpfs rw 0 0\n"), None);
    }
}
