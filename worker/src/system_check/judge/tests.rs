use std::io;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use warren_network::{Error as NetworkError, HostPort, PortHolder, TransportProtocol};

use super::*;

const GIB: u64 = 1 << 30;

fn port(user: Option<PortUser>) -> Fact {
    let at = HostPort::new(None, NonZeroU16::new(4789).unwrap(), TransportProtocol::Udp);
    let needed = NeededPort { purpose: "packets between nodes", at, flag: "--vxlan-port" };
    Fact::Port { needed, user: Ok(user), node: Some(7) }
}

fn process(pid: u32) -> Option<PortUser> {
    Some(PortUser::Process(PortHolder { pid, name: "dockerd".into() }))
}

fn cgroups(version: CgroupVersion, missing: &[&'static str]) -> Fact {
    Fact::Cgroups(Ok(CgroupSupport { version, missing: missing.to_vec() }))
}

fn containerd(version: &str, socket: Option<&str>) -> Fact {
    Fact::Containerd(Ok(ContainerdPreview { version: version.into(), socket: socket.map(PathBuf::from) }))
}

fn network(requirement: NetworkRequirement, error: NetworkError) -> Fact {
    Fact::Network(requirement, Err(error))
}

fn missing(program: &str, package: &'static str) -> NetworkError {
    NetworkError::ProgramMissing { program: program.into(), package }
}

fn program_failed() -> NetworkError {
    NetworkError::ProgramFailed { command: "iptables -w -t nat -S".into(), detail: "no such table".into() }
}

fn apparmor(state: AppArmorState, has_parser: bool, node: Option<u32>) -> Fact {
    Fact::AppArmor { state, has_parser, node }
}

fn clock(is_synchronised: bool) -> Fact {
    Fact::Clock(Ok(KernelClock { is_synchronised, max_error: Duration::from_millis(12) }))
}

/// Of 100 GiB.
fn disk(free: u64) -> Fact {
    Fact::Disk(Some(DiskUsage { total: Bytes(100 * GIB), used: Bytes(100 * GIB - free) }))
}

fn memory(available: u64) -> Fact {
    Fact::Memory(Some(MemoryUsage { total: Bytes(8 * GIB), used: Bytes(8 * GIB - available) }))
}

/// Facts with outcome, a part of the message, and a part of the hint.
fn table() -> Vec<(Fact, NodeCheckOutcome, &'static str, &'static str)> {
    use NetworkRequirement as Needs;
    let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
    vec![
        (Fact::User(0), Passed, "root", ""),
        (Fact::User(1000), Failed, "uid 1000", "sudo"),
        (Fact::Kernel(Ok("6.1.0-28-amd64".into())), Passed, "Linux 6.1.0-28-amd64", ""),
        (Fact::Kernel(Ok("5.6.0".into())), Passed, "5.6.0", ""),
        (Fact::Kernel(Ok("4.19.0-27-amd64".into())), Failed, "5.6 or newer is needed", "linux-image"),
        (Fact::Kernel(Ok("odd".into())), Warning, "\"odd\"", ""),
        (Fact::Kernel(Err(refused())), Failed, "/proc", "mount -t proc"),
        (cgroups(CgroupVersion::V2, &[]), Passed, "version 2", ""),
        (cgroups(CgroupVersion::V1, &[]), Passed, "version 1", ""),
        (cgroups(CgroupVersion::V2, &["memory"]), Failed, "memory", "cgroup_enable=memory"),
        (cgroups(CgroupVersion::V1, &["pids", "devices"]), Failed, "pids, devices", "kernel"),
        (cgroups(CgroupVersion::None, &[]), Failed, "no cgroups", "mount -t cgroup2"),
        (Fact::Overlay(Some("in the kernel".into())), Passed, "in the kernel", ""),
        (Fact::Overlay(None), Failed, "overlayfs", "modprobe overlay"),
        (Fact::Network(Needs::Iptables, Ok("iptables v1.8.9".into())), Passed, "v1.8.9", ""),
        (
            network(Needs::Iptables, missing("iptables", "iptables")),
            Failed,
            "not found",
            "apt-get install iptables",
        ),
        (network(Needs::Nftables, missing("nft", "nftables")), Failed, "nft", "apt-get install nftables"),
        (network(Needs::Iptables, program_failed()), Failed, "no such table", "update-alternatives"),
        (network(Needs::Vxlan, NetworkError::VxlanMissing), Failed, "VXLAN", "modprobe vxlan"),
        (
            network(
                Needs::Veth,
                NetworkError::KernelFeatureMissing { feature: "veth links", module: "veth" },
            ),
            Failed,
            "veth links",
            "modprobe veth",
        ),
        (
            network(
                Needs::Forwarding,
                NetworkError::Sysctl { name: "x".into(), value: "1".into(), source: refused() },
            ),
            Failed,
            "sysctl",
            "sysctl -w net.ipv4.ip_forward=1",
        ),
        (containerd("v1.7.2", Some("/run/c.sock")), Passed, "v1.7.2 answers at /run/c.sock", ""),
        (containerd("1.6.20~ds1", None), Passed, "starts itself", ""),
        (containerd("1.4.13", Some("/run/c.sock")), Failed, "1.6 or newer", "apt-get install containerd"),
        (
            Fact::Containerd(Err(supervise::Error::Missing { program: "containerd".into() })),
            Failed,
            "containerd is not installed",
            "apt-get install containerd",
        ),
        (Fact::OciRuntime(Ok("runc version 1.1.5".into())), Passed, "1.1.5", ""),
        (
            Fact::OciRuntime(Err(warren_runtime::Error::OciRuntimeMissing { program: "crun".into() })),
            Failed,
            "crun",
            "apt-get install crun",
        ),
        (
            Fact::OciRuntime(Err(warren_runtime::Error::OciRuntimeMissing { program: "/x/runc".into() })),
            Failed,
            "/x/runc",
            "--runtime",
        ),
        (apparmor(AppArmorState::Absent, false, None), Passed, "the kernel has none", ""),
        (apparmor(AppArmorState::Loaded, false, Some(7)), Passed, "warren-default is loaded", ""),
        (apparmor(AppArmorState::Missing, true, None), Passed, "the node loads", ""),
        (apparmor(AppArmorState::Missing, true, Some(7)), Warning, "is not loaded", "journalctl"),
        (
            apparmor(AppArmorState::Missing, false, None),
            Warning,
            "cannot be loaded",
            "apt-get install apparmor",
        ),
        (port(None), Passed, "free", ""),
        (port(process(7)), Passed, "the node itself", ""),
        (port(process(8)), Failed, "dockerd (pid 8)", "--vxlan-port"),
        (port(Some(PortUser::Device("warren-vx".into()))), Passed, "the node itself", ""),
        (port(Some(PortUser::Device("vx-001".into()))), Failed, "device vx-001", "--vxlan-port"),
        (port(Some(PortUser::Unknown)), Warning, "unknown", "--vxlan-port"),
        (clock(true), Passed, "12 ms", ""),
        (clock(false), Warning, "not synchronised", "apt-get install systemd-timesyncd"),
        (disk(3 * GIB), Passed, "3GiB free", ""),
        (disk(GIB), Failed, "1GiB free", "warren image prune"),
        (Fact::Disk(None), Warning, "cannot be read", "--data-dir"),
        (memory(2 * GIB), Passed, "2GiB available", ""),
        (memory(GIB / 8), Warning, "128MiB of 8GiB", "ps aux"),
        (Fact::Memory(None), Warning, "/proc/meminfo", "mount"),
        (Fact::Nameservers(Ok(vec![([9, 9, 9, 9], 53).into()])), Passed, "9.9.9.9", ""),
        (Fact::Nameservers(Ok(Vec::new())), Warning, "no server", "nameserver ADDRESS"),
        (Fact::Nameservers(Err(refused())), Warning, "cannot be read", "nameserver ADDRESS"),
        (Fact::NeedsRoot, Warning, "only root", "sudo"),
        (Fact::Late(Duration::from_secs(8)), Failed, "within 8s", "ps aux"),
    ]
}

#[test]
fn each_fact_has_its_outcome_and_remedy() {
    for (fact, outcome, message, hint) in table() {
        let found = judge("x".into(), &fact);
        assert_eq!(found.outcome, outcome, "{fact:?}: {found:?}");
        assert!(found.message.contains(message), "{fact:?}: {found:?}");
        assert!(found.hint.contains(hint), "{fact:?}: {found:?}");
    }
}

#[test]
fn only_what_failed_needs_a_remedy() {
    for (fact, ..) in table() {
        let found = judge("x".into(), &fact);
        match found.outcome {
            Passed => assert_eq!(found.hint, "", "{fact:?}"),
            Failed => assert_ne!(found.hint, "", "{fact:?}"),
            Warning => {}
        }
    }
}
