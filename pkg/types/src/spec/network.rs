//! How a task is connected: the networks that it is in, and its DNS.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::check::{check_count, is_default, is_host_name};
use crate::network::MAX_ALIASES;
use crate::{DnsLabel, NetworkName, Violations};

/// The most networks of a service.
pub const MAX_NETWORKS: usize = 16;
/// The name of the network that exists from the start, and that a service is in unless it names another one.
pub const DEFAULT_NETWORK: &str = "default";

/// How a task is connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TaskNetworkMode {
    /// It has an address of its own and is in these networks; the first one wins when names are equal.
    Networks(Vec<NetworkAttachment>),
    /// It uses the network of its node: its ports are those of the node, and it has no name.
    Host,
    /// It has only a loopback device.
    None,
}

impl Default for TaskNetworkMode {
    fn default() -> Self {
        let network = DEFAULT_NETWORK.parse().expect("it is a name of a network");
        Self::Networks(vec![NetworkAttachment { network, aliases: BTreeSet::new() }])
    }
}

impl TaskNetworkMode {
    /// The networks; empty for a task without an address of its own.
    pub fn attachments(&self) -> &[NetworkAttachment] {
        match self {
            Self::Networks(attachments) => attachments,
            Self::Host | Self::None => &[],
        }
    }

    /// It has an address of its own.
    pub fn has_address(&self) -> bool {
        matches!(self, Self::Networks(_))
    }

    /// All violations; paths are relative to the mode.
    pub(super) fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        let Self::Networks(attachments) = self else { return wrong };
        if attachments.is_empty() {
            wrong.add("networks", "is empty; give a network, host or none");
        }
        if attachments.len() > MAX_NETWORKS {
            let message = format!("{} networks are more than {MAX_NETWORKS}", attachments.len());
            wrong.add("networks", message);
        }
        let mut seen = BTreeSet::new();
        for (i, NetworkAttachment { network, aliases }) in attachments.iter().enumerate() {
            if !seen.insert(network) {
                wrong.add(format!("networks[{i}].network"), format!("{network} is given twice"));
            }
            if matches!(network.as_str(), "host" | "none") {
                let message = format!("{network} cannot be combined with other networks");
                wrong.add(format!("networks[{i}].network"), message);
            }
            if aliases.len() > MAX_ALIASES {
                let message = format!("{} are more than {MAX_ALIASES}", aliases.len());
                wrong.add(format!("networks[{i}].aliases"), message);
            }
        }
        wrong
    }
}

/// One network of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkAttachment {
    /// The network.
    pub network: NetworkName,
    /// Further names of the service on this network.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub aliases: BTreeSet<DnsLabel>,
}

/// How names outside the cluster are resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DnsSettings {
    /// Servers that are asked instead of those of the node, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<Ipv4Addr>,
    /// Domains in which names are searched, after that of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<String>,
}

/// The most servers, and the most search domains, of a task.
const MAX_DNS_ITEMS: usize = 6;

impl DnsSettings {
    /// Nothing differs from the node's settings.
    pub(super) fn is_default(&self) -> bool {
        is_default(self)
    }

    /// All violations; paths are relative to the settings.
    pub(super) fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        check_count("servers", self.servers.len(), MAX_DNS_ITEMS, &mut wrong);
        check_count("searches", self.searches.len(), MAX_DNS_ITEMS, &mut wrong);
        for (i, server) in self.servers.iter().enumerate() {
            if server.is_unspecified()
                || server.is_broadcast()
                || server.is_multicast()
                || server.is_loopback()
            {
                let message = format!("{server} is no address of a server that a container reaches");
                wrong.add(format!("servers[{i}]"), message);
            }
        }
        for (i, domain) in self.searches.iter().enumerate() {
            if !is_host_name(domain, 253) {
                wrong.add(format!("searches[{i}]"), format!("{domain:?} is not a domain"));
            }
        }
        wrong
    }
}
