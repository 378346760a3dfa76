//! Holds host ports: a bound socket for each, which never listens or reads, so that no other program can
//! bind the port and conflicts are detected. Packets are translated before they would reach the socket.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
};

use crate::error::{Error, PortHolder, PortUser};
use crate::keys::{HostPort, TransportProtocol};

/// Inode of sockets without an owner: closing connections, or those in TIME_WAIT.
const NO_INODE: u64 = 0;
/// Port of the node's own DNS server.
const DNS_PORT: u16 = 53;

/// The held ports.
#[derive(Debug, Default)]
pub(super) struct HeldPorts {
    /// Without a socket where the kernel has none for the protocol: no other program has one either.
    held: BTreeMap<HostPort, Option<OwnedFd>>,
}

impl HeldPorts {
    /// Binds the port, unless it is held already. The node's own DNS server answers at its `gateway`.
    pub fn ensure(&mut self, at: HostPort, gateway: Ipv4Addr) -> Result<(), Error> {
        if let Entry::Vacant(entry) = self.held.entry(at) {
            entry.insert(hold(at, gateway)?);
        }
        Ok(())
    }

    /// Releases the port.
    pub fn remove(&mut self, at: HostPort) {
        self.held.remove(&at);
    }

    /// Releases all ports but these.
    pub fn retain(&mut self, desired: &BTreeSet<HostPort>) {
        self.held.retain(|at, _| desired.contains(at));
    }

    /// Whether the port is held.
    pub fn is_held(&self, at: &HostPort) -> bool {
        self.held.contains_key(at)
    }
}

fn hold(at: HostPort, gateway: Ipv4Addr) -> Result<Option<OwnedFd>, Error> {
    let refused = |errno: Errno| Error::BindPort { port: at, source: errno.into() };
    match try_bind(at, false) {
        Ok(socket) => return Ok(Some(socket)),
        Err(Errno::EPROTONOSUPPORT | Errno::ESOCKTNOSUPPORT) => return Ok(None),
        Err(Errno::EADDRNOTAVAIL) => return Err(Error::HostIpMissing { port: at }),
        Err(Errno::EADDRINUSE) => {}
        Err(errno) => return Err(refused(errno)),
    }
    let users = sockets(at);
    if at.port() == DNS_PORT && !users.is_empty() && users.iter().all(|(address, _)| *address == gateway) {
        // A published DNS server beside that of the node, which keeps the gateway.
        return Ok(None);
    }
    let nobodys = at.protocol() == TransportProtocol::Tcp
        && !users.is_empty()
        && users.iter().all(|(_, inode)| *inode == NO_INODE);
    if nobodys {
        // Closed connections of a previous server: only a socket with SO_REUSEADDR can be bound in this
        // case. The option is cleared immediately, so that no other process with the option can listen on
        // the port.
        match try_bind(at, true)
            .and_then(|socket| setsockopt(&socket, sockopt::ReuseAddr, &false).map(|()| socket))
        {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::EADDRINUSE) => {}
            Err(errno) => return Err(refused(errno)),
        }
    }
    Err(Error::PortTaken { port: at, by: None })
}

/// Finds the process that has a port, and adds it to the error. Reads the open files of every process,
/// which takes a while.
pub(super) fn with_holder(error: Error) -> Error {
    match error {
        Error::PortTaken { port, by: None } => {
            Error::PortTaken { port, by: process_of(&socket_inodes(port)) }
        }
        other => other,
    }
}

fn try_bind(at: HostPort, reuse: bool) -> Result<OwnedFd, Errno> {
    let (kind, protocol) = match at.protocol() {
        TransportProtocol::Tcp => (SockType::Stream, SockProtocol::Tcp),
        TransportProtocol::Udp => (SockType::Datagram, SockProtocol::Udp),
        TransportProtocol::Sctp => (SockType::Stream, SockProtocol::Sctp),
    };
    let socket = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, protocol)?;
    if reuse {
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    }
    let address = SocketAddrV4::new(at.ip().unwrap_or(Ipv4Addr::UNSPECIFIED), at.port());
    bind(socket.as_raw_fd(), &SockaddrIn::from(address))?;
    Ok(socket)
}

