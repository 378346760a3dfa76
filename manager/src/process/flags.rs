//! Flags of a manager.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use warren_daemon::{CommandError, ExitKind, as_text};
use warren_log::LogEngine;
use warren_types::{DataPlane, NodeName};

use super::{AdvertiseAddress, START_FAILED};

/// The manager's flags, as stored by `manager init`. `None`: not given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[group(skip)]
pub struct ManagerFlags {
    /// Listen address of the manager [default: 0.0.0.0:8080]
    #[arg(long, env = "WARREN_LISTEN", value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Address at which other machines reach this one [default: the address of the outgoing interface]
    #[arg(long, env = "WARREN_ADVERTISE", value_name = "HOST[:PORT]")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub advertise: Option<AdvertiseAddress>,
    /// Address range for tasks, fixed at cluster creation (repeatable) [default: 10.210.0.0/16]
    #[arg(long, env = "WARREN_CLUSTER_RANGE", value_name = "CIDR", value_delimiter = ',')]
    #[arg(value_parser = parse_range)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cluster_range: Vec<Ipv4Net>,
    /// What carries packets between nodes, at cluster creation: vxlan, wireguard, which encrypts, or routes, for
    /// nodes on one L2 network [default: vxlan]
    #[arg(long, env = "WARREN_DATA_PLANE", value_name = "KIND")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub data_plane: Option<DataPlane>,
    /// Storage engine of the raft log: redb or sled, fixed at manager creation [default: redb]
    #[arg(long, env = "WARREN_LOG_ENGINE", value_name = "ENGINE")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub log_engine: Option<LogEngine>,
    /// Serve Docker's API for root on a unix socket, or none [default: none, or docker.sock in --run-dir without a
    /// PATH]
    #[arg(long, env = "WARREN_DOCKER_SOCKET", value_name = "PATH", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "docker.sock")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub docker_socket: Option<DockerSocketPath>,
    /// Serve Docker's API at an address for clients with a certificate of the cluster, or none [default: none]
    #[arg(long, env = "WARREN_DOCKER_LISTEN", value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub docker_listen: Option<DockerListen>,
    /// Vote although the local data is older than what this manager acknowledged; writes may be lost
    #[arg(long)]
    #[serde(skip)]
    pub accept_data_loss: bool,
    /// Name of the manager; a flag of the node as a whole.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
    /// Registries that are asked over plain HTTP; a flag of the node as a whole.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub insecure_registry: Vec<String>,
}

impl ManagerFlags {
    /// Merges the given flags over the stored ones.
    ///
    /// # Errors
    /// A fixed setting differs from the stored one.
    pub(super) fn merge_over(self, old: ManagerFlags) -> Result<ManagerFlags, CommandError> {
        if !self.cluster_range.is_empty() && self.cluster_range != old.cluster_range {
            let list =
                |ranges: &[Ipv4Net]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let made = match old.cluster_range.as_slice() {
                [] => "the default range".to_owned(),
                ranges => list(ranges),
            };
            let given = list(&self.cluster_range);
            let why = format!("--cluster-range is {given}, but the cluster was created with {made}");
            return Err(CommandError::new(
                ExitKind::Conflict,
                START_FAILED,
                why,
                "leave --cluster-range out",
            ));
        }
        let made = old.data_plane.unwrap_or_default();
        if let Some(desired) = self.data_plane.filter(|desired| *desired != made) {
            let why = format!("--data-plane is {desired}, but the cluster was created with {made}");
            let hint = "leave --data-plane out; `warren cluster update --data-plane` changes it";
            return Err(CommandError::new(ExitKind::Conflict, START_FAILED, why, hint));
        }
        let made = old.log_engine.unwrap_or_default();
        if let Some(desired) = self.log_engine.filter(|expected| *expected != made) {
            let why = format!("--log-engine is {desired}, but the manager's log was created with {made}");
            return Err(CommandError::new(ExitKind::Conflict, START_FAILED, why, "leave --log-engine out"));
        }
        Ok(ManagerFlags {
            listen: self.listen.or(old.listen),
            advertise: self.advertise.or(old.advertise),
            cluster_range: old.cluster_range,
            data_plane: old.data_plane,
            log_engine: old.log_engine,
            docker_socket: self.docker_socket.or(old.docker_socket),
            docker_listen: self.docker_listen.or(old.docker_listen),
            accept_data_loss: self.accept_data_loss,
            name: self.name.or(old.name),
            insecure_registry: match self.insecure_registry.is_empty() {
                true => old.insecure_registry,
                false => self.insecure_registry,
            },
        })
    }

    /// The flags of a joining manager.
    ///
    /// # Errors
    /// A flag is a setting of the cluster.
    pub(super) fn check_join(self) -> Result<ManagerFlags, CommandError> {
        if self.data_plane.is_some() {
            let why = "the data plane is a setting of the cluster";
            let hint = "leave --data-plane out; `warren cluster update --data-plane` changes it";
            return Err(CommandError::new(ExitKind::Usage, START_FAILED, why, hint));
        }
        if self.cluster_range.is_empty() {
            return Ok(self);
        }
        let why = "the cluster's ranges are fixed at creation";
        Err(CommandError::new(ExitKind::Usage, START_FAILED, why, "leave --cluster-range out"))
    }
}

/// Where Docker's API is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DockerSocketPath {
    /// Nowhere.
    None,
    /// At this path; a relative one is in the directory of the node's sockets.
    At(PathBuf),
}

impl DockerSocketPath {
    /// The path of the socket; `None` if there is none.
    pub(super) fn path(&self, run_dir: &Path) -> Option<PathBuf> {
        match self {
            Self::None => None,
            Self::At(path) => Some(run_dir.join(path)),
        }
    }
}

impl FromStr for DockerSocketPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("give the path of a socket, or none".to_owned()),
            "none" => Ok(Self::None),
            path => Ok(Self::At(path.into())),
        }
    }
}

impl fmt::Display for DockerSocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::At(path) => path.display().fmt(f),
        }
    }
}

/// An address for Docker's API, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DockerListen(pub Option<SocketAddr>);

impl FromStr for DockerListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let address = text.parse().map_err(|_| "give an address like 0.0.0.0:2376, or none".to_owned())?;
        Ok(Self(Some(address)))
    }
}

impl fmt::Display for DockerListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(address) => address.fmt(f),
        }
    }
}

fn parse_range(text: &str) -> Result<Ipv4Net, String> {
    let net: Ipv4Net = text.parse().map_err(|_| "give an IPv4 range like 10.210.0.0/16".to_owned())?;
    match net == net.trunc() {
        true => Ok(net),
        false => Err(format!("has host bits set; the range is {}", net.trunc())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_with_host_bits_is_rejected() {
        assert!(parse_range("10.210.0.0/16").is_ok());
        let wrong = "has host bits set; the range is 10.210.0.0/16";
        assert_eq!(parse_range("10.210.0.1/16").unwrap_err(), wrong);
        assert!(parse_range("10.210.0.0").is_err() && parse_range("fd00::/8").is_err());
    }

    #[test]
    fn docker_socket_is_beside_the_others() {
        let path = |text: &str| text.parse::<DockerSocketPath>().unwrap().path(Path::new("/run/warren"));
        assert_eq!(path("docker.sock"), Some("/run/warren/docker.sock".into()));
        assert_eq!(path("/var/run/docker.sock"), Some("/var/run/docker.sock".into()));
        assert_eq!(path("none"), None);
        assert!("".parse::<DockerSocketPath>().is_err());
    }
}
