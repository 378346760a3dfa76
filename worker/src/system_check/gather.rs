//! Finds the facts, all at once, each within a deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use nix::unistd::geteuid;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use warren_dns::parse_nameservers;
use warren_network::{NetworkRequirement, kernel_module, port_user};
use warren_runtime::containerd::OciRuntime;
use warren_runtime::supervise::{self, SupervisorOptions};
use warren_runtime::{AppArmorHost, CgroupSupport, kernel_release};

use super::facts::Fact;
use super::{NeededPort, SystemCheckOptions, kernel_clock};
use crate::network::dns::HOST_RESOLV_CONF;
use crate::node::{self, meter};
use crate::process::WorkerFlags;

/// Limit of one check. All run at once, so this is also the limit of the whole.
const DEADLINE: Duration = Duration::from_secs(8);

/// A check by its name, as it finds its fact.
type Check = (String, BoxFuture<'static, Fact>);

/// All facts, in the order in which people read them.
pub(super) async fn gather(options: SystemCheckOptions) -> Vec<(String, Fact)> {
    let SystemCheckOptions { data_dir, run_dir, worker, ports, node } = options;
    let user = geteuid();
    let mut checks = vec![
        check("root", async move { Fact::User(user.as_raw()) }),
        check("kernel", async { Fact::Kernel(kernel_release()) }),
    ];
    if let Some(flags) = worker {
        checks.extend(worker_checks(&data_dir, &run_dir, flags, user.is_root(), node));
    }
    checks.extend(ports.into_iter().map(|needed| port_check(needed, node)));
    checks.extend([
        check("clock", async { Fact::Clock(kernel_clock::read()) }),
        check("disk", async move { Fact::Disk(disk(data_dir).await) }),
        check("memory", async {
            Fact::Memory(std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| meter::memory(&text)))
        }),
        check("dns", async {
            let text = tokio::fs::read_to_string(HOST_RESOLV_CONF).await;
            Fact::Nameservers(text.map(|text| parse_nameservers(&text)))
        }),
    ]);
    let found = checks.into_iter().map(|(name, fact)| async move {
        (name, timeout(DEADLINE, fact).await.unwrap_or(Fact::Late(DEADLINE)))
    });
    join_all(found).await
}

fn check(name: impl Into<String>, fact: impl Future<Output = Fact> + Send + 'static) -> Check {
    (name.into(), fact.boxed())
}

/// What only a machine with tasks needs.
fn worker_checks(
    data_dir: &Path,
    run_dir: &Path,
    flags: WorkerFlags,
    is_root: bool,
    node: Option<u32>,
) -> Vec<Check> {
    let mut checks = vec![
        check("cgroups", async { Fact::Cgroups(CgroupSupport::read()) }),
        check("overlayfs", async { Fact::Overlay(overlayfs().await) }),
    ];
    for (name, requirement) in [
        ("veth", NetworkRequirement::Veth),
        ("vxlan", NetworkRequirement::Vxlan),
        ("conntrack", NetworkRequirement::Conntrack),
        ("forwarding", NetworkRequirement::Forwarding),
        ("iptables", NetworkRequirement::Iptables),
        ("nftables", NetworkRequirement::Nftables),
    ] {
        checks.push(check(name, async move {
            match is_root {
                true => Fact::Network(requirement, requirement.check().await),
                false => Fact::NeedsRoot,
            }
        }));
    }
    let options = SupervisorOptions {
        socket: flags.containerd_socket,
        ..SupervisorOptions::new(data_dir.join("containerd"), run_dir.join("containerd"))
    };
    let runtime = flags.runtime.as_deref().map_or(Ok(OciRuntime::default()), OciRuntime::parse);
    checks.push(check("containerd", async move {
        match is_root {
            true => Fact::Containerd(supervise::preview(&options).await),
            false => Fact::NeedsRoot,
        }
    }));
    checks.push(check("oci-runtime", async move {
        Fact::OciRuntime(match runtime {
            Ok(runtime) => runtime.check().await,
            Err(error) => Err(error),
        })
    }));
    checks.push(check("apparmor", async move {
        let host = AppArmorHost::find();
        match is_root {
            true => Fact::AppArmor { state: host.state().await, has_parser: host.has_parser(), node },
            false => Fact::NeedsRoot,
        }
    }));
    checks
}

fn port_check(needed: NeededPort, node: Option<u32>) -> Check {
    let name = format!("port {}/{}", needed.at.port(), needed.at.protocol());
    check(name, async move {
        let user = port_user(needed.at).await;
        Fact::Port { needed, user, node }
    })
}

/// A file system that is built in or loaded is in the list of the kernel.
async fn overlayfs() -> Option<String> {
    let known = tokio::fs::read_to_string("/proc/filesystems").await.unwrap_or_default();
    let is_known = known.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    match is_known {
        true => Some("in the kernel".to_owned()),
        false => kernel_module("overlay").await,
    }
}

/// The file system that has or will have the directory. A network file system may not answer.
async fn disk(data_dir: PathBuf) -> Option<meter::DiskUsage> {
    let existing = move || {
        let data_dir = std::path::absolute(data_dir).ok()?;
        data_dir.ancestors().find(|path| path.exists()).and_then(node::disk)
    };
    spawn_blocking(existing).await.ok().flatten()
}
