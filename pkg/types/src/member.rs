//! The managers of a cluster, as members of its raft group.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::text::serde_as_text;
use crate::{ManagerId, NodeName, Timestamp};

/// Longest host of an address: that of a name in the DNS.
const LONGEST_HOST: usize = 253;

/// A member's id in the raft group: given out by `apply` from a counter that only grows, and never again. 0 is nobody.
pub type MemberId = u64;

/// A manager as the cluster knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its id in the raft group.
    pub member: MemberId,
    /// In its certificate.
    pub id: ManagerId,
    /// For people; unique among managers.
    pub name: NodeName,
    /// Where managers, workers and people reach it.
    pub address: ManagerAddress,
    /// What people want it to be. Whether it votes by now is raft's: the number of voters stays odd.
    pub wanted: Suffrage,
    /// It takes the place of this one, whose machine came back without its data.
    pub replaces: Option<MemberId>,
    /// Being removed: it leaves the group, then its record goes.
    pub removing: bool,
    /// Up to which level it understands commands.
    pub level: u32,
    /// Raft index of the last change.
    pub version: u64,
    /// When it joined.
    pub created_at: Timestamp,
}

/// What people want a manager to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suffrage {
    /// It votes, unless the number of voters would be even.
    Voter,
    /// It keeps the state and serves, without a vote.
    Learner,
}

impl Suffrage {
    /// As people see it: `voter`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Voter => "voter",
            Self::Learner => "learner",
        }
    }
}

/// Where a manager is reached: a host name or an address, and a port. Written `HOST:PORT`, IPv6 addresses in brackets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManagerAddress {
    host: String,
    port: u16,
}

/// A text that is not where a manager can be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not HOST:PORT, like 10.0.0.7:8080, [fd00::7]:8080 or n1.example.org:8080")]
pub struct ParseAddressError {
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
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let wrong = || ParseAddressError { found: text.chars().take(64).collect() };
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

/// A name in the DNS, or an IPv4 address, which looks like one.
fn is_host(host: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(allowed) && !label.starts_with('-')
    };
    host.len() <= LONGEST_HOST && host.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_what_can_be_dialled_and_come_back_as_they_were() {
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
