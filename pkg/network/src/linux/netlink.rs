//! A blocking netlink socket that sends many changes at once and waits for all answers.
//!
//! It stays in the namespace in which it was opened, even when its thread moves. The asynchronous handle of
//! the `rtnetlink` crate would need a runtime inside each task's namespace; only its message builders are
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

/// Size of one kernel answer; dumps arrive in parts of at most 32 KiB.
const BUFFER: usize = 64 * 1024;

/// Limit of changes in one send. The answers to them are kept in the socket, which has room for some 250.
const MAX_TOGETHER: usize = 64;

/// One change, its description for errors, and the error codes that mean it is already done.
pub(super) struct NetlinkChange {
    pub description: String,
    pub message: RouteNetlinkMessage,
    pub flags: u16,
    pub ignored_errors: &'static [Errno],
}

impl NetlinkChange {
    /// Adds an object that must not exist yet.
    pub fn create(what: String, message: RouteNetlinkMessage) -> Self {
        Self { description: what, message, flags: NLM_F_CREATE | NLM_F_EXCL, ignored_errors: &[] }
    }

    /// Adds an object, or updates the existing one.
    pub fn replace(what: String, message: RouteNetlinkMessage) -> Self {
        Self { description: what, message, flags: NLM_F_CREATE | NLM_F_REPLACE, ignored_errors: &[] }
    }

    /// Changes an existing object.
    pub fn set(what: String, message: RouteNetlinkMessage) -> Self {
        Self { description: what, message, flags: 0, ignored_errors: &[] }
    }

    /// Removes an object if it exists.
    pub fn remove(what: String, message: RouteNetlinkMessage) -> Self {
        let harmless = &[Errno::ENODEV, Errno::ESRCH, Errno::ENOENT, Errno::EADDRNOTAVAIL];
        Self { description: what, message, flags: 0, ignored_errors: harmless }
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
        socket.set_netlink_get_strict_chk(true).map_err(|source| {
            failed("enable strict netlink dump filters (needs Linux 4.20 or newer)", source)
        })?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Submits all changes, in order. All are tried; the first failure is returned.
    pub fn submit(&mut self, changes: Vec<NetlinkChange>) -> Result<(), Error> {
        let (mut changes, mut outcome) = (changes.into_iter().peekable(), Ok(()));
        while changes.peek().is_some() {
            let tried = self.submit_together(changes.by_ref().take(MAX_TOGETHER));
            outcome = outcome.and(tried);
        }
        outcome
    }

    /// Submits changes in one send.
    fn submit_together(&mut self, changes: impl Iterator<Item = NetlinkChange>) -> Result<(), Error> {
        let mut buffer = Vec::new();
        let mut open = BTreeMap::new();
        for change in changes {
            let flags = NLM_F_REQUEST | NLM_F_ACK | change.flags;
            let sequence = self.append(&mut buffer, change.message, flags);
            open.insert(sequence, (change.description, change.ignored_errors));
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

    /// Fetches one object; `None` when there is no such link.
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

    /// Fetches all objects that match; the kernel filters by the fields set in `message`.
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
                // Link types unknown to the decoder are never created by this crate.
                Err(error) => tracing::debug!(%error, "skipped a netlink message"),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(messages)
    }
}

/// Why the kernel rejected a change.
pub(super) fn errno(error: &Error) -> Option<Errno> {
    match error {
        Error::Netlink { source, .. } => source.raw_os_error().map(Errno::from_raw),
        _ => None,
    }
}

/// Opens a netlink socket to the kernel with send and receive timeouts.
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
    retry_interrupted(|| socket.send(message, 0)).map(drop)
}

/// Receives one datagram.
pub(super) fn receive(socket: &Socket) -> io::Result<Vec<u8>> {
    let mut datagram = Vec::with_capacity(BUFFER);
    retry_interrupted(|| socket.recv(&mut datagram, 0))?;
    Ok(datagram)
}

/// A socket with a timeout is interrupted by any signal of the process, for instance the exit of a child,
/// even if the signal's handler restarts system calls (signal(7)).
fn retry_interrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
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