/// The process that has a UDP port open on any address.
pub(super) fn udp_holder(port: u16) -> Option<PortHolder> {
    let at = HostPort::new(None, NonZeroU16::new(port)?, TransportProtocol::Udp);
    process_of(&socket_inodes(at))
}

/// Who has the port: nobody if a server could bind it. The socket that tries does not listen, and is closed at once.
pub(super) fn user(at: HostPort) -> Result<Option<PortUser>, Error> {
    match try_bind(at, at.protocol() == TransportProtocol::Tcp) {
        Ok(_) => Ok(None),
        Err(Errno::EADDRINUSE) => {
            Ok(Some(process_of(&socket_inodes(at)).map_or(PortUser::Unknown, PortUser::Process)))
        }
        Err(Errno::EADDRNOTAVAIL) => Err(Error::HostIpMissing { port: at }),
        Err(errno) => Err(Error::BindPort { port: at, source: errno.into() }),
    }
}

/// Inodes of the sockets that use the port.
fn socket_inodes(at: HostPort) -> BTreeSet<u64> {
    sockets(at).into_iter().map(|(_, inode)| inode).collect()
}

/// Addresses and inodes of the sockets of this network namespace that use the port, from `/proc/net/tcp` or `udp`:
/// listeners and connections. The kernel's list of SCTP sockets is not read.
fn sockets(at: HostPort) -> BTreeSet<(Ipv4Addr, u64)> {
    // The tables of the thread, because the process may be in another namespace.
    let read = |name: &&str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let names = match at.protocol() {
        TransportProtocol::Tcp => ["tcp", "tcp6"].as_slice(),
        TransportProtocol::Udp => &["udp", "udp6"],
        TransportProtocol::Sctp => &[],
    };
    names.iter().map(read).flat_map(|table| parse_sockets(&table, at)).collect()
}

fn parse_sockets(table: &str, at: HostPort) -> Vec<(Ipv4Addr, u64)> {
    let user = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, inode) = (fields.get(1)?, fields.get(9)?);
        let (address, port) = local.split_once(':')?;
        if u16::from_str_radix(port, 16).ok()? != at.port() {
            return None;
        }
        // The last 32 bits are the IPv4 address, also of a mapped one, in native byte order.
        let tail = u32::from_str_radix(address.get(address.len().checked_sub(8)?..)?, 16).ok()?;
        let found = Ipv4Addr::from(tail.to_ne_bytes());
        let overlaps = found.is_unspecified() || at.ip().is_none_or(|ip| ip == found);
        if overlaps { Some((found, inode.parse().ok()?)) } else { None }
    };
    table.lines().skip(1).filter_map(user).collect()
}

/// The process that has one of the sockets open. A process that this one has forked, and that has not executed its
/// program yet, is none: it closes its copies of the sockets then.
pub(super) fn process_of(inodes: &BTreeSet<u64>) -> Option<PortHolder> {
    let owned = inodes.iter().filter(|inode| **inode != NO_INODE);
    let links: BTreeSet<String> = owned.map(|inode| format!("socket:[{inode}]")).collect();
    let holds = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        targets.any(|target| target.to_str().is_some_and(|target| links.contains(target)))
    };
    if links.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // In this order: a process that executes its program in between has closed the copies when its files are read.
    let holders: BTreeSet<u32> = pids.filter(|pid| !is_copy(*pid)).filter(holds).collect();
    // A process that was forked and has not executed its program yet holds what its parent does.
    let is_first = |pid: &&u32| parent_of(**pid).is_some_and(|parent| !holders.contains(&parent));
    let pid = *holders.iter().find(is_first).or(holders.first())?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    Some(PortHolder { pid, name })
}

/// Whether this process has forked the other one, and that has not executed its program yet.
fn is_copy(pid: u32) -> bool {
    let command_line = |process: &str| fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    parent_of(pid) == Some(std::process::id())
        && has_not_executed(&command_line(&pid.to_string()), &command_line("self"))
}

/// By the command lines of a child and of its parent. That of a child is empty while the kernel replaces its program,
/// before it closes the copies.
fn has_not_executed(child: &[u8], parent: &[u8]) -> bool {
    child.is_empty() || child == parent
}

/// `None` if the process has ended.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may contain anything: the state and the parent.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests;
