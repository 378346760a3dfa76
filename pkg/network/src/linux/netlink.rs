//! A blocking netlink socket that sends many changes in one message and waits for all their answers.
//!
//! It stays in the namespace in which it was opened, wherever its thread goes later. The asynchronous handle
//! of the `rtnetlink` crate would need a runtime inside each task's namespace; only its message builders are
//! used.

use std::collections::BTreeMap;
use std::io;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::process::DEADLINE;
use crate::Error;

/// Room for one answer of the kernel; dumps come in pieces of at most 32 KiB.
const BUFFER: usize = 64 * 1024;

/// One change, what it is for in words, and the refusals that mean it is so already.
pub(super) struct Change {
    pub what: String,
    pub message: RouteNetlinkMessage,
    pub flags: u16,
    pub harmless: &'static [Errno],
}

impl Change {
    /// Adds an object that must not be there yet.
    pub fn create(what: String, message: RouteNetlinkMessage) -> Self {
        Self { what, message, flags: NLM_F_CREATE | NLM_F_EXCL, harmless: &[] }
    }

    /// Adds an object, or makes the one that is there like it.
    pub fn replace(what: String, message: RouteNetlinkMessage) -> Self {
        Self { what, message, flags: NLM_F_CREATE | NLM_F_REPLACE, harmless: &[] }
    }

    /// Changes an object that is there.
    pub fn set(what: String, message: RouteNetlinkMessage) -> Self {
        Self { what, message, flags: 0, harmless: &[] }
    }

    /// Removes an object if it is there.
    pub fn remove(what: String, message: RouteNetlinkMessage) -> Self {
        let harmless = &[Errno::ENODEV, Errno::ESRCH, Errno::ENOENT, Errno::EADDRNOTAVAIL];
        Self { what, message, flags: 0, harmless }
    }
}

/// A socket for links, addresses, routes and neighbours of one namespace.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        let socket = open(NETLINK_ROUTE).map_err(|source| failed("open a netlink socket", source))?;
        // Without it the kernel ignores the filters of a dump and sends everything.
        socket
            .set_netlink_get_strict_chk(true)
            .map_err(|source| failed("have netlink dumps filtered (needs Linux 4.20 or newer)", source))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Makes all changes, in order, in one send. All are tried; the first that failed is reported.
    pub fn make(&mut self, changes: Vec<Change>) -> Result<(), Error> {
        let mut buffer = Vec::new();
        let mut open = BTreeMap::new();
        for change in changes {
            let flags = NLM_F_REQUEST | NLM_F_ACK | change.flags;
            let sequence = self.append(&mut buffer, change.message, flags);
            open.insert(sequence, (change.what, change.harmless));
        }
        if open.is_empty() {
            return Ok(());
        }
        self.send(&buffer)?;
        let mut first_failure = Ok(());
        while !open.is_empty() {
            for message in self.receive()? {
                let Some((what, harmless)) = open.remove(&message.header.sequence_number) else {
                    continue;
                };
                let NetlinkPayload::Error(answer) = message.payload else { continue };
                let refusal = Errno::from_raw(answer.raw_code().saturating_neg());
                if answer.code.is_some() && !harmless.contains(&refusal) && first_failure.is_ok() {
                    first_failure = Err(failed(&what, answer.to_io()));
                }
            }
        }
        first_failure
    }

    /// Asks for one object; `None` when there is no such link.
    pub fn fetch(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
    ) -> Result<Option<RouteNetlinkMessage>, Error> {
        let mut buffer = Vec::new();
        let sequence = self.append(&mut buffer, message, NLM_F_REQUEST);
        self.send(&buffer)?;
        loop {
            for message in self.receive()? {
                match message.payload {
                    _ if message.header.sequence_number != sequence => {}
                    NetlinkPayload::InnerMessage(found) => return Ok(Some(found)),
                    NetlinkPayload::Error(answer) if answer.raw_code() == -(Errno::ENODEV as i32) => {
                        return Ok(None);
                    }
                    NetlinkPayload::Error(answer) => return Err(failed(what, answer.to_io())),
                    _ => {}
                }
            }
        }
    }

    /// Asks for all objects that match; the kernel filters by the fields set in `message`.
    pub fn fetch_all(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        let mut buffer = Vec::new();
        let sequence = self.append(&mut buffer, message, NLM_F_REQUEST | NLM_F_DUMP);
        self.send(&buffer)?;
        let mut found = Vec::new();
        loop {
            for message in self.receive()? {
                match message.payload {
                    _ if message.header.sequence_number != sequence => {}
                    NetlinkPayload::InnerMessage(object) => found.push(object),
                    NetlinkPayload::Done(_) => return Ok(found),
                    NetlinkPayload::Error(answer) if answer.code.is_some() => {
                        return Err(failed(what, answer.to_io()));
                    }
                    _ => {}
                }
            }
        }
    }

    fn append(&mut self, buffer: &mut Vec<u8>, message: RouteNetlinkMessage, flags: u16) -> u32 {
        self.sequence += 1;
        let mut message = NetlinkMessage::from(message);
        message.header.flags = flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let start = buffer.len();
        buffer.resize(start + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut buffer[start..]);
        self.sequence
    }

    fn send(&self, buffer: &[u8]) -> Result<(), Error> {
        send(&self.socket, buffer).map_err(|source| failed("send a netlink message", source))
    }

    fn receive(&self) -> Result<Vec<NetlinkMessage<RouteNetlinkMessage>>, Error> {
        let datagram = receive(&self.socket).map_err(|source| failed("receive a netlink answer", source))?;
        let mut messages = Vec::new();
        let mut rest = datagram.as_slice();
        while let Ok(head) = NetlinkBuffer::new_checked(rest) {
            let length = head.length() as usize;
            match NetlinkMessage::deserialize(&rest[..length]) {
                Ok(message) => messages.push(message),
                // A link type newer than the decoder is not one of ours.
                Err(error) => tracing::debug!(%error, "skipped a netlink message"),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(messages)
    }
}

/// Opens a netlink socket to the kernel on which nothing waits longer than the deadline.
pub(super) fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let limit = TimeVal::new(DEADLINE.as_secs() as i64, 0);
    setsockopt(&socket, sockopt::ReceiveTimeout, &limit)?;
    setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    Ok(socket)
}

/// Sends a whole message.
pub(super) fn send(socket: &Socket, message: &[u8]) -> io::Result<()> {
    uninterrupted(|| socket.send(message, 0)).map(drop)
}

/// Receives one datagram.
pub(super) fn receive(socket: &Socket) -> io::Result<Vec<u8>> {
    let mut datagram = Vec::with_capacity(BUFFER);
    uninterrupted(|| socket.recv(&mut datagram, 0))?;
    Ok(datagram)
}

/// A socket with a time limit is interrupted by any signal of the process, for instance that a child ended,
/// even if the signal's handler asks for restarts (signal(7)).
fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

fn failed(operation: &str, source: io::Error) -> Error {
    Error::Netlink { operation: operation.to_owned(), source }
}
