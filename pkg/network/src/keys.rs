//! The keys of tasks and published ports.

use std::fmt;
use std::net::Ipv4Addr;
use std::num::NonZeroU16;

/// A task id that is not valid as a file name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{id:?} is not a valid task id: expected 1 to 128 of [A-Za-z0-9._-], the first not '.' or '-'")]
pub struct InvalidTaskKey {
    /// The rejected id.
    pub id: String,
}

/// A task id that is valid as a file name: 1 to 128 of `[A-Za-z0-9._-]`, not starting with `.` or `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskKey(String);

impl TaskKey {
    /// Parses a task id.
    ///
    /// # Errors
    /// When it is not valid as a file name.
    pub fn parse(id: &str) -> Result<Self, InvalidTaskKey> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if id.is_empty() || id.len() > 128 || id.starts_with(['.', '-']) || !id.chars().all(allowed) {
            return Err(InvalidTaskKey { id: id.to_owned() });
        }
        Ok(Self(id.to_owned()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The transport protocol of a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl TransportProtocol {
    /// All protocols, in the order of their rules.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The name that iptables and people use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// One letter, for the names of chains.
    pub(crate) fn letter(self) -> char {
        match self {
            Self::Tcp => 't',
            Self::Udp => 'u',
            Self::Sctp => 's',
        }
    }
}

impl fmt::Display for TransportProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A port of the host, on all its addresses or on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    ip: Option<Ipv4Addr>,
    port: NonZeroU16,
    protocol: TransportProtocol,
}

impl HostPort {
    /// The port on one address of the node, or on all of them for `None` and 0.0.0.0, which are equivalent.
    pub fn new(ip: Option<Ipv4Addr>, port: NonZeroU16, protocol: TransportProtocol) -> Self {
        Self { ip: ip.filter(|ip| !ip.is_unspecified()), port, protocol }
    }

    /// The bind address; `None` means every address of the node.
    pub fn ip(&self) -> Option<Ipv4Addr> {
        self.ip
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.get()
    }

    /// The protocol.
    pub fn protocol(&self) -> TransportProtocol {
        self.protocol
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) => write!(f, "{ip}:{}/{}", self.port, self.protocol),
            None => write!(f, "{}/{}", self.port, self.protocol),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_keys_are_file_names() {
        for good in ["web.1", "a", "0kx9-12", "A_b.c-d"] {
            assert_eq!(TaskKey::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".hidden", "-rf", "a/b", "a b", "a\0", "ä", &"x".repeat(129)] {
            assert!(TaskKey::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn host_port_display_is_canonical() {
        let port = NonZeroU16::new(80).unwrap();
        let at = |ip, protocol| HostPort::new(ip, port, protocol);
        assert_eq!(at(Some(Ipv4Addr::UNSPECIFIED), TransportProtocol::Tcp), at(None, TransportProtocol::Tcp));
        assert_ne!(at(None, TransportProtocol::Udp), at(None, TransportProtocol::Tcp));
        assert_eq!(at(None, TransportProtocol::Udp).to_string(), "80/udp");
        assert_eq!(at(Some(Ipv4Addr::LOCALHOST), TransportProtocol::Tcp).to_string(), "127.0.0.1:80/tcp");
    }
}
