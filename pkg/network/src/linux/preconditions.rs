//! Checks the requirements of this machine before anything is changed.

use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use super::netlink::{Netlink, NetlinkChange, errno};
use super::process::{run, run_on_thread};
use super::{isolation, message, overlay, ports, sysctl};
use crate::Error;
use crate::desired::Sysctl;
use crate::error::PortUser;
use crate::keys::{HostPort, TransportProtocol};

/// First version with `iptables-restore -w` and `MASQUERADE --random-fully`.
const MIN_IPTABLES: (u32, u32, u32) = (1, 6, 2);
const MIN_IPTABLES_TEXT: &str = "1.6.2";

/// What the network of a node needs from its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkRequirement {
    /// The programs of iptables, and the tables of the kernel.
    Iptables,
    /// The program nft, and rules like those of the isolation.
    Nftables,
    /// Packets can be forwarded: `net.ipv4.ip_forward` is 1 or can be set.
    Forwarding,
    /// Links of tasks.
    Veth,
    /// The device to other nodes.
    Vxlan,
    /// Connection tracking.
    Conntrack,
}

impl NetworkRequirement {
    /// Checks it as root, and returns what was found, such as a version. Changes nothing.
    ///
    /// # Errors
    /// It is not met, with the remedy.
    pub async fn check(self) -> Result<String, Error> {
        match self {
            Self::Iptables => check_iptables().await,
            Self::Nftables => isolation::check().await,
            Self::Forwarding => {
                sysctl::check(&Sysctl { path: "net/ipv4/ip_forward".to_owned(), value: "1" })?;
                Ok("net.ipv4.ip_forward is 1, or can be set".to_owned())
            }
            Self::Veth => check_links("veth", try_veth).await,
            Self::Vxlan => check_links("vxlan", overlay::try_device).await,
            Self::Conntrack => check_conntrack().await,
        }
    }
}

pub(super) async fn check() -> Result<(), Error> {
    let uid = geteuid();
    if !uid.is_root() {
        return Err(Error::NotRoot { uid: uid.as_raw() });
    }
    for requirement in
        [NetworkRequirement::Iptables, NetworkRequirement::Nftables, NetworkRequirement::Forwarding]
    {
        requirement.check().await?;
    }
    Ok(())
}

async fn check_iptables() -> Result<String, Error> {
    let found = run("iptables", &["--version"], "").await?;
    if parse_version(&found).is_none_or(|version| version < MIN_IPTABLES) {
        return Err(Error::ProgramTooOld { found: found.trim().to_owned(), needed: MIN_IPTABLES_TEXT });
    }
    run("iptables-restore", &["--version"], "").await?;
    run("iptables-save", &["--version"], "").await?;
    // Listing a table shows whether the kernel supports this iptables variant.
    for table in ["raw", "mangle", "filter", "nat"] {
        run("iptables", &["-w", "-t", table, "-S"], "").await?;
    }
    Ok(found.trim().to_owned())
}

/// Checks a kind of links by its module, or else by creating one in a network namespace of its own, where there is no
/// module that this could load.
async fn check_links(
    module: &'static str,
    try_link: fn(&mut Netlink) -> Result<(), Error>,
) -> Result<String, Error> {
    if let Some(found) = kernel_module(module).await {
        return Ok(found);
    }
    run_on_thread(&format!("trying {module}"), move || {
        let failed = |errno: Errno| Error::Netlink {
            operation: "create a network namespace".to_owned(),
            source: errno.into(),
        };
        unshare(CloneFlags::CLONE_NEWNET).map_err(failed)?;
        try_link(&mut Netlink::open()?)
    })
    .await?;
    Ok("built into the kernel".to_owned())
}

fn try_veth(netlink: &mut Netlink) -> Result<(), Error> {
    let pair = message::veth_pair("warren-try0", "warren-try1");
    let created = netlink.submit(vec![NetlinkChange::create("try veth".to_owned(), pair)]);
    created.map_err(|error| match errno(&error) {
        Some(Errno::EOPNOTSUPP) => Error::KernelFeatureMissing { feature: "veth links", module: "veth" },
        _ => error,
    })
}

