//! Deletes connection tracking entries: of an address whose task is gone, so that its clients learn of it
//! and its next user finds none; and of UDP flows, which outlive the rules that made them.
//!
//! Clients of a task that is gone are told, also those that only read: see `conntrack/open_connection.rs`.
//!
//! Uses the kernel's ctnetlink directly (`linux/netfilter/nfnetlink_conntrack.h`); no tool needs to be
//! installed.

mod open_connection;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::num::NonZeroU16;

use nix::errno::Errno;
use nix::libc;
use rtnetlink::sys::{Socket, protocols::NETLINK_NETFILTER};

use super::{netlink, underlay};
use crate::Error;
use crate::keys::{HostPort, TransportProtocol};
use crate::model::ClusterNetwork;
use open_connection::{OpenConnection, provoke_acknowledgements};

const GET: u16 = ((libc::NFNL_SUBSYS_CTNETLINK as u16) << 8) | 1; // IPCTNL_MSG_CT_GET
const DELETE: u16 = ((libc::NFNL_SUBSYS_CTNETLINK as u16) << 8) | 2; // IPCTNL_MSG_CT_DELETE
const REQUEST_ACK: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
const REQUEST_DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
const NESTED: u16 = libc::NLA_F_NESTED as u16;
const TUPLE_ORIG: u16 = 1; // CTA_TUPLE_ORIG
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const PROTO_NUMBER: u16 = 1;
const PROTO_DESTINATION_PORT: u16 = 3;
const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const FILTER_ORIG_FLAGS: u16 = 1;
const FILTER_REPLY_FLAGS: u16 = 2;
const BY_SOURCE: u32 = 1; // CTA_FILTER_FLAG(CTA_IP_SRC)
const BY_DESTINATION: u32 = 2;
const BY_PROTOCOL: u32 = 8; // CTA_FILTER_FLAG(CTA_PROTO_NUM)
const UDP: u8 = libc::IPPROTO_UDP as u8;
const TCP: u8 = libc::IPPROTO_TCP as u8;
const HEADER: usize = 20; // struct nlmsghdr and struct nfgenmsg

/// Above this number of requests, one pass over all entries is cheaper than one of the kernel for each.
const MAX_FILTERED: usize = 4;

/// Entries whose connections lead to nothing, or to the wrong backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StaleEntries {
    /// Every entry with one of these addresses at either end: their tasks are gone.
    pub addresses: BTreeSet<Ipv4Addr>,
    /// UDP flows to a virtual address that lead to a withdrawn backend.
    pub withdrawn: BTreeSet<(Ipv4Addr, Ipv4Addr)>,
    /// UDP flows to a port of this node that do not lead to one of these backends.
    pub ports: BTreeMap<HostPort, BTreeSet<Ipv4Addr>>,
}

/// Deletes every entry with the address at either end.
pub(super) fn remove(address: Ipv4Addr) -> Result<(), Error> {
    remove_stale(&StaleEntries { addresses: BTreeSet::from([address]), ..StaleEntries::default() })
}

/// Deletes the entries.
pub(super) fn remove_stale(stale: &StaleEntries) -> Result<(), Error> {
    let requests = stale.addresses.len() + stale.withdrawn.len();
    if requests == 0 && stale.ports.is_empty() {
        return Ok(());
    }
    let own = if stale.ports.is_empty() { BTreeSet::new() } else { underlay::own_addresses()? };
    let work = || -> io::Result<()> {
        let mut wire = ConntrackSocket { socket: netlink::open(NETLINK_NETFILTER)?, sequence: 0 };
        let open = if requests > MAX_FILTERED || !stale.ports.is_empty() {
            wire.delete_one_by_one(stale, &own)?
        } else {
            match wire.delete_filtered(stale) {
                // Older kernels cannot delete by a filter; their error for it has changed over time.
                Err(error) if is_filter_unsupported(&error) => wire.delete_one_by_one(stale, &own)?,
                outcome => outcome?,
            }
        };
        provoke_acknowledgements(&open)
    };
    work().map_err(|source| Error::Conntrack { of: stale.describe(), source })
}

