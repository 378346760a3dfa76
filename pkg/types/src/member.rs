//! The managers of a cluster, as members of its raft group.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::text::{serde_as_text, shorten};
use crate::{ManagerId, NodeName, PublicKeyHash, Timestamp};

/// The longest host of an address, in bytes: a name in the DNS.
const MAX_HOST_LENGTH: usize = 253;

/// A member's id in the raft group: allocated by `apply` from a counter that only grows, never reused. 0 is
/// no member.
pub type MemberId = u64;

/// A manager, as the cluster stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its id in the raft group.
    pub member_id: MemberId,
    /// The id in its certificate.
    pub manager_id: ManagerId,
    /// Human-readable; unique among managers.
    pub name: NodeName,
    /// Where managers, workers and clients reach it.
    pub address: ManagerAddress,
    /// Suffrage set by the user. Whether it votes at the moment is up to raft: the number of voters stays
    /// odd.
    pub desired_suffrage: Suffrage,
    /// The member that it replaces, whose host returned without its data.
    pub replaces: Option<MemberId>,
    /// Being removed: it leaves the group, then its record is deleted.
    pub removing: bool,
    /// The highest feature level whose commands it understands.
    pub level: u32,
    /// Raft index of the last change.
    pub version: u64,
    /// When it joined.
    pub created_at: Timestamp,
    /// The key of the administrator of its machine, who is accepted as long as the manager is a member.
    pub administrator_key: Option<PublicKeyHash>,
}

/// The desired suffrage of a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suffrage {
    /// Votes, unless the number of voters would be even.
    Voter,
    /// Stores the state and serves clients, without a vote.
    Learner,
}

impl Suffrage {
    /// Human-readable: `voter`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Voter => "voter",
            Self::Learner => "learner",
        }
    }
}

/// Address of a manager: a host name or an IP address, and a port. Written `HOST:PORT`, IPv6 addresses in
/// brackets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManagerAddress {
    host: String,
    port: u16,
}

/// A text that is not the address of a manager.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not HOST:PORT, like 10.0.0.7:8080, [fd00::7]:8080 or n1.example.org:8080")]
pub struct ParseManagerAddressError {
    found: String,
}

impl ManagerAddress {
    /// The host, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; never 0.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for ManagerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { f.pad(&format!("[{host}]:{port}")) } else { f.pad(&format!("{host}:{port}")) }
    }
}

impl FromStr for ManagerAddress {
    type Err = ParseManagerAddressError;

    fn from_str(text: &str) -> Result<Self, ParseManagerAddressError> {
        let wrong = || ParseManagerAddressError { found: shorten(text) };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let digits = !port.starts_with('+');
        let port = port.parse().ok().filter(|port| digits && *port != 0).ok_or_else(wrong)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let known = match bracketed {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => is_host(host),
        };
        let host = bracketed.unwrap_or(host).to_owned();
        known.then_some(Self { host, port }).ok_or_else(wrong)
    }
}

serde_as_text!(ManagerAddress);

/// A name in the DNS, or an IPv4 address, which has the same form.
fn is_host(host: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(allowed) && !label.starts_with('-')
    };
    host.len() <= MAX_HOST_LENGTH && host.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_address_round_trip() {
        for text in ["10.0.0.7:8080", "[fd00::7]:8080", "n1.example.org:1", "n_1:65535"] {
            assert_eq!(text.parse::<ManagerAddress>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            ":80",
            "a",
            "a:0",
            "a:+1",
            "a:65536",
            "a b:80",
            "-a:80",
            "a..b:80",
            "fd00::7:80",
            "[a]:80",
            "[::1:80",
        ] {
            assert!(bad.parse::<ManagerAddress>().is_err(), "{bad}");
        }
    }
}