async fn check_conntrack() -> Result<String, Error> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
    if let (Ok(count), Ok(max)) = (read("count"), read("max")) {
        return Ok(format!("{} of {} entries", count.trim(), max.trim()));
    }
    let module = "nf_conntrack";
    let missing = Error::KernelFeatureMissing { feature: "connection tracking", module };
    kernel_module(module).await.ok_or(missing)
}

/// How this kernel has a module: loaded, built in, or to be loaded when it is needed; `None` without a trace of it. One
/// that is built in need not have any.
pub async fn kernel_module(name: &str) -> Option<String> {
    if Path::new("/sys/module").join(name).exists() {
        return Some("in the kernel".to_owned());
    }
    let found = run("modprobe", &["-n", "-q", name], "").await.is_ok();
    found.then(|| format!("module {name} can be loaded"))
}

/// Who has a port of this machine; `None` for a free port.
///
/// # Errors
/// The machine does not have the address, or the port cannot be tried.
pub async fn port_user(at: HostPort) -> Result<Option<PortUser>, Error> {
    run_on_thread("trying a port", move || {
        let user = ports::user(at)?;
        if user != Some(PortUser::Unknown) || at.protocol() != TransportProtocol::Udp {
            return Ok(user);
        }
        // The socket of a VXLAN device belongs to no process.
        let device = overlay::devices_with_port(&mut Netlink::open()?, at.port()).into_iter().next();
        Ok(Some(device.map_or(PortUser::Unknown, PortUser::Device)))
    })
    .await
}

/// Reads `iptables v1.8.9 (nf_tables)`.
fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let number = text.split_whitespace().find_map(|word| word.strip_prefix('v'))?;
    let mut parts = number.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?, parts.next().and_then(Result::ok).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        for (text, version) in [
            ("iptables v1.8.9 (nf_tables)\n", Some((1, 8, 9))),
            ("iptables v1.4.21", Some((1, 4, 21))),
            ("iptables v2.0", Some((2, 0, 0))),
            ("iptables", None),
            ("busybox vX.1.2", None),
        ] {
            assert_eq!(parse_version(text), version, "{text}");
        }
        assert!(parse_version("iptables v1.4.21").unwrap() < MIN_IPTABLES);
        assert!(parse_version("iptables v1.10.0").unwrap() > MIN_IPTABLES);
    }

    #[tokio::test]
    async fn links_are_tried_without_a_trace() {
        let links = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        for (module, try_link) in
            [("no-such-module", try_veth as fn(&mut Netlink) -> _), ("no-such-module", overlay::try_device)]
        {
            assert_eq!(check_links(module, try_link).await.unwrap(), "built into the kernel");
        }
        assert!(!links().contains("warren-try"), "{}", links());
        assert_eq!(kernel_module("no-such-module").await, None);
    }

    #[tokio::test]
    async fn the_user_of_a_port_is_named() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = std::num::NonZeroU16::new(server.local_addr().unwrap().port()).unwrap();
        let at = HostPort::new(None, port, TransportProtocol::Tcp);
        let own = |user: Option<PortUser>| match user {
            Some(PortUser::Process(holder)) => holder.pid == std::process::id(),
            _ => false,
        };
        assert!(own(port_user(at).await.unwrap()));
        drop(server);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = std::num::NonZeroU16::new(socket.local_addr().unwrap().port()).unwrap();
        let at = HostPort::new(None, port, TransportProtocol::Udp);
        assert!(own(port_user(at).await.unwrap()));
        drop(socket);
        let elsewhere = HostPort::new(Some([192, 0, 2, 1].into()), port, TransportProtocol::Tcp);
        let error = port_user(elsewhere).await.unwrap_err();
        assert!(matches!(error, Error::HostIpMissing { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let missing = run("iptables-of-nowhere", &[], "").await.unwrap_err();
        assert!(missing.to_string().contains("iptables-of-nowhere"), "{missing}");
        assert!(missing.to_string().contains("apt-get install iptables"), "{missing}");
    }

    #[tokio::test]
    async fn failed_program_shows_its_stderr() {
        let failed = run("iptables", &["-t", "nonsense", "-S"], "").await.unwrap_err();
        assert!(failed.to_string().contains("iptables -t nonsense -S"), "{failed}");
        assert!(failed.to_string().contains("does not exist"), "{failed}");
    }
}
