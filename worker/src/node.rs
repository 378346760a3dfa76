//! The machine: what it offers, how much of it is used, and what is wrong with it.

pub(crate) mod health;
pub(crate) mod metrics;
pub(crate) mod stats;
pub(crate) mod usage;
pub(crate) mod vitals;
pub(crate) mod watch;

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::time::timeout;
use warren_runtime::Runtime;
use warren_types::{Bytes, MilliCpu, NodeDescription, Resources};

/// The runtime's version is asked for at every session: it must not hold one up.
const RUNTIME_DEADLINE: Duration = Duration::from_secs(2);

/// What a person says of the node in place of what is measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeOverrides {
    /// CPU that tasks can have.
    pub cpu: Option<MilliCpu>,
    /// Memory that tasks can have.
    pub memory: Option<Bytes>,
    /// Where other machines reach this one; measured as the address from which managers are dialled.
    pub address: Option<String>,
    /// What the node is called by in constraints; labels that are given to it in the cluster win.
    pub labels: BTreeMap<String, String>,
}

/// Describes the node. `disk` is what holds images and containers, `dialled_from` this end of the connection to the
/// manager.
pub(crate) async fn describe(
    runtime: &dyn Runtime,
    overrides: &NodeOverrides,
    disk: Option<usage::Disk>,
    dialled_from: Option<&str>,
) -> NodeDescription {
    let runtime = match timeout(RUNTIME_DEADLINE, runtime.info()).await {
        Ok(Ok(info)) => format!("{} {}", info.name, info.version),
        _ => "not answering".to_string(),
    };
    let address = overrides.address.clone().or_else(|| dialled_from.map(str::to_string));
    NodeDescription {
        resources: Resources {
            cpu: overrides.cpu.unwrap_or_else(measured_cpu),
            memory: overrides.memory.unwrap_or_else(measured_memory),
        },
        disk: disk.map_or(Bytes(0), |disk| disk.total),
        os: "linux".to_string(),
        architecture: warren_image::native_architecture().to_string(),
        kernel: read_line("/proc/sys/kernel/osrelease"),
        runtime,
        version: env!("CARGO_PKG_VERSION").to_string(),
        address: address.unwrap_or_default(),
        labels: overrides.labels.clone(),
    }
}

/// The CPUs that this process may use, cgroup limits included.
fn measured_cpu() -> MilliCpu {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    MilliCpu(cores as u64 * 1000)
}

fn measured_memory() -> Bytes {
    usage::memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()).map_or(Bytes(0), |m| m.total)
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// Size and used part of the file system at `path`; `None` when it cannot be asked.
pub(crate) fn disk(path: &std::path::Path) -> Option<usage::Disk> {
    let found = statvfs(path).ok()?;
    let bytes = |blocks| found.fragment_size().saturating_mul(blocks);
    let total = bytes(found.blocks());
    // What only root may still fill counts as used, as in `df`.
    let free = bytes(found.blocks_available());
    Some(usage::Disk { used: Bytes(total.saturating_sub(free)), total: Bytes(total) })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use warren_runtime::fake::Fake;

    use super::*;

    #[tokio::test]
    async fn a_node_is_measured_and_what_a_person_says_wins() {
        let fake = Fake::new();
        let measured =
            describe(&fake, &NodeOverrides::default(), disk(Path::new("/")), Some("10.0.0.7")).await;
        assert!(measured.resources.cpu.0 >= 1000 && measured.resources.memory.0 > 64 << 20);
        assert!(!measured.kernel.is_empty() && measured.runtime.starts_with("fake "));
        assert!(measured.disk.0 > 0 && measured.os == "linux" && measured.labels.is_empty());
        assert_eq!(measured.address, "10.0.0.7");
        let said = NodeOverrides {
            cpu: Some(MilliCpu(500)),
            memory: Some(Bytes(1 << 30)),
            address: Some("worker.example".into()),
            labels: BTreeMap::from([("zone".into(), "a".into())]),
        };
        let described = describe(&fake, &said, None, Some("10.0.0.7")).await;
        assert_eq!(described.resources, Resources { cpu: MilliCpu(500), memory: Bytes(1 << 30) });
        assert_eq!(described.address, "worker.example");
        assert_eq!((described.labels, described.disk), (said.labels, Bytes(0)));
    }

    #[test]
    fn a_disk_has_a_size() {
        let disk = disk(Path::new("/")).unwrap();
        assert!(disk.total.0 > 0 && disk.used <= disk.total);
    }
}
