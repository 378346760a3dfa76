//! Deletes the connection tracking entries of an address, so that its next user finds none.
//!
//! Uses the kernel's ctnetlink directly (`linux/netfilter/nfnetlink_conntrack.h`); no tool needs to be
//! installed.

use std::io;
use std::net::Ipv4Addr;

use nix::errno::Errno;
use rtnetlink::sys::{Socket, protocols::NETLINK_NETFILTER};

use super::netlink;
use crate::Error;

const GET: u16 = (1 << 8) | 1; // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET
const DELETE: u16 = (1 << 8) | 2; // IPCTNL_MSG_CT_DELETE
const REQUEST_ACK: u16 = 0x5; // NLM_F_REQUEST | NLM_F_ACK
const REQUEST_DUMP: u16 = 0x301; // NLM_F_REQUEST | NLM_F_DUMP
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NESTED: u16 = 0x8000;
const TUPLE_ORIG: u16 = 1; // CTA_TUPLE_ORIG
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const TUPLE_IP: u16 = 1;
const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const FILTER_ORIG_FLAGS: u16 = 1;
const FILTER_REPLY_FLAGS: u16 = 2;
const BY_SOURCE: u32 = 1; // CTA_FILTER_FLAG(CTA_IP_SRC)
const HEADER: usize = 20; // struct nlmsghdr and struct nfgenmsg

/// Deletes every entry with the address at either end.
pub(super) fn remove(address: Ipv4Addr) -> Result<(), Error> {
    let work = || -> io::Result<()> {
        let mut wire = ConntrackSocket { socket: netlink::open(NETLINK_NETFILTER)?, sequence: 0 };
        match wire.delete_filtered(address) {
            // Older kernels cannot delete by a filter; their error for it has changed over time.
            Err(error) if is_filter_unsupported(&error) => wire.delete_one_by_one(address),
            outcome => outcome,
        }
    };
    work().map_err(|source| Error::Conntrack { address, source })
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
    /// Deletes entries by a kernel filter: connections from the address, and connections to it.
    fn delete_filtered(&mut self, address: Ipv4Addr) -> io::Result<()> {
        for (tuple, flags) in [(TUPLE_ORIG, FILTER_ORIG_FLAGS), (TUPLE_REPLY, FILTER_REPLY_FLAGS)] {
            let other = FILTER_ORIG_FLAGS + FILTER_REPLY_FLAGS - flags;
            let ip = attribute(TUPLE_IP | NESTED, &attribute(V4_SOURCE, &address.octets()));
            let mut both = attribute(flags, &BY_SOURCE.to_ne_bytes());
            both.extend(attribute(other, &0_u32.to_ne_bytes()));
            let mut body = attribute(tuple | NESTED, &ip);
            body.extend(attribute(FILTER | NESTED, &both));
            // Version 1 makes the kernel respect the address family; with 0 the filter would be ignored.
            self.send(DELETE, REQUEST_ACK, 1, &body)?;
            self.receive_all()?;
        }
        Ok(())
    }

    /// Reads all entries and deletes those with the address at either end.
    fn delete_one_by_one(&mut self, address: Ipv4Addr) -> io::Result<()> {
        self.send(GET, REQUEST_DUMP, 0, &[])?;
        for entry in self.receive_all()? {
            let ends =
                [TUPLE_ORIG, TUPLE_REPLY].iter().filter_map(|tuple| find(&entry, *tuple)).flat_map(|tuple| {
                    let ip = find(tuple, TUPLE_IP).unwrap_or_default();
                    [find(ip, V4_SOURCE), find(ip, V4_DESTINATION)]
                });
            if !ends.flatten().any(|end| end == address.octets()) {
                continue;
            }
            let mut body = Vec::new();
            // The id protects a new connection that reuses the same addresses and ports.
            for (kind, nested) in [(TUPLE_ORIG, NESTED), (ID, 0), (ZONE, 0)] {
                body.extend(
                    find(&entry, kind).map(|value| attribute(kind | nested, value)).unwrap_or_default(),
                );
            }
            self.send(DELETE, REQUEST_ACK, 0, &body)?;
            match self.receive_all() {
                Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {}
                outcome => drop(outcome?),
            }
        }
        Ok(())
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
        message.extend([nix::libc::AF_INET as u8, version, 0, 0]);
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
