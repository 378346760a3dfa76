//! The machine: capacity, usage, and conditions.

pub(crate) mod conditions;
pub(crate) mod meter;
pub(crate) mod metrics;
pub(crate) mod monitor;
pub(crate) mod stats;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::time::timeout;
use warren_runtime::{AppArmorState, Runtime};
use warren_types::{Bytes, MilliCpu, NodeDescription, Resources, WireGuardKey};

use crate::network::NetworkOptions;

/// Deadline of the version query of the runtime at each session, which it must not delay.
const RUNTIME_DEADLINE: Duration = Duration::from_secs(2);

/// Configured values that replace measured ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeOverrides {
    /// CPU for tasks.
    pub cpu: Option<MilliCpu>,
    /// Memory for tasks.
    pub memory: Option<Bytes>,
    /// Address for other machines; by default the source address of the connection to the manager.
    pub address: Option<String>,
    /// Labels for constraints on `engine.labels`.
    pub labels: BTreeMap<String, String>,
    /// Address to which other nodes send packets for its tasks; by default the source address of its route to a
    /// manager.
    pub data_address: Option<Ipv4Addr>,
    /// How the node takes part in the network of the cluster.
    pub network: NetworkOptions,
}

/// Describes the node. `disk` is the file system of images and containers, `dialled_from` the local address
/// of the connection to the manager, `data_address` that for packets of its tasks, and `wireguard_key` their key.
pub(crate) async fn describe(
    runtime: &dyn Runtime,
    overrides: &NodeOverrides,
    disk: Option<meter::DiskUsage>,
    dialled_from: Option<&str>,
    data_address: Option<Ipv4Addr>,
    wireguard_key: Option<WireGuardKey>,
) -> NodeDescription {
    let (runtime, apparmor) = match timeout(RUNTIME_DEADLINE, runtime.info()).await {
        Ok(Ok(info)) => (format!("{} {}", info.name, info.version), info.apparmor),
        _ => ("not answering".to_string(), AppArmorState::default()),
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
        data_address,
        wireguard_key,
        apparmor_missing: apparmor == AppArmorState::Missing,
        labels: overrides.labels.clone(),
    }
}

/// CPUs of this process, within its cgroup limits.
fn measured_cpu() -> MilliCpu {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    MilliCpu(cores as u64 * 1000)
}

fn measured_memory() -> Bytes {
    meter::memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()).map_or(Bytes(0), |m| m.total)
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// Size and usage of the file system at `path`; `None` if it cannot be read.
pub(crate) fn disk(path: &std::path::Path) -> Option<meter::DiskUsage> {
    let found = statvfs(path).ok()?;
    let bytes = |blocks| found.fragment_size().saturating_mul(blocks);
    let used = bytes(found.blocks().saturating_sub(found.blocks_free()));
    // Space that is reserved for root counts neither as used nor as free, as in the percentage of `df`.
    let total = used.saturating_add(bytes(found.blocks_available()));
    Some(meter::DiskUsage { used: Bytes(used), total: Bytes(total) })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use warren_runtime::fake::FakeRuntime;

    use super::*;

    #[tokio::test]
    async fn overrides_replace_measured_values() {
        let fake = FakeRuntime::new();
        let measured =
            describe(&fake, &NodeOverrides::default(), disk(Path::new("/")), Some("10.0.0.7"), None, None)
                .await;
        assert!(measured.resources.cpu.0 >= 1000 && measured.resources.memory.0 > 64 << 20);
        assert!(!measured.kernel.is_empty() && measured.runtime.starts_with("fake "));
        assert!(measured.disk.0 > 0 && measured.os == "linux" && measured.labels.is_empty());
        assert_eq!(measured.address, "10.0.0.7");
        let output = NodeOverrides {
            cpu: Some(MilliCpu(500)),
            memory: Some(Bytes(1 << 30)),
            address: Some("worker.example".into()),
            labels: BTreeMap::from([("zone".into(), "a".into())]),
            ..NodeOverrides::default()
        };
        let data_address = Some(Ipv4Addr::new(10, 0, 0, 8));
        let key = Some(WireGuardKey([7; 32]));
        let described = describe(&fake, &output, None, Some("10.0.0.7"), data_address, key).await;
        assert_eq!((described.data_address, described.wireguard_key), (data_address, key));
        assert_eq!(described.resources, Resources { cpu: MilliCpu(500), memory: Bytes(1 << 30) });
        assert_eq!(described.address, "worker.example");
        assert_eq!((described.labels, described.disk), (output.labels, Bytes(0)));
    }

    #[test]
    fn a_disk_has_a_size() {
        let disk = disk(Path::new("/")).unwrap();
        assert!(disk.total.0 > 0 && disk.used <= disk.total);
    }
}
