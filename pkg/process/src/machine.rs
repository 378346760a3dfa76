//! What the machine says of itself.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use warren_types::NodeName;

use crate::{Exit, Failure};

const WHAT: &str = "the node was not started";

/// What is asked of the machine before anything is started.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name for itself.
    pub host_name: String,
    /// Where it would reach other machines from; `None` without a route.
    pub address: Option<IpAddr>,
    /// Whether this process may do what workers do.
    pub root: bool,
}

impl Machine {
    /// Asks the system. Nothing is sent to find the route.
    ///
    /// # Errors
    /// The machine has no name.
    pub fn look() -> Result<Self, Failure> {
        let host_name = nix::unistd::gethostname().map_err(|error| {
            Failure::new(Exit::Failed, WHAT, error, "give the node a name with --node-name")
        })?;
        // 192.0.2.0/24 is documentation's own (RFC 5737): it is routed like any other and belongs to nobody.
        let route = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
            socket.local_addr()
        });
        let host_name = host_name.to_string_lossy().into_owned();
        let root = nix::unistd::geteuid().is_root();
        Ok(Self { host_name, address: route.ok().map(|address| address.ip()), root })
    }

    /// The node's name: `wanted`, or the machine's own.
    ///
    /// # Errors
    /// The machine's name is none for a node.
    pub fn node_name(&self, wanted: Option<&NodeName>) -> Result<NodeName, Failure> {
        match wanted {
            Some(name) => Ok(name.clone()),
            None => self.host_name.parse().map_err(|why| {
                let why = format!("the host name is no name for a node: {why}");
                Failure::new(Exit::Usage, WHAT, why, "give it one with --node-name")
            }),
        }
    }

    /// Containers need root.
    ///
    /// # Errors
    /// This process is somebody else's.
    pub fn must_be_root(&self, hint: &str) -> Result<(), Failure> {
        match self.root {
            true => Ok(()),
            false => Err(Failure::new(Exit::Denied, WHAT, "running containers needs root", hint)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_called_as_it_is_told_or_as_its_machine() {
        let machine = |name: &str| Machine { host_name: name.into(), address: None, root: false };
        let name = "n1".parse().unwrap();
        assert_eq!(machine("_").node_name(Some(&name)).unwrap(), name);
        assert_eq!(machine("m1").node_name(None).unwrap().as_str(), "m1");
        assert_eq!(machine("_").node_name(None).unwrap_err().exit, Exit::Usage);
        assert_eq!(machine("m1").must_be_root("x").unwrap_err().exit, Exit::Denied);
    }

    #[test]
    fn this_machine_has_a_name() {
        assert!(!Machine::look().unwrap().host_name.is_empty());
    }
}
