//! Properties of the machine.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use warren_types::NodeName;

use crate::{CommandError, ExitKind};

const NOT_STARTED: &str = "cannot start the node";

/// Properties of the machine that are read before anything starts.
#[derive(Debug, Clone)]
pub struct HostInfo {
    /// Host name.
    pub host_name: String,
    /// Source address for connections to other machines; `None` without a route.
    pub address: Option<IpAddr>,
    /// Whether this process runs as root.
    pub is_root: bool,
}

impl HostInfo {
    /// Reads the properties. Sends nothing to find the route.
    ///
    /// # Errors
    /// The machine has no host name.
    pub fn detect() -> Result<Self, CommandError> {
        let host_name = nix::unistd::gethostname().map_err(|error| {
            CommandError::new(ExitKind::Failed, NOT_STARTED, error, "set a name with --node-name")
        })?;
        // 192.0.2.0/24 is reserved for documentation (RFC 5737): it is routed like any other and in use
        // nowhere.
        let route = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
            socket.local_addr()
        });
        let host_name = host_name.to_string_lossy().into_owned();
        let root = nix::unistd::geteuid().is_root();
        Ok(Self { host_name, address: route.ok().map(|address| address.ip()), is_root: root })
    }

    /// The node name: `requested`, else the host name.
    ///
    /// # Errors
    /// The host name is not a valid node name.
    pub fn node_name(&self, requested: Option<&NodeName>) -> Result<NodeName, CommandError> {
        match requested {
            Some(name) => Ok(name.clone()),
            None => self.host_name.parse().map_err(|why| {
                let why = format!("the host name is not a valid node name: {why}");
                CommandError::new(ExitKind::Usage, NOT_STARTED, why, "set one with --node-name")
            }),
        }
    }

    /// Checks for root, which containers need.
    ///
    /// # Errors
    /// The process does not run as root.
    pub fn ensure_root(&self, hint: &str) -> Result<(), CommandError> {
        match self.is_root {
            true => Ok(()),
            false => {
                Err(CommandError::new(ExitKind::Denied, NOT_STARTED, "running containers needs root", hint))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_name_defaults_to_host_name() {
        let machine = |name: &str| HostInfo { host_name: name.into(), address: None, is_root: false };
        let name = "n1".parse().unwrap();
        assert_eq!(machine("_").node_name(Some(&name)).unwrap(), name);
        assert_eq!(machine("m1").node_name(None).unwrap().as_str(), "m1");
        assert_eq!(machine("_").node_name(None).unwrap_err().kind, ExitKind::Usage);
        assert_eq!(machine("m1").ensure_root("x").unwrap_err().kind, ExitKind::Denied);
    }

    #[test]
    fn host_has_name() {
        assert!(!HostInfo::detect().unwrap().host_name.is_empty());
    }
}
