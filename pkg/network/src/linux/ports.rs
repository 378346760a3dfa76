//! Holds host ports: a bound, never listening socket for each, so that no other program can bind the port
//! and conflicts are detected. Connections are translated before they would reach the socket.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};

use crate::error::{Error, PortHolder};
use crate::keys::HostPort;

/// Inode of sockets without an owner: closing connections, or those in TIME_WAIT.
const NO_INODE: u64 = 0;

/// The held ports.
#[derive(Debug, Default)]
pub(super) struct HeldPorts {
    held: BTreeMap<HostPort, OwnedFd>,
}

impl HeldPorts {
    /// Binds the port, unless it is held already.
    pub fn ensure(&mut self, at: HostPort) -> Result<(), Error> {
        if let Entry::Vacant(entry) = self.held.entry(at) {
            entry.insert(hold(at)?);
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

fn hold(at: HostPort) -> Result<OwnedFd, Error> {
    let refused = |errno: Errno| Error::BindPort { port: at, source: errno.into() };
    match try_bind(at, false) {
        Ok(socket) => return Ok(socket),
        Err(Errno::EADDRNOTAVAIL) => return Err(Error::HostIpMissing { port: at }),
        Err(Errno::EADDRINUSE) => {}
        Err(errno) => return Err(refused(errno)),
    }
    let users = socket_inodes(at);
    let nobodys = !users.is_empty() && users.iter().all(|inode| *inode == NO_INODE);
    if nobodys {
        // Closed connections of a previous server: only a socket with SO_REUSEADDR can be bound in this
        // case. The option is cleared immediately, so that no other process with the option can listen on
        // the port.
        match try_bind(at, true)
            .and_then(|socket| setsockopt(&socket, sockopt::ReuseAddr, &false).map(|()| socket))
        {
            Ok(socket) => return Ok(socket),
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
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    if reuse {
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    }
    let address = SocketAddrV4::new(at.ip().unwrap_or(Ipv4Addr::UNSPECIFIED), at.port());
    bind(socket.as_raw_fd(), &SockaddrIn::from(address))?;
    Ok(socket)
}

/// Inodes of the sockets of this network namespace that use the port, from `/proc/net/tcp`: listeners and
/// connections.
fn socket_inodes(at: HostPort) -> BTreeSet<u64> {
    // The tables of the thread, because the process may be in another namespace.
    let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    [read("tcp"), read("tcp6")].iter().flat_map(|table| parse_socket_inodes(table, at)).collect()
}

fn parse_socket_inodes(table: &str, at: HostPort) -> Vec<u64> {
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
        if overlaps { inode.parse().ok() } else { None }
    };
    table.lines().skip(1).filter_map(user).collect()
}

/// The process that has one of the sockets open.
fn process_of(inodes: &BTreeSet<u64>) -> Option<PortHolder> {
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
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(holds)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    Some(PortHolder { pid, name })
}

#[cfg(test)]
mod tests;
