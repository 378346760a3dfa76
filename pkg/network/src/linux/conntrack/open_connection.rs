//! Makes clients of deleted entries send a packet, so that they learn that their connection has ended.
//!
//! The other end of a connection may be gone without having closed it: its last packets were lost, or its task was
//! removed before a slow client had received all. Then a client that only reads would wait for ever. A segment outside
//! of the window of its connection makes it repeat its last acknowledgement (RFC 9293, 3.10.7.4). Without an entry,
//! that one is led to another backend, or rejected, and the answer is a reset that the client accepts.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, setsockopt, socket,
    sockopt,
};

use super::{
    PROTO_DESTINATION_PORT, PROTO_NUMBER, TCP, TUPLE_IP, TUPLE_ORIG, TUPLE_PROTO, TUPLE_REPLY,
    V4_DESTINATION, V4_SOURCE, find,
};
use crate::names::PROBE_MARK;

const PROTOCOL_INFO: u16 = 4; // CTA_PROTOINFO
const PROTOCOL_INFO_TCP: u16 = 1;
const TCP_STATE: u16 = 1;
const ESTABLISHED: u8 = 3; // TCP_CONNTRACK_ESTABLISHED
const PROTO_SOURCE_PORT: u16 = 2;
const ACKNOWLEDGEMENT: u8 = 0x10;

/// A TCP connection of which neither end has closed its side, and whose destination is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenConnection {
    client: SocketAddrV4,
    /// Where the client connected to.
    server: SocketAddrV4,
}

impl OpenConnection {
    /// That of an entry. Only the node that translates an address can answer for it.
    pub fn of(entry: &[u8]) -> Option<Self> {
        let state = find(entry, PROTOCOL_INFO).and_then(|info| find(info, PROTOCOL_INFO_TCP));
        if state.and_then(|info| find(info, TCP_STATE)) != Some(&[ESTABLISHED]) {
            return None;
        }
        let original = find(entry, TUPLE_ORIG)?;
        let transport = find(original, TUPLE_PROTO)?;
        if find(transport, PROTO_NUMBER) != Some(&[TCP]) {
            return None;
        }
        let end = |address, port| {
            let port = <[u8; 2]>::try_from(find(transport, port)?).ok()?;
            Some(SocketAddrV4::new(ip(original, address)?, u16::from_be_bytes(port)))
        };
        let (client, server) =
            (end(V4_SOURCE, PROTO_SOURCE_PORT)?, end(V4_DESTINATION, PROTO_DESTINATION_PORT)?);
        let answers = ip(find(entry, TUPLE_REPLY)?, V4_SOURCE)?;
        (answers != *server.ip()).then_some(Self { client, server })
    }

    /// An IPv4 packet with an acknowledgement from the server that is outside of any window, or else says nothing. The
    /// kernel completes the IPv4 header.
    fn packet(self) -> [u8; 40] {
        let mut packet = [0; 40];
        (packet[0], packet[8], packet[9]) = (0x45, 64, TCP);
        packet[12..16].copy_from_slice(&self.server.ip().octets());
        packet[16..20].copy_from_slice(&self.client.ip().octets());
        packet[20..22].copy_from_slice(&self.server.port().to_be_bytes());
        packet[22..24].copy_from_slice(&self.client.port().to_be_bytes());
        // The length of the header in words.
        (packet[32], packet[33]) = (5 << 4, ACKNOWLEDGEMENT);
        // Over both addresses, protocol, length and segment.
        let words = packet[12..].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum::<u32>() + u32::from(TCP) + 20;
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        packet[36..38].copy_from_slice(&checksum.to_be_bytes());
        packet
    }
}

fn ip(tuple: &[u8], kind: u16) -> Option<Ipv4Addr> {
    let ip = find(find(tuple, TUPLE_IP)?, kind)?;
    <[u8; 4]>::try_from(ip).ok().map(Ipv4Addr::from)
}

/// Makes each client repeat its last acknowledgement. One that cannot be reached is left alone.
pub(super) fn provoke_acknowledgements(connections: &[OpenConnection]) -> io::Result<()> {
    if connections.is_empty() {
        return Ok(());
    }
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
    // Such a packet must have no entry: the answer would belong to it, and be led nowhere.
    setsockopt(&raw, sockopt::Mark, &PROBE_MARK)?;
    for connection in connections {
        let to = SockaddrIn::from(SocketAddrV4::new(*connection.client.ip(), 0));
        if let Err(error) = sendto(raw.as_raw_fd(), &connection.packet(), &to, MsgFlags::MSG_DONTWAIT) {
            tracing::debug!(%error, client = %connection.client, "a client is not told that its connection has ended");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{attribute, nested};
    use super::*;

    const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
    const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const TASK: Ipv4Addr = Ipv4Addr::new(10, 210, 1, 2);

    /// The entry of a connection from port 40000 of the client to port 8080, by protocol, state and who answers.
    fn entry(protocol: u8, state: u8, answers: Ipv4Addr) -> Vec<u8> {
        let tuple = |kind, source: Ipv4Addr, destination: Ipv4Addr| {
            let ip =
                [attribute(V4_SOURCE, &source.octets()), attribute(V4_DESTINATION, &destination.octets())];
            let transport = [
                attribute(PROTO_NUMBER, &[protocol]),
                attribute(PROTO_SOURCE_PORT, &40_000_u16.to_be_bytes()),
                attribute(PROTO_DESTINATION_PORT, &8080_u16.to_be_bytes()),
            ];
            let parts = [nested(TUPLE_IP, &ip.concat()), nested(TUPLE_PROTO, &transport.concat())];
            nested(kind, &parts.concat())
        };
        let info = nested(PROTOCOL_INFO, &nested(PROTOCOL_INFO_TCP, &attribute(TCP_STATE, &[state])));
        [tuple(TUPLE_ORIG, CLIENT, SERVER), tuple(TUPLE_REPLY, answers, CLIENT), info].concat()
    }

    #[test]
    fn only_translated_established_connections_are_open() {
        let (client, server) = (SocketAddrV4::new(CLIENT, 40_000), SocketAddrV4::new(SERVER, 8080));
        let open = OpenConnection { client, server };
        assert_eq!(OpenConnection::of(&entry(TCP, ESTABLISHED, TASK)), Some(open));
        let time_wait = 7;
        for closed in [
            entry(TCP, time_wait, TASK),
            entry(17, ESTABLISHED, TASK),
            entry(TCP, ESTABLISHED, SERVER),
            Vec::new(),
        ] {
            assert_eq!(OpenConnection::of(&closed), None);
        }
        let packet = open.packet();
        let words = packet[12..].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum::<u32>() + u32::from(TCP) + 20;
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum is right");
        assert_eq!(packet[12..24], [192, 0, 2, 1, 192, 0, 2, 9, 0x1f, 0x90, 0x9c, 0x40]);
    }
}