impl StaleEntries {
    /// Adds what a change of the cluster made stale.
    pub fn extend(&mut self, now: &ClusterNetwork, before: &ClusterNetwork) {
        self.addresses.extend(now.gone_since(before));
        self.withdrawn.extend(now.withdrawn_since(before));
        self.ports.extend(now.moved_since(before));
    }

    fn describe(&self) -> String {
        let withdrawn = self.withdrawn.iter().map(|(_, backend)| backend);
        let mut all: Vec<String> = self.addresses.iter().chain(withdrawn).map(ToString::to_string).collect();
        all.extend(self.ports.keys().map(|at| format!("port {at}")));
        all.join(", ")
    }

    /// Whether an entry is one of these, on a node with these addresses.
    fn contains(&self, entry: &[u8], own: &BTreeSet<Ipv4Addr>) -> bool {
        let tuples = [TUPLE_ORIG, TUPLE_REPLY].map(|kind| find(entry, kind).unwrap_or_default());
        let end = |tuple: usize, kind: u16| {
            let ip = find(tuples[tuple], TUPLE_IP).and_then(|ip| find(ip, kind));
            ip.and_then(|ip| <[u8; 4]>::try_from(ip).ok()).map(Ipv4Addr::from)
        };
        let ends = [end(0, V4_SOURCE), end(0, V4_DESTINATION), end(1, V4_SOURCE), end(1, V4_DESTINATION)];
        if ends.iter().flatten().any(|end| self.addresses.contains(end)) {
            return true;
        }
        let transport = find(tuples[0], TUPLE_PROTO).unwrap_or_default();
        let (Some(to), Some(answers), Some(&[UDP])) = (ends[1], ends[2], find(transport, PROTO_NUMBER))
        else {
            return false;
        };
        let port = find(transport, PROTO_DESTINATION_PORT).and_then(|port| <[u8; 2]>::try_from(port).ok());
        let port = port.and_then(|port| NonZeroU16::new(u16::from_be_bytes(port)));
        let leads_elsewhere = |port| {
            let on_all =
                Some(HostPort::new(None, port, TransportProtocol::Udp)).filter(|_| own.contains(&to));
            let at = [on_all, Some(HostPort::new(Some(to), port, TransportProtocol::Udp))];
            let backends = at.iter().flatten().find_map(|at| self.ports.get(at));
            backends.is_some_and(|backends| !backends.contains(&answers))
        };
        self.withdrawn.contains(&(to, answers)) || port.is_some_and(leads_elsewhere)
    }
}

fn is_filter_unsupported(error: &io::Error) -> bool {
    let refusals = [Errno::EOPNOTSUPP, Errno::EINVAL];
    error.raw_os_error().is_some_and(|code| refusals.contains(&Errno::from_raw(code)))
}

struct ConntrackSocket {
    socket: Socket,
    sequence: u32,
}

impl ConntrackSocket {
    /// Deletes entries by kernel filters: connections from and to each address, and flows that are answered
    /// by a withdrawn backend. Returns those that were open.
    fn delete_filtered(&mut self, stale: &StaleEntries) -> io::Result<Vec<OpenConnection>> {
        let source = |ip: &Ipv4Addr| nested(TUPLE_IP, &attribute(V4_SOURCE, &ip.octets()));
        let mut open = Vec::new();
        for address in &stale.addresses {
            let end = source(address);
            let answered = [&end[..], &nested(TUPLE_PROTO, &attribute(PROTO_NUMBER, &[TCP]))].concat();
            let filter = filter((&[], 0), (&answered, BY_SOURCE | BY_PROTOCOL));
            self.send(GET, REQUEST_DUMP, 1, &filter)?;
            open.extend(self.receive_all()?.iter().filter_map(|entry| OpenConnection::of(entry)));
            self.delete_by((&end, BY_SOURCE), (&[], 0))?;
            self.delete_by((&[], 0), (&end, BY_SOURCE))?;
        }
        for (address, backend) in &stale.withdrawn {
            let to = nested(TUPLE_IP, &attribute(V4_DESTINATION, &address.octets()));
            let mut answers = source(backend);
            answers.extend(nested(TUPLE_PROTO, &attribute(PROTO_NUMBER, &[UDP])));
            self.delete_by((&to, BY_DESTINATION), (&answers, BY_SOURCE | BY_PROTOCOL))?;
        }
        Ok(open)
    }

