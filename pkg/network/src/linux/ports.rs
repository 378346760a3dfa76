//! Holding host ports: a socket bound to each, never listening, so that no other program can take the port
//! and another program's port is noticed. Connections are translated before they would reach the socket.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};

use crate::error::{Error, PortHolder};
use crate::model::HostPort;

/// Inode of sockets that no process has open any more: connections that are being closed, or are only
/// remembered for late packets.
const NOBODYS: u64 = 0;

/// The ports that are held.
#[derive(Debug, Default)]
pub(super) struct Ports {
    held: BTreeMap<HostPort, OwnedFd>,
}

impl Ports {
    /// Takes the port, if it is not held already.
    pub fn ensure(&mut self, at: HostPort) -> Result<(), Error> {
        if let Entry::Vacant(place) = self.held.entry(at) {
            place.insert(hold(at)?);
        }
        Ok(())
    }

    /// Lets go of the port.
    pub fn remove(&mut self, at: HostPort) {
        self.held.remove(&at);
    }

    /// Lets go of all ports but these.
    pub fn keep(&mut self, wanted: &BTreeSet<HostPort>) {
        self.held.retain(|at, _| wanted.contains(at));
    }

    /// Whether the port is held.
    pub fn has(&self, at: &HostPort) -> bool {
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
    let users = users(at);
    let nobodys = !users.is_empty() && users.iter().all(|inode| *inode == NOBODYS);
    if nobodys {
        // Closed connections of a server that is gone: only a socket that may reuse addresses can be bound
        // beside them. The permission is taken back at once, so that a stranger who asks for the same cannot
        // listen beside us.
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

/// Finds out who has a port that was taken, and adds it to the error. Reads what files every process has
/// open, which takes a while.
pub(super) fn with_holder(error: Error) -> Error {
    match error {
        Error::PortTaken { port, by: None } => Error::PortTaken { port, by: owner(&users(port)) },
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

/// Inodes of the sockets of this network namespace that use the port, as `/proc/net/tcp` lists them: those
/// that listen, and connections.
fn users(at: HostPort) -> BTreeSet<u64> {
    // The lists of the thread, because the process may be in another namespace.
    let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    [read("tcp"), read("tcp6")].iter().flat_map(|table| parse_users(table, at)).collect()
}

fn parse_users(table: &str, at: HostPort) -> Vec<u64> {
    let user = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, inode) = (fields.get(1)?, fields.get(9)?);
        let (address, port) = local.split_once(':')?;
        if u16::from_str_radix(port, 16).ok()? != at.port() {
            return None;
        }
        // The last 32 bits are the IPv4 address, also of a mapped one, in the machine's byte order.
        let tail = u32::from_str_radix(address.get(address.len().checked_sub(8)?..)?, 16).ok()?;
        let found = Ipv4Addr::from(tail.to_ne_bytes());
        let overlaps = found.is_unspecified() || at.ip().is_none_or(|ip| ip == found);
        if overlaps { inode.parse().ok() } else { None }
    };
    table.lines().skip(1).filter_map(user).collect()
}

/// The process that has one of the sockets open.
fn owner(inodes: &BTreeSet<u64>) -> Option<PortHolder> {
    let owned = inodes.iter().filter(|inode| **inode != NOBODYS);
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