    /// Deletes entries that match the parts of both tuples that the flags name.
    fn delete_by(&mut self, original: (&[u8], u32), reply: (&[u8], u32)) -> io::Result<()> {
        // Version 1 makes the kernel respect the address family; with 0 the filter would be ignored.
        self.send(DELETE, REQUEST_ACK, 1, &filter(original, reply))?;
        self.receive_all().map(drop)
    }

    /// Reads all entries and deletes those that are stale on a node with these addresses. Returns those that were open
    /// connections.
    fn delete_one_by_one(
        &mut self,
        stale: &StaleEntries,
        own: &BTreeSet<Ipv4Addr>,
    ) -> io::Result<Vec<OpenConnection>> {
        self.send(GET, REQUEST_DUMP, 0, &[])?;
        let mut open = Vec::new();
        for entry in self.receive_all()? {
            if !stale.contains(&entry, own) {
                continue;
            }
            open.extend(OpenConnection::of(&entry));
            let mut body = Vec::new();
            // The id protects a new connection that reuses the same addresses and ports.
            for (kind, flag) in [(TUPLE_ORIG, NESTED), (ID, 0), (ZONE, 0)] {
                body.extend(
                    find(&entry, kind).map(|value| attribute(kind | flag, value)).unwrap_or_default(),
                );
            }
            self.send(DELETE, REQUEST_ACK, 0, &body)?;
            match self.receive_all() {
                Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {}
                outcome => drop(outcome?),
            }
        }
        Ok(open)
    }

    fn send(&mut self, kind: u16, flags: u16, version: u8, body: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let length = (HEADER + body.len()) as u32;
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0_u32.to_ne_bytes());
        message.extend([libc::AF_INET as u8, version, 0, 0]);
        message.extend(body);
        netlink::send(&self.socket, &message)
    }

    /// Reads up to the end of a dump or the answer to a request; returns the attributes of each entry.
    fn receive_all(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut entries = Vec::new();
        loop {
            let datagram = netlink::receive(&self.socket)?;
            let mut rest = datagram.as_slice();
            while rest.len() >= HEADER {
                let word =
                    |at: usize| u32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
                let (length, kind) = (word(0) as usize, u16::from_ne_bytes([rest[4], rest[5]]));
                if length < HEADER || length > rest.len() {
                    return Err(io::Error::from_raw_os_error(Errno::EBADMSG as i32));
                }
                let mine = word(8) == self.sequence;
                match kind {
                    NLMSG_DONE if mine => return Ok(entries),
                    NLMSG_ERROR if mine => match word(16) as i32 {
                        0 => return Ok(entries),
                        code => return Err(io::Error::from_raw_os_error(-code)),
                    },
                    _ if mine => entries.push(rest[HEADER..length].to_vec()),
                    _ => {}
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

/// Matches entries by the parts of both tuples that the flags name.
fn filter(original: (&[u8], u32), reply: (&[u8], u32)) -> Vec<u8> {
    let (mut body, mut flags) = (Vec::new(), Vec::new());
    for (kind, flag, (tuple, parts)) in
        [(TUPLE_ORIG, FILTER_ORIG_FLAGS, original), (TUPLE_REPLY, FILTER_REPLY_FLAGS, reply)]
    {
        flags.extend(attribute(flag, &parts.to_ne_bytes()));
        if !tuple.is_empty() {
            body.extend(nested(kind, tuple));
        }
    }
    body.extend(nested(FILTER, &flags));
    body
}

fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, value)
}

/// One attribute: length, kind, value, padded to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + value.len().next_multiple_of(4));
    bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The value of the first attribute of a kind.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    while attributes.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([attributes[0], attributes[1]]));
        let found = u16::from_ne_bytes([attributes[2], attributes[3]]) & 0x3fff;
        let value = attributes.get(4..length)?;
        if found == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

#[cfg(test)]
mod tests;
